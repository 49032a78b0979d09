"""What the cases share: engines, workers, conditions with deadlines, histories and replay in a fresh interpreter.

Words of the cases: *park* (`parked`), *cold* (a worker with ``cache=0``), *one task* (`one_task`), *settle*
(`settled`), *replay check* (`replay_check`). Nothing here sleeps for a fixed time; every wait has a deadline and a
condition.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import logging
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import pytest

from clew.client import Client, WorkflowHandle
from clew.exceptions import WorkflowFailureError
from clew.model import events as e
from clew.model.history import WorkflowHistory
from clew.model.rejection import Rejection, RejectionCode
from clew.service.errors import RPCError
from clew.testing import Faults, ManualClock, WorkflowEnvironment
from clew.worker import Worker
from tests.postgres.databases import create_database, database_for, reuse_database

T = TypeVar("T")

QUEUE = "cases"
ON_POSTGRES = os.environ.get("CLEW_TEST_STORE") == "postgres"
"""Whether the cases run on PostgreSQL, in databases of their own."""

on_files = pytest.mark.skipif(ON_POSTGRES, reason="is about SQLite files")
"""Marks what makes no sense on another store."""

SECONDS_MAX = 30.0 if ON_POSTGRES else 10.0
"""The deadline of every wait, unless the case says otherwise."""

ROOT = Path(__file__).parents[2]

ACTIVITY = {"start_to_close_timeout": timedelta(seconds=30)}


@asynccontextmanager
async def engine(
    clock: ManualClock | None = None, *, database: Path | None = None, store_faults: Faults | None = None
) -> AsyncIterator[Client]:
    """A client of a new engine: in real time or that of `clock`, in memory or on a file (or in PostgreSQL)."""
    place = {} if database is None else {"database": str(database)}
    if ON_POSTGRES:
        place["database"] = address(database) if database is not None else await create_database("shards=16")
    environment = await WorkflowEnvironment.start_local(clock=clock, store_faults=store_faults, **place)
    async with environment:
        yield environment.client
    if ON_POSTGRES and database is None:
        await reuse_database(place["database"])


def address(database: Path | str) -> str:
    """The connection string of the durable store that goes by this path."""
    return database_for(str(database)) if ON_POSTGRES else f"sqlite:{database}"


def worker(
    client: Client,
    workflows: Sequence[type[Any]] = (),
    activities: Sequence[Callable[..., Any]] = (),
    *,
    cache: int = 100,
    queue: str = QUEUE,
    **options: Any,
) -> Worker:
    """A worker whose shutdown is quick; ``cache=0`` makes every workflow task cold."""
    options.setdefault("graceful_shutdown_timeout", timedelta(seconds=2))
    return Worker(
        client, task_queue=queue, workflows=workflows, activities=activities, max_cached_workflows=cache, **options
    )


def service_faults(client: Client) -> Faults:
    """Faults around every later call of this client, and of workers made with it, to the engine."""
    faults = Faults()
    client.connection.service = faults.wrap(client.connection.service)
    return faults


def unavailable(text: str = "the test cut the way to the engine") -> RPCError:
    """A passing trouble, as callers of the engine meet it."""
    return RPCError(Rejection(code=RejectionCode.UNAVAILABLE, message=text))


async def eventually(condition: Callable[[], Any], what: str = "", seconds_max: float = SECONDS_MAX) -> Any:
    """Wait until the condition, a plain or async function, gives something true, and give that."""
    deadline = time.monotonic() + seconds_max
    while True:
        found = condition()
        if inspect.isawaitable(found):
            found = await found
        if found:
            return found
        if time.monotonic() > deadline:
            raise AssertionError(f"not reached within {seconds_max} s: {what or inspect.getsource(condition).strip()}")
        await asyncio.sleep(0.005)


async def within(awaitable: Awaitable[T], seconds_max: float = SECONDS_MAX) -> T:
    """The result, or a failure of the test when it takes longer."""
    try:
        async with asyncio.timeout(seconds_max):
            return await awaitable
    except TimeoutError as error:
        raise AssertionError(f"not done within {seconds_max} s: {awaitable}") from error


async def parked(handle: WorkflowHandle[Any, Any], seconds_max: float = SECONDS_MAX) -> Any:
    """Wait until the run is open with a completed workflow task and none pending; gives its description."""

    async def is_parked() -> Any:
        description = await handle.describe()
        done = any(isinstance(event, e.WorkflowTaskCompleted) for event in await events(handle))
        return description if done and description.pending_workflow_task is None else None

    return await eventually(is_parked, f"{handle.id} parked", seconds_max)


@asynccontextmanager
async def one_task(
    client: Client, stimuli: Iterable[Awaitable[Any]], *args: Any, **options: Any
) -> AsyncIterator[Worker]:
    """Apply the stimuli in order while no worker runs, then start one (arguments of `worker`)."""
    for stimulus in stimuli:
        await stimulus
    async with worker(client, *args, **options) as running:
        yield running


async def settled(handle: WorkflowHandle[Any, Any], seconds_max: float = SECONDS_MAX) -> Any:
    """The result of the run, or the error it closed with as a value."""
    try:
        return await within(handle.result(), seconds_max)
    except WorkflowFailureError as error:
        return error


async def events(handle: WorkflowHandle[Any, Any], *kinds: type[Any]) -> list[Any]:
    """The events of the run, of these kinds or all."""
    found = await handle.fetch_history()
    return [event for event in found.events if not kinds or isinstance(event, kinds)]


def names(found: Iterable[Any]) -> list[str]:
    """The events' types."""
    return [type(event).__name__ for event in found]


