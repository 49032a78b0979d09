"""Children, other workflows, continue-as-new, memo, search attributes, info, sagas."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from clew import workflow
from clew.common import SearchAttributeKey
from clew.exceptions import (
    ApplicationError,
    CancelledError,
    ChildWorkflowError,
    EncodeError,
    TerminatedError,
    WorkflowAlreadyStartedError,
)
from clew.model import commands as c
from clew.model import events as e
from clew.model.failure import ApplicationInfo, Failure
from clew.model.limits import Limits
from clew.replay import MachineOptions
from tests.unit.replay.story import Story, value_of

SECOND = timedelta(seconds=1)
Cancel = workflow.ChildWorkflowCancellationType


async def act(name: str, *args: Any, **options: Any) -> Any:
    return await workflow.execute_activity(name, args=args, start_to_close_timeout=SECOND, **options)


def child_event(story: Story, kind: type[Any], **fields: Any) -> Any:
    initiated = story.find(e.StartChildWorkflowExecutionInitiated)[-1]
    if kind is not e.ChildWorkflowExecutionStarted:
        fields["started_event_id"] = 0
    return story.add(
        kind,
        initiated_event_id=initiated.event_id,
        workflow_execution=e.ExecutionRef(initiated.workflow_id, "child-run"),
        workflow_type=initiated.workflow_type,
        **fields,
    )


@workflow.defn
class Child:
    @workflow.run
    async def run(self, n: int) -> int:
        return n

    @workflow.signal
    def poke(self, what: str) -> None: ...


@workflow.defn
class Parent:
    @workflow.run
    async def run(self, kind: int, how: str) -> Any:
        if how == "no start":
            try:
                await workflow.execute_child_workflow(Child.run, 1, id="taken")
            except WorkflowAlreadyStartedError as error:
                return error.workflow_id
        handle = await workflow.start_child_workflow(Child.run, 1, cancellation_type=Cancel(kind))
        if how == "signal":
            await handle.signal(Child.poke, "x")
            return [handle.id, handle.first_execution_run_id]
        if how == "early":
            handle.cancel()
        try:
            return await handle
        except ChildWorkflowError as error:
            await act("cleanup")
            return f"{type(error.cause).__name__} {isinstance(error, asyncio.CancelledError)}"


def test_child_result_signal_and_ids() -> None:
    story = Story(Parent, 2, "")
    [start] = story.run()
    assert start.workflow_type == "Child"
    assert len(start.workflow_id) == 36
    child_event(story, e.ChildWorkflowExecutionStarted)
    assert story.run() == []
    child_event(story, e.ChildWorkflowExecutionCompleted, result=start.input)
    story.run(is_cold=True)
    assert story.result() == 1
    story.replay_check()
    story = Story(Parent, 2, "signal")
    story.run()
    child_event(story, e.ChildWorkflowExecutionStarted)
    [signal] = story.run()
    assert (signal.signal_name, signal.child_workflow_only, value_of(signal.input)) == ("poke", True, "x")
    initiated = story.one(e.SignalExternalWorkflowExecutionInitiated)
    story.add(e.ExternalWorkflowExecutionSignaled, initiated_event_id=initiated.event_id)
    story.run()
    assert story.result() == [start.workflow_id, "child-run"]  # the id depends on the run id alone
    story.replay_check()


def test_child_that_cannot_start() -> None:
    story = Story(Parent, 2, "no start")
    story.run()
    initiated = story.one(e.StartChildWorkflowExecutionInitiated)
    story.add(
        e.StartChildWorkflowExecutionFailed,
        initiated_event_id=initiated.event_id,
        workflow_id="taken",
        workflow_type="Child",
        cause=e.ExternalFailedCause.WORKFLOW_ALREADY_EXISTS,
    )
    story.run()
    assert story.result() == "taken"
    story.replay_check()


ENDINGS: dict[str, tuple[type[Any], dict[str, Any]]] = {
    "completes": (e.ChildWorkflowExecutionCompleted, {}),
    "fails": (
        e.ChildWorkflowExecutionFailed,
        {"failure": Failure(message="x", info=ApplicationInfo(type="X"))},
    ),
    "terminated": (e.ChildWorkflowExecutionTerminated, {}),
    "times out": (e.ChildWorkflowExecutionTimedOut, {}),
    "cancelled": (e.ChildWorkflowExecutionCanceled, {}),
}


@pytest.mark.parametrize("kind", list(Cancel))
@pytest.mark.parametrize("ending", list(ENDINGS))
def test_c056_every_ending_after_a_cancel_settles(kind: Cancel, ending: str) -> None:
    story = Story(Parent, int(kind), "")
    story.run()
    child_event(story, e.ChildWorkflowExecutionStarted)
    story.run()
    story.request_cancel()
    commands = story.run()
    requests = [x for x in commands if isinstance(x, c.RequestCancelExternalWorkflowExecution)]
    assert len(requests) == (0 if kind is Cancel.ABANDON else 1)
    is_over = kind in (Cancel.ABANDON, Cancel.TRY_CANCEL)
    assert is_over == any(isinstance(x, c.ScheduleActivityTask) for x in commands)
    if kind is Cancel.WAIT_CANCELLATION_REQUESTED:
        initiated = story.one(e.RequestCancelExternalWorkflowExecutionInitiated)
        story.add(e.ExternalWorkflowExecutionCancelRequested, initiated_event_id=initiated.event_id)
        story.run()
        assert story.find(e.ActivityTaskScheduled)
    event, fields = ENDINGS[ending]
    child_event(story, event, **fields)
    story.run(is_cold=True)
    if story.find(e.ActivityTaskScheduled):
        story.complete_activity("cleanup-1")
        story.run()
    if ending == "completes" and kind is Cancel.WAIT_CANCELLATION_COMPLETED:
        assert story.result() is None
    else:
        real = {"fails": "ApplicationError", "terminated": "TerminatedError", "times out": "TimeoutError"}
        waited = kind is Cancel.WAIT_CANCELLATION_COMPLETED and ending in real
        assert story.result() == (f"{real[ending]} False" if waited else "CancelledError True")
    assert TerminatedError
    assert CancelledError
    story.replay_check()


@pytest.mark.parametrize("kind", list(Cancel))
def test_c056_cancel_before_the_first_step_of_the_handle(kind: Cancel) -> None:
    story = Story(Parent, int(kind), "early")
    story.run()
    child_event(story, e.ChildWorkflowExecutionStarted)
    commands = story.run()
    assert any(isinstance(x, c.RequestCancelExternalWorkflowExecution) for x in commands) == (kind != Cancel.ABANDON)
    story.replay_check()


@workflow.defn
class NeverSent:
    @workflow.run
    async def run(self) -> str:
        child = asyncio.create_task(workflow.start_child_workflow("Child", id="c"))
        activity = workflow.start_activity("a", start_to_close_timeout=SECOND)
        timer = asyncio.create_task(asyncio.sleep(5))
        await asyncio.sleep(0)
        for task in (child, activity, timer):
            task.cancel()
        outcomes = await asyncio.gather(child, activity, timer, return_exceptions=True)
        return " ".join(str(isinstance(x, asyncio.CancelledError)) for x in outcomes)


def test_start_and_cancel_in_one_task_send_nothing() -> None:
    story = Story(NeverSent)
    assert [type(x) for x in story.run()] == [c.CompleteWorkflowExecution]
    assert story.result() == "True True True"
    story.replay_check()


@workflow.defn
class Others:
    @workflow.run
    async def run(self) -> str:
        handle = workflow.get_external_workflow_handle("other", run_id="r")
        await handle.signal("s", 1)
        try:
            await handle.cancel()
        except ApplicationError as error:
            return f"{error.type}: {error.message}"
        return "?"


def test_external_workflows() -> None:
    story = Story(Others)
    [signal] = story.run()
    assert signal.workflow_execution == e.ExecutionRef("other", "r", "default")
    story.add(
        e.ExternalWorkflowExecutionSignaled,
        initiated_event_id=story.one(e.SignalExternalWorkflowExecutionInitiated).event_id,
    )
    story.run()
    story.add(
        e.RequestCancelExternalWorkflowExecutionFailed,
        initiated_event_id=story.one(e.RequestCancelExternalWorkflowExecutionInitiated).event_id,
        cause=e.ExternalFailedCause.EXTERNAL_WORKFLOW_EXECUTION_NOT_FOUND,
    )
    story.run(is_cold=True)
    assert "no such open workflow" in story.result()
    story.replay_check()


KEY = SearchAttributeKey.for_keyword("Color")


@workflow.defn
class Remembering:
    @workflow.run
    async def run(self) -> Any:
        info = workflow.info()
        before = [workflow.memo_value("a"), workflow.memo_value("b", 7), info.attempt, info.workflow_id]
        workflow.upsert_memo({"a": None, "c": [1]})
        workflow.upsert_search_attributes([KEY.value_set("red")])
        after = workflow.info()
        assert after.typed_search_attributes[KEY] == "red"
        with pytest.raises(KeyError, match="it has: c"):
            workflow.memo_value("a")
        workflow.set_current_details("here")
        assert workflow.get_current_details() == "here"
        assert not workflow.has_last_completion_result()
        assert info.get_current_history_length() > 0
        return [*before, dict(workflow.memo())]


def test_memo_and_search_attributes() -> None:
    from tests.unit.replay.story import payloads

    story = Story(Remembering, memo={"a": payloads("x")[0]})
    commands = story.run()
    assert [type(x) for x in commands[:2]] == [c.ModifyWorkflowProperties, c.UpsertSearchAttributes]
    assert story.result() == ["x", 7, 1, "story", {"c": [1]}]
    story.replay_check()


@workflow.defn
class Again:
    @workflow.run
    async def run(self, n: int) -> None:
        try:
            workflow.continue_as_new(n + 1, memo={"m": 1}, task_queue="else")
        except Exception:  # noqa: BLE001 (it must not be caught so)
            await act("wrong")


def test_continue_as_new_is_no_exception() -> None:
    story = Story(Again, 1)
    [command] = story.run()
    assert isinstance(command, c.ContinueAsNewWorkflowExecution)
    assert (command.task_queue, value_of(command.input), list(command.memo or {})) == ("else", 2, ["m"])
    story.replay_check()


@workflow.defn
class Unconvertible:
    @workflow.run
    async def run(self, how: str) -> str:
        try:
            if how == "activity":
                await act("a", lambda: 1)
            elif how == "large":
                await act("a", "x" * 2000)
            elif how == "no timeout":
                await workflow.execute_activity("a")
            elif how == "again":
                workflow.continue_as_new(object())
        except (EncodeError, ValueError) as error:
            return str(error)
        return object()  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("activity", ["argument of activity 'a'", "function"]),
        ("large", ["argument of activity 'a'", "2002 bytes", "at most 1000"]),
        ("no timeout", ["'a'", "start_to_close_timeout"]),
        ("again", ["argument of workflow 'Unconvertible'"]),
    ],
)
def test_c063_errors_stand_at_the_call(how: str, words: list[str]) -> None:
    story = Story(Unconvertible, how, limits=Limits(payload_bytes_max=1000))
    story.run()
    for word in words:
        assert word in story.result()
    story.replay_check()


def test_c063_bad_input_and_result_fail_the_task_with_the_reason() -> None:
    failure = Story(Unconvertible, "").failure()
    assert "result of workflow 'Unconvertible'" in failure.message
    failure = Story(Unconvertible).failure()
    assert "Unconvertible.run" in failure.message
    failing = MachineOptions(failure_exception_types=[Exception])
    story = Story(Unconvertible, options=failing)
    story.run()
    assert "Unconvertible.run" in story.close_failure().message


@workflow.defn
class Trip:
    @workflow.run
    async def run(self, parallel: bool) -> None:
        async with workflow.saga(parallel=parallel) as saga:
            await act("book_hotel")
            saga.add("cancel_hotel", 1)
            saga.add("cancel_car", 2, before=True)
            await act("book_car")
            saga.add("cancel_flight")
            await act("book_flight")


@pytest.mark.parametrize("is_cancelled", [True, False])
def test_saga_undoes_in_reverse_order(is_cancelled: bool) -> None:
    story = Story(Trip, False)
    story.run()
    story.complete_activity("book_hotel-1")
    story.run()
    story.complete_activity("book_car-1")
    story.run()
    if is_cancelled:
        story.request_cancel()
    else:
        story.fail_activity("book_flight-1", "full")
    commands = story.run()
    assert commands[-1].activity_id == "cancel_flight-1"
    assert value_of([commands[-1].user_metadata.summary]) == "Compensation"
    story.fail_activity("cancel_flight-1", "impossible")
    [command] = story.run(is_cold=True)
    assert (command.activity_id, value_of(command.input)) == ("cancel_car-1", 2)
    story.complete_activity("cancel_car-1")
    story.request_cancel()  # must not stop what undoes
    [command] = story.run()
    assert command.activity_id == "cancel_hotel-1"
    story.complete_activity("cancel_hotel-1")
    [closed] = story.run()
    if is_cancelled:
        assert isinstance(closed, c.CancelWorkflowExecution)
    else:
        assert isinstance(closed, c.FailWorkflowExecution)
        assert closed.failure.cause is not None
        assert closed.failure.cause.message == "full"
    story.replay_check()


def test_saga_in_parallel() -> None:
    story = Story(Trip, True)
    story.run()
    story.complete_activity("book_hotel-1")
    story.run()
    story.fail_activity("book_car-1")
    assert [x.activity_id for x in story.run()] == ["cancel_car-1", "cancel_hotel-1"]
    story.replay_check()
