"""C056: a child is started and cancelled together, or ends otherwise than its cancel asked."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from clew import activity, workflow
from clew.client import Client, WorkflowFailureError
from clew.common import WorkflowExecutionStatus
from clew.exceptions import (
    ApplicationError,
    CancelledError,
    ChildWorkflowError,
    TerminatedError,
    TimeoutError,
    is_cancelled_exception,
)
from clew.model import events as e
from clew.workflow import ChildWorkflowCancellationType as Kind
from tests.cases.conftest import Recorded
from tests.cases.harness import ACTIVITY, QUEUE, engine, events, eventually, settled, within, worker

ENDINGS = ["completes", "fails", "is terminated", "times out", "is cancelled", "continues and completes"]

ran: list[str] = []
cleanups: list[str] = []


@pytest.fixture(autouse=True)
def _clear() -> None:
    ran.clear()
    cleanups.clear()


@activity.defn
async def note(name: str) -> None:
    ran.append(name)


@activity.defn
async def clean_up(name: str) -> None:
    await asyncio.sleep(0.05)
    cleanups.append(name)


@workflow.defn
class Child:
    """Ends as it is told, once it is asked to cancel, or gets the signal."""

    def __init__(self) -> None:
        self.is_over = False

    @workflow.run
    async def run(self, ending: str) -> str:
        if ending == "at once":
            return "continued"
        try:
            await workflow.wait_condition(lambda: self.is_over)
        except asyncio.CancelledError:
            if ending == "is cancelled":
                raise
        if ending == "fails":
            raise ApplicationError("as told")
        if ending == "continues and completes":
            workflow.continue_as_new("at once")
        if ending in ("is terminated", "times out"):
            await workflow.wait_condition(lambda: False)
        return "completed"

    @workflow.signal
    def end(self) -> None:
        self.is_over = True


@workflow.defn
class Parent:
    def __init__(self) -> None:
        self.seen = ""
        self.is_cancel_told = False

    @workflow.run
    async def run(self, kind: int, ending: str, child_id: str) -> str:
        handle = await workflow.start_child_workflow(
            Child.run,
            ending,
            id=child_id,
            cancellation_type=Kind(kind),
            run_timeout=timedelta(seconds=1) if ending == "times out" else None,
            parent_close_policy=workflow.ParentClosePolicy.ABANDON,
        )
        await workflow.wait_condition(lambda: self.is_cancel_told)
        handle.cancel()
        try:
            self.seen = await handle
        except ChildWorkflowError as error:
            cause = error.__cause__
            self.seen = "cancelled" if is_cancelled_exception(error) else type(cause).__name__
        await workflow.execute_activity(clean_up, child_id, **ACTIVITY)
        return self.seen

    @workflow.signal
    def cancel_child(self) -> None:
        self.is_cancel_told = True

    @workflow.query
    def what_it_saw(self) -> str:
        return self.seen


REAL_OUTCOME = {
    "completes": "completed",
    "fails": ApplicationError.__name__,
    "is terminated": TerminatedError.__name__,
    "times out": TimeoutError.__name__,
    "is cancelled": "cancelled",
    "continues and completes": "continued",
}
CHILD_STATUS = {
    "completes": WorkflowExecutionStatus.COMPLETED,
    "fails": WorkflowExecutionStatus.FAILED,
    "is terminated": WorkflowExecutionStatus.TERMINATED,
    "times out": WorkflowExecutionStatus.TIMED_OUT,
    "is cancelled": WorkflowExecutionStatus.CANCELED,
    "continues and completes": WorkflowExecutionStatus.COMPLETED,
}


@pytest.mark.parametrize("kind", list(Kind), ids=lambda kind: kind.name.lower())
@pytest.mark.parametrize("cache", [100, 0], ids=["warm", "cold"])
async def test_the_parents_view_matches_the_type(kind: Kind, cache: int, recorded: Recorded) -> None:
    async with engine() as client, worker(client, [Parent, Child], [clean_up], cache=cache):
        parents = await within(asyncio.gather(*(_one(client, kind, ending) for ending in ENDINGS)), 30)
        assert sorted(cleanups) == sorted(f"child {ending}" for ending in ENDINGS)
        for parent in parents:
            await recorded.add(parent, Parent)


async def _one(client: Client, kind: Kind, ending: str) -> Any:
    child_id = f"child {ending}"
    parent = await client.start_workflow(
        Parent.run, args=[int(kind), ending, child_id], id=f"parent {ending}", task_queue=QUEUE
    )
    child: Any = client.get_workflow_handle(child_id)
    await eventually(lambda: _has_started(parent), "the child has started")
    await parent.signal(Parent.cancel_child)
    if kind is Kind.WAIT_CANCELLATION_COMPLETED:
        await _end(client, kind, ending, child)
        assert await settled(parent) == REAL_OUTCOME[ending]
    else:
        # At once, whatever the child does later.
        assert await settled(parent) == "cancelled"
        await _end(client, kind, ending, child)
    await eventually(lambda: _has_status(child, CHILD_STATUS[ending]), f"child {ending}: {CHILD_STATUS[ending].name}")
    asked = await events(parent, e.RequestCancelExternalWorkflowExecutionInitiated)
    assert len(asked) == (0 if kind is Kind.ABANDON else 1)
    return parent


async def _end(client: Client, kind: Kind, ending: str, child: Any) -> None:
    if kind is Kind.ABANDON and ending == "is cancelled":
        await child.cancel()
    elif kind is Kind.ABANDON:
        await child.signal(Child.end)
    else:
        first = await eventually(lambda: _is_cancel_requested(client, child.id), "the child is asked to cancel")
        assert first
    if ending == "is terminated":
        await child.terminate("as told")


async def _has_started(parent: Any) -> bool:
    return bool(await events(parent, e.ChildWorkflowExecutionStarted))


async def _is_cancel_requested(client: Client, child_id: str) -> bool:
    """In any run of the child."""
    for run in [run async for run in client.list_workflows(f"WorkflowId = '{child_id}'")]:
        if await events(client.get_workflow_handle(child_id, run_id=run.run_id), e.WorkflowExecutionCancelRequested):
            return True
    return False


async def _has_status(child: Any, status: WorkflowExecutionStatus) -> bool:
    return (await child.describe()).status is status


@workflow.defn
class Notes:
    @workflow.run
    async def run(self, name: str) -> None:
        await workflow.execute_activity(note, name, **ACTIVITY)
        await workflow.wait_condition(lambda: False)


@workflow.defn
class CancelsAtOnce:
    @workflow.run
    async def run(self, kind: int, child_id: str) -> str:
        start = asyncio.create_task(
            workflow.start_child_workflow(Notes.run, child_id, id=child_id, cancellation_type=Kind(kind))
        )
        await asyncio.sleep(0)
        start.cancel()
        try:
            handle = await start
            await handle
        except asyncio.CancelledError:
            return "cancelled"
        except ChildWorkflowError as error:
            return "cancelled" if is_cancelled_exception(error) else repr(error)
        return "done"


@pytest.mark.parametrize("kind", list(Kind), ids=lambda kind: kind.name.lower())
async def test_a_child_that_is_cancelled_before_the_task_ends_never_runs(kind: Kind, recorded: Recorded) -> None:
    async with engine() as client, worker(client, [CancelsAtOnce, Notes], [note]):
        parent = await client.start_workflow(
            CancelsAtOnce.run, args=[int(kind), "child"], id="parent", task_queue=QUEUE
        )
        assert await settled(parent) == "cancelled"
        await eventually(lambda: _is_absent_or_closed(client, "child"), "no child is open")
        if kind is not Kind.ABANDON:
            assert ran == [], "the child never ran user code"
        await recorded.add(parent, CancelsAtOnce)


@workflow.defn
class AwaitsStart:
    @workflow.run
    async def run(self, kind: int, child_id: str) -> None:
        handle = await workflow.start_child_workflow(
            Notes.run, child_id, id=child_id, cancellation_type=Kind(kind), task_queue="nobody"
        )
        await handle


@pytest.mark.parametrize("kind", [Kind.TRY_CANCEL, Kind.WAIT_CANCELLATION_COMPLETED, Kind.WAIT_CANCELLATION_REQUESTED])
async def test_the_parent_is_cancelled_before_the_start_is_acknowledged(kind: Kind, recorded: Recorded) -> None:
    async with engine() as client:
        parent = await client.start_workflow(AwaitsStart.run, args=[int(kind), "child"], id="parent", task_queue=QUEUE)
        await parent.cancel()
        async with worker(client, [AwaitsStart]), worker(client, [Notes], [note], queue="nobody"):
            error = await settled(parent)
            assert isinstance(error, WorkflowFailureError)
            assert isinstance(error.cause, CancelledError)
            await eventually(lambda: _is_absent_or_closed(client, "child"), "no child is open")
        assert ran == [], "the child never ran user code"
        await recorded.add(parent, AwaitsStart)


async def _is_absent_or_closed(client: Client, child_id: str) -> bool:
    runs = [run async for run in client.list_workflows(f"WorkflowId = '{child_id}'")]
    return all(run.status is not WorkflowExecutionStatus.RUNNING for run in runs)