async def fire_pending_timer(clock: ManualClock, handle: WorkflowHandle[Any, Any], fired: int) -> None:
    """Move the clock past the earliest pending timer and wait until `fired` timers have fired in all."""
    description = await handle.describe()
    due = min(timer.due_time for timer in description.pending_timers)
    clock.advance(max(due - clock.now(), timedelta(0)))
    await eventually(lambda: _has_fired(handle, fired), f"{fired} timers fired in {handle.id}")


async def _has_fired(handle: WorkflowHandle[Any, Any], count: int) -> bool:
    return len(await events(handle, e.TimerFired)) >= count


# --- processes that can be killed ------------------------------------------------------------------


class Process:
    """``python -m tests.cases.child``: an async function of a test module in a process of its own.

    Lines that it prints arrive in `lines`. It is killed at the end, if it has not ended.
    """

    def __init__(self, function: Callable[..., Any], *arguments: str) -> None:
        name = f"{function.__module__}:{function.__qualname__}"
        self._process = subprocess.Popen(
            [sys.executable, "-u", "-m", "tests.cases.child", name, *arguments],
            env=os.environ | {"PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"},
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.lines: list[str] = []
        self.errors: list[str] = []
        self._readers = [
            threading.Thread(target=self._read, args=(self._process.stdout, self.lines), daemon=True),
            threading.Thread(target=self._read, args=(self._process.stderr, self.errors), daemon=True),
        ]
        for reader in self._readers:
            reader.start()

    @staticmethod
    def _read(stream: Any, lines: list[str]) -> None:
        for line in iter(stream.readline, ""):
            lines.append(line.rstrip("\n"))

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.kill()

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        """Whether it runs."""
        return self._process.poll() is None

    async def says(self, line: str, seconds_max: float = 20.0) -> None:
        """Wait until it has printed this line."""

        def has_said() -> bool:
            if line in self.lines:
                return True
            assert self.is_alive, f"it ended without saying {line!r}: {self.errors}"
            return False

        await eventually(has_said, f"the process says {line!r}", seconds_max)

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        self._process.kill()
        self._end()

    def wait(self, seconds_max: float = 30.0) -> int:
        """Its exit code, once it has ended by itself."""
        code = self._process.wait(seconds_max)
        self._end()
        return code

    def _end(self) -> None:
        self._process.wait(10)
        for reader, stream in zip(self._readers, (self._process.stdout, self._process.stderr), strict=True):
            reader.join(5)
            # Closed under a reader that waits, it would be waited for: a child of the process may hold the other end.
            if stream is not None and not reader.is_alive():
                stream.close()


# --- replay in a fresh interpreter -----------------------------------------------------------------


async def replay_check(handle: WorkflowHandle[Any, Any], *workflows: type[Any], runs: int = 1) -> None:
    """Replay the history in `runs` new interpreters with other hash seeds and garbage; none may report a mismatch."""
    await replay_check_all([(await handle.fetch_history(), workflows)], runs=runs)


async def replay_check_all(histories: Sequence[tuple[WorkflowHistory, Sequence[type[Any]]]], *, runs: int = 1) -> None:
    """The replay check for several histories; each new interpreter replays all of them."""
    gate = asyncio.Semaphore(2)

    async def one() -> list[str]:
        async with gate:
            return await asyncio.to_thread(replay_outcomes, histories)

    for outcomes in await asyncio.gather(*(one() for _ in range(runs))):
        assert outcomes == ["ok"] * len(histories), outcomes


def replay_outcomes(
    histories: Sequence[tuple[WorkflowHistory, Sequence[type[Any]]]], seed: int | None = None
) -> list[str]:
    """For each history ``ok``, or the error that a replay in a new interpreter met."""
    seed = seed if seed is not None else random.randrange(1, 2**32)
    jobs = [
        {"history": history.to_json(), "workflows": [f"{one.__module__}:{one.__qualname__}" for one in workflows]}
        for history, workflows in histories
    ]
    done = subprocess.run(
        [sys.executable, "-m", "tests.cases.replay_one", str(seed)],
        env=os.environ | {"PYTHONHASHSEED": str(seed), "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"},
        cwd=ROOT,
        input=json.dumps(jobs),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, f"the replayer failed (seed {seed}):\n{done.stderr}"
    answer: list[str] = json.loads(done.stdout.splitlines()[-1])
    return answer


def no_errors(caplog: Any) -> None:
    """No log record at error level or above."""
    bad = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert not bad, [f"{record.name}: {record.getMessage()}" for record in bad]
