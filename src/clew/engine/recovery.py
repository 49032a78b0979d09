"""Recovery: taking up what was out at workers whose node, or whose session, is gone.

Owns: the look at busy runs at start-up, and in a fleet when a node is gone or a shard was taken over. Never: looks at
parked or closed runs (they are found by their deadlines, or not at all).

How it works: a worker session lives no longer than the engine process it is attached to. When an engine takes over a
store that is its own, every session that a busy run names is lost: its workflow task goes back to the queue, its
activity attempts count as lost. In a fleet only those sessions are lost whose node has no row any more. A row is there
before its node attaches the first worker, and an id is never used again; so rows are read after the runs, and a node
without one then is gone for good. Tasks that waited for a worker lie in queued rows, written with the transition that
made them, and need nothing.

Workers behind a link outlive the node that they are attached to. They come to another one, or to the same one when it
is back, and say which attempts at activities they still have; these go on. So for `ORPHAN_SECONDS` such attempts are
not given to others, though the session that they were started in is gone. A worker also names the sessions that it
had: once it has said what it still has of theirs, the rest of it is lost, and nothing waits any longer.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, Final

from clew.core.decisions import decide_sessions_lost
from clew.core.state import ExecutionState
from clew.core.transition import Transition
from clew.engine.background import Background
from clew.engine.fleet import Fleet, node_of
from clew.engine.funnel import Funnel, Operation
from clew.engine.locate import load_again
from clew.engine.matching import is_remote
from clew.engine.runs import RunCache, RunEntry, sessions_named
from clew.model.limits import Limits
from clew.model.rejection import RejectionCode
from clew.ports.store import RunRow, Store, StoreCorrupt, StoreError
from clew.service.errors import RPCError

logger = logging.getLogger("clew.engine")

PAGE_ROWS: Final = 500

ORPHAN_SECONDS: Final = 30.0
"""How long workers that outlive their node may take to come to another one, before what they run is given to others."""

CAME_BACK_SECONDS: Final = 0.5
"""After a worker has come back, before what it did not name is given to others: its reports that were under way when
its node died come first."""

CAME_BACK_MAX: Final = 10_000
"""Sessions of workers that came back, remembered at most; what belongs to one that is forgotten waits for
`ORPHAN_SECONDS`."""

LATE_COMMIT_SECONDS: Final = 15.0
"""For so long a statement of a process that was killed may go on in the database: somewhat more than one may take."""

LOOK_AGAIN_SECONDS: Final = 1.0
"""After a look that the store cut short."""


@dataclass(frozen=True)
class Lost:
    """Which sessions are lost, and how far.

    Args:
        is_lost: Asked with the id of a session.
        keeps_attempt: Asked with the id of a lost one: its worker may live on, so attempts at activities stay its own.
    """

    is_lost: Callable[[str], bool]
    keeps_attempt: Callable[[str], bool] | None = None


async def recover(
    store: Store,
    cache: RunCache,
    funnel: Funnel,
    *,
    limits_of: Callable[[str], Limits],
    lost: Lost | None = None,
) -> int:
    """Release what lost sessions hold, and answer how many runs that concerned.

    Raises:
        StoreError: The store cannot be read or written.
    """
    lost = lost or Lost(lambda session: True)
    recovered = 0
    after = 0
    while True:
        with cache.reading() as left:
            rows = await store.find_busy_runs(None, after, PAGE_ROWS)
            entries = [entry for row in rows if (entry := _adopt(cache, row, left)) is not None]
        if not rows:
            return recovered
        after = rows[-1].run_key
        answers: list[asyncio.Future[Any]] = []
        for entry in entries:
            answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            answers.append(answer)
            limits = limits_of(entry.state.namespace)
            funnel.apply(entry, Operation(partial(release_lost, lost, limits), answer))
        await asyncio.gather(*answers)
        recovered += len(rows)


def _adopt(cache: RunCache, row: RunRow, left: set[int]) -> RunEntry | None:
    """The run's entry; None when it cannot be read, or is being worked on by this very engine."""
    try:
        return cache.adopt(row, left)
    except StoreCorrupt as error:
        logger.error("recovery.run_unreadable run_id=%s error=%s", row.run_id, error)
        return None


def release_lost(lost: Lost, limits: Limits, state: ExecutionState, now: datetime) -> Transition | None:
    return decide_sessions_lost(state, lost.is_lost, now, limits=limits, keeps_attempt=lost.keeps_attempt)


