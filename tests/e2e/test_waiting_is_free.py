"""A run that waits is rows in the store: a process that comes back has nothing of it (law 10)."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections import Counter
from datetime import timedelta
from pathlib import Path

from clew import workflow
from clew.client import Client, WorkflowHandle
from clew.engine.runs import RunEntry
from clew.replay import WorkflowMachine
from clew.worker import Worker

QUEUE = "waiting"
RUNS = 60
TASK_DONE = 4
"""Events by which the first workflow task is answered."""


@workflow.defn
class Waits:
    """Waits for an hour, or for a signal."""

    def __init__(self) -> None:
        self.is_told = False

    @workflow.run
    async def run(self, number: int) -> int:
        if number % 2:
            await workflow.wait_condition(lambda: self.is_told)
        else:
            await asyncio.sleep(timedelta(hours=1).total_seconds())
        return number

    @workflow.signal
    def tell(self) -> None:
        self.is_told = True


def _held() -> Counter[str]:
    """What this process holds that could be one for each run."""
    gc.collect()
    kinds = Counter(type(one).__name__ for one in gc.get_objects() if isinstance(one, RunEntry | WorkflowMachine))
    kinds["coroutines"] = len(asyncio.all_tasks())
    kinds["threads"] = threading.active_count()
    return kinds


async def _held_while_open(store: str, *, runs: int) -> Counter[str]:
    """Open the store, see that so many runs are open, and tell what is held by then."""
    client = await Client.connect(store)
    async with client, Worker(client, task_queue=QUEUE, workflows=[Waits]):
        count = await client.count_workflows("ExecutionStatus = 'Running'")
        assert count.count == runs
        return _held()


async def _begin(store: str) -> Counter[str]:
    """Have so many runs wait, and tell what is held by the process that has begun them."""
    async with await Client.connect(store) as client, Worker(client, task_queue=QUEUE, workflows=[Waits]):
        for number in range(RUNS):
            handle = await client.start_workflow(Waits.run, number, id=f"w{number}", task_queue=QUEUE)
            await _until_it_waits(handle)
        return _held()


async def _until_it_waits(handle: WorkflowHandle[Waits, int]) -> None:
    """Ask until the run has done its first workflow task."""
    async with asyncio.timeout(60):
        while (await handle.describe()).history_length < TASK_DONE:
            await asyncio.sleep(0.01)


async def test_a_process_that_comes_back_holds_nothing_of_runs_that_wait(tmp_path: Path) -> None:
    empty = await _held_while_open(f"sqlite:{tmp_path}/empty.db", runs=0)
    store = f"sqlite:{tmp_path}/full.db"
    working = await _begin(store)
    # Whatever tests before this one have left in the process goes at any time.
    assert working["WorkflowMachine"] >= RUNS, "the worker that has begun them has them cached"
    assert working["threads"] - empty["threads"] < RUNS // 4, "those of the pools, however many runs there are"
    full = await _held_while_open(store, runs=RUNS)
    assert full["RunEntry"] - empty["RunEntry"] <= 0
    assert full["WorkflowMachine"] - empty["WorkflowMachine"] <= 0
    assert full["coroutines"] - empty["coroutines"] < RUNS // 4
    assert full["threads"] - empty["threads"] < RUNS // 4
