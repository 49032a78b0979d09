"""User code that raises what is no `Exception`: as `pytest.fail` does in a test, or asyncio in what is cancelled."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from clew import activity, workflow
from clew.client import Client, WorkflowFailureError, WorkflowQueryFailedError, WorkflowUpdateFailedError
from clew.common import RetryPolicy
from clew.exceptions import ActivityError, CancelledError
from clew.model.events import WorkflowTaskFailed
from clew.worker import Replayer, Worker

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


@workflow.defn
class GivesUp:
    """Its handlers raise what asyncio raises in code that is cancelled."""

    def __init__(self) -> None:
        self.is_over = False

    @workflow.run
    async def run(self) -> str:
        await workflow.wait_condition(lambda: self.is_over)
        return "over"

    @workflow.signal
    def give_up(self) -> None:
        raise asyncio.CancelledError("by a signal")

    @workflow.signal
    def end(self) -> None:
        self.is_over = True

    @workflow.query
    def ask(self) -> int:
        raise asyncio.CancelledError("by a query")

    @workflow.update
    def change(self) -> int:
        return 1

    @change.validator
    def _check(self) -> None:
        raise asyncio.CancelledError("by a validator")


async def test_handlers_that_give_up_harm_only_themselves() -> None:
    async with (
        await Client.connect("sqlite::memory:") as client,
        Worker(client, task_queue=QUEUE, workflows=[GivesUp]),
    ):
        handle = await client.start_workflow(GivesUp.run, id="w", task_queue=QUEUE)
        await handle.signal(GivesUp.give_up)
        with pytest.raises(WorkflowQueryFailedError):
            await asyncio.wait_for(handle.query(GivesUp.ask), DEADLINE)
        with pytest.raises(WorkflowUpdateFailedError) as refused:
            await asyncio.wait_for(handle.execute_update(GivesUp.change), DEADLINE)
        assert isinstance(refused.value.cause, CancelledError)
        await handle.signal(GivesUp.end)
        assert await asyncio.wait_for(handle.result(), DEADLINE) == "over"
        history = await handle.fetch_history()
        assert not [event for event in history.events if isinstance(event, WorkflowTaskFailed)]
        await Replayer(workflows=[GivesUp]).replay_workflow(history)
