"""What reaches a run from outside: signals, cancel requests, termination (semantics 1.1, 1.5).

Owns: those decisions. Never: finds the run that a request means (``engine`` does).
"""

from __future__ import annotations

from datetime import datetime

from clew.core.checks import check_id, check_payloads, refuse, sentence
from clew.core.closing import finish, terminate_run
from clew.core.state import ExecutionState
from clew.core.step import Step
from clew.core.tasks import expect_news, want_task
from clew.core.transition import Transition
from clew.model import events as e
from clew.model.events import ExecutionRef
from clew.model.inputs import RequestCancelRequest, SignalWorkflowRequest, TerminateWorkflowRequest
from clew.model.limits import LIMITS_DEFAULT, Limits
from clew.model.rejection import Rejection, RejectionCode


def decide_signal(
    state: ExecutionState,
    request: SignalWorkflowRequest,
    now: datetime,
    *,
    external: ExecutionRef | None = None,
    dispatch_now: bool = False,
    limits: Limits = LIMITS_DEFAULT,
) -> Transition | Rejection:
    """Record a signal; a repeat of the same request changes nothing.

    Args:
        state: The run.
        request: The signal.
        now: The instant of the transition.
        external: The execution that sends it, when it is not a client.
        dispatch_now: A first workflow task that is put off is scheduled now (signal-with-start).
        limits: Of the namespace.
    """
    if request.request_id and _has_signal(state, request.request_id):
        return Transition()  # Whatever has become of the run since: the signal was delivered.
    if not state.is_open:
        return _already_closed(state)
    finding = check_id("the signal name", request.signal_name, limits) or check_payloads(
        f"the input of signal {request.signal_name!r}", request.input, limits
    )
    if finding:
        return refuse(RejectionCode.INVALID_ARGUMENT, sentence(finding))
    if state.is_close_attempted and state.is_task_started:
        return refuse(
            RejectionCode.WORKFLOW_CLOSING, f"Workflow {state.workflow_id!r} is about to close; try again at once."
        )
    if _signal_count(state) >= limits.signals_per_run_max:
        return refuse(
            RejectionCode.LIMIT_EXCEEDED,
            f"This run of workflow {state.workflow_id!r} had {limits.signals_per_run_max} signals, which is the most "
            "one run takes; let it continue as new.",
        )
    step = Step(state, now, limits)
    expect_news(step)
    record_signal(step, request, external)
    want_task(step, dispatch_now=dispatch_now)
    return finish(step)


def _has_signal(state: ExecutionState, request_id: str) -> bool:
    if request_id in state.recent_request_ids or request_id in state.earlier_request_ids:
        return True
    return any(
        type(event) is e.WorkflowExecutionSignaled and event.request_id == request_id for event in state.buffered_events
    )


def _signal_count(state: ExecutionState) -> int:
    buffered = sum(type(event) is e.WorkflowExecutionSignaled for event in state.buffered_events)
    return state.signal_count + buffered


def record_signal(step: Step, request: SignalWorkflowRequest, external: ExecutionRef | None = None) -> None:
    """Add the event of a signal."""
    step.record(
        e.WorkflowExecutionSignaled(
            event_id=step.outside_event_id,
            event_time=step.now,
            signal_name=request.signal_name,
            input=request.input,
            identity=request.identity,
            header=request.header,
            external_workflow_execution=external,
            request_id=request.request_id,
        )
    )


def decide_cancel_request(
    state: ExecutionState,
    request: RequestCancelRequest,
    now: datetime,
    *,
    external: ExecutionRef | None = None,
    external_initiated_event_id: int = 0,
    limits: Limits = LIMITS_DEFAULT,
) -> Transition | Rejection:
    """Ask the run to cancel itself; once is enough, and a closed run has nothing to cancel.

    A first workflow task that is put off is scheduled now, so that the workflow need not wait to be cancelled.
    """
    if not state.is_open or state.cancel_requested:
        return Transition()
    if request.request_id and request.request_id in state.earlier_request_ids:
        return Transition()  # It came to a run before this one in the chain, whose code went on all the same.
    if any(type(event) is e.WorkflowExecutionCancelRequested for event in state.buffered_events):
        return Transition()
    step = Step(state, now, limits)
    expect_news(step)
    step.record(
        e.WorkflowExecutionCancelRequested(
            event_id=step.outside_event_id,
            event_time=now,
            cause=request.reason,
            external_initiated_event_id=external_initiated_event_id,
            external_workflow_execution=external,
            identity=request.identity,
            request_id=request.request_id,
        )
    )
    want_task(step, dispatch_now=True)
    return finish(step)


def decide_terminate(state: ExecutionState, request: TerminateWorkflowRequest, now: datetime) -> Transition | Rejection:
    """Close the run at once, whatever it is doing."""
    if not state.is_open:
        return _already_closed(state)
    step = Step(state, now, LIMITS_DEFAULT)
    terminate_run(step, reason=request.reason, details=request.details, identity=request.identity)
    return finish(step)


def _already_closed(state: ExecutionState) -> Rejection:
    return refuse(
        RejectionCode.WORKFLOW_ALREADY_COMPLETED,
        f"Workflow {state.workflow_id!r} is already completed: run {state.run_id!r} has status {state.status.value}.",
        run_id=state.run_id,
    )
