"""C028: cancelling a run that has a running activity, one that no worker has taken, and a child."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from clew import activity, workflow
from clew.client import WorkflowFailureError
from clew.common import WorkflowExecutionStatus
from clew.exceptions import CancelledError
from clew.model import events as e
from clew.workflow import ActivityCancellationType
from tests.cases.conftest import Recorded
from tests.cases.harness import QUEUE, engine, events, eventually, settled, worker

LATE_QUEUE = "cases-late"

started: list[str] = []
cleaned: list[str] = []


@pytest.fixture(autouse=True)
def _clear() -> None:
    started.clear()
    cleaned.clear()


@activity.defn
async def beats() -> None:
    started.append("beats")
    while True:
        activity.heartbeat()
        await asyncio.sleep(0.02)


@activity.defn
async def late() -> None:
    started.append("late")


@activity.defn
async def clean_up() -> None:
    cleaned.append("clean_up")


@workflow.defn
class Sleeps:
    @workflow.run
    async def run(self) -> None:
        await workflow.sleep(60)


@workflow.defn
class Fans:
    @workflow.run
    async def run(self, form: str, kind: int, child_id: str) -> None:
        options: Any = {
            "start_to_close_timeout": timedelta(seconds=60),
            "heartbeat_timeout": timedelta(seconds=10),
            "cancellation_type": ActivityCancellationType(kind),
        }
        parts = [
            workflow.execute_activity(beats, **options),
            # `gather` raises as soon as one part is cancelled, so the parent may close before its child has settled.
            workflow.execute_child_workflow(
                Sleeps.run, id=child_id, parent_close_policy=workflow.ParentClosePolicy.REQUEST_CANCEL
            ),
            workflow.execute_activity(late, task_queue=LATE_QUEUE, **options),
        ]
        try:
            if form == "gather":
                await asyncio.gather(*parts)
            elif form == "group":
                async with asyncio.TaskGroup() as group:
                    for part in parts:
                        group.create_task(_awaited(part))
            else:
                tasks = [asyncio.create_task(_awaited(part)) for part in parts]
                try:
                    await asyncio.wait(tasks)
                except asyncio.CancelledError:
                    for task in tasks:
                        task.cancel()
                    await asyncio.wait(tasks)
                    raise
        finally:
            await asyncio.shield(workflow.execute_activity(clean_up, start_to_close_timeout=timedelta(seconds=10)))


async def _awaited(part: Any) -> Any:
    return await part


@pytest.mark.parametrize("kind", list(ActivityCancellationType))
@pytest.mark.parametrize("form", ["gather", "group", "wait"])
@pytest.mark.parametrize("cache", [100, 0], ids=["warm", "cold"])
async def test_the_run_settles_cancelled(
    form: str, kind: ActivityCancellationType, cache: int, recorded: Recorded
) -> None:
    async with engine() as client:
        async with worker(client, [Fans, Sleeps], [beats, clean_up], cache=cache):
            handle = await client.start_workflow(Fans.run, args=[form, int(kind), "child"], id="fans", task_queue=QUEUE)
            child: Any = client.get_workflow_handle("child")
            await eventually(lambda: _is_under_way(handle), "activity and child run")
            await handle.cancel()
            error = await settled(handle)
            assert isinstance(error, WorkflowFailureError), error
            assert isinstance(error.cause, CancelledError)
            assert cleaned == ["clean_up"], "shielded clean-up ran, once"
            child_error = await settled(child)
            assert isinstance(child_error, WorkflowFailureError)
            assert (await child.describe()).status is WorkflowExecutionStatus.CANCELED
        canceled = await events(handle, e.ActivityTaskCanceled)
        if kind is ActivityCancellationType.WAIT_CANCELLATION_COMPLETED:
            assert len(canceled) == 2, "the one that ran has acknowledged; the other counts as cancelled at once"
        # A worker for the other queue comes too late: there is nothing to run.
        async with worker(client, [], [late], queue=LATE_QUEUE):
            probe = await client.start_workflow(Probe.run, id="probe", task_queue=QUEUE)
            async with worker(client, [Probe]):
                assert await settled(probe) is None
        assert started == ["beats", "late"], "only the probe's activity"
        await recorded.add(handle, Fans)


@workflow.defn
class Probe:
    """Shows that the late worker takes what there is."""

    @workflow.run
    async def run(self) -> None:
        await workflow.execute_activity(late, task_queue=LATE_QUEUE, start_to_close_timeout=timedelta(seconds=10))


async def _is_under_way(handle: Any) -> bool:
    return started == ["beats"] and bool(await events(handle, e.ChildWorkflowExecutionStarted))
