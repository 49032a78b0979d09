"""Temporal's development server, measured: ``python -m benchmarks.peers.temporal WORKLOAD SIZE sqlite``.

Owns: its workflows, the server process, and its way through each workload. Never: imports Clew.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from temporalio import activity, workflow
from temporalio.client import Client
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from benchmarks.peers import gauge
from benchmarks.peers.gauge import Figures, Marks

FOLDER = Path(os.environ.get("CLEW_PEER_FOLDER") or tempfile.mkdtemp(prefix="clew-peer-"))
ROLE = os.environ.get("CLEW_PEER_ROLE", "")
PORT = os.environ.get("CLEW_PEER_PORT", "")
QUEUE: Final = "bench"
TIMEOUT: Final = timedelta(minutes=5)
START_SECONDS_MAX: Final = 60.0
marks = Marks(FOLDER / "marks")
step_times: list[float] = []


@activity.defn
async def no_op(number: int) -> int:
    step_times.append(time.perf_counter())
    return number


@activity.defn
async def mark(word: str, number: int) -> None:
    marks.put(word, number)


@workflow.defn
class Sequence:
    @workflow.run
    async def run(self, count: int) -> int:
        for number in range(count):
            await workflow.execute_activity(no_op, number, start_to_close_timeout=TIMEOUT)
        return count


@workflow.defn
class LocalSequence:
    @workflow.run
    async def run(self, count: int) -> int:
        for number in range(count):
            await workflow.execute_local_activity(no_op, number, start_to_close_timeout=TIMEOUT)
        return count


@workflow.defn
class FanOut:
    @workflow.run
    async def run(self, count: int) -> int:
        return len(
            await asyncio.gather(
                *[workflow.execute_activity(no_op, number, start_to_close_timeout=TIMEOUT) for number in range(count)]
            )
        )


@workflow.defn
class Sleeper:
    @workflow.run
    async def run(self) -> None:
        await asyncio.sleep(3600)


@workflow.defn
class MarkedSleeper:
    @workflow.run
    async def run(self, number: int) -> None:
        await workflow.execute_local_activity(mark, args=["asleep", number], start_to_close_timeout=TIMEOUT)
        await asyncio.sleep(gauge.SLEEP_SECONDS)
        await workflow.execute_local_activity(mark, args=["done", number], start_to_close_timeout=TIMEOUT)


@workflow.defn
class Resumed:
    def __init__(self) -> None:
        self._is_told = False

    @workflow.run
    async def run(self, count: int) -> None:
        marks.put("entered", 0)
        for number in range(count):
            await workflow.execute_local_activity(no_op, number, start_to_close_timeout=TIMEOUT)
        marks.put("ready", 0)
        await workflow.wait_condition(lambda: self._is_told)
        await workflow.execute_local_activity(mark, args=["next", 0], start_to_close_timeout=TIMEOUT)

    @workflow.signal
    def go_on(self) -> None:
        self._is_told = True


@workflow.defn
class Echo:
    def __init__(self) -> None:
        self._is_over = False

    @workflow.run
    async def run(self) -> None:
        await workflow.wait_condition(lambda: self._is_over)

    @workflow.update
    async def ask(self, number: int) -> int:
        return number

    @workflow.signal
    def stop(self) -> None:
        self._is_over = True


# --- processes --------------------------------------------------------------------------------------------------------


def start_server() -> tuple[subprocess.Popen[bytes], int]:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
    program = Path(sys.executable).parent / "temporal"
    log = (FOLDER / "log").open("ab")
    command = [str(program), "server", "start-dev", "--headless", "--port", str(port), "--db-filename"]
    server = subprocess.Popen([*command, str(FOLDER / "temporal.db"), "--log-level", "error"], stdout=log, stderr=log)
    deadline = time.monotonic() + START_SECONDS_MAX
    while True:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return server, port
        if server.poll() is not None or time.monotonic() > deadline:
            gauge.kill_tree(server)
            raise SystemExit("the development server did not start:\n" + (FOLDER / "log").read_text()[-2_000:])
        time.sleep(0.05)


async def connect(port: int) -> Client:
    deadline = time.monotonic() + START_SECONDS_MAX
    while True:
        try:
            return await Client.connect(f"127.0.0.1:{port}")
        except RuntimeError:
            if time.monotonic() > deadline:
                raise
            await asyncio.sleep(0.2)


def worker(client: Client) -> Worker:
    return Worker(
        client,
        task_queue=QUEUE,
        workflows=[Sequence, LocalSequence, FanOut, Sleeper, MarkedSleeper, Resumed, Echo],
        activities=[no_op, mark],
        workflow_runner=UnsandboxedWorkflowRunner(),
        max_concurrent_activities=gauge.IN_FLIGHT,
        max_concurrent_workflow_tasks=gauge.IN_FLIGHT,
    )


async def in_turn(count: int, start: Callable[[int], Awaitable[object]]) -> None:
    gate = asyncio.Semaphore(gauge.IN_FLIGHT)

    async def one(number: int) -> None:
        async with gate:
            await start(number)

    await asyncio.gather(*[one(number) for number in range(count)])


async def measure(workload: str, size: int, server: subprocess.Popen[bytes], port: int) -> Figures:
    client = await connect(port)
    pids = [os.getpid(), server.pid]
    async with worker(client):

        async def run(definition: Any, argument: object, workflow_id: str) -> object:
            return await client.execute_workflow(definition, argument, id=workflow_id, task_queue=QUEUE)

        await run(Sequence.run, 3, "warm-up")
        step_times.clear()
        memory = gauge.memory(pids)
        cpu, clock = gauge.cpu_seconds(pids), time.perf_counter()

        def passed() -> tuple[float, float]:
            return time.perf_counter() - clock, gauge.cpu_seconds(pids) - cpu

        sequence: Any = LocalSequence.run if workload.endswith("LOCAL") else Sequence.run
        if workload in {"W1", "W1-LOCAL"}:
            await run(sequence, size, "measured")
            return gauge.step_figures(step_times, *passed())
        if workload in {"W2", "W2-LOCAL"}:
            await in_turn(size, lambda number: run(sequence, 3, f"w-{number}"))
            return gauge.workflow_figures(size, *passed())
        if workload == "W3":
            await run(FanOut.run, size, "measured")
            return gauge.fan_figures(size, *passed())
        if workload == "W4":
            await in_turn(size, lambda number: client.start_workflow(Sleeper.run, id=f"s-{number}", task_queue=QUEUE))
            seconds, _ = passed()
            await asyncio.sleep(20)
            after, cpu = gauge.memory(pids), gauge.cpu_seconds(pids)
            await asyncio.sleep(10)
            return gauge.parked_figures(size, seconds, memory, after, (gauge.cpu_seconds(pids) - cpu) / 10)
        assert workload == "W7", f"Temporal is not measured in {workload}"
        handle = await client.start_workflow(Echo.run, id="measured", task_queue=QUEUE)
        seconds_each: list[float] = []
        for number in range(size):
            began = time.perf_counter()
            answer = await handle.execute_update(Echo.ask, number)
            seconds_each.append(time.perf_counter() - began)
            assert answer == number, f"sent {number}, got {answer}"
        figures = gauge.round_trip_figures(seconds_each, passed()[1])
        await handle.signal(Echo.stop)
        return figures


async def work(workload: str, size: int) -> None:
    """Be a worker that is killed: begin the workflows if it is the first, and go on with what is there."""
    client = await connect(int(PORT))
    if ROLE == "second" and workload == "W6":
        await client.get_workflow_handle("measured").signal(Resumed.go_on)
    async with worker(client):
        if ROLE == "first" and workload == "W5":
            await in_turn(
                size,
                lambda number: client.start_workflow(MarkedSleeper.run, number, id=f"s-{number}", task_queue=QUEUE),
            )
        elif ROLE == "first":
            await client.start_workflow(
                Resumed.run, size, id="measured", task_queue=QUEUE, task_timeout=timedelta(minutes=2)
            )
        await asyncio.sleep(3600)


def main() -> None:
    workload, size = sys.argv[1], int(sys.argv[2])
    if ROLE:
        asyncio.run(work(workload, size))
        return
    server, port = start_server()

    def spawn(role: str) -> subprocess.Popen[bytes]:
        environment = {
            **os.environ,
            "CLEW_PEER_ROLE": role,
            "CLEW_PEER_FOLDER": str(FOLDER),
            "CLEW_PEER_PORT": str(port),
        }
        return subprocess.Popen([sys.executable, "-m", "benchmarks.peers.temporal", *sys.argv[1:]], env=environment)

    try:
        if workload == "W5":
            figures = gauge.kill_among_sleepers(spawn, marks, size)
        elif workload == "W6":
            figures = gauge.kill_after_steps(spawn, marks, size)
        else:
            figures = asyncio.run(measure(workload, size, server, port))
    finally:
        gauge.kill_tree(server)
    gauge.report(figures)


if __name__ == "__main__":
    main()
