"""Processes that share one PostgreSQL database: started, killed, paused and stopped while runs go on."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections import Counter, defaultdict
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from clew.client import Client, WorkflowHandle
from tests.cases.harness import ROOT, within
from tests.fleet.node_program import STEPS, TASK_QUEUE, Ledger
from tests.postgres.databases import create_database, long_test

PROGRAM = Path(__file__).with_name("node_program.py")
LEASE_SECONDS = 2.0
DEADLINE_SECONDS = 90.0
"""Generous: machines that run tests are slow and busy."""

SUM = sum(range(STEPS)) + sum(range(STEPS // 2)) + 30
"""What each run comes to: its steps, those of its child, and two signals."""


class Processes:
    """The node processes of one test."""

    def __init__(self, dsn: str, ledger: Path) -> None:
        self.dsn = dsn
        self.ledger = ledger
        self.running: list[asyncio.subprocess.Process] = []

    async def add(self) -> asyncio.subprocess.Process:
        """Start one, and wait until its worker is attached."""
        process = await asyncio.create_subprocess_exec(
            sys.executable, str(PROGRAM), self.dsn, str(self.ledger),
            stdout=asyncio.subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"},
        )  # fmt: skip
        self.running.append(process)
        assert process.stdout is not None
        assert await within(process.stdout.readline(), DEADLINE_SECONDS) == b"ready\n"
        return process

    async def kill(self, process: asyncio.subprocess.Process) -> None:
        """End one without a word."""
        self.running.remove(process)
        process.kill()
        await process.wait()

    async def stop(self, process: asyncio.subprocess.Process) -> None:
        """Have one leave in good order."""
        self.running.remove(process)
        process.terminate()
        assert await within(process.wait(), DEADLINE_SECONDS) == 0

    async def close(self) -> None:
        """End all that are left."""
        for process in list(self.running):
            process.send_signal(signal.SIGCONT)
            await self.kill(process)


@pytest.fixture
async def processes(tmp_path: Path) -> AsyncIterator[Processes]:
    """Three nodes with a worker each."""
    dsn = await create_database(f"shards=16&lease={LEASE_SECONDS}")
    processes = Processes(dsn, tmp_path / "ledger")
    try:
        await asyncio.gather(processes.add(), processes.add(), processes.add())
        yield processes
    finally:
        await processes.close()


async def start_all(client: Client, count: int) -> list[WorkflowHandle[Ledger, int]]:
    handles = [
        await client.start_workflow(Ledger.run, id=f"run-{number}", task_queue=TASK_QUEUE) for number in range(count)
    ]
    for handle in handles:
        await handle.signal(Ledger.add, 10)
    return handles


async def check(client: Client, handles: list[WorkflowHandle[Ledger, int]], ledger: Path) -> None:
    """Every run came to its sum, no step was recorded twice, and none had two keys."""
    results = await within(asyncio.gather(*[handle.result() for handle in handles]), DEADLINE_SECONDS)
    assert results == [SUM] * len(handles)
    keys: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
    for line in ledger.read_text().splitlines():
        workflow_id, step, _, key = line.split()
        keys[workflow_id, step].add(key)
    assert len(keys) == len(handles) * (STEPS + STEPS // 2)
    assert all(len(some) == 1 for some in keys.values()), "a step acted under two keys"
    for handle in handles:
        events = (await handle.fetch_history()).events
        assert [event.event_id for event in events] == list(range(1, len(events) + 1))
        types = Counter(type(event).__name__ for event in events)
        assert types["ActivityTaskCompleted"] == types["ActivityTaskScheduled"] == STEPS
        assert (types["WorkflowExecutionSignaled"], types["TimerFired"]) == (2, 1)
        assert (types["ChildWorkflowExecutionStarted"], types["ChildWorkflowExecutionCompleted"]) == (1, 1)


async def test_processes_that_are_killed_paused_and_stopped_lose_nothing(processes: Processes) -> None:
    client = await Client.connect(processes.dsn)
    handles = await start_all(client, 30)
    killed, paused, leaving = processes.running
    await processes.kill(killed)
    paused.send_signal(signal.SIGSTOP)
    for handle in handles:
        await handle.signal(Ledger.add, 20)
    await processes.add()
    await asyncio.sleep(2.5 * LEASE_SECONDS)  # the pause that is tested
    paused.send_signal(signal.SIGCONT)
    await processes.stop(leaving)
    await check(client, handles, processes.ledger)
    await client.close()


async def test_queries_and_updates_find_the_worker_in_another_process(processes: Processes) -> None:
    client = await Client.connect(processes.dsn)
    handles = await start_all(client, 6)
    for number, handle in enumerate(handles):
        assert await within(handle.execute_update(Ledger.rename, f"n{number}"), DEADLINE_SECONDS) == f"N{number}"
        assert await within(handle.query(Ledger.done_count), DEADLINE_SECONDS) <= STEPS
        await handle.signal(Ledger.add, 20)
    await check(client, handles, processes.ledger)
    await client.close()


@long_test
async def test_nodes_that_come_and_go_all_the_time_lose_nothing(processes: Processes) -> None:
    client = await Client.connect(processes.dsn)
    handles = await start_all(client, 200)
    for turn in range(12):
        victim = processes.running[0]
        if turn % 3 == 0:
            await processes.kill(victim)
            await processes.add()
        elif turn % 3 == 1:
            victim.send_signal(signal.SIGSTOP)
            await asyncio.sleep(1.5 * LEASE_SECONDS)  # the pause that is tested
            victim.send_signal(signal.SIGCONT)
            processes.running.append(processes.running.pop(0))
        else:
            await processes.stop(victim)
            await processes.add()
        for handle in handles[turn * 17 : (turn + 1) * 17]:
            await handle.signal(Ledger.add, 20)
    await check(client, handles, processes.ledger)
    await client.close()
