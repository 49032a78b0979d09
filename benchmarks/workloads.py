"""The workloads W1, W2, W3, W6 and W7, on the embedded engine with a new SQLite file each; and replay alone.

Owns: what is done and what is timed. Never: how often, or how it is shown (`run` does).

Wall time is `time.perf_counter`; CPU is that of engine, worker, store and load generator together, be it in one
process or two.
"""

from __future__ import annotations

import asyncio
import dataclasses
import gc
import itertools
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from benchmarks.peers.gauge import memory, parked_figures, round_trip_figures
from benchmarks.workflows import (
    ALL,
    Asked,
    Echo,
    FanOut,
    LocalResumed,
    LocalSequence,
    Resumed,
    Sequence,
    Sleeper,
    no_op,
    step_times,
)
from clew.client import Client
from clew.worker import Replayer, Worker
from tests.postgres.server import PostgresServer

QUEUE: Final = "bench"
IN_FLIGHT: Final = 200

WARM_UP_RUNS: Final = 1_000
"""Workflows that have run before memory is looked at."""

SETTLE_SECONDS: Final = 15.0
"""After the last start: longer than the deadline of a workflow task, at which a parked run leaves memory."""

IDLE_SECONDS: Final = 10.0

Figures = dict[str, float]
"""Name with unit → value."""


shape: dict[str, int] = {"link": False, "uvloop": False, "node": 0}
"""Whether there is a node in a process of its own, behind a link, and whether the caller's loop is uvloop (`run` says
so); and that process, while there is one."""


