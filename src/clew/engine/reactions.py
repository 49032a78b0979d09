"""What a node does about the others: what they say, what they stop doing, and what might have got lost.

Owns: the reaction to each hint and each piece of mail, to nodes that come and go and shards that move, and the slow
looks that stand behind the hints. Never: decides anything about a run, or keeps leases (``engine.nodes``).

How it works: every reaction only makes this node look: at a queue, at a run, at its mail. So a hint that is late,
repeated or wrong costs a look, and one that is lost is made good by the next round of looks: every `ROUND_CONNECTED`
while hints arrive, every `ROUND_ALONE` while they do not, and once a lease time what only changes with nodes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from datetime import datetime, timedelta
from typing import Final, assert_never

import msgspec

from clew.engine.asking import Asking
from clew.engine.attention import Attention
from clew.engine.background import Background
from clew.engine.claims import Claims
from clew.engine.fleet import Fleet, node_of
from clew.engine.hints import (
    FleetChanged,
    Hint,
    MailWaits,
    QueueHasTasks,
    RowToShare,
    RunChanged,
    RunRerouted,
    RunWatched,
    SettingsChanged,
    SettingsKnown,
    StickyTask,
)
from clew.engine.history import HistoryWaiters
from clew.engine.mail import Answer, Ask, CancelAttempt, Mail, UpdateRejected, decode_mail
from clew.engine.matching import Matcher
from clew.engine.namespaces import Namespaces
from clew.engine.outbox import Outbox
from clew.engine.peers import Attached
from clew.engine.recovery import LostSessions
from clew.engine.runs import RunCache, RunEntry, sessions_named
from clew.engine.updates import UpdateDesk
from clew.engine.versions import Versions
from clew.engine.watches import Watches
from clew.ports.clock import Clock
from clew.ports.store import Store, StoreError, TaskKind, TaskRow
from clew.service.errors import RPCError

logger: Final = logging.getLogger("clew.engine")

ROUND_CONNECTED: Final = timedelta(seconds=5)
ROUND_ALONE: Final = timedelta(seconds=1)
AGAIN_SECONDS: Final = 0.25
"""After a look at a run that the store cut short."""


class Reactions:
    """See the module docstring. All methods belong to the engine's loop."""

    def __init__(
        self,
        *,
        store: Store,
        clock: Clock,
        fleet: Fleet,
        cache: RunCache,
        matcher: Matcher,
        claims: Claims,
        asking: Asking,
        updates: UpdateDesk,
        waiters: HistoryWaiters,
        attention: Attention,
        outbox: Outbox,
        versions: Versions,
        namespaces: Namespaces,
        lost: LostSessions,
        on_stale: Callable[[RunEntry], None],
        release: Callable[[RunEntry, Callable[[str], bool]], None],
    ) -> None:
        self._store = store
        self._clock = clock
        self._fleet = fleet
        self._cache = cache
        self._matcher = matcher
        self._claims = claims
        self._asking = asking
        self._updates = updates
        self._waiters = waiters
        self._attention = attention
        self._outbox = outbox
        self._versions = versions
        self._namespaces = namespaces
        self._lost = lost
        self._release = release
        self.watches = Watches(
            store,
            cache,
            send=fleet.tell,
            has_others=lambda: bool(fleet.nodes.live),
            is_waited=self._is_waited,
            on_stale=on_stale,
            on_elsewhere=lambda run_key: waiters.wake(run_key, is_closed=True),
        )
        self._background = Background("fleet")
        self._round_task: asyncio.Task[None] | None = None
        self._is_fetching = False
        self._is_mail_wanted = False

    def start(self) -> None:
        """Begin the rounds."""
        self._round_task = asyncio.ensure_future(self._go_rounds())

    async def close(self) -> None:
        """React no more."""
        if self._round_task is not None:
            self._round_task.cancel()
            await asyncio.gather(self._round_task, return_exceptions=True)
        await self._lost.close()
        await self.watches.close()
        await self._background.cancel()

    # --- this node --------------------------------------------------------------------------------------------------

    def attached(self) -> list[Attached]:
        """The workers of this node that take tasks, for others to know."""
        return [
            Attached(session_id=session.session_id, hello=session.hello, former_sessions=session.former_sessions)
            for session in self._matcher.sessions()
            if session.session_id in session.queue.sessions
        ]

    def on_came_back(self, namespace: str, session_ids: Iterable[str]) -> None:
        """Workers have told what they still have of these sessions: the rest is lost, however recently they were."""
        self._lost.came_back(namespace, session_ids)

    def on_joined(self, node_id: str, old_id: str) -> None:
        """This node has an id; if it had another before, what its sessions held under that is lost."""
        held = [entry for session in self._matcher.sessions() for entry in self._cache.holders(session.session_id)]
        self._matcher.rename(node_id)
        if old_id:
            for entry in {entry.run_key: entry for entry in held}.values():
                self._release(entry, lambda session_id: node_of(session_id) == old_id)
            self._fleet.nodes.look_soon()

    def on_gained(self, shards: list[int]) -> None:
        """These shards are this node's now."""
        self._attention.look_soon()
        self._outbox.wake()
        self._lost.look_soon()

    def on_nodes(self, new: set[str], gone: set[str]) -> None:
        """Nodes came or went."""
        if new:
            self.watches.tell_all_again()
        if gone:
            self._lost.look_twice()

    def on_discarded(self, entry: RunEntry) -> None:
        """What was in memory of a run is not the run's any more: those who rest on it look at what is stored."""
        self._waiters.wake(entry.run_key, is_closed=True)
        if entry.update_waiters:
            # Nothing of it is on its way, so all that it said was durable: what is missing now has ended.
            self._background.spawn(self._move_updates(entry, was_durable=not entry.unsettled_count))
        own = self._fleet.nodes.node_id
        if any(node_of(session) == own for session in sessions_named(entry.state)):
            self._background.spawn(self._take_up(entry.shard, entry.run_key))

    async def _move_updates(self, entry: RunEntry, *, was_durable: bool) -> None:
        try:
            await self._updates.move(entry, was_durable=was_durable)
        except StoreError as error:
            logger.warning("fleet.updates_lost run_id=%s error=%s", entry.state.run_id, error)
            self._updates.abandon(entry)

    async def _take_up(self, shard: int, run_key: int) -> None:
        """Have a run in memory again that sessions here have work of, and hand over what waits for them."""
        while True:
            try:
                await self._claims.take_up(shard, run_key)
            except StoreError as error:
                logger.warning("fleet.run_unread run_key=%s error=%s", run_key, error)
                await asyncio.sleep(AGAIN_SECONDS)
            else:
                return

    # --- what others say --------------------------------------------------------------------------------------------

    def on_hint(self, sender: str, hint: Hint) -> None:
        """Look where a hint points."""
        match hint:
            case QueueHasTasks():
                for kind in TaskKind:
                    self._matcher.note_backlog(hint.namespace, hint.task_queue, kind)
            case RowToShare():
                if self._matcher.is_polled_for(hint.row):
                    self._background.spawn(self._start_shared(hint.row))
            case StickyTask():
                self._background.spawn(self._take_up(hint.shard, hint.run_key))
            case RunChanged():
                self.watches.on_run_changed(hint)
            case RunWatched():
                self.watches.on_run_watched(sender, hint)
            case FleetChanged():
                self._fleet.nodes.look_soon()
            case SettingsChanged():
                self._background.spawn(self._follow_settings(sender, hint))
            case SettingsKnown():
                self._fleet.on_settings_known(sender, hint)
            case RunRerouted():
                self._background.spawn(self._reroute(hint))
            case MailWaits():
                self.fetch_mail()
            case _:
                assert_never(hint)

    async def _follow_settings(self, sender: str, hint: SettingsChanged) -> None:
        try:
            await self._load_settings()
        except StoreError as error:
            logger.warning("fleet.settings_unread error=%s", error)
        else:
            self._fleet.hints.send(sender, SettingsKnown(hint.change))

    async def _load_settings(self) -> None:
        """What holds for all runs, and any node may change."""
        await self._namespaces.load()
        await self._versions.load()

    async def _reroute(self, hint: RunRerouted) -> None:
        await self._take_up(hint.shard, hint.run_key)
        self._matcher.reroute(hint.namespace, hint.run_key)

    def rows_set_aside(self, namespace: str, task_queue: str, workers: Iterable[Attached]) -> list[TaskRow]:
        """Rows that nobody here can have, and one of these workers of another node may."""
        return self._matcher.rows_set_aside(namespace, task_queue, workers)

    def on_gap(self) -> None:
        """Hints may have been lost: look at everything they would have pointed at."""
        self._fleet.nodes.look_soon()
        self._background.spawn(self._quietly(self._load_settings))
        self._background.spawn(self._quietly(self._look_around))
        self.fetch_mail()

    def fetch_mail(self) -> None:
        """There may be mail."""
        self._is_mail_wanted = True
        if not self._is_fetching:
            self._is_fetching = True
            self._background.spawn(self._fetch())

    async def _fetch(self) -> None:
        try:
            while self._is_mail_wanted:
                self._is_mail_wanted = False
                for body in await self._store.take_mail(self._fleet.nodes.node_id):
                    self._open(body)
        except StoreError as error:
            logger.warning("fleet.mail_unread error=%s", error)
        finally:
            self._is_fetching = False

    def _open(self, body: bytes) -> None:
        try:
            mail: Mail = decode_mail(body)
        except msgspec.DecodeError as error:
            logger.warning("fleet.mail_unreadable error=%s", error)
            return
        match mail:
            case Ask():
                self._background.spawn(self._answer(mail))
            case Answer():
                self._fleet.on_answer(mail)
            case CancelAttempt():
                session = self._matcher.session(mail.session_id)
                if session is not None:
                    session.sink.cancel_activity(mail.token, mail.reason)
            case UpdateRejected():
                self._updates.settle(mail.run_key, mail.settled)
            case _:
                assert_never(mail)

    async def _answer(self, question: Ask) -> None:
        try:
            response = await self._asking.ask_here(question.request)
            answer = Answer(question_id=question.question_id, response=response)
        except RPCError as error:
            answer = Answer(question_id=question.question_id, rejection=error.rejection)
        except StoreError as error:
            logger.warning("fleet.question_dropped error=%s", error)
            return
        self._fleet.post(question.sender, answer)

    async def _start_shared(self, row: TaskRow) -> None:
        try:
            await self._claims.start(row, is_shared=True)
        except StoreError as error:
            logger.warning("fleet.shared_task_left task_id=%s error=%s", row.task_id, error)

    # --- rounds -----------------------------------------------------------------------------------------------------

    async def _go_rounds(self) -> None:
        looked_wide_at = self._clock.now()
        while True:
            await self._sleep(ROUND_CONNECTED if self._fleet.hints.is_connected else ROUND_ALONE)
            await self._quietly(self._look_around)
            if self._clock.now() - looked_wide_at >= self._fleet.lease:
                looked_wide_at = self._clock.now()
                await self._quietly(self._load_settings)
                await self._quietly(self._outbox.sweep)

    async def _look_around(self) -> None:
        """What changes by the second: rows for hungry workers, runs that somebody waits on."""
        self._matcher.look_at_hungry()
        await self.watches.look()

    @staticmethod
    async def _quietly(work: Callable[[], Awaitable[None]]) -> None:
        try:
            await work()
        except StoreError as error:
            logger.warning("fleet.look_failed error=%s", error)
        except Exception:
            # The rounds are the guarantee behind the hints: whatever it is, they must go on.
            logger.exception("fleet.look_failed")

    async def _sleep(self, duration: timedelta) -> None:
        woken = asyncio.Event()
        until: datetime = self._clock.now() + duration
        alarm = self._clock.call_at(until, woken.set)
        try:
            await woken.wait()
        finally:
            alarm.cancel()

    def _is_waited(self, run_key: int) -> bool:
        if self._waiters.is_waited(run_key):
            return True
        entry = self._cache.get(run_key)
        return entry is not None and bool(entry.update_waiters or entry.queries)
