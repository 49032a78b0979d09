"""The disks of the simulation, and the faulty way to them.

Owns: `SqliteDisk` and `ModelDisk`, which outlive the nodes, and `NodeStore`, the store as one node has it: slow, full,
refusing, or doing what it was asked and then losing the answer. Never: what the engine does about it.

How it works: a disk works in a lane of its own. A call of the engine travels there (commits in the order in which they
were made, as the port promises; reads in any order), is done in one step, and its answer travels back. The SQLite disk
is the real adapter with its real writer, except that the writer runs in the disk's lane and not in a thread: it takes
everything queued by then as one group, just as it does there. A node that dies leaves what it had asked for undone, or,
on a disk that is a server, perhaps done.
"""

from __future__ import annotations

import asyncio
import queue
import random
import sqlite3
from collections.abc import Callable
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Protocol

import msgspec

from clew.ports.clock import Clock
from clew.ports.store import (
    CommitStatus,
    Deletion,
    HistoryBatch,
    NamespaceRow,
    RunRow,
    RunWrite,
    Store,
    StoreFull,
    StoreUnavailable,
)
from clew.storage.sqlite import reads, tasks, writes
from clew.storage.sqlite.commit import GroupCommitter
from clew.storage.sqlite.connection import MEMORY, connect_writer
from clew.storage.sqlite.schema import migrate
from clew.storage.sqlite.search_attributes import AttributeNames
from clew.storage.sqlite.store import SqliteStore
from clew.storage.sqlite.threads import CallQueue
from clew.storage.sqlite.writer import WriterThread
from tests.simulation.clock import EPOCH
from tests.simulation.leases import Leases, LyingRegistry
from tests.simulation.loop import Lane, SimLoop
from tests.simulation.model_store import ModelData, ModelStore

ORDERED = frozenset({"commit_if_current"})
"""Calls that are done in the order in which they were made."""

CLOSING = frozenset({"close"})


class StoreFaults(msgspec.Struct):
    """How likely each misfortune is, for one call of the store.

    Args:
        refuse: It is not done.
        lose: It is done, and the answer is an error.
        slow: It takes up to `slow_seconds` more before it is done.
        late: It is done, and its answer is heard up to `late_seconds` later; in between others may act on it.
        crash_before, crash_after: The node dies just before or just after it was done, before the answer.
        commits_only: All but slowness befalls commits alone, so that what follows a lost one goes on at once.
        here: No misfortune: a commit is over before the call returns, as on a quick disk (the model store alone).
    """

    refuse: float = 0.0
    lose: float = 0.0
    slow: float = 0.0
    slow_seconds: float = 0.5
    crash_before: float = 0.0
    crash_after: float = 0.0
    commits_only: bool = False
    here: float = 0.0
    late: float = 0.0
    late_seconds: float = 1.0


class Disk(Protocol):
    """Where what is durable lies."""

    lane: Lane
    is_server: bool
    """Whether what a node has sent is done even if the node dies meanwhile."""

    def open(self, clock: Clock) -> Store:
        """The store, freshly opened on what the disk holds; to be called in the disk's lane."""
        ...

    def put_namespace(self, row: NamespaceRow) -> None:
        """Make a namespace, before any node opens the store."""
        ...

    def contents(self) -> list[tuple[RunRow, list[HistoryBatch]]]:
        """Every run with its history, read past the store."""
        ...

    def leftovers(self) -> tuple[list[str], list[str]]:
        """The task rows, and the undelivered messages."""
        ...


class ModelDisk:
    """The model store.

    Args:
        loop: The simulation's.
        nodes: How many share it. For more than one it plays a database server: it has a clock of its own, and what a
            node has sent is done even if the node dies meanwhile.
        shards: Shards of runs.
        lies: Whether an answer about leases lies this time (``leases``).
    """

    def __init__(
        self, loop: SimLoop, nodes: int = 1, shards: int = 1, lies: Callable[[], bool] = lambda: False
    ) -> None:
        self.lane = loop.lane("disk")
        self.is_server = nodes > 1
        if not self.is_server:
            self.data = ModelData(None, shards)
            return

        def now() -> datetime:
            return EPOCH + timedelta(seconds=loop.time())

        self.data = ModelData(now, shards, fleet=LyingRegistry(now, shards, lies), claims_lie=lies)

    def open(self, clock: Clock) -> Store:
        return ModelStore(self.data, clock.now)

    def put_namespace(self, row: NamespaceRow) -> None:
        self.data.namespaces[row.name] = row

    def contents(self) -> list[tuple[RunRow, list[HistoryBatch]]]:
        return [(run.whole(), list(run.batches)) for run in self.data.runs.values()]

    def leftovers(self) -> tuple[list[str], list[str]]:
        return [str(task) for task in self.data.tasks.values()], [str(row) for row in self.data.outbox.values()]


