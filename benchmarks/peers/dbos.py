"""DBOS, measured: ``python -m benchmarks.peers.dbos WORKLOAD SIZE sqlite|postgresql://…`` where it is installed.

Owns: its workflows and its way through each workload. Never: imports Clew.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from dbos import DBOS, DBOSConfig

from benchmarks.peers import gauge
from benchmarks.peers.gauge import Figures, Marks

FOLDER = Path(os.environ.get("CLEW_PEER_FOLDER") or tempfile.mkdtemp(prefix="clew-peer-"))
ROLE = os.environ.get("CLEW_PEER_ROLE", "")
marks = Marks(FOLDER / "marks")
step_times: list[float] = []
asleep: list[int] = []


@DBOS.step()
async def no_op(number: int) -> int:
    step_times.append(time.perf_counter())
    return number


@DBOS.step()
async def mark(word: str, number: int) -> None:
    marks.put(word, number)


@DBOS.workflow()
async def sequence(count: int) -> int:
    for number in range(count):
        await no_op(number)
    return count


@DBOS.workflow()
async def fan_out(count: int) -> int:
    return len(await asyncio.gather(*[no_op(number) for number in range(count)]))


@DBOS.workflow()
async def sleeper() -> None:
    asleep.append(1)
    await DBOS.sleep_async(3600)


@DBOS.workflow()
async def marked_sleeper(number: int) -> None:
    await mark("asleep", number)
    await DBOS.sleep_async(gauge.SLEEP_SECONDS)
    await mark("done", number)


@DBOS.workflow()
async def resumed(count: int) -> None:
    marks.put("entered", 0)
    for number in range(count):
        await no_op(number)
    if ROLE == "first":
        marks.put("ready", 0)
        await asyncio.sleep(3600)
    await mark("next", 0)


@DBOS.workflow()
async def echo(count: int) -> None:
    for number in range(count):
        answer = await DBOS.recv_async("in", timeout_seconds=60)
        await DBOS.set_event_async(f"out-{number}", answer)


async def run(workflow: Callable[..., Awaitable[object]], *arguments: object) -> object:
    handle = await DBOS.start_workflow_async(workflow, *arguments)  # type: ignore[arg-type]
    return await handle.get_result()


async def in_turn(count: int, start: Callable[[int], Awaitable[object]]) -> None:
    waiting = iter(range(count))  # drawn from by so many, not a task each: those would be memory of the load's own

    async def draw() -> None:
        for number in waiting:
            await start(number)

    await asyncio.gather(*[draw() for _ in range(min(count, gauge.IN_FLIGHT))])


async def measure(workload: str, size: int, pids: list[int]) -> Figures:
    await run(sequence, 3)
    step_times.clear()
    memory = gauge.memory(pids)
    cpu, clock = gauge.cpu_seconds(pids), time.perf_counter()

    def passed() -> tuple[float, float]:
        return time.perf_counter() - clock, gauge.cpu_seconds(pids) - cpu

    if workload == "W1":
        await run(sequence, size)
        return gauge.step_figures(step_times, *passed())
    if workload == "W2":
        await in_turn(size, lambda _: run(sequence, 3))
        return gauge.workflow_figures(size, *passed())
    if workload == "W3":
        await run(fan_out, size)
        return gauge.fan_figures(size, *passed())
    if workload == "W4":
        await in_turn(size, lambda _: DBOS.start_workflow_async(sleeper))
        seconds, _ = passed()
        while len(asleep) < size:  # noqa: ASYNC110 - nobody tells, and nothing hangs on it
            await asyncio.sleep(0.01)
        until_asleep, _ = passed()
        await asyncio.sleep(10)
        after, cpu = gauge.memory(pids), gauge.cpu_seconds(pids)
        await asyncio.sleep(10)
        idle = (gauge.cpu_seconds(pids) - cpu) / 10
        return gauge.parked_figures(size, seconds, memory, after, idle, asleep_seconds=until_asleep)
    assert workload == "W7", f"DBOS is not measured in {workload}"
    handle = await DBOS.start_workflow_async(echo, size)
    workflow_id = handle.get_workflow_id()
    seconds_each: list[float] = []
    for number in range(size):
        began = time.perf_counter()
        await DBOS.send_async(workflow_id, number, "in")
        answer = await DBOS.get_event_async(workflow_id, f"out-{number}", 60)
        seconds_each.append(time.perf_counter() - began)
        assert answer == number, f"sent {number}, got {answer}"
    return gauge.round_trip_figures(seconds_each, passed()[1])


async def work(workload: str, size: int) -> None:
    """Be a worker that is killed: begin the workflows if it is the first, and go on with what is there."""
    DBOS.launch()
    if ROLE == "first" and workload == "W5":
        await in_turn(size, lambda number: DBOS.start_workflow_async(marked_sleeper, number))
    elif ROLE == "first":
        await DBOS.start_workflow_async(resumed, size)
    await asyncio.sleep(3600)


def server_pids(store: str) -> list[int]:
    """The processes of the database server, if it was said which (``CLEW_PEER_SERVER_PID``)."""
    named = os.environ.get("CLEW_PEER_SERVER_PID")
    return [int(named)] if named and store != "sqlite" else []


def main() -> None:
    workload, size, store = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    url = f"sqlite:///{FOLDER}/dbos.db" if store == "sqlite" else store
    config: DBOSConfig = {
        "name": "bench",
        "system_database_url": url,
        "log_level": "ERROR",
        "application_version": "1",
        "run_admin_server": False,
    }
    DBOS(config=config)
    if ROLE:
        asyncio.run(work(workload, size))
        return

    def spawn(role: str) -> subprocess.Popen[bytes]:
        environment = {**os.environ, "CLEW_PEER_ROLE": role, "CLEW_PEER_FOLDER": str(FOLDER)}
        return subprocess.Popen([sys.executable, "-m", "benchmarks.peers.dbos", *sys.argv[1:]], env=environment)

    if workload == "W5":
        gauge.report(gauge.kill_among_sleepers(spawn, marks, size))
    elif workload == "W6":
        gauge.report(gauge.kill_after_steps(spawn, marks, size))
    else:
        DBOS.launch()
        gauge.report(asyncio.run(measure(workload, size, [os.getpid(), *server_pids(store)])))
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
