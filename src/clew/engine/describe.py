"""Why a run waits: its description, made from its state (law 12).

Owns: what people are told about a run. Never: reads the store or changes anything; with `why_unmatched` left out it
works on a stored row alone, beside a running owner.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from clew.core.pending import PendingActivity
from clew.core.state import ExecutionState
from clew.core.versioning import behavior_of
from clew.engine.summary import visibility_of
from clew.model.events import event_type
from clew.model.failure import ApplicationInfo, Failure
from clew.model.policies import VersioningBehavior
from clew.ports.store import TaskKind
from clew.service.requests import (
    AttemptInfo,
    PendingActivityInfo,
    PendingChildInfo,
    PendingTimerInfo,
    PendingWorkflowTaskInfo,
    VersioningInfo,
    WorkflowDescription,
    WorkflowExecutionInfo,
)

WhyUnmatched = Callable[[ExecutionState, str, TaskKind, str], str]


def describe_state(state: ExecutionState, *, why_unmatched: WhyUnmatched | None = None) -> WorkflowDescription:
    """Everything about one run, and in words what it waits for and since when.

    Args:
        state: The run.
        why_unmatched: Says why a scheduled task has no worker: ``(run, task queue, kind, type) -> text``.
    """
    activities = tuple(_activity(a, state, why_unmatched) for a in state.activities.values())
    timers = tuple(
        PendingTimerInfo(timer_id=t.timer_id, started_event_id=t.started_event_id, due_time=t.due_time)
        for t in state.timers.values()
    )
    children = tuple(
        PendingChildInfo(
            workflow_id=c.workflow_id,
            run_id=c.run_id,
            workflow_type=c.workflow_type,
            initiated_event_id=c.initiated_event_id,
            parent_close_policy=c.parent_close_policy.value,
        )
        for c in state.children.values()
    )
    task = _workflow_task(state, why_unmatched) if state.is_open else None
    return WorkflowDescription(
        info=_info(state),
        attempt=state.attempt,
        workflow_execution_timeout=state.workflow_execution_timeout,
        workflow_run_timeout=state.workflow_run_timeout,
        workflow_task_timeout=state.workflow_task_timeout,
        cron_schedule=state.cron_schedule,
        cancel_requested=state.cancel_requested,
        pending_activities=activities if state.is_open else (),
        pending_timers=timers if state.is_open else (),
        pending_children=children,
        pending_workflow_task=task,
        pending_updates=tuple(state.updates) if state.is_open else (),
        buffered_events=tuple(event_type(event) for event in state.buffered_events),
        versioning=_versioning(state),
        waiting_for=tuple(_waiting_for(state, activities, task)) if state.is_open else (),
    )


def _info(state: ExecutionState) -> WorkflowExecutionInfo:
    seen = visibility_of(state)
    return WorkflowExecutionInfo(
        namespace=state.namespace,
        workflow_id=state.workflow_id,
        run_id=state.run_id,
        workflow_type=seen.workflow_type,
        task_queue=seen.task_queue,
        status=state.status,
        start_time=seen.start_time,
        execution_time=seen.execution_time,
        close_time=seen.close_time,
        history_length=state.history_length,
        history_size_bytes=state.history_size_bytes,
        first_execution_run_id=state.first_execution_run_id,
        parent=state.parent,
        root=state.root_ref,
        memo=state.memo or None,
        search_attributes=seen.search_attributes,
    )


def _versioning(state: ExecutionState) -> VersioningInfo | None:
    if behavior_of(state) is VersioningBehavior.UNSPECIFIED:
        return None
    return VersioningInfo(
        behavior=state.versioning_behavior, version=state.deployment_version, override=state.versioning_override
    )


def _activity(
    activity: PendingActivity, state: ExecutionState, why_unmatched: WhyUnmatched | None
) -> PendingActivityInfo:
    if activity.next_attempt_time is not None:
        condition = "BackingOff"
    elif activity.is_started:
        condition = "CancelRequested" if activity.is_cancel_requested else "Started"
    else:
        condition = "Scheduled"
    reason = activity.release_reason
    if condition == "Scheduled" and not reason and why_unmatched is not None:
        reason = why_unmatched(state, activity.task_queue, TaskKind.ACTIVITY, activity.activity_type)
    policy = activity.retry_policy
    return PendingActivityInfo(
        activity_id=activity.activity_id,
        activity_type=activity.activity_type,
        task_queue=activity.task_queue,
        state=condition,
        scheduled_event_id=activity.scheduled_event_id,
        attempt=activity.attempt,
        maximum_attempts=policy.maximum_attempts if policy is not None else 0,
        scheduled_time=activity.scheduled_time,
        last_started_time=activity.started_time,
        last_heartbeat_time=activity.last_heartbeat_time,
        heartbeat_details=activity.heartbeat_details,
        next_attempt_time=activity.next_attempt_time,
        expiration_time=activity.expiration_time,
        last_failure=activity.last_failure,
        last_worker_identity=activity.identity or activity.last_identity,
        attempts=tuple(
            AttemptInfo(
                attempt=a.attempt,
                started_at=a.started_at,
                failed_at=a.failed_at,
                worker_identity=a.worker_identity,
                failure=a.failure,
            )
            for a in activity.attempts
        ),
        waiting_reason=reason,
    )


def _workflow_task(state: ExecutionState, why_unmatched: WhyUnmatched | None) -> PendingWorkflowTaskInfo | None:
    task = state.workflow_task
    if task is None:
        return None
    if task.is_started:
        condition, reason = "Started", ""
    elif task.not_before is not None:
        condition, reason = "BackingOff", ""
    else:
        condition = "Scheduled"
        reason = (
            why_unmatched(state, state.task_queue, TaskKind.WORKFLOW, state.workflow_type)
            if why_unmatched is not None
            else ""
        )
    problem = state.last_workflow_task_failure
    cause = ""
    if problem is not None:
        cause = problem.cause.value if problem.cause is not None else "TimedOut"
    return PendingWorkflowTaskInfo(
        state=condition,
        attempt=task.attempt,
        scheduled_time=task.scheduled_time,
        started_time=task.started_time,
        next_attempt_time=task.not_before,
        identity=task.identity,
        last_failure_cause=cause,
        last_failure=problem.failure if problem is not None else None,
        waiting_reason=reason,
    )


def _waiting_for(
    state: ExecutionState,
    activities: tuple[PendingActivityInfo, ...],
    task: PendingWorkflowTaskInfo | None,
) -> list[str]:
    lines: list[str] = []
    if state.is_first_task_held:
        lines.append("its parent, which has not yet recorded that this child was started")
    elif state.first_task_at is not None:
        lines.append(f"its first workflow task, which is due at {_at(state.first_task_at)}")
    if task is not None:
        lines.append(_task_line(state, task))
    for activity in activities:
        lines.append(_activity_line(activity))
    for timer in state.timers.values():
        lines.append(f"timer {timer.timer_id} (event {timer.started_event_id}), due at {_at(timer.due_time)}")
    for child in state.children.values():
        stage = f"run {child.run_id}" if child.run_id else "not started yet"
        lines.append(f"child workflow {child.workflow_id!r} ({child.workflow_type}, {stage})")
    for external in state.external_signals.values():
        lines.append(f"delivery of a signal to workflow {external.target.workflow_id!r}")
    for external in state.external_cancels.values():
        lines.append(f"delivery of a cancel request to workflow {external.target.workflow_id!r}")
    for update in state.updates.values():
        stage = "accepted" if update.accepted_event_id else "admitted"
        lines.append(f"update {update.update_id} ({stage}, not completed)")
    if task is None:
        lines += [f"workflow code: {text}" for text in state.waiting_on]
        if not lines:
            lines.append("a signal, an update or a cancel request: nothing of its own is pending")
    return lines


def _task_line(state: ExecutionState, task: PendingWorkflowTaskInfo) -> str:
    state_text = "backing off" if task.state == "BackingOff" else task.state.lower()
    line = f"workflow task, attempt {task.attempt}, {state_text} since {_at(task.scheduled_time)}"
    if task.state == "Started":
        line = f"workflow task, attempt {task.attempt}, running on {task.identity} since {_at(task.started_time)}"
    if task.next_attempt_time is not None:
        line += f", next attempt at {_at(task.next_attempt_time)}"
    if task.waiting_reason:
        line += f": {task.waiting_reason}"
    problem = state.last_workflow_task_failure
    if problem is not None:
        line += f"; workflow task failing, last at attempt {problem.attempt} with {task.last_failure_cause}"
        line += _failure_text(problem.failure)
    return line


def _failure_text(failure: Failure | None) -> str:
    if failure is None:
        return ""
    kind = failure.info.type if isinstance(failure.info, ApplicationInfo) else ""
    return "".join(f": {part}" for part in (kind, failure.message) if part)


def _activity_line(activity: PendingActivityInfo) -> str:
    attempts = f"attempt {activity.attempt}" + (f" of {activity.maximum_attempts}" if activity.maximum_attempts else "")
    line = f"activity {activity.activity_id} ({activity.activity_type}), {attempts}"
    if activity.state == "BackingOff":
        line += f", next attempt at {_at(activity.next_attempt_time)}"
    elif activity.state == "Scheduled":
        line += f", scheduled since {_at(activity.scheduled_time)}"
        if activity.waiting_reason:
            line += f": {activity.waiting_reason}"
    else:
        line += f", running on {activity.last_worker_identity} since {_at(activity.last_started_time)}"
        if activity.state == "CancelRequested":
            line += ", cancellation requested"
    if activity.last_failure is not None:
        line += f"; last failure: {activity.last_failure.message}"
    return line


def _at(instant: datetime | None) -> str:
    return "?" if instant is None else instant.strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"
