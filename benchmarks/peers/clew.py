"""Clew, measured as its peers are: ``python -m benchmarks.peers.clew WORKLOAD SIZE sqlite|server|postgresql://…``.

``server`` is a node of its own on a SQLite file, as ``clew server start`` runs it, with the worker behind a link: the
shape that the servers among the peers have. The others are the engine in the worker's process.

Owns: its way through each workload in the same processes, with the same gauge and the same sizes as the others.
Never: knows what the others do. What is measured in depth, beside the floor, is in `benchmarks.workloads`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from datetime import timedelta
from pathlib import Path

from benchmarks.peers import gauge
from benchmarks.peers.gauge import Figures, Marks
from benchmarks.workflows import TIMEOUT, FanOut, LocalSequence, Sequence, no_op, step_times
from clew import activity, workflow
from clew.client import Client
from clew.worker import Worker

FOLDER = Path(os.environ.get("CLEW_PEER_FOLDER") or tempfile.mkdtemp(prefix="clew-peer-"))
ROLE = os.environ.get("CLEW_PEER_ROLE", "")
QUEUE = "bench"
marks = Marks(FOLDER / "marks")
asleep: list[int] = []
"""One for each workflow of W4 that has come to its sleep; its start is answered when that is recorded."""


@activity.defn
async def mark(word: str, number: int) -> None:
    """Leave a mark that outlives the process."""
    marks.put(word, number)


@workflow.defn
class Sleeper:
    """Sleeps for an hour."""

    @workflow.run
    async def run(self) -> None:
        with workflow.unsafe.sandbox_unrestricted():
            asleep.append(1)
        await asyncio.sleep(3600)


@workflow.defn
class MarkedSleeper:
    """Sleeps between two marks."""

    @workflow.run
    async def run(self, number: int) -> None:
        await workflow.execute_activity(mark, args=["asleep", number], start_to_close_timeout=TIMEOUT)
        await asyncio.sleep(gauge.SLEEP_SECONDS)
        await workflow.execute_activity(mark, args=["done", number], start_to_close_timeout=TIMEOUT)


class _Told:
    """Waits between its steps and one more until it is told to go on."""

    def __init__(self) -> None:
        self._is_told = False

    @workflow.signal
    def go_on(self) -> None:
        """End the wait."""
        self._is_told = True

    async def go(self, count: int, take: Callable[..., Awaitable[None]]) -> None:
        """Take the steps by `take`, leaving a mark before the first, after the last, and with the one more."""
        _leave("entered")
        for number in range(count):
            await take(no_op, number, start_to_close_timeout=TIMEOUT)
        _leave("ready")
        await workflow.wait_condition(lambda: self._is_told)
        await take(mark, args=["next", 0], start_to_close_timeout=TIMEOUT)


def _leave(word: str) -> None:
    with workflow.unsafe.sandbox_unrestricted():
        marks.put(word, 0)


@workflow.defn
class Resumed(_Told):
    """Takes activities, and one more when it is told to."""

    @workflow.run
    async def run(self, count: int) -> None:
        await self.go(count, workflow.execute_activity)


@workflow.defn
class ResumedLocal(_Told):
    """Takes local steps, and one more when it is told to."""

    @workflow.run
    async def run(self, count: int) -> None:
        await self.go(count, workflow.execute_local_activity)


@workflow.defn
class Echo:
    """Answers updates until it is told to stop."""

    def __init__(self) -> None:
        self._is_over = False

    @workflow.run
    async def run(self) -> None:
        await workflow.wait_condition(lambda: self._is_over)

    @workflow.update
    def answer(self, number: int) -> int:
        """Give back what came."""
        return number

    @workflow.signal
    def stop(self) -> None:
        """End the run."""
        self._is_over = True


WORKFLOWS = [Sequence, LocalSequence, FanOut, Sleeper, MarkedSleeper, Resumed, ResumedLocal, Echo]


def worker(client: Client) -> Worker:
    """A worker with room for everything in flight."""
    return Worker(
        client,
        task_queue=QUEUE,
        workflows=WORKFLOWS,
        activities=[no_op, mark],
        max_concurrent_activities=gauge.IN_FLIGHT,
        max_concurrent_local_activities=gauge.IN_FLIGHT,
        max_concurrent_workflow_tasks=gauge.IN_FLIGHT,
    )


async def in_turn(count: int, start: Callable[[int], Awaitable[object]]) -> None:
    """Have `start` done for each number, so many at once as all are allowed."""
    waiting = iter(range(count))  # drawn from by so many, not a task each: those would be memory of the load's own

    async def draw() -> None:
        for number in waiting:
            await start(number)

    await asyncio.gather(*[draw() for _ in range(min(count, gauge.IN_FLIGHT))])


async def measure(client: Client, workload: str, size: int, pids: list[int]) -> Figures:
    """One workload, on a connected client with a worker."""
    steps = LocalSequence if workload.endswith("LOCAL") else Sequence
    await client.execute_workflow(steps.run, 3, id="first", task_queue=QUEUE)
    step_times.clear()
    memory = gauge.memory(pids)
    cpu, clock = gauge.cpu_seconds(pids), time.perf_counter()

    def passed() -> tuple[float, float]:
        return time.perf_counter() - clock, gauge.cpu_seconds(pids) - cpu

    match workload.partition("-")[0]:
        case "W1":
            await client.execute_workflow(steps.run, size, id="steps", task_queue=QUEUE)
            return gauge.step_figures(step_times, *passed())
        case "W2":
            await in_turn(
                size, lambda number: client.execute_workflow(steps.run, 3, id=f"w-{number}", task_queue=QUEUE)
            )
            return gauge.workflow_figures(size, *passed())
        case "W3":
            await client.execute_workflow(FanOut.run, size, id="fan", task_queue=QUEUE)
            return gauge.fan_figures(size, *passed())
        case "W4":
            await in_turn(size, lambda number: client.start_workflow(Sleeper.run, id=f"s-{number}", task_queue=QUEUE))
            seconds, _ = passed()
            while len(asleep) < size:  # noqa: ASYNC110 - nobody tells, and nothing hangs on it
                await asyncio.sleep(0.01)
            until_asleep, _ = passed()
            await asyncio.sleep(10)
            after, cpu = gauge.memory(pids), gauge.cpu_seconds(pids)
            await asyncio.sleep(10)
            idle = (gauge.cpu_seconds(pids) - cpu) / 10
            return gauge.parked_figures(size, seconds, memory, after, idle, asleep_seconds=until_asleep)
    assert workload == "W7", f"there is no workload {workload}"
    handle = await client.start_workflow(Echo.run, id="echo", task_queue=QUEUE)
    each: list[float] = []
    for number in range(size):
        began = time.perf_counter()
        answer = await handle.execute_update(Echo.answer, number)
        each.append(time.perf_counter() - began)
        assert answer == number, f"sent {number}, got {answer}"
    return gauge.round_trip_figures(each, passed()[1])


async def work(address: str, workload: str, size: int) -> None:
    """Be a worker that is killed; the first begins the workflows, the second goes on with what is there."""
    async with await Client.connect(address) as client, worker(client):
        if ROLE == "first" and workload == "W5":
            await in_turn(
                size,
                lambda number: client.start_workflow(MarkedSleeper.run, number, id=f"m-{number}", task_queue=QUEUE),
            )
        elif ROLE == "first":
            resumed = ResumedLocal if workload == "W6-LOCAL" else Resumed
            await client.start_workflow(resumed.run, size, id="resumed", task_queue=QUEUE)
        elif workload != "W5":
            await client.get_workflow_handle("resumed").signal("go_on")
        await asyncio.sleep(timedelta(hours=1).total_seconds())


async def measured(address: str, workload: str, size: int) -> Figures:
    """One workload that kills nothing, in this process."""
    server = os.environ.get("CLEW_PEER_SERVER_PID")
    pids = [os.getpid(), *([int(server)] if server and not address.startswith("sqlite") else [])]
    async with await Client.connect(address) as client, worker(client):
        return await measure(client, workload, size, pids)


@contextlib.contextmanager
def node() -> Iterator[str]:
    """A node in a process of its own; gives its address."""
    command = [sys.executable, "-m", "benchmarks.node", f"sqlite:{FOLDER / 'clew.db'}"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None, "as asked for"
    os.environ["CLEW_PEER_SERVER_PID"] = str(process.pid)
    try:
        yield f"127.0.0.1:{int(process.stdout.readline())}"
    finally:
        gauge.kill_tree(process)


def main() -> None:
    """Measure what was asked for."""
    workload, size, store = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    if store == "server" and not ROLE:
        with node() as address:
            measure_at(address, workload, size)
        return
    measure_at(f"sqlite:{FOLDER / 'clew.db'}" if store == "sqlite" else store, workload, size)


def measure_at(address: str, workload: str, size: int) -> None:
    """Measure with a client of this address, or be a worker there that is killed."""
    if ROLE:
        asyncio.run(work(address, workload, size))
        return

    def spawn(role: str) -> subprocess.Popen[bytes]:
        environment = {**os.environ, "CLEW_PEER_ROLE": role, "CLEW_PEER_FOLDER": str(FOLDER)}
        return subprocess.Popen(
            [sys.executable, "-m", "benchmarks.peers.clew", workload, str(size), address], env=environment
        )

    if workload == "W5":
        gauge.report(gauge.kill_among_sleepers(spawn, marks, size))
    elif workload in {"W6", "W6-LOCAL"}:
        gauge.report(gauge.kill_after_steps(spawn, marks, size))
    else:
        gauge.report(asyncio.run(measured(address, workload, size)))


if __name__ == "__main__":
    main()
