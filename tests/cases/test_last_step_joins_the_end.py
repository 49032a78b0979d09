"""A last step in a batch is recorded with the end of its run; any other step is durable before the code sees it."""

from __future__ import annotations

from datetime import timedelta

import pytest

from clew import activity, workflow
from clew.model import events as e
from tests.cases.harness import QUEUE, engine, events, replay_check, settled, worker


@activity.defn
async def add_one(number: int) -> int:
    return number + 1


@workflow.defn
class Steps:
    @workflow.run
    async def run(self, last: str) -> int:
        number = 0
        for durable in ("step", "step", last):
            number = await workflow.execute_local_activity(
                add_one, number, start_to_close_timeout=timedelta(seconds=30), durable=durable
            )
        return number


@pytest.mark.parametrize(("last", "joined_count"), [("step", 0), ("batch", 1)])
async def test_the_last_step_shares_the_commit_of_the_end_if_it_is_in_a_batch(last: str, joined_count: int) -> None:
    async with engine() as client, worker(client, [Steps], [add_one]):
        handle = await client.start_workflow(Steps.run, last, id="steps", task_queue=QUEUE)
        assert await settled(handle) == 3
        kinds = [type(event) for event in await events(handle)]
        end = kinds.index(e.WorkflowTaskCompleted)
        assert kinds[:end].count(e.MarkerRecorded) == 3 - joined_count, "durable while the task was open"
        assert kinds[end:] == [
            e.WorkflowTaskCompleted,
            *[e.MarkerRecorded] * joined_count,
            e.WorkflowExecutionCompleted,
        ]
        await replay_check(handle, Steps)