class _Calls(CallQueue):
    """The asking end of a writer that has no thread: each call makes it serve, a moment later, all that is queued."""

    def __init__(self, loop: SimLoop, lane: Lane, connection: sqlite3.Connection, committer: GroupCommitter) -> None:
        super().__init__(MEMORY, loop)
        self._sim = loop
        self._lane = lane
        self._thread = WriterThread(MEMORY, loop, connection, committer)
        self._reads = self._writes = _Waking(self._thread.calls, self._wake)  # type: ignore[assignment]

    def _wake(self) -> None:
        self._sim.post(self._lane, 0.0, self._serve)

    def _serve(self) -> None:
        try:
            first = self._thread.calls.get_nowait()
        except queue.Empty:
            return  # Served with those before it.
        assert first is not None, "the writer is never told to end"
        self._thread._serve(first)

    async def close(self) -> None:
        self._is_closed = True


class _Waking:
    """A queue that tells when something was put."""

    def __init__(self, calls: Any, wake: Callable[[], None]) -> None:
        self._calls = calls
        self._wake = wake

    def put(self, call: Any) -> None:
        self._calls.put(call)
        self._wake()


class SqliteDisk:
    """The real SQLite store, in memory, with its writer in the disk's lane."""

    is_server = False

    def __init__(self, loop: SimLoop) -> None:
        self.lane = loop.lane("disk")
        self._loop = loop
        self._connection = connect_writer(MEMORY, busy_timeout_ms=0, size_bytes_max=None)
        migrate(self._connection, EPOCH.isoformat())
        GroupCommitter.prepare(self._connection)

    def open(self, clock: Clock) -> Store:
        connection = self._connection
        shard_count = writes.read_or_put_meta(connection, "shard_count", 1)
        numbers = {name: writes.read_next_number(connection, name) for name in (writes.RUN_KEYS, writes.TASK_IDS)}
        claims = tasks.TaskClaims()
        calls = _Calls(self._loop, self.lane, connection, GroupCommitter(MEMORY, claims, AttributeNames()))
        return SqliteStore(MEMORY, calls, shard_count, claims=claims, numbers=numbers, ownership=None, now=clock.now)

    def put_namespace(self, row: NamespaceRow) -> None:
        writes.put_namespace(self._connection, row)

    def contents(self) -> list[tuple[RunRow, list[HistoryBatch]]]:
        keys = self._connection.execute("SELECT shard, run_key FROM executions").fetchall()
        found: list[tuple[RunRow, list[HistoryBatch]]] = []
        for shard, run_key in keys:
            row = reads.load_run(self._connection, shard, run_key)
            assert row is not None, "a key that was just read"
            found.append((row, reads.read_history(self._connection, shard, run_key, 1, 1 << 40)))
        return found

    def leftovers(self) -> tuple[list[str], list[str]]:
        tasks_left = self._connection.execute("SELECT * FROM tasks").fetchall()
        messages = self._connection.execute("SELECT message_id, body FROM outbox").fetchall()
        return [str(row) for row in tasks_left], [str(row) for row in messages]

    def close(self) -> None:
        """Let go of the memory."""
        self._connection.close()


CommitSeen = Callable[[tuple[RunWrite, ...], CommitStatus], None]


