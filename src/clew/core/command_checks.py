"""What can be wrong with the commands of a workflow task (semantics 1.2 to 1.6, 2.3).

Owns: the check of every command against the state and its siblings. Never: touches the state or makes an event
(``core.commands`` does).

How it works: a table from command type to function. `CommandCheck` remembers what earlier commands of the same task
will have added and removed, so that each is checked against the run as it will then be. Only when none is at fault are
the commands applied.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from clew.core.checks import check_duration, check_id, check_memo, check_metadata, check_payloads, sentence
from clew.core.retry import check_policy
from clew.core.state import ExecutionState
from clew.model import commands as c
from clew.model import events as e
from clew.model.events import ZERO, WorkflowTaskFailedCause
from clew.model.limits import Limits
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
    if not _is_plain_activity(command, limits) and (finding := _activity_finding(command, limits)):
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
    size = payloads_size(command.input)
    check.payload_bytes += size
    if size <= limits.payload_bytes_max:
        return None
    finding = check_payloads(f"the input of activity {activity_id!r} ({command.activity_type})", command.input, limits)
    return Problem(_Cause.PAYLOADS_TOO_LARGE, sentence(finding))


def _is_plain_activity(command: c.ScheduleActivityTask, limits: Limits) -> bool:
    """The usual command, seen to be right at a glance: short names, start-to-close alone, no policy of its own."""
    short = limits.id_bytes_max // 4
    return (
        0 < len(command.activity_id) <= short
        and 0 < len(command.activity_type) <= short
        and len(command.task_queue) <= short
        and command.start_to_close_timeout > ZERO
        and not command.schedule_to_close_timeout
        and not command.schedule_to_start_timeout
        and not command.heartbeat_timeout
        and command.retry_policy is None
    )


def _activity_finding(command: c.ScheduleActivityTask, limits: Limits) -> str:
    return (
        check_id("the activity id", command.activity_id, limits)
        or check_id("the activity type", command.activity_type, limits)
        or (check_id("the task queue", command.task_queue, limits) if command.task_queue else "")
        or _activity_timeouts_finding(command)
        or (check_policy(command.retry_policy) if command.retry_policy is not None else "")
    )


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
    if finding := check_id("the marker name", command.marker_name, check.limits):
        return Problem(_Cause.BAD_RECORD_MARKER_ATTRIBUTES, f"RecordMarker: {finding}.")
    size = sum([payloads_size(payloads) for payloads in command.details.values()])
    if size <= check.limits.payload_bytes_max:
        check.payload_bytes += size
        return None
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
