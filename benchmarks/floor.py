"""The floor: the least work a durable engine of this shape can do in pure Python, with the same durability.

Owns: a stripped workflow engine that records the same events, in the same number of rows, group-committed to SQLite
with ``synchronous=FULL`` and guarded by a version, and a stripped deterministic loop. Never: retries, timeouts, queues,
signals, limits, recovery, or anything a user would miss; it shows what remains when all that is gone.

How it works: one asyncio loop does everything but the commits, which a writer thread gathers into transactions. A run
is its state (one row, updated by each transition) and its history (one row a transition).

    python -m benchmarks.floor            prints what it measures
"""

from __future__ import annotations

import asyncio
import asyncio.events
import sqlite3
import tempfile
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

IN_FLIGHT: Final = 200

_SCHEMA: Final = """
create table runs(run_key integer primary key, version int, status int, attention_at int, state blob);
create index runs_attention on runs(attention_at) where status = 0;
create table history(run_key int, first_event_id int, events blob, primary key(run_key, first_event_id)) without rowid;
"""


class Event(msgspec.Struct, tag_field="type", omit_defaults=True):
    """What every event has."""

    event_id: int
    event_time: float


class Started(Event, tag="WorkflowExecutionStarted"):
    workflow_type: str = ""
    task_queue: str = ""
    input: msgspec.Raw = msgspec.Raw(b"null")


class TaskScheduled(Event, tag="WorkflowTaskScheduled"):
    task_queue: str = ""


class TaskStarted(Event, tag="WorkflowTaskStarted"):
    scheduled_event_id: int = 0
    identity: str = ""


class TaskCompleted(Event, tag="WorkflowTaskCompleted"):
    scheduled_event_id: int = 0
    started_event_id: int = 0
    identity: str = ""


class ActivityScheduled(Event, tag="ActivityTaskScheduled"):
    activity_id: str = ""
    activity_type: str = ""
    task_queue: str = ""
    input: msgspec.Raw = msgspec.Raw(b"null")
    start_to_close_timeout: float = 0.0
    workflow_task_completed_event_id: int = 0


class ActivityStarted(Event, tag="ActivityTaskStarted"):
    scheduled_event_id: int = 0
    identity: str = ""
    attempt: int = 1


class ActivityCompleted(Event, tag="ActivityTaskCompleted"):
    scheduled_event_id: int = 0
    started_event_id: int = 0
    result: msgspec.Raw = msgspec.Raw(b"null")
    identity: str = ""


class Completed(Event, tag="WorkflowExecutionCompleted"):
    result: msgspec.Raw = msgspec.Raw(b"null")
    workflow_task_completed_event_id: int = 0


class Pending(msgspec.Struct, array_like=True):
    """An activity that is out."""

    scheduled_event_id: int
    started_at: float
    due_at: float


class Run(msgspec.Struct):
    """The state of a run, as its row holds it."""

    run_key: int
    next_event_id: int = 1
    version: int = 0
    status: int = 0
    attention_at: float = 0.0
    pending: dict[str, Pending] = {}


@dataclass(slots=True)
class _Write:
    row: tuple[Any, ...]
    first_event_id: int
    events: bytes
    done: asyncio.Future[None]


_encode_events: Final = msgspec.json.Encoder().encode
_encode_state: Final = msgspec.msgpack.Encoder().encode


