"""How a chain of runs begins (semantics 1.1).

Owns: `decide_start`, the workflow id policies, and the release of a child's first task.
Never: looks for the run that a workflow id belongs to (``engine`` does).
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

import msgspec

from clew.core import deadlines
from clew.core.checks import (
    cap,
    check_duration,
    check_id,
    check_memo,
    check_metadata,
    check_payloads,
    refuse,
    sentence,
)
from clew.core.closing import finish
from clew.core.cron import check_cron, next_cron_time
from clew.core.evolve import begin
from clew.core.messages import record_signal
from clew.core.replies import ExistingRun, Repeat, Start, StartVerdict, TerminateThenStart, UseExisting
from clew.core.retry import check_policy
from clew.core.state import ExecutionState
from clew.core.step import Step
from clew.core.tasks import want_task
from clew.core.transition import NotifyParent, Transition
from clew.core.updates import has_admitted, want_update_task
from clew.core.versioning import check_override
from clew.model import events as e
from clew.model.events import ZERO, ExecutionRef
from clew.model.inputs import SignalWorkflowRequest, StartWorkflowRequest
from clew.model.limits import (
    LIMITS_DEFAULT,
    WORKFLOW_TASK_TIMEOUT_DEFAULT,
    WORKFLOW_TASK_TIMEOUT_MAX,
    Limits,
)
from clew.model.policies import (
    DeploymentVersion,
    WorkflowExecutionStatus,
    WorkflowIDConflictPolicy,
    WorkflowIDReusePolicy,
)
from clew.model.rejection import Rejection, RejectionCode

RESTART_INTERVAL_MIN_DEFAULT: Final = ZERO
"""How soon after its start a run may be replaced by another of the same id.

