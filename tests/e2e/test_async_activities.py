"""Activities that are completed from outside of their function, through a client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta

import pytest

from clew import activity, workflow
from clew.client import Client, RPCError, WorkflowFailureError
from clew.common import RetryPolicy
from clew.exceptions import ActivityError, ApplicationError, AsyncActivityCancelledError
from clew.model.rejection import RejectionCode
from clew.worker import Worker

DEADLINE = 20.0


class Decisions:
    """An activity that waits for a person; the tokens of its attempts, as they begin."""

    def __init__(self) -> None:
        self.tokens: asyncio.Queue[bytes] = asyncio.Queue()

    @activity.defn
    async def decide(self) -> str:
        self.tokens.put_nowait(activity.info().task_token)
        activity.raise_complete_async()

    async def token(self) -> bytes:
        return await asyncio.wait_for(self.tokens.get(), DEADLINE)


@workflow.defn
class Asking:
    @workflow.run
    async def run(self) -> str:
        answer: str = await workflow.execute_activity(
            "decide",
            activity_id="ask",
            start_to_close_timeout=timedelta(minutes=5),
            retry_policy=RetryPolicy(maximum_attempts=1),
            cancellation_type=workflow.ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
            result_type=str,
        )
        return answer


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    async with await Client.connect("sqlite::memory:") as client:
        yield client


@pytest.fixture
async def decisions(client: Client) -> AsyncIterator[Decisions]:
    decisions = Decisions()
    async with Worker(client, task_queue="q", workflows=[Asking], activities=[decisions.decide]):
        yield decisions


async def test_completed_by_token_and_only_once(client: Client, decisions: Decisions) -> None:
    handle = await client.start_workflow(Asking.run, id="w", task_queue="q")
    activity_handle = client.get_async_activity_handle(task_token=await decisions.token())
    await activity_handle.heartbeat("half")
    await activity_handle.complete("approved")
    assert await asyncio.wait_for(handle.result(), DEADLINE) == "approved"
    with pytest.raises(RPCError) as caught:
        await activity_handle.complete("refused")
    assert caught.value.code in (RejectionCode.ACTIVITY_NOT_FOUND, RejectionCode.WORKFLOW_ALREADY_COMPLETED)


async def test_completed_by_ids(client: Client, decisions: Decisions) -> None:
    handle = await client.start_workflow(Asking.run, id="w", task_queue="q")
    await decisions.token()
    await client.get_async_activity_handle(workflow_id="w", run_id=None, activity_id="ask").complete("approved")
    assert await asyncio.wait_for(handle.result(), DEADLINE) == "approved"


async def test_failed_from_outside(client: Client, decisions: Decisions) -> None:
    handle = await client.start_workflow(Asking.run, id="w", task_queue="q")
    activity_handle = client.get_async_activity_handle(task_token=await decisions.token())
    await activity_handle.fail(ApplicationError("no budget", type="Refused"))
    with pytest.raises(WorkflowFailureError) as caught:
        await asyncio.wait_for(handle.result(), DEADLINE)
    assert isinstance(caught.value.cause, ActivityError)
    cause = caught.value.cause.cause
    assert isinstance(cause, ApplicationError)
    assert (cause.type, cause.message) == ("Refused", "no budget")


async def test_told_of_a_cancel_by_its_heartbeat(client: Client, decisions: Decisions) -> None:
    handle = await client.start_workflow(Asking.run, id="w", task_queue="q")
    activity_handle = client.get_async_activity_handle(task_token=await decisions.token())
    await activity_handle.heartbeat()
    await handle.cancel()

    async def until_told() -> None:
        while True:
            await activity_handle.heartbeat()
            await asyncio.sleep(0)

    with pytest.raises(AsyncActivityCancelledError):
        await asyncio.wait_for(until_told(), DEADLINE)
    await activity_handle.report_cancellation("stopped")
    with pytest.raises(WorkflowFailureError):
        await asyncio.wait_for(handle.result(), DEADLINE)