class Store:
    """A SQLite file and the thread that commits to it."""

    def __init__(self, path: Path) -> None:
        self._connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self._connection.execute("pragma journal_mode = wal")
        self._connection.execute("pragma synchronous = full")
        self._connection.executescript(_SCHEMA)
        self._loop = asyncio.get_running_loop()
        self._queue: deque[_Write | None] = deque()
        self._wanted = threading.Event()
        self._thread = threading.Thread(target=self._write_until_closed, daemon=True)
        self._thread.start()

    def commit(self, run: Run, events: list[Event]) -> asyncio.Future[None]:
        """Make a transition durable: its events, and the run after it."""
        run.version += 1
        row = (run.run_key, run.version, run.status, int(run.attention_at * 1e6), _encode_state(run))
        write = _Write(row, events[0].event_id, _encode_events(events), self._loop.create_future())
        self._queue.append(write)
        self._wanted.set()
        return write.done

    def close(self) -> None:
        """End the thread."""
        self._queue.append(None)
        self._wanted.set()
        self._thread.join()
        self._connection.close()

    def _write_until_closed(self) -> None:
        while True:
            self._wanted.wait()
            self._wanted.clear()
            batch = [self._queue.popleft() for _ in range(len(self._queue))]
            writes = [write for write in batch if write is not None]
            if writes:
                self._write(writes)
                self._loop.call_soon_threadsafe(_resolve, writes)
            if len(writes) < len(batch):
                return

    def _write(self, writes: list[_Write]) -> None:
        execute, executemany = self._connection.execute, self._connection.executemany
        execute("begin immediate")
        executemany("insert into history values (?, ?, ?)", [(w.row[0], w.first_event_id, w.events) for w in writes])
        inserts = [w.row for w in writes if w.row[1] == 1]
        if inserts:
            executemany("insert into runs values (?, ?, ?, ?, ?)", inserts)
        updates = [(*w.row[1:], w.row[0], w.row[1] - 1) for w in writes if w.row[1] > 1]
        if updates:
            changed = executemany(
                "update runs set version = ?, status = ?, attention_at = ?, state = ? "
                "where run_key = ? and version = ?",
                updates,
            ).rowcount
            assert changed == len(updates), "nobody else writes here"
        execute("commit")


def _resolve(writes: list[_Write]) -> None:
    for write in writes:
        write.done.set_result(None)


class Loop(asyncio.AbstractEventLoop):
    """First in, first out, and nothing else."""

    def __init__(self) -> None:
        self._ready: deque[asyncio.Handle] = deque()

    def call_soon(self, callback: Callable[..., Any], *args: Any, context: Any = None) -> asyncio.Handle:  # type: ignore[override]
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def get_debug(self) -> bool:
        return False

    def drain(self) -> None:
        """Run until nothing is ready."""
        ready = self._ready
        while ready:
            ready.popleft()._run()


