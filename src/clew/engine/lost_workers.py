"""What workers hold, when they are lost, and when they come back.

Owns: releasing what a worker held that is gone, taking up what a worker brings along from another node, and what was
out at workers when the store was last let go of. Never: notices by itself that a worker is gone (`Matcher`, and in a
fleet `LostSessions`).

How it works: a workflow task goes back to its queue, an attempt at an activity counts as lost. Workers behind a link
may outlive their node, so their attempts stay their own for a while; see `recovery`. Where the store fails meanwhile,
it is tried until it is done, since nobody else would notice.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Final

from clew.core.decisions import decide_adopt_attempt
from clew.engine.funnel import Funnel, Operation
from clew.engine.matching import Session, is_remote
from clew.engine.queries import QueryDesk
from clew.engine.recovery import CAME_BACK_SECONDS, ORPHAN_SECONDS, Lost, recover, release_lost
from clew.engine.runs import RunCache, RunEntry
from clew.engine.ways_in import WaysIn
from clew.model import inputs as i
from clew.model.limits import Limits
from clew.ports.clock import Clock
from clew.ports.store import Store, StoreError
from clew.service.errors import RPCError

logger = logging.getLogger("clew.engine")

RELEASE_AGAIN_SECONDS: Final = 0.25
"""How long after a failed try what a lost worker held is released again."""


class LostWorkers:
    """Belongs to the engine's loop.

    Args:
        store: The engine's.
        clock: Time.
        cache: Knows who holds what.
        funnel: Takes decisions.
        ways: Finds the run of a token.
        queries: Told when a worker is gone.
        limits_of: Of a namespace.
        is_open: Whether the engine runs.
        on_came_back: In a fleet: told the namespace and former sessions of a worker that has named what it still has.
    """

    def __init__(
        self,
        *,
        store: Store,
        clock: Clock,
        cache: RunCache,
        funnel: Funnel,
        ways: WaysIn,
        queries: QueryDesk,
        limits_of: Callable[[str], Limits],
        is_open: Callable[[], bool],
        on_came_back: Callable[[str, tuple[str, ...]], None] | None,
    ) -> None:
        self._store = store
        self._clock = clock
        self._cache = cache
        self._funnel = funnel
        self._ways = ways
        self._queries = queries
        self._limits_of = limits_of
        self._is_open = is_open
        self._on_came_back = on_came_back
        self._orphaned: set[str] = set()
        """Sessions of workers behind links that an engine before this one had; their workers may come back."""

    async def recover(self) -> None:
        """Take up what the engine that had the store before had given to workers."""

        def keeps_attempt(session_id: str) -> bool:
            if is_remote(session_id):
                self._orphaned.add(session_id)
                return True
            return False

        lost = Lost(lambda session_id: True, keeps_attempt)
        await recover(self._store, self._cache, self._funnel, limits_of=self._limits_of, lost=lost)
        if self._orphaned:
            until = self._clock.now() + timedelta(seconds=ORPHAN_SECONDS)
            self._clock.call_at(until, lambda: self._give_up_orphans(self._orphaned))

    async def take_over(self, session: Session) -> None:
        """What this worker has from another node goes on with this one; what it should have and has not, is lost."""
        hello = session.hello
        await asyncio.gather(*(self._adopt_attempt(token, session) for token in hello.held_attempts))
        if hello.former_sessions:
            at = self._clock.now() + timedelta(seconds=CAME_BACK_SECONDS)
            self._clock.call_at(at, partial(self._give_up_former, session))

    def _give_up_former(self, session: Session) -> None:
        if not (self._is_open() and session.is_attached):
            return
        namespace, former = session.hello.namespace, session.hello.former_sessions
        if self._on_came_back is not None:
            session.former_sessions = former
            self._on_came_back(namespace, former)
        else:
            self._give_up_orphans(self._orphaned.intersection(former), namespace)

    async def _adopt_attempt(self, token: i.TaskToken, session: Session) -> None:
        """An attempt that this worker has from another node goes on with this one, or is told to stop."""
        if token.namespace != session.hello.namespace:
            session.sink.cancel_activity(token, i.ActivityCancelReason.NOT_FOUND)
            return
        while session.is_attached and self._is_open():
            try:
                is_cancel_requested = await self._ways.by_target(
                    token,
                    lambda s, now: decide_adopt_attempt(s, token, session.session_id, now),
                    reply=lambda _, transition: transition.reply.cancel_requested,
                )
            except RPCError as error:
                if error.is_retryable:
                    await asyncio.sleep(RELEASE_AGAIN_SECONDS)
                    continue
                session.sink.cancel_activity(token, i.ActivityCancelReason.NOT_FOUND)
            else:
                if is_cancel_requested:
                    session.sink.cancel_activity(token, i.ActivityCancelReason.CANCEL_REQUESTED)
            return

    def _give_up_orphans(self, sessions: set[str], namespace: str | None = None) -> None:
        """What workers of a former engine have not come back with is given to others; of one namespace, or of all."""
        if self._is_open():
            for session_id in sessions:
                for entry in self._cache.holders(session_id):
                    if namespace in (None, entry.state.namespace):
                        self.release(entry, Lost(session_id.__eq__))

    def lost(self, session: Session, *, keeps_attempt: Callable[[str], bool] | None = None) -> None:
        """A worker is gone, or cannot be reached: take up what it held."""
        self._queries.on_detached(session)
        lost = Lost(session.session_id.__eq__, keeps_attempt)
        for entry in self._cache.holders(session.session_id):
            self.release(entry, lost)

    def release(self, entry: RunEntry, lost: Lost) -> None:
        limits = self._limits_of(entry.state.namespace)
        answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        answer.add_done_callback(partial(self._released, entry, lost))
        self._funnel.apply(entry, Operation(partial(release_lost, lost, limits), answer))

    def _released(self, entry: RunEntry, lost: Lost, answer: asyncio.Future[None]) -> None:
        error = answer.exception()
        if isinstance(error, RPCError) and error.is_retryable and self._is_open():
            self._funnel.spawn(self._release_later(entry, lost))

    async def _release_later(self, entry: RunEntry, lost: Lost) -> None:
        """The store failed: nobody else will notice that this run waits for a worker that is gone."""
        again: RunEntry | None = None
        while again is None and self._is_open():
            await asyncio.sleep(RELEASE_AGAIN_SECONDS)
            try:
                again = await self._cache.load(entry.shard, entry.run_key)
            except StoreError as error:
                logger.warning("engine.release_delayed run_id=%s error=%s", entry.state.run_id, error)
            else:
                break
        if again is not None and self._is_open():
            self.release(again, lost)
