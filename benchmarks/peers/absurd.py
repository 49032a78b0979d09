"""Absurd, measured: ``python -m benchmarks.peers.absurd WORKLOAD SIZE postgresql://…`` where it is installed.

Owns: its tasks and its way through each workload. Never: imports Clew.

How it works: the worker is a process of its own, as Absurd is deployed; this one spawns tasks and sees when they are
done. The result of a task is polled by Absurd's own client, so steps are timed inside the task.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

import psycopg
from absurd_sdk import AsyncAbsurd, AsyncTaskContext

from benchmarks.peers import gauge
from benchmarks.peers.gauge import Figures, Marks

FOLDER = Path(os.environ.get("CLEW_PEER_FOLDER") or tempfile.mkdtemp(prefix="clew-peer-"))
ROLE = os.environ.get("CLEW_PEER_ROLE", "")
STORE = sys.argv[3]
SPAWNERS: Final = 4
"""Connections that spawn tasks at the same time."""

CLAIM_SECONDS: Final = 10
"""After how long a task of a worker that died is given to another; its default is 120."""

marks = Marks(FOLDER / "marks")
app = AsyncAbsurd(STORE)


@app.register_task(name="sequence")
async def sequence(count: int, context: AsyncTaskContext) -> list[float]:
    times = []
    for number in range(count):

        async def no_op(number: int = number) -> int:
            times.append(time.perf_counter())
            return number

        await context.step("no_op", no_op)
    return times


@app.register_task(name="fan_out")
async def fan_out(count: int, context: AsyncTaskContext) -> int:
    async def no_op(number: int) -> int:
        return number

    steps = [context.step(f"no_op-{number}", lambda number=number: no_op(number)) for number in range(count)]  # type: ignore[misc]
    return len(await asyncio.gather(*steps))


@app.register_task(name="sleeper")
async def sleeper(_: None, context: AsyncTaskContext) -> None:
    await context.sleep_for("nap", 3600)


def marking(word: str, number: int) -> Any:
    async def step() -> int:
        marks.put(word, number)
        return number

    return step


@app.register_task(name="marked_sleeper")
async def marked_sleeper(number: int, context: AsyncTaskContext) -> None:
    await context.step("asleep", marking("asleep", number))
    await context.sleep_for("nap", gauge.SLEEP_SECONDS)
    await context.step("done", marking("done", number))


@app.register_task(name="resumed")
async def resumed(count: int, context: AsyncTaskContext) -> None:
    marks.put("entered", 0)
    for number in range(count):

        async def no_op(number: int = number) -> int:
            return number

        await context.step("no_op", no_op)
    if ROLE == "first":
        marks.put("ready", 0)
        await asyncio.sleep(3600)
    await context.step("next", marking("next", 0))


@app.register_task(name="ping")
async def ping(count: int, context: AsyncTaskContext) -> list[float]:
    seconds = []
    for number in range(count):

        async def now() -> float:
            return time.time()

        began = await context.step("began", now)
        await context.emit_event(f"in-{number}", number)
        await context.await_event(f"out-{number}")

        async def passed(began: float = began) -> float:
            return time.time() - began

        seconds.append(await context.step("passed", passed))
    return seconds


@app.register_task(name="pong")
async def pong(count: int, context: AsyncTaskContext) -> None:
    for number in range(count):
        await context.emit_event(f"out-{number}", await context.await_event(f"in-{number}"))


async def result_of(name: str, parameter: int) -> Any:
    spawned = await app.spawn(name, parameter)
    told = await app.await_task_result(spawned["task_id"], timeout=300)
    assert told.state == "completed", f"{name} ended as {told}"
    return told.result


async def spawn_many(name: str, parameters: list[Any]) -> None:
    clients = [AsyncAbsurd(STORE) for _ in range(SPAWNERS)]
    waiting = iter(parameters)

    async def spawn_some(client: AsyncAbsurd) -> None:
        for parameter in waiting:
            await client.spawn(name, parameter, queue="default")

    await asyncio.gather(*[spawn_some(client) for client in clients])
    for client in clients:
        await client.close()


async def until_all_are(state: str, name: str, count: int) -> None:
    query = "SELECT count(*) FROM absurd.t_default WHERE task_name = %s AND state = %s"
    async with await psycopg.AsyncConnection.connect(STORE, autocommit=True) as connection:
        while True:
            row = await (await connection.execute(query, (name, state))).fetchone()
            if row is not None and row[0] >= count:
                return
            await asyncio.sleep(0.05)


async def measure(workload: str, size: int, pids: list[int]) -> Figures:
    await result_of("sequence", 3)
    memory = gauge.memory(pids)
    cpu, clock = gauge.cpu_seconds(pids), time.perf_counter()

    def passed() -> tuple[float, float]:
        return time.perf_counter() - clock, gauge.cpu_seconds(pids) - cpu

    if workload == "W1":
        times = await result_of("sequence", size)
        return gauge.step_figures(times, times[-1] - times[0], passed()[1])
    if workload == "W2":
        await spawn_many("sequence", [3] * size)
        await until_all_are("completed", "sequence", size + 1)
        return gauge.workflow_figures(size, *passed())
    if workload == "W3":
        await result_of("fan_out", size)
        return gauge.fan_figures(size, *passed())
    if workload == "W4":
        await spawn_many("sleeper", [None] * size)
        seconds, _ = passed()
        await until_all_are("sleeping", "sleeper", size)
        asleep, _ = passed()
        await asyncio.sleep(10)
        after, cpu = gauge.memory(pids), gauge.cpu_seconds(pids)
        await asyncio.sleep(10)
        idle = (gauge.cpu_seconds(pids) - cpu) / 10
        return gauge.parked_figures(size, seconds, memory, after, idle, asleep_seconds=asleep)
    assert workload == "W7", f"Absurd is not measured in {workload}"
    await app.spawn("pong", size)
    return gauge.round_trip_figures(await result_of("ping", size), passed()[1])


async def work(workload: str, size: int) -> None:
    """Be a worker; the first of a workload that kills it begins the tasks, too."""
    if ROLE == "first" and workload == "W5":
        await spawn_many("marked_sleeper", list(range(size)))
    elif ROLE == "first":
        await app.spawn("resumed", size)
    await app.start_worker(concurrency=gauge.IN_FLIGHT, claim_timeout=CLAIM_SECONDS if workload == "W6" else 120)


def prepare() -> None:
    """Make its schema and its queue."""
    program = str(Path(sys.executable).with_name("absurdctl"))
    for command in (["init"], ["create-queue", "default"]):
        done = subprocess.run([program, command[0], "-d", STORE, *command[1:]], capture_output=True, check=False)
        if done.returncode:
            raise SystemExit(f"absurdctl {command[0]} failed: {done.stderr.decode()[-2000:]}")


def main() -> None:
    workload, size = sys.argv[1], int(sys.argv[2])
    if ROLE:
        asyncio.run(work(workload, size))
        return
    prepare()

    def spawn(role: str) -> subprocess.Popen[bytes]:
        environment = {**os.environ, "CLEW_PEER_ROLE": role, "CLEW_PEER_FOLDER": str(FOLDER)}
        return subprocess.Popen([sys.executable, "-m", "benchmarks.peers.absurd", *sys.argv[1:]], env=environment)

    if workload == "W5":
        gauge.report(gauge.kill_among_sleepers(spawn, marks, size))
    elif workload == "W6":
        gauge.report(gauge.kill_after_steps(spawn, marks, size))
    else:
        worker = spawn("worker")
        server = os.environ.get("CLEW_PEER_SERVER_PID")
        try:
            gauge.report(asyncio.run(measure(workload, size, [os.getpid(), *([int(server)] if server else [])])))
        finally:
            gauge.kill_tree(worker)


if __name__ == "__main__":
    main()
