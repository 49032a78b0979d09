"""What comes back from other executions: children, and signals and cancel requests sent to them (semantics 1.5, 1.6).

Owns: those decisions. Never: delivers anything to another execution (``engine`` does, from the effects).

How it works: deliveries are at least once, so each decision recognises a repeat and changes nothing then.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from clew.core.checks import refuse
from clew.core.closing import finish
from clew.core.pending import PendingChild, PendingExternal
from clew.core.state import ExecutionState
from clew.core.step import Step
from clew.core.tasks import expect_news, want_task
from clew.core.transition import ITEM_CANCEL, ITEM_SIGNAL, Transition
from clew.model import events as e
from clew.model.events import Event, ExecutionRef, ExternalFailedCause
from clew.model.limits import LIMITS_DEFAULT, Limits
from clew.model.rejection import Rejection, RejectionCode


def decide_child_started(
    state: ExecutionState, initiated_event_id: int, run_id: str, now: datetime, *, limits: Limits = LIMITS_DEFAULT
) -> Transition | Rejection:
    """Record that a child was started; its first workflow task may be released once this is durable."""
    if not state.is_open:
        return _closed(state)
    child = state.children.get(initiated_event_id)
    if child is None or child.started_event_id or child.is_start_buffered:
        return Transition()
    step = Step(state, now, limits)
    expect_news(step)
    _record_start(step, child, run_id)
    want_task(step)
    return finish(step)


def _record_start(step: Step, child: PendingChild, run_id: str) -> None:
    event_id = step.outside_event_id
    step.record(
        e.ChildWorkflowExecutionStarted(
            event_id=event_id,
            event_time=step.now,
            initiated_event_id=child.initiated_event_id,
            workflow_execution=ExecutionRef(child.workflow_id, run_id, child.namespace),
            workflow_type=child.workflow_type,
        )
    )
    if event_id == 0:
        child.is_start_buffered = True
        child.buffered_run_id = run_id
        step.touch_child(child.initiated_event_id)


def decide_child_start_failed(
    state: ExecutionState,
    initiated_event_id: int,
    cause: ExternalFailedCause,
    now: datetime,
    *,
    limits: Limits = LIMITS_DEFAULT,
) -> Transition | Rejection:
    """Record that a child could not be started."""
    if not state.is_open:
        return _closed(state)
    child = state.children.get(initiated_event_id)
    if child is None or child.started_event_id or child.is_start_buffered or child.is_closing:
        return Transition()
    step = Step(state, now, limits)
    expect_news(step)
    event = e.StartChildWorkflowExecutionFailed(
        event_id=step.outside_event_id,
        event_time=now,
        initiated_event_id=initiated_event_id,
        workflow_id=child.workflow_id,
        workflow_type=child.workflow_type,
        cause=cause,
    )
    _record_outcome(step, child, event)
    return finish(step)


def decide_child_closed(
    state: ExecutionState,
    initiated_event_id: int,
    closing: Event,
    now: datetime,
    *,
    run_id: str = "",
    limits: Limits = LIMITS_DEFAULT,
) -> Transition | Rejection:
    """Record how a child ended.

    Args:
        state: The parent.
        initiated_event_id: Which child.
        closing: The child's close event.
        now: The instant of the transition.
        run_id: Of the child; needed only when this may overtake the news of its start.
        limits: Of the namespace.
    """
    if not state.is_open:
        return _closed(state)
    child = state.children.get(initiated_event_id)
    if child is None or child.is_closing:
        return Transition()
    step = Step(state, now, limits)
    expect_news(step)
    if not child.started_event_id and not child.is_start_buffered:
        _record_start(step, child, run_id)
    common: dict[str, Any] = {
        "event_id": step.outside_event_id,
        "event_time": now,
        "initiated_event_id": initiated_event_id,
        "started_event_id": child.started_event_id,
        "workflow_execution": ExecutionRef(
            child.workflow_id, child.run_id or child.buffered_run_id or run_id, child.namespace
        ),
        "workflow_type": child.workflow_type,
    }
    _record_outcome(step, child, _outcome(closing, common))
    return finish(step)


def _outcome(closing: Event, common: dict[str, Any]) -> Event:
    match closing:
        case e.WorkflowExecutionCompleted(result=result):
            return e.ChildWorkflowExecutionCompleted(**common, result=result)
        case e.WorkflowExecutionFailed(failure=failure, retry_state=retry_state):
            return e.ChildWorkflowExecutionFailed(**common, failure=failure, retry_state=retry_state)
        case e.WorkflowExecutionCanceled(details=details):
            return e.ChildWorkflowExecutionCanceled(**common, details=details)
        case e.WorkflowExecutionTimedOut(retry_state=retry_state):
            return e.ChildWorkflowExecutionTimedOut(**common, retry_state=retry_state)
        case e.WorkflowExecutionTerminated():
            return e.ChildWorkflowExecutionTerminated(**common)
        case _:
            raise AssertionError(f"{type(closing).__name__} does not end a chain of runs")


def _record_outcome(step: Step, child: PendingChild, event: Event) -> None:
    step.record(event)
    if event.event_id == 0:
        child.is_closing = True
        step.touch_child(child.initiated_event_id)
    want_task(step)


# --- signals and cancel requests to other executions -----------------------------------------------------------------


def decide_external_signaled(
    state: ExecutionState, initiated_event_id: int, now: datetime, *, limits: Limits = LIMITS_DEFAULT
) -> Transition | Rejection:
    """Record that a signal has reached its target."""
    return _settle(state, state.external_signals, ITEM_SIGNAL, initiated_event_id, None, now, limits)


def decide_external_signal_failed(
    state: ExecutionState,
    initiated_event_id: int,
    cause: ExternalFailedCause,
    now: datetime,
    *,
    limits: Limits = LIMITS_DEFAULT,
) -> Transition | Rejection:
    """Record that a signal has not reached its target."""
    return _settle(state, state.external_signals, ITEM_SIGNAL, initiated_event_id, cause, now, limits)


def decide_external_cancel_requested(
    state: ExecutionState, initiated_event_id: int, now: datetime, *, limits: Limits = LIMITS_DEFAULT
) -> Transition | Rejection:
    """Record that a cancel request has reached its target."""
    return _settle(state, state.external_cancels, ITEM_CANCEL, initiated_event_id, None, now, limits)


def decide_external_cancel_failed(
    state: ExecutionState,
    initiated_event_id: int,
    cause: ExternalFailedCause,
    now: datetime,
    *,
    limits: Limits = LIMITS_DEFAULT,
) -> Transition | Rejection:
    """Record that a cancel request has not reached its target."""
    return _settle(state, state.external_cancels, ITEM_CANCEL, initiated_event_id, cause, now, limits)


def _settle(
    state: ExecutionState,
    pending: dict[int, PendingExternal],
    kind: int,
    initiated_event_id: int,
    cause: ExternalFailedCause | None,
    now: datetime,
    limits: Limits,
) -> Transition | Rejection:
    if not state.is_open:
        return _closed(state)
    item = pending.get(initiated_event_id)
    if item is None or item.is_closing:
        return Transition()
    step = Step(state, now, limits)
    expect_news(step)
    event = _external_event(step, kind, item, cause)
    step.record(event)
    if event.event_id == 0:
        item.is_closing = True
        step.dirty.add((kind, initiated_event_id))
    want_task(step)
    return finish(step)


def _external_event(step: Step, kind: int, item: PendingExternal, cause: ExternalFailedCause | None) -> Event:
    common: dict[str, Any] = {
        "event_id": step.outside_event_id,
        "event_time": step.now,
        "initiated_event_id": item.initiated_event_id,
        "workflow_execution": item.target,
    }
    if kind == ITEM_SIGNAL:
        if cause is None:
            return e.ExternalWorkflowExecutionSignaled(**common)
        return e.SignalExternalWorkflowExecutionFailed(**common, cause=cause)
    if cause is None:
        return e.ExternalWorkflowExecutionCancelRequested(**common)
    return e.RequestCancelExternalWorkflowExecutionFailed(**common, cause=cause)


def _closed(state: ExecutionState) -> Rejection:
    return refuse(
        RejectionCode.WORKFLOW_ALREADY_COMPLETED,
        f"Run {state.run_id!r} of workflow {state.workflow_id!r} has closed; it takes no news of other executions.",
        run_id=state.run_id,
    )
