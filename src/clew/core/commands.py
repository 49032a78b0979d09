"""What becomes of the commands of a workflow task (semantics 2.3).

Owns: the check of every command against the state and its siblings, and the event that each makes.
Never: closes the run or processes messages (``core.workflow_tasks`` and ``core.updates`` do).

How it works: two tables from command type to function. First all commands are checked, without touching the state:
`CommandCheck` remembers what earlier commands of the same task will have added and removed. Only when none is at fault
are they applied, one event each, in order.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final, NamedTuple

from clew.core.checks import cap, check_duration, check_id, check_memo, check_metadata, check_payloads, sentence
from clew.core.retry import RETRY_POLICY_DEFAULT, check_policy
from clew.core.state import ExecutionState
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
from clew.model.events import WorkflowTaskFailedCause
from clew.model.inputs import ActivityCancelReason
from clew.model.limits import WORKFLOW_TASK_TIMEOUT_MAX, Limits
from clew.model.payload import payloads_size

_Cause: Final = WorkflowTaskFailedCause


class Problem(NamedTuple):
    """Why the commands of a task are refused."""

    cause: WorkflowTaskFailedCause
    message: str


class CommandCheck:
    """The run as the commands checked so far will have left it."""

    __slots__ = (
        "activity_ids", "cancelled_activities", "cancelled_timers", "limits", "new_activities", "new_cancels",
        "new_children", "new_signals", "payload_bytes", "state", "timer_ids",
    )  # fmt: skip

    def __init__(self, state: ExecutionState, limits: Limits) -> None:
        self.state = state
        self.limits = limits
        self.activity_ids: set[str] = set()
        self.timer_ids: set[str] = set()
        self.cancelled_timers: set[str] = set()
        self.cancelled_activities: set[int] = set()
        self.new_activities = 0
        self.new_children = 0
        self.new_signals = 0
        self.new_cancels = 0
        self.payload_bytes = 0


def check_commands(
    state: ExecutionState, commands: tuple[c.Command, ...], limits: Limits, check: CommandCheck
) -> Problem | None:
    """The first problem among the commands, if any; the state is not touched."""
    last = len(commands) - 1
    for index, command in enumerate(commands):
        kind = type(command)
        if kind in _CLOSE_CAUSES and index != last:
            after = type(commands[index + 1]).__name__
            return Problem(_CLOSE_CAUSES[kind], f"{kind.__name__} must be the last command; {after} follows it.")
        problem = _CHECKS[kind](check, command)
        if problem is None and command.user_metadata is not None:
            finding = check_metadata(command.user_metadata, limits)
            problem = Problem(_Cause.PAYLOADS_TOO_LARGE, f"{kind.__name__}: {finding}.") if finding else None
        if problem is not None:
            return problem
    if check.payload_bytes > limits.transition_bytes_max:
        return Problem(
            _Cause.PAYLOADS_TOO_LARGE,
            f"The commands of this task carry {check.payload_bytes} bytes, at most {limits.transition_bytes_max} are "
            "allowed; spread them over several tasks or pass references.",
        )
    return None


def apply_command(step: Step, command: c.Command, completed_event_id: int) -> None:
    """Make the event of a checked command that does not close the run."""
    _APPLY[type(command)](step, command, completed_event_id)


# --- checks ----------------------------------------------------------------------------------------------------------


def _check_size(check: CommandCheck, what: str, payloads: Any) -> Problem | None:
    if payloads:
        check.payload_bytes += payloads_size(payloads)
        finding = check_payloads(what, payloads, check.limits)
        if finding:
            return Problem(_Cause.PAYLOADS_TOO_LARGE, sentence(finding))
    return None


def _check_activity(check: CommandCheck, command: c.ScheduleActivityTask) -> Problem | None:
    state, limits, activity_id = check.state, check.limits, command.activity_id
    finding = (
        check_id("the activity id", activity_id, limits)
        or check_id("the activity type", command.activity_type, limits)
        or (check_id("the task queue", command.task_queue, limits) if command.task_queue else "")
        or _activity_timeouts_finding(command)
        or (check_policy(command.retry_policy) if command.retry_policy is not None else "")
    )
    if finding:
        return Problem(_Cause.BAD_SCHEDULE_ACTIVITY_ATTRIBUTES, f"Activity {activity_id!r}: {finding}.")
    if activity_id in check.activity_ids or activity_id in state.derived.activity_ids:
        return Problem(
            _Cause.SCHEDULE_ACTIVITY_DUPLICATE_ID,
            f"Activity id {activity_id!r} is already pending; choose another id or wait for that activity.",
        )
    check.activity_ids.add(activity_id)
    check.new_activities += 1
    if len(state.activities) + check.new_activities > limits.pending_activities_max:
        return Problem(
            _Cause.PENDING_ACTIVITIES_LIMIT_EXCEEDED,
            f"The run would have more than {limits.pending_activities_max} pending activities; wait for some first.",
        )
    if not command.input:
        return None
    return _check_size(check, f"the input of activity {activity_id!r} ({command.activity_type})", command.input)


def _activity_timeouts_finding(command: c.ScheduleActivityTask) -> str:
    if not command.schedule_to_close_timeout and not command.start_to_close_timeout:
        return "neither start_to_close_timeout nor schedule_to_close_timeout is given; give at least one"
    return (
        check_duration("schedule_to_close_timeout", command.schedule_to_close_timeout)
        or check_duration("schedule_to_start_timeout", command.schedule_to_start_timeout)
        or check_duration("start_to_close_timeout", command.start_to_close_timeout)
        or check_duration("heartbeat_timeout", command.heartbeat_timeout)
    )


def _check_activity_cancel(check: CommandCheck, command: c.RequestCancelActivityTask) -> Problem | None:
    scheduled_event_id = command.scheduled_event_id
    activity = check.state.activities.get(scheduled_event_id)
    if activity is None:
        finding = f"no activity is pending that event {scheduled_event_id} scheduled"
    elif activity.is_cancel_requested or scheduled_event_id in check.cancelled_activities:
        finding = f"activity {activity.activity_id!r} was already asked to cancel"
    else:
        check.cancelled_activities.add(scheduled_event_id)
        return None
    return Problem(_Cause.BAD_REQUEST_CANCEL_ACTIVITY_ATTRIBUTES, f"RequestCancelActivityTask: {finding}.")


def _check_timer(check: CommandCheck, command: c.StartTimer) -> Problem | None:
    timer_id = command.timer_id
    finding = check_id("the timer id", timer_id, check.limits) or check_duration(
        "start_to_fire_timeout", command.start_to_fire_timeout
    )
    if finding:
        return Problem(_Cause.BAD_START_TIMER_ATTRIBUTES, f"Timer {timer_id!r}: {finding}.")
    is_running = timer_id in check.state.derived.timer_ids and timer_id not in check.cancelled_timers
    if is_running or timer_id in check.timer_ids:
        return Problem(
            _Cause.START_TIMER_DUPLICATE_ID, f"Timer id {timer_id!r} is already running; choose another or cancel it."
        )
    check.timer_ids.add(timer_id)
    return None


def _check_timer_cancel(check: CommandCheck, command: c.CancelTimer) -> Problem | None:
    timer_id = command.timer_id
    if timer_id in check.timer_ids:
        check.timer_ids.discard(timer_id)
        return None
    if timer_id not in check.state.derived.timer_ids or timer_id in check.cancelled_timers:
        return Problem(_Cause.BAD_CANCEL_TIMER_ATTRIBUTES, f"CancelTimer: no timer {timer_id!r} is running.")
    check.cancelled_timers.add(timer_id)
    return None


def _check_marker(check: CommandCheck, command: c.RecordMarker) -> Problem | None:
    finding = check_id("the marker name", command.marker_name, check.limits)
    if finding:
        return Problem(_Cause.BAD_RECORD_MARKER_ATTRIBUTES, f"RecordMarker: {finding}.")
    for name, payloads in command.details.items():
        problem = _check_size(check, f"detail {name!r} of marker {command.marker_name!r}", payloads)
        if problem is not None:
            return problem
    return None


def _check_child(check: CommandCheck, command: c.StartChildWorkflowExecution) -> Problem | None:
    limits = check.limits
    finding = (
        check_id("the workflow id", command.workflow_id, limits)
        or check_id("the workflow type", command.workflow_type, limits)
        or (check_id("the task queue", command.task_queue, limits) if command.task_queue else "")
        or check_duration("workflow_execution_timeout", command.workflow_execution_timeout)
        or check_duration("workflow_run_timeout", command.workflow_run_timeout)
        or check_duration("workflow_task_timeout", command.workflow_task_timeout)
        or (check_policy(command.retry_policy) if command.retry_policy is not None else "")
        or check_memo(command.memo, limits)
    )
    if command.namespace and command.namespace != check.state.namespace:
        finding = finding or f"namespace {command.namespace!r} is not that of the parent; children live beside it"
    if finding:
        message = f"Child workflow {command.workflow_id!r}: {finding}."
        return Problem(_Cause.BAD_START_CHILD_EXECUTION_ATTRIBUTES, message)
    check.new_children += 1
    if len(check.state.children) + check.new_children > limits.pending_children_max:
        return Problem(
            _Cause.PENDING_CHILD_WORKFLOWS_LIMIT_EXCEEDED,
            f"The run would have more than {limits.pending_children_max} pending children; wait for some first.",
        )
    return _check_size(check, f"the input of child workflow {command.workflow_id!r}", command.input)


def _check_signal(check: CommandCheck, command: c.SignalExternalWorkflowExecution) -> Problem | None:
    limits = check.limits
    finding = check_id("the workflow id", command.workflow_execution.workflow_id, limits) or check_id(
        "the signal name", command.signal_name, limits
    )
    finding = finding or _foreign_namespace(check, command.workflow_execution)
    if finding:
        return Problem(_Cause.BAD_SIGNAL_WORKFLOW_EXECUTION_ATTRIBUTES, f"Signal to another workflow: {finding}.")
    check.new_signals += 1
    if len(check.state.external_signals) + check.new_signals > limits.pending_signals_max:
        return Problem(
            _Cause.PENDING_SIGNALS_LIMIT_EXCEEDED,
            f"The run would have more than {limits.pending_signals_max} signals on their way; wait for some first.",
        )
    return _check_size(check, f"the input of signal {command.signal_name!r}", command.input)


def _check_external_cancel(check: CommandCheck, command: c.RequestCancelExternalWorkflowExecution) -> Problem | None:
    finding = check_id("the workflow id", command.workflow_execution.workflow_id, check.limits)
    finding = finding or _foreign_namespace(check, command.workflow_execution)
    if finding:
        return Problem(_Cause.BAD_REQUEST_CANCEL_EXTERNAL_ATTRIBUTES, f"Cancel of another workflow: {finding}.")
    check.new_cancels += 1
    if len(check.state.external_cancels) + check.new_cancels > check.limits.pending_cancels_max:
        return Problem(
            _Cause.PENDING_REQUEST_CANCEL_LIMIT_EXCEEDED,
            f"The run would have more than {check.limits.pending_cancels_max} cancel requests out; wait for some.",
        )
    return None


def _foreign_namespace(check: CommandCheck, target: e.ExecutionRef) -> str:
    if target.namespace and target.namespace != check.state.namespace:
        return f"namespace {target.namespace!r} is not that of this run; commands do not cross namespaces"
    return ""


def _check_attributes(check: CommandCheck, command: c.UpsertSearchAttributes) -> Problem | None:
    if not command.search_attributes:
        return Problem(_Cause.BAD_SEARCH_ATTRIBUTES, "UpsertSearchAttributes names no attribute.")
    return None


def _check_properties(check: CommandCheck, command: c.ModifyWorkflowProperties) -> Problem | None:
    finding = check_memo({**check.state.memo, **command.upserted_memo}, check.limits)
    if finding:
        return Problem(_Cause.BAD_MODIFY_WORKFLOW_PROPERTIES_ATTRIBUTES, f"ModifyWorkflowProperties: {finding}.")
    return None


def _check_complete(check: CommandCheck, command: c.CompleteWorkflowExecution) -> Problem | None:
    return _check_size(check, "the result of the workflow", command.result)


def _check_cancel(check: CommandCheck, command: c.CancelWorkflowExecution) -> Problem | None:
    return _check_size(check, "the details of the cancellation", command.details)


def _check_fail(check: CommandCheck, command: c.FailWorkflowExecution) -> Problem | None:
    return None


def _check_continue(check: CommandCheck, command: c.ContinueAsNewWorkflowExecution) -> Problem | None:
    limits = check.limits
    finding = (
        (check_id("the workflow type", command.workflow_type, limits) if command.workflow_type else "")
        or (check_id("the task queue", command.task_queue, limits) if command.task_queue else "")
        or check_duration("workflow_run_timeout", command.workflow_run_timeout)
        or check_duration("workflow_task_timeout", command.workflow_task_timeout)
        or check_duration("backoff_start_interval", command.backoff_start_interval)
        or (check_policy(command.retry_policy) if command.retry_policy is not None else "")
        or check_memo(command.memo, limits)
    )
    if finding:
        return Problem(_Cause.BAD_CONTINUE_AS_NEW_ATTRIBUTES, f"ContinueAsNewWorkflowExecution: {finding}.")
    return _check_size(check, "the input of the next run", command.input)


def _check_message(check: CommandCheck, command: c.ProtocolMessage) -> Problem | None:
    return None  # messages are checked together, with the updates they belong to


_CHECKS: Final[dict[type[c.BaseCommand], Callable[[CommandCheck, Any], Problem | None]]] = {
    c.ScheduleActivityTask: _check_activity,
    c.RequestCancelActivityTask: _check_activity_cancel,
    c.StartTimer: _check_timer,
    c.CancelTimer: _check_timer_cancel,
    c.RecordMarker: _check_marker,
    c.StartChildWorkflowExecution: _check_child,
    c.SignalExternalWorkflowExecution: _check_signal,
    c.RequestCancelExternalWorkflowExecution: _check_external_cancel,
    c.UpsertSearchAttributes: _check_attributes,
    c.ModifyWorkflowProperties: _check_properties,
    c.ProtocolMessage: _check_message,
    c.CompleteWorkflowExecution: _check_complete,
    c.FailWorkflowExecution: _check_fail,
    c.CancelWorkflowExecution: _check_cancel,
    c.ContinueAsNewWorkflowExecution: _check_continue,
}

_CLOSE_CAUSES: Final[dict[type[c.BaseCommand], WorkflowTaskFailedCause]] = {
    c.CompleteWorkflowExecution: _Cause.BAD_COMPLETE_WORKFLOW_EXECUTION_ATTRIBUTES,
    c.FailWorkflowExecution: _Cause.BAD_FAIL_WORKFLOW_EXECUTION_ATTRIBUTES,
    c.CancelWorkflowExecution: _Cause.BAD_CANCEL_WORKFLOW_EXECUTION_ATTRIBUTES,
    c.ContinueAsNewWorkflowExecution: _Cause.BAD_CONTINUE_AS_NEW_ATTRIBUTES,
}


# --- events ----------------------------------------------------------------------------------------------------------


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