class Instance:
    """One workflow object with its loop."""

    current: Instance

    def __init__(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        self.loop = Loop()  # type: ignore[abstract]
        self.scheduled: list[tuple[str, Callable[[Any], Awaitable[Any]], bytes]] = []
        self.waiting: dict[str, asyncio.Future[Any]] = {}
        self.activities_count = 0
        self.task: asyncio.Task[Any] | None = None
        self._coroutine = coroutine

    def activate(self, results: list[tuple[str, Any]]) -> list[tuple[str, Callable[[Any], Awaitable[Any]], bytes]]:
        """Give the workflow its results, run it as far as it goes, and take what it scheduled."""
        outer = asyncio.events._get_running_loop()
        outer_task = asyncio.current_task(outer) if outer is not None else None
        if outer is not None and outer_task is not None:
            asyncio.tasks._leave_task(outer, outer_task)
        asyncio.events._set_running_loop(self.loop)
        Instance.current = self
        try:
            if self.task is None:
                self.task = asyncio.Task(self._coroutine, loop=self.loop)
            for activity_id, value in results:
                self.waiting.pop(activity_id).set_result(value)
            self.loop.drain()
        finally:
            asyncio.events._set_running_loop(outer)
            if outer is not None and outer_task is not None:
                asyncio.tasks._enter_task(outer, outer_task)
        scheduled, self.scheduled = self.scheduled, []
        return scheduled


def execute_activity(fn: Callable[[Any], Awaitable[Any]], argument: Any) -> asyncio.Future[Any]:
    """Schedule an activity of the running instance."""
    instance = Instance.current
    instance.activities_count += 1
    activity_id = f"{fn.__name__}-{instance.activities_count}"
    future = instance.waiting[activity_id] = instance.loop.create_future()
    instance.scheduled.append((activity_id, fn, _encode_events(argument)))
    return future


async def no_op(value: Any) -> Any:
    """The activity."""
    return value


async def steps(count: int) -> int:
    """The workflow: `count` activities, one after another."""
    for number in range(count):
        await execute_activity(no_op, number)
    return count


class Engine:
    """Runs workflows on a store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._runs_count = 0
        self._tasks: set[asyncio.Task[None]] = set()

    async def execute(self, count: int) -> Any:
        """Run `steps` to its end."""
        self._runs_count += 1
        run, now = Run(self._runs_count), time.time()
        run.attention_at, run.next_event_id = now + 10, 3
        started = Started(1, now, "steps", "floor", msgspec.Raw(_encode_events(count)))
        await self._store.commit(run, [started, TaskScheduled(2, now, "floor")])
        done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._spawn(self._do_workflow_task(run, Instance(steps(count)), [], done))
        return await done

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _do_workflow_task(
        self, run: Run, instance: Instance, results: list[tuple[str, Any]], done: asyncio.Future[Any]
    ) -> None:
        scheduled = instance.activate(results)
        now, event_id = time.time(), run.next_event_id
        events: list[Event] = [
            TaskStarted(event_id, now, event_id - 1, "floor"),
            TaskCompleted(event_id + 1, now, event_id - 1, event_id, "floor"),
        ]
        completed_id, event_id = event_id + 1, event_id + 2
        for activity_id, fn, argument in scheduled:
            raw = msgspec.Raw(argument)
            events.append(
                ActivityScheduled(event_id, now, activity_id, fn.__name__, "floor", raw, 60.0, completed_id),
            )
            run.pending[activity_id] = Pending(event_id, now, now + 60)
            event_id += 1
        assert instance.task is not None, "the instance was activated"
        is_over = instance.task.done()
        if is_over:
            result = msgspec.Raw(_encode_events(instance.task.result()))
            events.append(Completed(event_id, now, result, completed_id))
            event_id, run.status = event_id + 1, 1
        run.next_event_id, run.attention_at = event_id, now + 60
        await self._store.commit(run, events)
        if is_over:
            done.set_result(instance.task.result())
        for activity_id, fn, argument in scheduled:
            self._spawn(self._do_activity(run, instance, activity_id, fn, argument, done))

    async def _do_activity(
        self,
        run: Run,
        instance: Instance,
        activity_id: str,
        fn: Callable[[Any], Awaitable[Any]],
        argument: bytes,
        done: asyncio.Future[Any],
    ) -> None:
        result = _encode_events(await fn(msgspec.json.decode(argument)))
        pending, now, event_id = run.pending.pop(activity_id), time.time(), run.next_event_id
        run.next_event_id += 3
        scheduled_id = pending.scheduled_event_id
        await self._store.commit(
            run,
            [
                ActivityStarted(event_id, pending.started_at, scheduled_id, "floor"),
                ActivityCompleted(event_id + 1, now, scheduled_id, event_id, msgspec.Raw(result), "floor"),
                TaskScheduled(event_id + 2, now, "floor"),
            ],
        )
        await self._do_workflow_task(run, instance, [(activity_id, msgspec.json.decode(result))], done)


@dataclass(frozen=True)
class FloorFigures:
    """What the floor can do here and now."""

    workflows_per_second: float
    cpu_ms_per_workflow: float
    ms_per_step: float


async def measure(workflows_count: int, steps_count: int) -> FloorFigures:
    """Measure W2 and W1 on a new file."""
    with tempfile.TemporaryDirectory(prefix="clew-floor-") as folder:
        store = Store(Path(folder) / "floor.db")
        engine, gate = Engine(store), asyncio.Semaphore(IN_FLIGHT)

        async def one() -> None:
            async with gate:
                await engine.execute(3)

        cpu, clock = time.process_time(), time.perf_counter()
        await asyncio.gather(*(one() for _ in range(workflows_count)))
        seconds, cpu = time.perf_counter() - clock, time.process_time() - cpu
        clock = time.perf_counter()
        await engine.execute(steps_count)
        step_seconds = (time.perf_counter() - clock) / steps_count
        store.close()
    return FloorFigures(workflows_count / seconds, 1e3 * cpu / workflows_count, 1e3 * step_seconds)


if __name__ == "__main__":
    print(asyncio.run(measure(3_000, 500)))