class LostSessions:
    """Finds the runs of this node's shards that count on sessions which are gone. Belongs to the engine's loop."""

    def __init__(
        self,
        store: Store,
        cache: RunCache,
        funnel: Funnel,
        fleet: Fleet,
        *,
        limits_of: Callable[[str], Limits],
        is_attached: Callable[[str], bool],
    ) -> None:
        self._store = store
        self._cache = cache
        self._funnel = funnel
        self._fleet = fleet
        self._limits_of = limits_of
        self._is_attached = is_attached
        self._gone: set[str] = set()
        """Nodes that are known to have no row; their ids never come back."""
        self._fresh: set[str] = set()
        """Those that are gone since a short while only: workers that outlived them may still come to another node."""
        self._came_back: dict[tuple[str, str], None] = {}
        """Namespaces and sessions whose workers have told what they still have of them."""
        self._is_running = False
        self._is_wanted = False
        self._is_closed = False
        self._background = Background("recovery")

    def look_soon(self) -> None:
        """A node is gone, or a shard was taken over."""
        self._is_wanted = True
        if not self._is_running:
            self._is_running = True
            self._background.spawn(self._look_until_done())

    def look_twice(self) -> None:
        """A node is gone, and what it had sent off may become durable yet."""
        self.look_soon()
        asyncio.get_running_loop().call_later(LATE_COMMIT_SECONDS, self._look_late)

    def _look_late(self) -> None:
        if not self._is_closed:
            self.look_soon()

    def came_back(self, namespace: str, session_ids: Iterable[str]) -> None:
        """Their workers are attached elsewhere, and have what they still had of them."""
        new = [key for session_id in session_ids if (key := (namespace, session_id)) not in self._came_back]
        if new:
            self._came_back.update(dict.fromkeys(new))
            while len(self._came_back) > CAME_BACK_MAX:
                del self._came_back[next(iter(self._came_back))]
            self.look_soon()

    async def close(self) -> None:
        """Look no more."""
        self._is_closed = True
        await self._background.cancel()

    async def look(self) -> int:
        """Release what is held by sessions that are gone; answers how many runs that concerned.

        Raises:
            StoreError: The store cannot be read.
        """
        released = 0
        after = 0
        # Asked for each page: others may have got shards of this node while the store took its time with the last.
        while shards := self._fleet.own_shards():
            with self._cache.reading() as left:
                rows = await self._store.find_busy_runs(shards, after, PAGE_ROWS)
                entries = [entry for row in rows if (entry := _adopt(self._cache, row, left)) is not None]
            if not rows:
                break
            after = rows[-1].run_key
            await self._learn(entries)
            concerned = [entry for entry in entries if any(map(self._is_lost, sessions_named(entry.state)))]
            await self._release(concerned)
            released += len(concerned)
        if released:
            logger.info("recovery.released runs=%d", released)
        return released

    async def _look_until_done(self) -> None:
        try:
            while self._is_wanted:
                self._is_wanted = False
                try:
                    await self.look()
                except StoreError as error:
                    logger.warning("recovery.look_failed error=%s", error)
                    self._is_wanted = True
                    await asyncio.sleep(LOOK_AGAIN_SECONDS)
        finally:
            self._is_running = False

    async def _learn(self, entries: Iterable[RunEntry]) -> None:
        """Find out which of the nodes that these runs name are gone."""
        nodes = self._fleet.nodes
        named = {node_of(session) for entry in entries for session in sessions_named(entry.state)}
        unknown = {node_id for node_id in named if node_id not in self._gone and node_id != nodes.node_id}
        if unknown - nodes.live:
            view = await self._store.read_fleet(nodes.node_id)
            gone = unknown - {node.node_id for node in view.nodes}
            self._gone |= gone
            if gone:
                self._fresh |= gone
                asyncio.get_running_loop().call_later(ORPHAN_SECONDS, self._no_longer_fresh, gone)

    def _no_longer_fresh(self, nodes: set[str]) -> None:
        self._fresh -= nodes
        if not self._is_closed:
            self.look_soon()

    def _is_lost(self, session_id: str) -> bool:
        node_id = node_of(session_id)
        if node_id == self._fleet.nodes.node_id:
            return not self._is_attached(session_id)
        return node_id in self._gone

    def _is_orphan(self, namespace: str, session_id: str) -> bool:
        return (
            is_remote(session_id)
            and node_of(session_id) in self._fresh
            and (namespace, session_id) not in self._came_back
        )

    async def _release(self, entries: list[RunEntry]) -> None:
        loop = asyncio.get_running_loop()
        answers: list[asyncio.Future[Any]] = []
        for entry in entries:
            answer: asyncio.Future[Any] = loop.create_future()
            answers.append(answer)
            limits = self._limits_of(entry.state.namespace)
            keeps_attempt = partial(self._is_orphan, entry.state.namespace)
            decide = partial(release_lost, Lost(self._is_lost, keeps_attempt), limits)
            self._funnel.apply(entry, Operation(decide, answer, locate=partial(load_again, self._cache, entry)))
        for outcome in await asyncio.gather(*answers, return_exceptions=True):
            if isinstance(outcome, RPCError) and outcome.is_retryable:
                self._is_wanted = True
            elif isinstance(outcome, RPCError) and outcome.code is RejectionCode.WORKFLOW_NOT_FOUND:
                pass  # It was deleted meanwhile.
            elif isinstance(outcome, Exception):
                logger.error("recovery.release_failed error=%s", outcome)
