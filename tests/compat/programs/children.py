"""A parent that fans out to children, talks to one of them, and outlives another."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

from temporalio import workflow
from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.exceptions import ApplicationError, ChildWorkflowError, WorkflowAlreadyStartedError
from temporalio.worker import Worker
from temporalio.workflow import ChildWorkflowCancellationType, ParentClosePolicy


@workflow.defn
class Square:
    @workflow.run
    async def run(self, number: int) -> int:
        if number < 0:
            raise ApplicationError("negative", number, type="Negative")
        return number * number


@workflow.defn
class Collector:
    def __init__(self) -> None:
        self.numbers: list[int] = []

    @workflow.run
    async def run(self, wanted: int) -> list[int]:
        await workflow.wait_condition(lambda: len(self.numbers) >= wanted)
        return self.numbers

    @workflow.signal
    def add(self, number: int) -> None:
        self.numbers.append(number)


@workflow.defn
class Parent:
    @workflow.run
    async def run(self, count: int) -> dict[str, Any]:
        seen: dict[str, Any] = {}
        seen["squares"] = await asyncio.gather(
            *[workflow.execute_child_workflow(Square.run, n, id=f"square-{n}") for n in range(count)]
        )
        collector = await workflow.start_child_workflow(Collector.run, 2, id="collector")
        await collector.signal(Collector.add, 7)
        outside = workflow.get_external_workflow_handle_for(Collector.run, "collector")
        await outside.signal(Collector.add, 8)
        seen["collected"] = await collector
        try:
            await workflow.execute_child_workflow(Square.run, -1)
        except ChildWorkflowError as error:
            assert isinstance(error.cause, ApplicationError)
            seen["failed"] = (error.cause.type, list(error.cause.details))
        await workflow.start_child_workflow(
            Collector.run, 1, id="orphan", parent_close_policy=ParentClosePolicy.ABANDON
        )
        try:
            await workflow.start_child_workflow(Collector.run, 1, id="orphan")
        except WorkflowAlreadyStartedError as error:
            seen["taken"] = error.workflow_id
        stopped = await workflow.start_child_workflow(
            Collector.run, 1, id="stopped", cancellation_type=ChildWorkflowCancellationType.WAIT_CANCELLATION_COMPLETED
        )
        stopped.cancel()
        try:
            await stopped
        except ChildWorkflowError as error:
            seen["stopped"] = type(error.cause).__name__
        parent = workflow.info().parent
        seen["parent"] = parent.workflow_id if parent else None
        return seen


async def main(address: str) -> dict[str, Any]:
    client = await Client.connect(address)
    async with Worker(client, task_queue="family", workflows=[Parent, Square, Collector]):
        seen = await client.execute_workflow(
            Parent.run, 4, id="parent", task_queue="family", execution_timeout=timedelta(minutes=1)
        )
        orphan = client.get_workflow_handle_for(Collector.run, "orphan")
        description = await orphan.describe()
        assert description.status == WorkflowExecutionStatus.RUNNING
        await orphan.signal(Collector.add, 1)
        seen["orphan"] = await orphan.result()
        return seen


EXPECTED = {
    "squares": [0, 1, 4, 9],
    "collected": [7, 8],
    "failed": ["Negative", [-1]],
    "taken": "orphan",
    "stopped": "CancelledError",
    "parent": None,
    "orphan": [1],
}
