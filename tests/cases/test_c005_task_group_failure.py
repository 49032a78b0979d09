"""C005: one failing branch of a TaskGroup fails the run, and does not leave it retrying for ever."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

from clew import activity, workflow
from clew.client import Client
from clew.exceptions import ApplicationError, WorkflowFailureError
from clew.model import events as e
from tests.cases.harness import ACTIVITY, QUEUE, engine, events, eventually, replay_check, settled, worker

SLOW: dict[str, Any] = {
    "start_to_close_timeout": timedelta(seconds=60),
    "heartbeat_timeout": timedelta(seconds=30),
    "cancellation_type": workflow.ActivityCancellationType.TRY_CANCEL,
}


@activity.defn
async def fail() -> None:
    raise ApplicationError("no money", type="Broke", non_retryable=True)


@activity.defn
async def slow() -> None:
    for _ in range(300):
        activity.heartbeat()
        await asyncio.sleep(0.1)


@workflow.defn
class Flat:
    @workflow.run
    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(workflow.execute_activity(slow, **SLOW))
            group.create_task(workflow.execute_activity(slow, **SLOW))
            group.create_task(workflow.execute_activity(fail, **ACTIVITY))


@workflow.defn
class Nested:
    @workflow.run
    async def run(self) -> None:
        async with asyncio.TaskGroup() as outer:
            outer.create_task(self.inner())
            outer.create_task(workflow.execute_activity(slow, **SLOW))

    async def inner(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(workflow.execute_activity(slow, **SLOW))
            group.create_task(workflow.execute_activity(fail, **ACTIVITY))


@workflow.defn
class Mixed:
    @workflow.run
    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(workflow.execute_activity(slow, **SLOW))
            group.create_task(workflow.execute_activity(fail, **ACTIVITY))
            group.create_task(self.stumble())

    async def stumble(self) -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            raise ValueError("a slip in the workflow's code")


async def _fails_with_both_cancelled(kind: Any) -> None:
    async with engine() as client, worker(client, [kind], [fail, slow]):
        handle = await client.start_workflow(kind.run, id="group", task_queue=QUEUE)
        error = await settled(handle)
        assert isinstance(error, WorkflowFailureError)
        leaves = list(_leaves(error.cause))
        assert any("no money" in str(leaf) and getattr(leaf, "type", "") == "Broke" for leaf in leaves), leaves
        assert len(await events(handle, e.ActivityTaskCancelRequested)) == 2
        assert len(await events(handle, e.WorkflowExecutionFailed)) == 1
        assert not await events(handle, e.WorkflowTaskFailed)
        await replay_check(handle, kind)


async def test_a_task_group_fails_the_run_at_once() -> None:
    await _fails_with_both_cancelled(Flat)


async def test_nested_groups_do_too() -> None:
    await _fails_with_both_cancelled(Nested)


async def test_a_plain_exception_in_the_group_fails_the_workflow_task_and_describe_names_it() -> None:
    async with engine() as client, worker(client, [Mixed], [fail, slow]):
        handle = await client.start_workflow(Mixed.run, id="group", task_queue=QUEUE)
        told = await eventually(lambda: _told(client))
        assert "ValueError" in told
        assert "a slip in the workflow's code" in told
        await handle.terminate()


async def _told(client: Client) -> str:
    description = await client.get_workflow_handle("group").describe()
    text = "\n".join(description.waiting_for)
    return text if "ValueError" in text else ""


def _leaves(error: BaseException | None) -> Any:
    while error is not None:
        yield error
        details = getattr(error, "details", ())
        for detail in details if isinstance(details, (list, tuple)) else ():
            if isinstance(detail, BaseException):
                yield from _leaves(detail)
        error = error.__cause__
