"""C049: an update that completes in the task in which its run continues or ends is answered, and applied once."""

from __future__ import annotations

from typing import Any

import pytest

from clew import workflow
from clew.model import events as e
from clew.ports.store import StoreUnavailable
from clew.testing import Faults
from tests.cases.conftest import Recorded
from tests.cases.harness import QUEUE, engine, events, settled, within, worker

UPDATES = 150
EVERY = 10
"""Every so many updates, the commit after the worker's answer fails."""


@workflow.defn
class Counts:
    @workflow.init
    def __init__(self, total: int, goal: int) -> None:
        self.total = total
        self.before = total
        self.is_over = False

    @workflow.run
    async def run(self, total: int, goal: int) -> int:
        await workflow.wait_condition(lambda: self.total > self.before or self.is_over)
        if self.is_over or self.total == goal:
            return self.total
        return workflow.continue_as_new(args=[self.total, goal])

    @workflow.update
    def add(self) -> int:
        self.total += 1
        return self.total


@pytest.mark.parametrize("fault", ["refused", "answer-lost"])
async def test_each_update_is_answered_and_applied_once(fault: str, recorded: Recorded) -> None:
    store_faults = Faults()
    async with engine(store_faults=store_faults) as client, worker(client, [Counts]):
        handle = await client.start_workflow(Counts.run, args=[0, UPDATES], id="counts", task_queue=QUEUE)
        chain = client.get_workflow_handle_for(Counts.run, "counts")
        answers: list[int] = []
        for number in range(UPDATES):
            if number % EVERY == EVERY - 1:
                error = StoreUnavailable("the test cut the way to the store")
                # At one of the commits on the update's way: which one goes through all of them.
                after = number // EVERY % 4
                if fault == "refused":
                    store_faults.fail("commit_if_current", error, after=after)
                else:
                    store_faults.lose_answer("commit_if_current", error, after=after)
            answers.append(await within(chain.execute_update(Counts.add, id=f"update-{number}"), 20))
        store_faults.clear()
        assert answers == list(range(1, UPDATES + 1))
        assert await settled(handle) == UPDATES
        runs = [run.run_id async for run in client.list_workflows("WorkflowId = 'counts'")]
        assert len(runs) == UPDATES
        applied: list[Any] = []
        for run_id in runs:
            run = client.get_workflow_handle("counts", run_id=run_id)
            applied += [event.protocol_instance_id for event in await events(run, e.WorkflowExecutionUpdateAccepted)]
        assert sorted(applied) == sorted(f"update-{number}" for number in range(UPDATES))
        for run_id in runs[::50]:
            await recorded.add(client.get_workflow_handle("counts", run_id=run_id), Counts)
