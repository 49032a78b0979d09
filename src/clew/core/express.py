"""The few transitions that make up nearly all the work of a busy engine, each decided in one pass.

Owns: those decisions for a *plain* run, and what plain means. Never: differs in its outcome from the general way, which
decides the same input and then the start of the task that it makes ready (``core.start``, ``core.workflow_tasks``,
``core.activities``); a property test runs both and compares every stored byte.

How it works: a run is plain while nothing goes on in it but workflow tasks and a few activities. Then an input has one
course: a start is followed by the start of its workflow task, an activity's result by that of the next one, and
commands that ask for activities by the start of those. So each function here takes the input together with the sessions
that wait for what it makes ready, moves the state over all of it, and answers with the events. Whoever calls has asked
the questions first; where one is answered with no, the input takes the general way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, NamedTuple, final

from clew.core.checks import cap
from clew.core.commands import normal_timeouts
from clew.core.pending import PendingActivity, PendingTimer, PendingWorkflowTask
from clew.core.retry import RETRY_POLICY_DEFAULT
from clew.core.state import FEW_ITEMS, Derived, ExecutionState
from clew.core.tasks import started_event
from clew.model import commands as c
from clew.model import events as e
from clew.model.events import ZERO, ExecutionRef
from clew.model.inputs import CompleteActivityRequest, CompleteWorkflowTaskRequest, StartWorkflowRequest
from clew.model.limits import DURATION_MAX, WORKFLOW_TASK_TIMEOUT_DEFAULT, Limits
from clew.model.payload import StoredPayload, payloads_size
from clew.model.policies import VersioningBehavior, WorkflowExecutionStatus

_RUNNING: Final = WorkflowExecutionStatus.RUNNING
_UNSPECIFIED: Final = VersioningBehavior.UNSPECIFIED


class Taker(NamedTuple):
    """Who takes a task: a worker's session, and the worker's name for people."""

    session: str
    identity: str


@final
@dataclass(frozen=True, slots=True)
class Bounds:
    """What of a namespace's limits express transitions stay below; what may touch them goes the general way."""

    events_max: int
    bytes_max: int
    payload_bytes_max: int
    name_length_max: int
    activities_max: int
    events_suggest: int
    bytes_suggest: int
    """From these two on a workflow task says that the run should continue as new."""

    @staticmethod
    def of(limits: Limits) -> Bounds:
        """The bounds of these limits."""
        return Bounds(
            # The largest transition adds a few events to those that were there when its task is started.
            events_max=limits.history_events_max - FEW_ITEMS - 4,
            bytes_max=limits.history_bytes_max,
            payload_bytes_max=min(limits.payload_bytes_max, limits.transition_bytes_max // FEW_ITEMS),
            name_length_max=limits.id_bytes_max // 4,
            activities_max=min(FEW_ITEMS, limits.pending_activities_max),
            events_suggest=limits.history_events_suggest,
            bytes_suggest=limits.history_bytes_suggest,
        )

    def suggests(self, size_bytes: int, events_count: int) -> tuple[str, ...]:
        """Why a plain run with such a history should continue as new (`workflow_tasks.suggest_reasons`)."""
        is_large = size_bytes >= self.bytes_suggest
        if events_count < self.events_suggest:
            return ("HistorySizeTooLarge",) if is_large else ()
        return ("HistorySizeTooLarge", "TooManyHistoryEvents") if is_large else ("TooManyHistoryEvents",)


# --- what may be decided here ----------------------------------------------------------------------------------------


def is_plain(state: ExecutionState) -> bool:
    """Whether nothing goes on in this open run but workflow tasks that succeed and a few activities (and timers).

    An express transition leaves a plain run plain, so its caller need not ask again.
    """
    return (
        state.status is _RUNNING
        and not state.is_wide
        and not state.buffered_events
        and not state.children
        and not state.external_signals
        and not state.external_cancels
        and not state.updates
        and not state.completed_updates
        and state.last_workflow_task_failure is None
        and state.workflow_task_attempt == 1
        and not state.is_close_attempted
        and state.extended_since is None
        and state.first_task_at is None
        and not state.is_first_task_held
        and state.versioning_behavior is _UNSPECIFIED
        and state.versioning_override is None
        and state.derived.deadlines is None
        and len(state.activities) + len(state.timers) <= FEW_ITEMS
    )


def is_usual_start(request: StartWorkflowRequest, bounds: Bounds) -> bool:
    """Whether the start has nothing but names, input, priority and header, and nothing that a check could refuse."""
    workflow_id, length_max = request.workflow_id, bounds.name_length_max
    return (
        0 < len(workflow_id) <= length_max
        and workflow_id.isascii()
        and 0 < len(request.workflow_type) <= length_max
        and request.workflow_type.isascii()
        and 0 < len(request.task_queue) <= length_max
        and request.task_queue.isascii()
        and not request.workflow_execution_timeout
        and not request.workflow_run_timeout
        and not request.workflow_task_timeout
        and not request.start_delay
        and not request.cron_schedule
        and request.retry_policy is None
        and request.memo is None
        and request.search_attributes is None
        and request.versioning_override is None
        and request.user_metadata is None
        and _size_of(request.input) <= bounds.payload_bytes_max
    )


def is_usual_answer(request: CompleteWorkflowTaskRequest) -> bool:
    """Whether the answer to a workflow task holds nothing but commands."""
    return not (
        request.acceptances
        or request.rejections
        or request.completions
        or request.query_results
        or request.force_create_new_workflow_task
        or request.deployment_version is not None
        or request.versioning_behavior is not _UNSPECIFIED
    )


def is_usual_activity(command: c.ScheduleActivityTask, state: ExecutionState, bounds: Bounds) -> bool:
    """Whether the command asks for an activity in the usual way: no policy, no timeout but start-to-close, new id."""
    activity_id, length_max = command.activity_id, bounds.name_length_max
    return (
        0 < len(activity_id) <= length_max
        and 0 < len(command.activity_type) <= length_max
        and len(command.task_queue) <= length_max
        and command.start_to_close_timeout > ZERO
        and not command.schedule_to_close_timeout
        and not command.schedule_to_start_timeout
        and not command.heartbeat_timeout
        and command.retry_policy is None
        and command.user_metadata is None
        and activity_id not in state.derived.activity_ids
        and _size_of(command.input) <= bounds.payload_bytes_max
    )


def is_usual_timer(command: c.StartTimer, state: ExecutionState, bounds: Bounds) -> bool:
    """Whether the command asks for a timer that a plain run has room for, under a new id."""
    timer_id = command.timer_id
    return (
        0 < len(timer_id) <= bounds.name_length_max
        and timer_id.isascii()
        and command.start_to_fire_timeout >= ZERO
        and command.user_metadata is None
        and timer_id not in state.derived.timer_ids
        and len(state.activities) + len(state.timers) < FEW_ITEMS
    )


def may_schedule(state: ExecutionState, commands: Sequence[c.ScheduleActivityTask], bounds: Bounds) -> bool:
    """Whether the run has room for these activities, and none has the id of another."""
    count = len(commands)
    if len(state.activities) + len(state.timers) + count > bounds.activities_max:
        return False
    return count == 1 or len({command.activity_id for command in commands}) == count


def is_usual_close(command: c.CompleteWorkflowExecution, bounds: Bounds) -> bool:
    """Whether the result of the run can be recorded as it is."""
    return command.user_metadata is None and _size_of(command.result) <= bounds.payload_bytes_max


def is_usual_result(request: CompleteActivityRequest, bounds: Bounds) -> bool:
    """Whether the result can be recorded as it is."""
    return _size_of(request.result) <= bounds.payload_bytes_max


def may_close(state: ExecutionState) -> bool:
    """Whether the close of this plain run concerns nobody else, and no other run follows."""
    return (
        not state.activities
        and not state.timers
        and state.parent is None
        and state.retry_policy is None
        and not state.cron_schedule
    )


def _size_of(payloads: Sequence[StoredPayload]) -> int:
    if len(payloads) == 1:
        return len(payloads[0])
    return payloads_size(payloads)


# --- the transitions -------------------------------------------------------------------------------------------------


def start_run(
    request: StartWorkflowRequest, run_id: str, now: datetime, taker: Taker
) -> tuple[ExecutionState, list[e.Event]]:
    """Begin a run, and give its first workflow task to `taker`: `decide_start`, then `decide_start_workflow_task`."""
    workflow_id, task_queue, namespace = request.workflow_id, request.task_queue, request.namespace
    state = ExecutionState(
        namespace=namespace,
        workflow_id=workflow_id,
        run_id=run_id,
        workflow_type=request.workflow_type,
        task_queue=task_queue,
        start_time=now,
        execution_time=now,
        first_execution_run_id=run_id,
        key_generation=run_id,
        next_event_id=4,
        start_request_id=request.request_id,
        workflow_task_timeout=WORKFLOW_TASK_TIMEOUT_DEFAULT,
        priority=request.priority,
        lease_count=1,
        workflow_task=PendingWorkflowTask(
            scheduled_event_id=2,
            attempt=1,
            scheduled_time=now,
            start_to_close_timeout=WORKFLOW_TASK_TIMEOUT_DEFAULT,
            started_event_id=3,
            started_time=now,
            lease_id=1,
            session=taker.session,
            identity=taker.identity,
        ),
    )
    # Without asking for it, which takes a lock the first time.
    vars(state)["derived"] = Derived(state)
    return state, [
        e.WorkflowExecutionStarted(
            event_id=1,
            event_time=now,
            workflow_id=workflow_id,
            workflow_type=request.workflow_type,
            task_queue=task_queue,
            input=request.input,
            workflow_task_timeout=WORKFLOW_TASK_TIMEOUT_DEFAULT,
            root=ExecutionRef(workflow_id, run_id, namespace),
            original_execution_run_id=run_id,
            first_execution_run_id=run_id,
            identity=request.identity,
            request_id=request.request_id,
            header=request.header,
            priority=request.priority,
            key_generation=run_id,
        ),
        e.WorkflowTaskScheduled(
            event_id=2, event_time=now, task_queue=task_queue, start_to_close_timeout=WORKFLOW_TASK_TIMEOUT_DEFAULT
        ),
        e.WorkflowTaskStarted(event_id=3, event_time=now, scheduled_event_id=2, identity=taker.identity),
    ]


def complete_activity(
    state: ExecutionState,
    activity: PendingActivity,
    request: CompleteActivityRequest,
    now: datetime,
    taker: Taker,
    bounds: Bounds,
) -> list[e.Event]:
    """Record the result of a started activity, and give the workflow task for it to `taker`, which has the run cached:
    `decide_complete_activity`, then `decide_start_workflow_task`."""
    started_time = activity.started_time
    assert started_time is not None, "only a started activity is completed here"
    event_id = state.next_event_id
    scheduled_event_id = activity.scheduled_event_id
    del state.activities[scheduled_event_id]
    state.derived.activity_ids.pop(activity.activity_id, None)
    lease_id = state.lease_count = state.lease_count + 1
    timeout, size = state.workflow_task_timeout, state.history_size_bytes
    state.workflow_task = task = PendingWorkflowTask(
        scheduled_event_id=event_id + 2,
        attempt=1,
        scheduled_time=now,
        start_to_close_timeout=timeout,
        started_event_id=event_id + 3,
        started_time=now,
        lease_id=lease_id,
        session=taker.session,
        identity=taker.identity,
        sticky_session=taker.session,
        history_size_bytes=size,
    )
    state.next_event_id = event_id + 4
    events: list[e.Event] = [
        e.ActivityTaskStarted(
            event_id=event_id,
            event_time=started_time,
            scheduled_event_id=scheduled_event_id,
            identity=activity.identity or request.identity,
            attempt=activity.attempt,
            last_failure=activity.last_failure,
        ),
        e.ActivityTaskCompleted(
            event_id=event_id + 1,
            event_time=now,
            scheduled_event_id=scheduled_event_id,
            started_event_id=event_id,
            result=request.result,
            identity=request.identity,
        ),
        e.WorkflowTaskScheduled(
            event_id=event_id + 2,
            event_time=now,
            task_queue=state.task_queue,
            start_to_close_timeout=timeout,
            is_sticky=True,
        ),
        e.WorkflowTaskStarted(
            event_id=event_id + 3,
            event_time=now,
            scheduled_event_id=event_id + 2,
            identity=taker.identity,
            history_size_bytes=size,
        ),
    ]
    if event_id + 2 >= bounds.events_suggest or size >= bounds.bytes_suggest:
        task.suggest_continue_as_new = True
        task.suggest_continue_as_new_reasons = bounds.suggests(size, event_id + 2)
        events[-1] = started_event(task)
    return events


def schedule_activities(
    state: ExecutionState,
    task: PendingWorkflowTask,
    request: CompleteWorkflowTaskRequest,
    commands: Sequence[c.ScheduleActivityTask],
    now: datetime,
    takers: Sequence[Taker],
) -> list[e.Event]:
    """Complete the workflow task with commands that ask for activities, and give each to one of `takers`:
    `decide_complete_workflow_task`, then `decide_start_activity` for each."""
    completed_event_id = state.next_event_id
    events: list[e.Event] = [_end_task(state, task, request, now)]
    state.waiting_on = request.waiting_on
    state.sticky_session = task.session if request.is_sticky else ""
    activity_ids = state.derived.activity_ids
    run_timeout = state.workflow_run_timeout
    event_id = completed_event_id
    lease_id = state.lease_count
    for command, taker in zip(commands, takers, strict=True):
        event_id += 1
        lease_id += 1
        activity_id, activity_type = command.activity_id, command.activity_type
        task_queue = command.task_queue or state.task_queue
        priority = command.priority or state.priority
        start_to_close = command.start_to_close_timeout
        if run_timeout or start_to_close > DURATION_MAX:
            _, _, start_to_close, _ = normal_timeouts(command, run_timeout)
        events.append(
            e.ActivityTaskScheduled(
                event_id=event_id,
                event_time=now,
                activity_id=activity_id,
                activity_type=activity_type,
                task_queue=task_queue,
                header=command.header,
                input=command.input,
                schedule_to_close_timeout=run_timeout,
                schedule_to_start_timeout=run_timeout,
                start_to_close_timeout=start_to_close,
                heartbeat_timeout=command.heartbeat_timeout,
                retry_policy=RETRY_POLICY_DEFAULT,
                workflow_task_completed_event_id=completed_event_id,
                priority=priority,
            )
        )
        state.activities[event_id] = PendingActivity(
            scheduled_event_id=event_id,
            activity_id=activity_id,
            activity_type=activity_type,
            task_queue=task_queue,
            scheduled_time=now,
            schedule_to_close_timeout=run_timeout,
            schedule_to_start_timeout=run_timeout,
            start_to_close_timeout=start_to_close,
            heartbeat_timeout=command.heartbeat_timeout,
            retry_policy=RETRY_POLICY_DEFAULT,
            priority=priority,
            started_time=now,
            lease_id=lease_id,
            session=taker.session,
            identity=taker.identity,
        )
        activity_ids[activity_id] = event_id
    state.lease_count = lease_id
    state.next_event_id = event_id + 1
    return events


def start_timer(
    state: ExecutionState,
    task: PendingWorkflowTask,
    request: CompleteWorkflowTaskRequest,
    command: c.StartTimer,
    now: datetime,
) -> list[e.Event]:
    """Complete the workflow task with the start of a timer: `decide_complete_workflow_task`."""
    completed_event_id = state.next_event_id
    ended = _end_task(state, task, request, now)
    state.waiting_on = request.waiting_on
    state.sticky_session = task.session if request.is_sticky else ""
    event_id, timer_id, duration = completed_event_id + 1, command.timer_id, cap(command.start_to_fire_timeout)
    state.timers[event_id] = PendingTimer(started_event_id=event_id, timer_id=timer_id, due_time=now + duration)
    state.derived.timer_ids[timer_id] = event_id
    state.next_event_id = event_id + 1
    return [
        ended,
        e.TimerStarted(
            event_id=event_id,
            event_time=now,
            timer_id=timer_id,
            start_to_fire_timeout=duration,
            workflow_task_completed_event_id=completed_event_id,
        ),
    ]


def complete_run(
    state: ExecutionState,
    task: PendingWorkflowTask,
    request: CompleteWorkflowTaskRequest,
    command: c.CompleteWorkflowExecution,
    now: datetime,
) -> list[e.Event]:
    """Complete the workflow task with the result of the run: `decide_complete_workflow_task`."""
    completed_event_id = state.next_event_id
    ended = _end_task(state, task, request, now)
    state.waiting_on = ()
    state.sticky_session = ""
    state.status = WorkflowExecutionStatus.COMPLETED
    state.close_time = now
    state.close_event_id = completed_event_id + 1
    state.next_event_id = completed_event_id + 2
    return [
        ended,
        e.WorkflowExecutionCompleted(
            event_id=completed_event_id + 1,
            event_time=now,
            result=command.result,
            workflow_task_completed_event_id=completed_event_id,
        ),
    ]


def _end_task(
    state: ExecutionState, task: PendingWorkflowTask, request: CompleteWorkflowTaskRequest, now: datetime
) -> e.WorkflowTaskCompleted:
    state.workflow_task = None
    state.previous_started_event_id = task.started_event_id
    return e.WorkflowTaskCompleted(
        event_id=state.next_event_id,
        event_time=now,
        scheduled_event_id=task.scheduled_event_id,
        started_event_id=task.started_event_id,
        identity=request.identity,
        sdk_metadata=request.sdk_metadata,
    )
