"""Async activities that raise what is no `Exception`, as `pytest.fail` does within a test."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from clew import activity, workflow
from clew.client import Client, WorkflowFailureError
from clew.common import RetryPolicy
from clew.exceptions import ActivityError
from clew.worker import Worker

QUEUE = "base-exceptions"
DEADLINE = 60.0


@activity.defn
async def fail_the_test() -> None:
    pytest.fail("as seen from an activity")


@workflow.defn
class CallsIt:
    @workflow.run
    async def run(self, is_local: bool) -> None:
        once = RetryPolicy(maximum_attempts=1)
        if is_local:
            await workflow.execute_local_activity(
                fail_the_test, start_to_close_timeout=timedelta(hours=1), retry_policy=once
            )
        else:
            await workflow.execute_activity(fail_the_test, start_to_close_timeout=timedelta(hours=1), retry_policy=once)


@pytest.mark.parametrize("is_local", [False, True], ids=["activity", "local"])
async def test_whatever_an_async_activity_raises_is_its_outcome(is_local: bool) -> None:
    async with (
        await Client.connect("sqlite::memory:") as client,
        Worker(client, task_queue=QUEUE, workflows=[CallsIt], activities=[fail_the_test]),
    ):
        handle = await client.start_workflow(CallsIt.run, is_local, id="w", task_queue=QUEUE)
        with pytest.raises(WorkflowFailureError) as caught:
            await asyncio.wait_for(handle.result(), DEADLINE)
    error = caught.value.cause
    assert isinstance(error, ActivityError)
    assert "as seen from an activity" in str(error.cause)