class NodeStore:
    """The store as one node sees it.

    Args:
        loop: The simulation's.
        disk: Where it lies.
        store: The store opened on it.
        lane: The node's.
        chance: Decides latencies and faults.
        late_chance: Decides which answers are late.
        faults: Gives the present faults.
        is_full: Whether there is no room now.
        on_commit: Told each unit and how it went, when it is durable.
        on_delete: Told the key of each run that is gone.
        leases: Told what the node asks of the store, and is answered.
        crash: Ends the node.
    """

    def __init__(
        self,
        *,
        loop: SimLoop,
        disk: Disk,
        store: Store,
        lane: Lane,
        chance: random.Random,
        late_chance: random.Random,
        faults: Callable[[], StoreFaults],
        is_full: Callable[[], bool],
        on_commit: CommitSeen,
        on_delete: Callable[[int], None],
        leases: Leases,
        crash: Callable[[str], None],
    ) -> None:
        self.shard_count = store.shard_count
        self._loop = loop
        self._disk = disk
        self._store = store
        self._lane = lane
        self._chance = chance
        self._late_chance = late_chance
        self._faults = faults
        self._is_full = is_full
        self._on_commit = on_commit
        self._on_delete = on_delete
        self._leases = leases
        self._crash = crash
        self._last_at = 0.0
        self._last_commit: asyncio.Future[Any] | None = None

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or not callable(getattr(self._store, name)):
            return getattr(self._store, name)
        return lambda *args, **kwargs: self._call(name, args, kwargs)

    def _call(self, name: str, args: Any, kwargs: Any) -> asyncio.Future[Any]:
        loop, faults, chance = self._loop, self._faults(), self._chance
        self._leases.note_call(self._lane.name, name, args)
        answer: asyncio.Future[Any] = loop.create_future()
        delay = chance.choice((0.0, 0.0, 0.0005, 0.002))
        if chance.random() < faults.slow:
            delay += chance.random() * faults.slow_seconds
        at = loop.time() + delay
        if name in ORDERED or name in CLOSING:
            at = self._last_at = max(at, self._last_at + 1e-7)
        is_spared = name in CLOSING or (faults.commits_only and name not in ORDERED)
        fate = "" if is_spared else self._draw_fate(faults)
        if name in ORDERED:
            before, self._last_commit = self._last_commit, answer
            if faults.here and (before is None or before.done()) and self._is_done_here(faults, fate):
                self._commit_here(args[0], answer, fate)
                return answer
        loop.post(self._disk.lane, at - loop.time(), self._execute, name, args, kwargs, answer, fate)
        return answer

    def _is_done_here(self, faults: StoreFaults, fate: str) -> bool:
        is_able = isinstance(self._disk, ModelDisk) and not self._disk.is_server and not fate.startswith("crash")
        return is_able and self._chance.random() < faults.here

    def _commit_here(self, units: Any, answer: asyncio.Future[Any], fate: str) -> None:
        error: BaseException | None = None
        outcomes: list[CommitStatus] = []
        if fate == "refuse":
            error = StoreUnavailable("simulated: a commit was refused at once")
        elif self._is_full():
            error = StoreFull("simulated: no room")
        else:
            done = self._store.commit_if_current(units)
            assert isinstance(done, asyncio.Future), "the model store needs no time"
            error = done.exception()
            outcomes = [] if error is not None else done.result()
            for unit, status in zip(units if outcomes else (), outcomes, strict=True):
                self._on_commit(unit, status)
            if fate == "lose":
                error = StoreUnavailable("simulated: the answer to a commit was lost at once")
        self._loop.note(f"{self._lane.name} commits here {fate} {'' if error is None else error!r}")
        _settle(answer, outcomes, error)

    def _draw_fate(self, faults: StoreFaults) -> str:
        drawn = self._chance.random()
        for fate in ("refuse", "lose", "crash_before", "crash_after"):
            drawn -= getattr(faults, fate)
            if drawn < 0:
                return fate
        return ""

    def _execute(self, name: str, args: Any, kwargs: Any, answer: asyncio.Future[Any], fate: str) -> None:
        """In the disk's lane."""
        if self._lane.is_dead and not (self._disk.is_server and name in ORDERED):
            return
        if fate == "crash_before":
            self._crash(f"before {name}")
            return
        if fate == "refuse":
            self._answer(name, answer, None, StoreUnavailable(f"simulated: {name} was refused"))
            return
        if name in ORDERED and self._is_full():
            self._answer(name, answer, None, StoreFull("simulated: no room"))
            return
        try:
            work = asyncio.ensure_future(getattr(self._store, name)(*args, **kwargs))
        except Exception as error:  # noqa: BLE001 - the store refused the call itself
            self._answer(name, answer, None, error)
            return
        work.add_done_callback(lambda done: self._executed(name, args, done, answer, fate))

    def _executed(
        self, name: str, args: Any, done: asyncio.Future[Any], answer: asyncio.Future[Any], fate: str
    ) -> None:
        error = done.exception()
        if error is None and name == "commit_if_current":
            for unit, status in zip(args[0], done.result(), strict=True):
                self._on_commit(unit, status)
        if error is None and name == "delete_run" and done.result() is Deletion.DELETED:
            self._on_delete(args[1])
        self._loop.note(f"{self._lane.name} {name} {fate} {'' if error is None else error!r}")
        if fate == "crash_after":
            self._crash(f"after {name}")
        elif fate == "lose":
            self._answer(name, answer, None, StoreUnavailable(f"simulated: the answer to {name} was lost"))
        elif error is not None:
            self._answer(name, answer, None, error)
        else:
            noted = partial(self._leases.note_answer, self._lane.name, name, args)
            self._answer(name, answer, done.result(), None, noted)

    def _answer(
        self,
        name: str,
        answer: asyncio.Future[Any],
        value: Any,
        error: BaseException | None,
        noted: Callable[[Any], None] = lambda value: None,
    ) -> None:
        delay = self._chance.choice((0.0, 0.0, 0.001)) + self._lateness(name)
        self._loop.post(self._lane, delay, _settle, answer, value, error, noted)

    def _lateness(self, name: str) -> float:
        """How much later than done a call is heard to be done."""
        faults = self._faults()
        if not faults.late or name in CLOSING or (faults.commits_only and name not in ORDERED):
            return 0.0
        if self._late_chance.random() >= faults.late:
            return 0.0
        seconds = self._late_chance.random() * faults.late_seconds
        self._loop.note(f"{self._lane.name} hears of {name} {seconds:.3f} s later")
        return seconds


def _settle(
    answer: asyncio.Future[Any],
    value: Any,
    error: BaseException | None,
    noted: Callable[[Any], None] = lambda value: None,
) -> None:
    if answer.done():
        return
    if error is None:
        noted(value)
        answer.set_result(value)
    else:
        answer.set_exception(error)