The published model has 1 s. Here it is off: it would refuse honest programs that reuse an id, and one engine that
commits in groups has no hot partition to protect. Pass `restart_interval_min` to have it."""

TERMINATED_BY_START: Final = "Terminated by a start with conflict policy TerminateExisting"

_FAILED_STATUSES: Final = frozenset(
    {
        WorkflowExecutionStatus.FAILED,
        WorkflowExecutionStatus.CANCELED,
        WorkflowExecutionStatus.TERMINATED,
        WorkflowExecutionStatus.TIMED_OUT,
    }
)


def decide_start(
    request: StartWorkflowRequest,
    *,
    run_id: str,
    now: datetime,
    key_generation: str,
    parent: ExecutionRef | None = None,
    parent_initiated_event_id: int = 0,
    root: ExecutionRef | None = None,
    hold_first_task: bool = False,
    signal: SignalWorkflowRequest | None = None,
    inherited_pinned_version: DeploymentVersion | None = None,
    limits: Limits = LIMITS_DEFAULT,
) -> tuple[ExecutionState, Transition] | Rejection:
    """Begin a run.

    Args:
        request: What to run.
        run_id: Of the new run.
        now: The instant of the start.
        key_generation: Names this intention to act; the run id, unless an earlier run already had the intention.
        parent: The run that starts this one as a child.
        parent_initiated_event_id: The event of the parent that asked for it.
        root: The run at the top of the tree of children.
        hold_first_task: No workflow task until `decide_release_first_task` (a child waits for its parent).
        signal: Recorded with the start, before the first workflow task (signal-with-start).
        inherited_pinned_version: The worker version that a pinned parent hands on to its child.
        limits: Of the namespace.
    """
    finding = _finding(request, limits)
    if not finding and signal is not None:
        finding = check_id("the signal name", signal.signal_name, limits) or check_payloads(
            f"the input of signal {signal.signal_name!r}", signal.input, limits
        )
    if finding:
        return refuse(RejectionCode.INVALID_ARGUMENT, sentence(finding))
    event = _started_event(request, run_id, now, key_generation, parent, parent_initiated_event_id, root)
    if inherited_pinned_version is not None:
        event = msgspec.structs.replace(event, inherited_pinned_version=inherited_pinned_version)
    state = begin(event, namespace=request.namespace, run_id=run_id)
    state.is_first_task_held = hold_first_task
    step = Step(state, now, limits)
    step.events.append(event)
    for deadline in (deadlines.KIND_FIRST_TASK, deadlines.KIND_RUN_TIMEOUT, deadlines.KIND_EXECUTION_TIMEOUT):
        state.arm(deadline)
    if signal is not None:
        record_signal(step, signal)
    if parent is not None:
        step.effects.append(NotifyParent(parent=parent, initiated_event_id=parent_initiated_event_id))
    want_task(step, dispatch_now=signal is not None)
    return state, finish(step)


def _finding(request: StartWorkflowRequest, limits: Limits) -> str:
    return (
        check_id("the workflow id", request.workflow_id, limits)
        or check_id("the workflow type", request.workflow_type, limits)
        or check_id("the task queue", request.task_queue, limits)
        or check_duration("execution_timeout", request.workflow_execution_timeout)
        or check_duration("run_timeout", request.workflow_run_timeout)
        or check_duration("task_timeout", request.workflow_task_timeout)
        or check_duration("start_delay", request.start_delay)
        or (check_policy(request.retry_policy) if request.retry_policy is not None else "")
        or (check_cron(request.cron_schedule) if request.cron_schedule else "")
        or ("start_delay and cron_schedule are both given; give one" if _has_both(request) else "")
        or check_payloads(f"the input of workflow {request.workflow_type!r}", request.input, limits)
        or check_memo(request.memo, limits)
        or (check_override(request.versioning_override) if request.versioning_override is not None else "")
        or check_metadata(request.user_metadata, limits)
    )


def _has_both(request: StartWorkflowRequest) -> bool:
    return bool(request.cron_schedule) and bool(request.start_delay)


def _started_event(
    request: StartWorkflowRequest,
    run_id: str,
    now: datetime,
    key_generation: str,
    parent: ExecutionRef | None,
    parent_initiated_event_id: int,
    root: ExecutionRef | None,
) -> e.WorkflowExecutionStarted:
    execution_timeout, run_timeout, task_timeout = normal_run_timeouts(request)
    backoff = cap(request.start_delay)
    if request.cron_schedule:
        backoff = next_cron_time(request.cron_schedule, now, now) - now
    return e.WorkflowExecutionStarted(
        event_id=1,
        event_time=now,
        workflow_id=request.workflow_id,
        workflow_type=request.workflow_type,
        task_queue=request.task_queue,
        input=request.input,
        workflow_execution_timeout=execution_timeout,
        workflow_run_timeout=run_timeout,
        workflow_task_timeout=task_timeout,
        parent=parent,
        parent_initiated_event_id=parent_initiated_event_id,
        root=root or ExecutionRef(request.workflow_id, run_id, request.namespace),
        original_execution_run_id=run_id,
        first_execution_run_id=run_id,
        identity=request.identity,
        request_id=request.request_id,
        retry_policy=request.retry_policy,
        workflow_execution_expiration_time=now + backoff + execution_timeout if execution_timeout else None,
        cron_schedule=request.cron_schedule,
        first_workflow_task_backoff=backoff,
        memo=request.memo,
        search_attributes=request.search_attributes,
        header=request.header,
        priority=request.priority,
        versioning_override=request.versioning_override,
        user_metadata=request.user_metadata,
        key_generation=key_generation,
    )


def normal_run_timeouts(request: StartWorkflowRequest) -> tuple[timedelta, timedelta, timedelta]:
    """Execution, run and workflow-task timeout as recorded."""
    execution_timeout = cap(request.workflow_execution_timeout)
    run_timeout = cap(request.workflow_run_timeout) or execution_timeout
    if execution_timeout:
        run_timeout = min(run_timeout, execution_timeout)
    task_timeout = min(request.workflow_task_timeout or WORKFLOW_TASK_TIMEOUT_DEFAULT, WORKFLOW_TASK_TIMEOUT_MAX)
    if run_timeout:
        task_timeout = min(task_timeout, run_timeout)
    return execution_timeout, run_timeout, task_timeout


def decide_id_policy(
    request: StartWorkflowRequest,
    existing: ExistingRun,
    now: datetime,
    *,
    restart_interval_min: timedelta = RESTART_INTERVAL_MIN_DEFAULT,
) -> StartVerdict:
    """What a start means when the workflow id has a run already.

    Args:
        request: The start.
        existing: The latest run of the workflow id.
        now: The instant of the decision.
        restart_interval_min: See `RESTART_INTERVAL_MIN_DEFAULT`.
    """
    if request.request_id and (
        request.request_id == existing.start_request_id or request.request_id in existing.request_ids
    ):
        return Repeat(run_id=existing.run_id, first_execution_run_id=existing.first_execution_run_id)
    verdict = _open_verdict(request, existing) if existing.status.is_open else _closed_verdict(request, existing)
    if isinstance(verdict, Start | TerminateThenStart) and now < existing.start_time + restart_interval_min:
        return refuse(
            RejectionCode.WORKFLOW_BUSY,
            f"Workflow {request.workflow_id!r} was started at {existing.start_time.isoformat()}; a new run may start "
            f"{restart_interval_min} later. Try again then.",
            run_id=existing.run_id,
        )
    return verdict


def _open_verdict(request: StartWorkflowRequest, existing: ExistingRun) -> StartVerdict:
    policy = request.id_conflict_policy
    if request.id_reuse_policy is WorkflowIDReusePolicy.TERMINATE_IF_RUNNING:
        policy = WorkflowIDConflictPolicy.TERMINATE_EXISTING
    match policy:
        case WorkflowIDConflictPolicy.USE_EXISTING:
            return UseExisting(run_id=existing.run_id, first_execution_run_id=existing.first_execution_run_id)
        case WorkflowIDConflictPolicy.TERMINATE_EXISTING:
            return TerminateThenStart(run_id=existing.run_id, reason=TERMINATED_BY_START)
        case WorkflowIDConflictPolicy.FAIL | WorkflowIDConflictPolicy.UNSPECIFIED:
            return _already_started(request, existing, "is running; wait for it, use its handle, or choose another id")


def _closed_verdict(request: StartWorkflowRequest, existing: ExistingRun) -> StartVerdict:
    match request.id_reuse_policy:
        case WorkflowIDReusePolicy.ALLOW_DUPLICATE | WorkflowIDReusePolicy.TERMINATE_IF_RUNNING:
            return Start()
        case WorkflowIDReusePolicy.ALLOW_DUPLICATE_FAILED_ONLY:
            if existing.status in _FAILED_STATUSES:
                return Start()
            return _already_started(
                request, existing, f"ended as {existing.status.value}, and the reuse policy allows failed runs only"
            )
        case WorkflowIDReusePolicy.REJECT_DUPLICATE:
            return _already_started(
                request, existing, f"ended as {existing.status.value}, and the reuse policy rejects duplicates"
            )


def _already_started(request: StartWorkflowRequest, existing: ExistingRun, why: str) -> Rejection:
    return refuse(
        RejectionCode.WORKFLOW_ALREADY_STARTED,
        f"Workflow {request.workflow_id!r} already started: its run {existing.run_id!r} {why}.",
        run_id=existing.run_id,
        first_execution_run_id=existing.first_execution_run_id,
        start_request_id=existing.start_request_id,
    )


def decide_attach_request(
    state: ExecutionState, request_id: str, now: datetime, *, limits: Limits = LIMITS_DEFAULT
) -> Transition:
    """Remember a start that was answered with this run, so that its repeat is answered alike."""
    if request_id and request_id not in state.attached_request_ids:
        state.attached_request_ids = [*state.attached_request_ids, request_id][-limits.request_ids_kept :]
    return Transition()


def decide_release_first_task(
    state: ExecutionState, now: datetime, *, limits: Limits = LIMITS_DEFAULT
) -> Transition | Rejection:
    """The parent has recorded the start of this child: its first workflow task may go out."""
    if not state.is_open or not state.is_first_task_held:
        return Transition()
    step = Step(state, now, limits)
    state.is_first_task_held = False
    state.arm(deadlines.KIND_FIRST_TASK)
    want_task(step)
    if has_admitted(state):
        want_update_task(step)
    return finish(step)