def cpu_seconds() -> float:
    """CPU of this process, and of the node's if there is one (where the system shows it in ``/proc``)."""
    own, stat = time.process_time(), Path(f"/proc/{shape['node']}/stat")
    if not shape["node"] or not stat.exists():
        return own
    fields = stat.read_text(encoding="utf-8").rpartition(")")[2].split()
    return own + (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


database_server: list[PostgresServer] = []
"""The PostgreSQL server that engines use, each a schema of its own; none means a new SQLite file for each."""

store_in_use: list[str] = []
"""The address of a store that is there already, for those who measure on one; none means a new one for each engine."""

_schemas = itertools.count(1)


@asynccontextmanager
async def engine() -> AsyncIterator[Client]:
    """A client of a new engine."""
    if store_in_use:
        async with client_of(store_in_use[0]) as client:
            yield client
        return
    if database_server:
        async with client_of(f"{database_server[0].dsn}?schema=bench_{next(_schemas)}") as client:
            yield client
        return
    with tempfile.TemporaryDirectory(prefix="clew-bench-") as folder:
        async with client_of(f"sqlite:{Path(folder) / 'bench.db'}") as client:
            yield client


@asynccontextmanager
async def client_of(store: str) -> AsyncIterator[Client]:
    """A client of an engine in this process, or of a node in its own."""
    if not shape["link"]:
        async with await Client.connect(store) as client:
            yield client
        return
    command = [sys.executable, "-m", "benchmarks.node", store]
    node = await asyncio.create_subprocess_exec(*command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert node.stdin is not None, "as asked for"
    assert node.stdout is not None, "as asked for"
    port = int(await node.stdout.readline())
    shape["node"] = node.pid
    async with await Client.connect(f"127.0.0.1:{port}") as client:
        yield client
    shape["node"] = 0
    node.stdin.close()
    await node.wait()


def worker(client: Client) -> Worker:
    """A worker with room for everything in flight."""
    return Worker(
        client,
        task_queue=QUEUE,
        workflows=ALL,
        activities=[no_op],
        max_concurrent_activities=IN_FLIGHT,
        max_concurrent_local_activities=IN_FLIGHT,
        max_concurrent_workflow_tasks=IN_FLIGHT,
    )


Steps = type[Sequence] | type[LocalSequence]
"""A workflow that takes so many steps as it is told."""


async def sequential_steps(count: int = 100, workflow: Steps = Sequence) -> Figures:
    """W1: one workflow, `count` activities in sequence; W1-local: `count` local steps."""
    async with engine() as client, worker(client):
        await client.execute_workflow(workflow.run, 3, id="warm-up", task_queue=QUEUE)
        step_times.clear()
        cpu, clock = cpu_seconds(), time.perf_counter()
        await client.execute_workflow(workflow.run, count, id="measured", task_queue=QUEUE)
        seconds, cpu = time.perf_counter() - clock, cpu_seconds() - cpu
    gaps = sorted(after - before for before, after in itertools.pairwise(step_times))
    return {
        "p50 ms/step": 1e3 * gaps[len(gaps) // 2],
        "p99 ms/step": 1e3 * gaps[int(len(gaps) * 0.99)],
        "mean ms/step": 1e3 * seconds / count,
        "CPU ms/step": 1e3 * cpu / count,
    }


async def many_workflows(count: int = 2_000, steps: int = 3, workflow: Steps = Sequence) -> Figures:
    """W2: `count` workflows of three activities in sequence, 200 in flight; W2-local: of three local steps."""
    async with engine() as client, worker(client):
        gate = asyncio.Semaphore(IN_FLIGHT)

        async def one(number: int) -> None:
            async with gate:
                await client.execute_workflow(workflow.run, steps, id=f"w-{number}", task_queue=QUEUE)

        await asyncio.gather(*(one(-number) for number in range(1, 51)))
        cpu, clock = cpu_seconds(), time.perf_counter()
        await asyncio.gather(*(one(number) for number in range(count)))
        seconds, cpu = time.perf_counter() - clock, cpu_seconds() - cpu
    return {
        "workflows/s": count / seconds,
        "CPU ms/workflow": 1e3 * cpu / count,
        "CPU µs/step": 1e6 * cpu / count / steps,
    }


async def fan_out(count: int = 1_000) -> Figures:
    """W3: one workflow, `count` activities at once."""
    async with engine() as client, worker(client):
        await client.execute_workflow(Sequence.run, 3, id="warm-up", task_queue=QUEUE)
        cpu, clock = cpu_seconds(), time.perf_counter()
        await client.execute_workflow(FanOut.run, count, id="measured", task_queue=QUEUE)
        seconds, cpu = time.perf_counter() - clock, cpu_seconds() - cpu
    return {"s": seconds, "steps/s": count / seconds, "CPU µs/step": 1e6 * cpu / count}


async def resume(count: int = 1_000, workflow: type[Resumed] | type[LocalResumed] = Resumed) -> Figures:
    """W6: a workflow with `count` finished steps, resumed by a worker that has never seen it; W6-local: local steps."""
    async with engine() as client:
        async with worker(client):
            step_times.clear()
            handle = await client.start_workflow(workflow.run, count, id="measured", task_queue=QUEUE)
            await until(lambda: answer_of(len(step_times) >= count))
        await handle.signal(workflow.go_on)
        step_times.clear()
        cpu, clock = cpu_seconds(), time.perf_counter()
        async with worker(client):
            await handle.result()
        cpu = cpu_seconds() - cpu
        return {"ms to the next step": 1e3 * (step_times[0] - clock), "CPU ms": 1e3 * cpu}


async def echo(count: int = 300) -> Figures:
    """W7: a signal to a waiting workflow, and the answer by a query."""
    async with engine() as client, worker(client):
        handle = await client.start_workflow(Echo.run, id="measured", task_queue=QUEUE)
        await handle.query(Echo.count)
        seconds: list[float] = []
        cpu = cpu_seconds()
        for number in range(1, count + 1):
            clock = time.perf_counter()
            await handle.signal(Echo.add, 1)
            answer = await handle.query(Echo.count)
            seconds.append(time.perf_counter() - clock)
            assert answer == number, f"a query after {number} signals saw {answer}"
        cpu = cpu_seconds() - cpu
        await handle.signal(Echo.stop)
        assert await handle.result() == count, "a signal was lost"
    seconds.sort()
    return {
        "p50 ms": 1e3 * seconds[count // 2],
        "p99 ms": 1e3 * seconds[int(count * 0.99)],
        "CPU ms": 1e3 * cpu / count,
    }


async def updates(count: int = 300) -> Figures:
    """W7-update: an update of a waiting workflow, and its result."""
    async with engine() as client, worker(client):
        handle = await client.start_workflow(Asked.run, id="measured", task_queue=QUEUE)
        await handle.execute_update(Asked.ask, 0)
        seconds: list[float] = []
        cpu = cpu_seconds()
        for number in range(1, count + 1):
            clock = time.perf_counter()
            answer = await handle.execute_update(Asked.ask, number)
            seconds.append(time.perf_counter() - clock)
            assert answer == number, f"asked {number}, got {answer}"
        figures = round_trip_figures(seconds, cpu_seconds() - cpu)
        await handle.signal(Asked.stop)
        await handle.result()
    return figures


async def sleepers(count: int = 10_000) -> Figures:
    """W4: `count` workflows that sleep for an hour, 200 being started at once.

    Memory is what they add to a process that has already run as many workflows at once as are started here at once.
    """
    async with engine() as client, worker(client):
        gate = asyncio.Semaphore(IN_FLIGHT)

        async def start(number: int) -> None:
            async with gate:
                await client.start_workflow(Sleeper.run, id=f"s-{number}", task_queue=QUEUE)

        async def run(number: int) -> None:
            async with gate:
                await client.execute_workflow(Sequence.run, 3, id=f"w-{number}", task_queue=QUEUE)

        await asyncio.gather(*(run(number) for number in range(WARM_UP_RUNS)))
        gc.collect()
        pids = [shape["node"] or os.getpid()]
        before, clock = memory(pids), time.perf_counter()
        await asyncio.gather(*(start(number) for number in range(count)))
        seconds = time.perf_counter() - clock
        await asyncio.sleep(SETTLE_SECONDS)
        gc.collect()
        after, cpu = memory(pids), cpu_seconds()
        await asyncio.sleep(IDLE_SECONDS)
        idle = (cpu_seconds() - cpu) / IDLE_SECONDS
    return parked_figures(count, seconds, before, after, idle)


async def replay(steps_count: int = 833) -> Figures:
    """R: the history of `steps_count` steps in sequence, replayed with and without the determinism guard."""
    async with engine() as client, worker(client):
        handle = await client.start_workflow(Sequence.run, steps_count, id="measured", task_queue=QUEUE)
        await handle.result()
        history = await handle.fetch_history()
    guarded, free = Replayer(workflows=[Sequence]), Replayer(workflows=[Sequence])
    # There is no public way to switch the guard off, and there should be none.
    free._options = dataclasses.replace(free._options, is_guarded=False)
    seconds: dict[Replayer, list[float]] = {guarded: [], free: []}
    for _ in range(7):
        for replayer, found in seconds.items():
            cpu = cpu_seconds()
            await replayer.replay_workflow(history)
            found.append(cpu_seconds() - cpu)
    with_guard, without = min(seconds[guarded]), min(seconds[free])
    return {
        "events": len(history.events),
        "CPU ms": 1e3 * with_guard,
        "CPU µs/event": 1e6 * with_guard / len(history.events),
        "guard %": 100 * (with_guard - without) / without,
    }


async def until(condition: Callable[[], Awaitable[bool]], seconds_max: float = 120.0) -> None:
    """Wait for a condition."""
    deadline = time.perf_counter() + seconds_max
    while not await condition():
        if time.perf_counter() > deadline:
            raise TimeoutError(f"not reached within {seconds_max} s")
        await asyncio.sleep(0.005)


async def answer_of(value: bool) -> bool:
    """The value, for `until`."""
    return value


Workload = Callable[[], Awaitable[Figures]]
