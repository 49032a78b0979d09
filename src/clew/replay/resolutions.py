"""Outcomes: events that answer a request, turned into what the waiting code gets.

Owns: one function an event type, which finds the request and settles its future. Never: runs workflow code (settling
a future only queues its waiters); converts a result (the waiting code does, so that an undecodable one is an error at
its await).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from clew.exceptions import (
    ApplicationError,
    CancelledError,
    ChildWorkflowError,
    TerminatedError,
    TimeoutError,
    WorkflowAlreadyStartedError,
)
from clew.model import events as e
from clew.model.failure import ActivityInfo, Failure, RetryState, TimeoutType
from clew.replay.commands import ScheduleActivity, StartChild
from clew.replay.errors import CancelledActivityError, CancelledChildError
from clew.replay.loop import WorkflowLoop
from clew.replay.matching import Ledger
from clew.replay.values import Values


class Resolutions:
    """Settles what events answer.

    Args:
        ledger: Knows the open requests.
        loop: Runs what a timer was set for.
        values: Converts failures.
    """

    def __init__(self, ledger: Ledger, loop: WorkflowLoop, values: Values) -> None:
        self._ledger = ledger
        self._open = ledger.open
        self._loop = loop
        self._values = values

    # --- activities ----------------------------------------------------------------------------------------

    def _close_activity(self, scheduled_event_id: int) -> ScheduleActivity | None:
        activity = self._open.activities.pop(scheduled_event_id, None)
        if activity is None:
            return None
        activity.is_done = True
        if activity.cancel is not None:
            self._ledger.drop(activity.cancel)  # It is over: nobody is left to be asked to stop.
        return None if activity.future.done() else activity

    def activity_completed(self, event: e.ActivityTaskCompleted) -> None:
        activity = self._open.activities.pop(event.scheduled_event_id, None)
        if activity is None:
            return
        activity.is_done = True
        if activity.cancel is not None:
            self._ledger.drop(activity.cancel)
        if not activity.future.done():
            activity.future.set_result(event.result)

    def activity_failed(self, event: e.ActivityTaskFailed | e.ActivityTaskTimedOut) -> None:
        activity = self._close_activity(event.scheduled_event_id)
        if activity is not None:
            identity = event.identity if isinstance(event, e.ActivityTaskFailed) else ""
            failure = _wrap(activity, event.failure, event.started_event_id, identity, event.retry_state)
            activity.future.set_exception(self._values.from_failure(failure))

    def activity_canceled(self, event: e.ActivityTaskCanceled) -> None:
        activity = self._close_activity(event.scheduled_event_id)
        if activity is not None:
            details = self._values.decode(event.details, None)
            cause = CancelledError("Activity cancelled", *details)
            activity.future.set_exception(cancelled_activity(activity, cause, event.started_event_id, event.identity))

    # --- timers --------------------------------------------------------------------------------------------

    def timer_fired(self, event: e.TimerFired) -> None:
        started = self._open.timers.pop(event.timer_id, None)
        if started is None:
            return
        started.is_done = True
        if started.cancel is not None:
            self._ledger.drop(started.cancel)  # It fired first, but nobody waits for it any more.
            return
        started.timer.pending = None
        self._loop.resume(started.timer)

    # --- children ------------------------------------------------------------------------------------------

    def child_start_failed(self, event: e.StartChildWorkflowExecutionFailed) -> None:
        child = self._close_child(event.initiated_event_id)
        if child is None:
            return
        error: Exception
        if event.cause is e.ExternalFailedCause.WORKFLOW_ALREADY_EXISTS:
            error = WorkflowAlreadyStartedError(event.workflow_id, event.workflow_type)
        else:
            error = self._child_error(child, ApplicationError(_not_reached(event.cause), type=event.cause.value))
        _fail(child.start, error)
        _fail(child.result, error)

    def child_started(self, event: e.ChildWorkflowExecutionStarted) -> None:
        child = self._open.children.get(event.initiated_event_id)
        if child is not None:
            child.run_id = event.workflow_execution.run_id
            if not child.start.done():
                child.start.set_result(child.run_id)

    def _close_child(self, initiated_event_id: int) -> StartChild | None:
        child = self._open.children.pop(initiated_event_id, None)
        if child is not None:
            child.is_done = True
            if child.cancel is not None:
                self._ledger.drop(child.cancel)
        return child

    def child_completed(self, event: e.ChildWorkflowExecutionCompleted) -> None:
        child = self._close_child(event.initiated_event_id)
        if child is not None and not child.result.done():
            child.result.set_result(event.result)

    def child_failed(self, event: e.ChildWorkflowExecutionFailed) -> None:
        child = self._close_child(event.initiated_event_id)
        if child is not None:
            cause = self._values.from_failure(event.failure)
            _fail(child.result, self._child_error(child, cause, event.started_event_id, event.retry_state))

    def child_canceled(self, event: e.ChildWorkflowExecutionCanceled) -> None:
        child = self._close_child(event.initiated_event_id)
        if child is not None:
            details = self._values.decode(event.details, None)
            _fail(child.result, cancelled_child(child, CancelledError("Child workflow cancelled", *details)))

    def child_timed_out(self, event: e.ChildWorkflowExecutionTimedOut) -> None:
        child = self._close_child(event.initiated_event_id)
        if child is not None:
            cause = TimeoutError("Child workflow timed out", type=TimeoutType.START_TO_CLOSE)
            _fail(child.result, self._child_error(child, cause, event.started_event_id, event.retry_state))

    def child_terminated(self, event: e.ChildWorkflowExecutionTerminated) -> None:
        child = self._close_child(event.initiated_event_id)
        if child is not None:
            cause = TerminatedError("Child workflow terminated")
            _fail(child.result, self._child_error(child, cause, event.started_event_id))

    def _child_error(
        self,
        child: StartChild,
        cause: BaseException,
        started_event_id: int = 0,
        retry_state: RetryState | None = None,
    ) -> ChildWorkflowError:
        error = ChildWorkflowError("Child workflow failed", **child_fields(child, started_event_id, retry_state))
        error.__cause__ = cause
        return error

    # --- other workflows -----------------------------------------------------------------------------------

    def external_signaled(self, event: e.ExternalWorkflowExecutionSignaled) -> None:
        signal = self._open.signals.pop(event.initiated_event_id, None)
        if signal is not None and not signal.future.done():
            signal.future.set_result(None)

    def external_signal_failed(self, event: e.SignalExternalWorkflowExecutionFailed) -> None:
        signal = self._open.signals.pop(event.initiated_event_id, None)
        if signal is not None:
            text = f"Signal {signal.signal!r} to {signal.target.workflow_id!r} failed: {_not_reached(event.cause)}"
            _fail(signal.future, ApplicationError(text, type=event.cause.value, non_retryable=True))

    def external_cancel_requested(self, event: e.ExternalWorkflowExecutionCancelRequested) -> None:
        cancel = self._open.cancels.pop(event.initiated_event_id, None)
        if cancel is not None and not cancel.future.done():
            cancel.future.set_result(None)

    def external_cancel_failed(self, event: e.RequestCancelExternalWorkflowExecutionFailed) -> None:
        cancel = self._open.cancels.pop(event.initiated_event_id, None)
        if cancel is not None:
            text = f"Cancelling {cancel.target.workflow_id!r} failed: {_not_reached(event.cause)}"
            _fail(cancel.future, ApplicationError(text, type=event.cause.value, non_retryable=True))


RESOLVE: Final[dict[type[e.BaseEvent], Callable[[Resolutions, Any], None]]] = {
    e.ActivityTaskCompleted: Resolutions.activity_completed,
    e.ActivityTaskFailed: Resolutions.activity_failed,
    e.ActivityTaskTimedOut: Resolutions.activity_failed,
    e.ActivityTaskCanceled: Resolutions.activity_canceled,
    e.TimerFired: Resolutions.timer_fired,
    e.StartChildWorkflowExecutionFailed: Resolutions.child_start_failed,
    e.ChildWorkflowExecutionStarted: Resolutions.child_started,
    e.ChildWorkflowExecutionCompleted: Resolutions.child_completed,
    e.ChildWorkflowExecutionFailed: Resolutions.child_failed,
    e.ChildWorkflowExecutionCanceled: Resolutions.child_canceled,
    e.ChildWorkflowExecutionTimedOut: Resolutions.child_timed_out,
    e.ChildWorkflowExecutionTerminated: Resolutions.child_terminated,
    e.ExternalWorkflowExecutionSignaled: Resolutions.external_signaled,
    e.SignalExternalWorkflowExecutionFailed: Resolutions.external_signal_failed,
    e.ExternalWorkflowExecutionCancelRequested: Resolutions.external_cancel_requested,
    e.RequestCancelExternalWorkflowExecutionFailed: Resolutions.external_cancel_failed,
}
"""The function for each event type that answers something."""


def cancelled_activity(
    activity: ScheduleActivity, cause: BaseException, started_event_id: int = 0, identity: str = ""
) -> CancelledActivityError:
    """Give the error of an activity that was cancelled."""
    error = CancelledActivityError(
        "Activity cancelled",
        scheduled_event_id=activity.event_id,
        started_event_id=started_event_id,
        identity=identity,
        activity_type=activity.activity_type,
        activity_id=activity.activity_id,
        retry_state=RetryState.CANCEL_REQUESTED,
    )
    error.__cause__ = cause
    return error


def child_fields(child: StartChild, started_event_id: int, retry_state: RetryState | None) -> dict[str, Any]:
    """Give what errors of a child say of it."""
    return {
        "namespace": child.namespace,
        "workflow_id": child.input.id,
        "run_id": child.run_id,
        "workflow_type": child.input.workflow,
        "initiated_event_id": child.event_id,
        "started_event_id": started_event_id,
        "retry_state": retry_state,
    }


def cancelled_child(child: StartChild, cause: BaseException) -> CancelledChildError:
    """Give the error of a child that was cancelled."""
    error = CancelledChildError("Child workflow cancelled", **child_fields(child, 0, RetryState.CANCEL_REQUESTED))
    error.__cause__ = cause
    return error


def _wrap(
    activity: ScheduleActivity, cause: Failure, started_event_id: int, identity: str, retry_state: RetryState
) -> Failure:
    return Failure(
        message="Activity task failed",
        cause=cause,
        info=ActivityInfo(
            scheduled_event_id=activity.event_id,
            started_event_id=started_event_id,
            identity=identity,
            activity_type=activity.activity_type,
            activity_id=activity.activity_id,
            retry_state=retry_state,
        ),
    )


_CAUSES: Final[dict[e.ExternalFailedCause, str]] = {
    e.ExternalFailedCause.EXTERNAL_WORKFLOW_EXECUTION_NOT_FOUND: "there is no such open workflow",
    e.ExternalFailedCause.NAMESPACE_NOT_FOUND: "there is no such namespace",
    e.ExternalFailedCause.SIGNAL_COUNT_LIMIT_EXCEEDED: "it has received the most signals that one run may",
    e.ExternalFailedCause.WORKFLOW_ALREADY_EXISTS: "an open workflow has that id",
}


def _not_reached(cause: e.ExternalFailedCause) -> str:
    return _CAUSES.get(cause, cause.value)


def _fail(future: Any, error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)
        # A child's start and result fail together and often only one is awaited; the other is no lost error.
        future._log_traceback = False
