"""What becomes of the commands of a workflow task (semantics 2.3).

Owns: the event and the effect that each command makes. Never: checks one (``core.command_checks`` has), closes the run
or processes messages (``core.workflow_tasks`` and ``core.updates`` do).

How it works: a table from command type to function; commands are applied in order, one event each.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final

from clew.core.checks import cap
from clew.core.retry import RETRY_POLICY_DEFAULT
from clew.core.step import Step
from clew.core.transition import (
    ActivityCancelWanted,
    ActivityTaskReady,
    CancelExternal,
    SignalExternal,
    StartChild,
)
from clew.model import commands as c
from clew.model import events as e
from clew.model.inputs import ActivityCancelReason
from clew.model.limits import WORKFLOW_TASK_TIMEOUT_MAX


def apply_command(step: Step, command: c.Command, completed_event_id: int) -> None:
    """Make the event of a checked command that does not close the run."""
    _APPLY[type(command)](step, command, completed_event_id)


def _schedule_activity(step: Step, command: c.ScheduleActivityTask, completed_event_id: int) -> None:
    state = step.state
    event_id = state.next_event_id
    to_close, to_start, start_to_close, heartbeat = normal_timeouts(command, state.workflow_run_timeout)
    priority = command.priority or state.priority
    event = e.ActivityTaskScheduled(
        event_id=event_id,
        event_time=step.now,
        activity_id=command.activity_id,
        activity_type=command.activity_type,
        task_queue=command.task_queue or state.task_queue,
        header=command.header,
        input=command.input,
        schedule_to_close_timeout=to_close,
        schedule_to_start_timeout=to_start,
        start_to_close_timeout=start_to_close,
        heartbeat_timeout=heartbeat,
        retry_policy=command.retry_policy or RETRY_POLICY_DEFAULT,
        workflow_task_completed_event_id=completed_event_id,
        priority=priority,
        user_metadata=command.user_metadata,
    )
    step.append(event)
    step.effects.append(
        ActivityTaskReady(
            task_queue=event.task_queue,
            scheduled_event_id=event_id,
            attempt=1,
            priority=3 if priority is None or priority.priority_key is None else priority.priority_key,
        )
    )


def normal_timeouts(
    command: c.ScheduleActivityTask, run_timeout: timedelta
) -> tuple[timedelta, timedelta, timedelta, timedelta]:
    """Schedule-to-close, schedule-to-start, start-to-close and heartbeat timeout as recorded (semantics 1.3)."""
    to_close, to_start = command.schedule_to_close_timeout, command.schedule_to_start_timeout
    start_to_close, heartbeat = command.start_to_close_timeout, command.heartbeat_timeout
    if to_close:
        to_close = _capped(to_close, run_timeout)
        to_start = min(to_start or to_close, to_close)
        start_to_close = min(start_to_close or to_close, to_close)
    else:
        to_close = run_timeout
        to_start = _capped(to_start, run_timeout) if to_start else run_timeout
        start_to_close = _capped(start_to_close, run_timeout)
    if heartbeat:
        heartbeat = min(heartbeat, start_to_close)
    return to_close, to_start, start_to_close, heartbeat


def _capped(value: timedelta, run_timeout: timedelta) -> timedelta:
    return min(cap(value), run_timeout) if run_timeout else cap(value)


def _cancel_activity(step: Step, command: c.RequestCancelActivityTask, completed_event_id: int) -> None:
    state = step.state
    scheduled_event_id = command.scheduled_event_id
    step.append(
        e.ActivityTaskCancelRequested(
            event_id=state.next_event_id,
            event_time=step.now,
            scheduled_event_id=scheduled_event_id,
            workflow_task_completed_event_id=completed_event_id,
        )
    )
    activity = state.activities[scheduled_event_id]
    if activity.is_closing:
        return
    if activity.started_time is not None:
        if not activity.session:
            return
        step.effects.append(
            ActivityCancelWanted(
                scheduled_event_id=scheduled_event_id,
                attempt=activity.attempt,
                lease_id=activity.lease_id,
                session=activity.session,
                reason=ActivityCancelReason.CANCEL_REQUESTED.value,
            )
        )
        return
    # Nobody runs it: it is cancelled at once, behind the events of the other commands.
    activity.is_closing = True
    state.buffered_events.append(
        e.ActivityTaskCanceled(
            event_id=0,
            event_time=step.now,
            scheduled_event_id=scheduled_event_id,
            latest_cancel_requested_event_id=activity.cancel_requested_event_id,
        )
    )


def _start_timer(step: Step, command: c.StartTimer, completed_event_id: int) -> None:
    step.append(
        e.TimerStarted(
            event_id=step.state.next_event_id,
            event_time=step.now,
            timer_id=command.timer_id,
            start_to_fire_timeout=cap(command.start_to_fire_timeout),
            workflow_task_completed_event_id=completed_event_id,
            user_metadata=command.user_metadata,
        )
    )


def _cancel_timer(step: Step, command: c.CancelTimer, completed_event_id: int) -> None:
    state = step.state
    started_event_id = state.derived.timer_ids[command.timer_id]
    if state.timers[started_event_id].is_closing:
        state.buffered_events = [
            event
            for event in state.buffered_events
            if not (type(event) is e.TimerFired and event.started_event_id == started_event_id)
        ]
        if not state.buffered_events:
            state.buffered_bytes = 0
    step.append(
        e.TimerCanceled(
            event_id=state.next_event_id,
            event_time=step.now,
            timer_id=command.timer_id,
            started_event_id=started_event_id,
            workflow_task_completed_event_id=completed_event_id,
        )
    )


def _record_marker(step: Step, command: c.RecordMarker, completed_event_id: int) -> None:
    step.append(
        e.MarkerRecorded(
            event_id=step.state.next_event_id,
            event_time=step.now,
            marker_name=command.marker_name,
            details=command.details,
            header=command.header,
            failure=command.failure,
            workflow_task_completed_event_id=completed_event_id,
            user_metadata=command.user_metadata,
        )
    )


def _start_child(step: Step, command: c.StartChildWorkflowExecution, completed_event_id: int) -> None:
    state = step.state
    event_id = state.next_event_id
    run_timeout = cap(command.workflow_run_timeout or command.workflow_execution_timeout)
    execution_timeout = cap(command.workflow_execution_timeout)
    if execution_timeout:
        run_timeout = min(run_timeout, execution_timeout)
    step.append(
        e.StartChildWorkflowExecutionInitiated(
            event_id=event_id,
            event_time=step.now,
            workflow_id=command.workflow_id,
            workflow_type=command.workflow_type,
            task_queue=command.task_queue or state.task_queue,
            namespace=command.namespace or state.namespace,
            input=command.input,
            workflow_execution_timeout=execution_timeout,
            workflow_run_timeout=run_timeout,
            workflow_task_timeout=min(
                command.workflow_task_timeout or state.workflow_task_timeout, WORKFLOW_TASK_TIMEOUT_MAX
            ),
            parent_close_policy=command.parent_close_policy,
            workflow_id_reuse_policy=command.workflow_id_reuse_policy,
            retry_policy=command.retry_policy,
            cron_schedule=command.cron_schedule,
            header=command.header,
            memo=command.memo,
            search_attributes=command.search_attributes,
            priority=command.priority or state.priority,
            workflow_task_completed_event_id=completed_event_id,
            user_metadata=command.user_metadata,
        )
    )
    step.effects.append(StartChild(initiated_event_id=event_id))


def _signal_external(step: Step, command: c.SignalExternalWorkflowExecution, completed_event_id: int) -> None:
    event_id = step.state.next_event_id
    step.append(
        e.SignalExternalWorkflowExecutionInitiated(
            event_id=event_id,
            event_time=step.now,
            workflow_execution=_in_namespace(step, command.workflow_execution),
            signal_name=command.signal_name,
            input=command.input,
            header=command.header,
            workflow_task_completed_event_id=completed_event_id,
            child_workflow_only=command.child_workflow_only,
        )
    )
    step.effects.append(SignalExternal(initiated_event_id=event_id))


def _cancel_external(step: Step, command: c.RequestCancelExternalWorkflowExecution, completed_event_id: int) -> None:
    event_id = step.state.next_event_id
    step.append(
        e.RequestCancelExternalWorkflowExecutionInitiated(
            event_id=event_id,
            event_time=step.now,
            workflow_execution=_in_namespace(step, command.workflow_execution),
            workflow_task_completed_event_id=completed_event_id,
            child_workflow_only=command.child_workflow_only,
            reason=command.reason,
        )
    )
    step.effects.append(CancelExternal(initiated_event_id=event_id))


def _in_namespace(step: Step, target: e.ExecutionRef) -> e.ExecutionRef:
    return target if target.namespace else e.ExecutionRef(target.workflow_id, target.run_id, step.state.namespace)


def _upsert_attributes(step: Step, command: c.UpsertSearchAttributes, completed_event_id: int) -> None:
    step.append(
        e.UpsertWorkflowSearchAttributes(
            event_id=step.state.next_event_id,
            event_time=step.now,
            search_attributes=command.search_attributes,
            workflow_task_completed_event_id=completed_event_id,
        )
    )


def _modify_properties(step: Step, command: c.ModifyWorkflowProperties, completed_event_id: int) -> None:
    step.append(
        e.WorkflowPropertiesModified(
            event_id=step.state.next_event_id,
            event_time=step.now,
            upserted_memo=command.upserted_memo,
            workflow_task_completed_event_id=completed_event_id,
        )
    )


_APPLY: Final[dict[type[c.BaseCommand], Callable[[Step, Any, int], None]]] = {
    c.ScheduleActivityTask: _schedule_activity,
    c.RequestCancelActivityTask: _cancel_activity,
    c.StartTimer: _start_timer,
    c.CancelTimer: _cancel_timer,
    c.RecordMarker: _record_marker,
    c.StartChildWorkflowExecution: _start_child,
    c.SignalExternalWorkflowExecution: _signal_external,
    c.RequestCancelExternalWorkflowExecution: _cancel_external,
    c.UpsertSearchAttributes: _upsert_attributes,
    c.ModifyWorkflowProperties: _modify_properties,
}
