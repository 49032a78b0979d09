"""C092: the engine is away for a while as a worker is busy; its step is neither started again nor lost.

In the embedded shape engine and worker live and die together (C038 and C077 kill them); what can be away is the store.
An attempt is held by its worker's session, so there is no lease that could run out meanwhile.
"""

from __future__ import annotations

import asyncio
import time

import pytest

from clew import activity, workflow
from clew.model import events as e
from clew.ports.store import StoreUnavailable
from clew.testing import Faults
from tests.cases.conftest import Recorded
from tests.cases.harness import ACTIVITY, QUEUE, engine, events, eventually, settled, within, worker

SECONDS = 1.2
"""The case says 6 s, with 1 s, 2 s and 8 s for the outage; a fifth of that."""

starts: list[float] = []
ends: list[float] = []


@pytest.fixture(autouse=True)
def _clear() -> None:
    starts.clear()
    ends.clear()


@activity.defn
async def long_step() -> str:
    starts.append(time.monotonic())
    await asyncio.sleep(SECONDS)
    ends.append(time.monotonic())
    return "done"


@workflow.defn
class Busy:
    @workflow.run
    async def run(self) -> str:
        return await workflow.execute_activity(long_step, **ACTIVITY)

    @workflow.signal
    def note(self) -> None:
        pass


@pytest.mark.parametrize(("away_at", "back_at"), [(0.2, 0.4), (0.2, 1.6)], ids=["back-before-the-end", "back-after-it"])
async def test_one_start_and_the_result_is_taken(away_at: float, back_at: float, recorded: Recorded) -> None:
    faults = Faults()
    async with engine(store_faults=faults) as client, worker(client, [Busy], [long_step]):
        handle = await client.start_workflow(Busy.run, id="busy", task_queue=QUEUE)
        await eventually(lambda: starts, "the step has started")
        await eventually(lambda: time.monotonic() - starts[0] >= away_at)
        _cut(faults)
        # Somebody wants something of the run meanwhile, so that the engine notices; it is tried until it is taken.
        signal = asyncio.create_task(handle.signal(Busy.note))
        await eventually(lambda: time.monotonic() - starts[0] >= back_at)
        if back_at > SECONDS:
            assert len(ends) == 1, "the worker has been trying to report"
        assert not signal.done()
        faults.clear()
        await within(signal)
        assert await settled(handle) == "done"
        assert len(starts) == 1
        assert len(await events(handle, e.ActivityTaskCompleted)) == 1
        [started] = await events(handle, e.ActivityTaskStarted)
        assert started.attempt == 1
        await recorded.add(handle, Busy)


def _cut(faults: Faults) -> None:
    error = StoreUnavailable("the store is away")
    reads = ("load_run", "load_runs", "find_run", "read_history", "claim_tasks", "find_due_runs")
    for method in ("commit_if_current", *reads):
        faults.fail(method, error, times=None)
