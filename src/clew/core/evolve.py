"""How each event moves the state of a run: the fold.

Owns: `evolve`, one function an event type, and `fold`. Never: decides whether an event may happen, or touches a fact
that no event holds, beyond making records in their first state.

How it works: a table from event type to function; a test checks that no event type is missing. Each function answers
with the pending item it touched, so that a wide run rewrites only that. Law: for every run, at every version,
``durable_facts(fold(history)) == durable_facts(state)`` (``core.facts``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any, Final, TypeAlias

from clew.core.pending import (
    CompletedUpdate,
    PendingActivity,
    PendingChild,
    PendingExternal,
    PendingTimer,
    PendingUpdate,
    PendingWorkflowTask,
)
from clew.core.state import ExecutionState
from clew.core.transition import ITEM_ACTIVITY, ITEM_CANCEL, ITEM_CHILD, ITEM_SIGNAL, ITEM_TIMER, ITEM_UPDATE
from clew.model import events as e
from clew.model.limits import LIMITS_DEFAULT
from clew.model.payload import ENCODING_KEY, JSON_PLAIN, StoredPayload, from_stored
from clew.model.policies import VersioningBehavior, WorkflowExecutionStatus

Touched: TypeAlias = "tuple[int, int] | None"
"""``(kind, item id)`` of the pending item that an event made, changed or removed."""

REQUEST_IDS_KEPT: Final = LIMITS_DEFAULT.request_ids_kept
"""Request ids of messages kept to recognise a repeat; a constant, because the fold knows no settings."""

_EMPTY_PAYLOADS: Final = (b"null", b"[]")
_BINARY_NULL: Final = b"binary/null"


def evolve(state: ExecutionState, event: e.BaseEvent) -> Touched:
    """Move `state` forward by `event`, whose id must be the next one."""
    assert event.event_id == state.next_event_id, (
        f"event {type(event).__name__} has id {event.event_id}, but {state.next_event_id} is next"
    )
    touched = _TABLE[type(event)](state, event)
    state.next_event_id = event.event_id + 1
    return touched


def begin(event: e.WorkflowExecutionStarted, *, namespace: str, run_id: str) -> ExecutionState:
    """The state after a run's first event."""
    backoff = event.first_workflow_task_backoff
    execution_time = event.event_time + backoff
    run_timeout = event.workflow_run_timeout
    inherited = event.inherited_pinned_version
    root = event.root
    if root is not None and root.run_id == run_id and root.workflow_id == event.workflow_id:
        root = None
    return ExecutionState(
        namespace=namespace,
        workflow_id=event.workflow_id,
        run_id=run_id,
        workflow_type=event.workflow_type,
        task_queue=event.task_queue,
        start_time=event.event_time,
        execution_time=execution_time,
        first_execution_run_id=event.first_execution_run_id,
        key_generation=event.key_generation,
        next_event_id=2,
        parent=event.parent,
        parent_initiated_event_id=event.parent_initiated_event_id,
        root=root,
        start_request_id=event.request_id,
        attempt=event.attempt,
        cron_schedule=event.cron_schedule,
        retry_policy=event.retry_policy,
        workflow_execution_timeout=event.workflow_execution_timeout,
        workflow_run_timeout=run_timeout,
        workflow_task_timeout=event.workflow_task_timeout,
        execution_deadline=event.workflow_execution_expiration_time,
        run_deadline=execution_time + run_timeout if run_timeout else None,
        memo=dict(event.memo) if event.memo else {},
        search_attributes=dict(event.search_attributes) if event.search_attributes else {},
        priority=event.priority,
        versioning_override=event.versioning_override,
        versioning_behavior=VersioningBehavior.PINNED if inherited is not None else VersioningBehavior.UNSPECIFIED,
        deployment_version=inherited,
        first_task_at=execution_time if backoff else None,
    )


def fold(events: Iterable[e.BaseEvent], *, namespace: str = "", run_id: str = "") -> ExecutionState:
    """The state that this history leads to, as far as history tells.

    Args:
        events: From event 1 on, dense.
        namespace: Where the run lives; no event names it.
        run_id: Of the run; no event names it.

    Raises:
        ValueError: The history is empty or does not begin with WorkflowExecutionStarted.
    """
    iterator = iter(events)
    first = next(iterator, None)
    if not isinstance(first, e.WorkflowExecutionStarted):
        what = "is empty" if first is None else f"begins with {type(first).__name__}"
        raise ValueError(f"The history {what}; it must begin with WorkflowExecutionStarted. Pass it from event 1 on.")
    state = begin(first, namespace=namespace, run_id=run_id)
    for event in iterator:
        evolve(state, event)
    return state


# --- workflow tasks --------------------------------------------------------------------------------------------------


def _task_scheduled(state: ExecutionState, event: e.WorkflowTaskScheduled) -> Touched:
    task = state.workflow_task
    state.first_task_at = None
    if task is not None and task.is_virtual:
        assert task.scheduled_event_id == event.event_id, "a virtual task has other event ids than were promised"
        task.is_virtual = False
        return None
    state.workflow_task = PendingWorkflowTask(
        scheduled_event_id=event.event_id,
        attempt=event.attempt,
        scheduled_time=event.event_time,
        start_to_close_timeout=event.start_to_close_timeout,
    )
    return None


def _task_started(state: ExecutionState, event: e.WorkflowTaskStarted) -> Touched:
    task = state.workflow_task
    assert task is not None, "a workflow task was started that is not scheduled"
    task.started_event_id = event.event_id
    task.started_time = event.event_time
    return None


def _task_completed(state: ExecutionState, event: e.WorkflowTaskCompleted) -> Touched:
    state.workflow_task = None
    state.previous_started_event_id = event.started_event_id
    if event.deployment_version is not None:
        state.deployment_version = event.deployment_version
    state.versioning_behavior = event.versioning_behavior
    return None


def _task_timed_out(state: ExecutionState, event: e.WorkflowTaskTimedOut) -> Touched:
    state.workflow_task = None
    return None


def _task_failed(state: ExecutionState, event: e.WorkflowTaskFailed) -> Touched:
    state.workflow_task = None
    if event.cause is e.WorkflowTaskFailedCause.RESET_WORKFLOW and event.new_run_id:
        _begin_anew(state, event.event_time)
    return None


def _begin_anew(state: ExecutionState, now: datetime) -> None:
    """A reset: the run starts now, with its timeouts, and so does the wait of activities that nobody began."""
    state.start_time = state.execution_time = now
    if state.workflow_execution_timeout:
        state.execution_deadline = now + state.workflow_execution_timeout
    if state.workflow_run_timeout:
        state.run_deadline = now + state.workflow_run_timeout
    for activity in state.activities.values():
        if not activity.started_event_id:
            activity.scheduled_time = now
    state.derived.deadlines = None


# --- activities and timers -------------------------------------------------------------------------------------------


def _activity_scheduled(state: ExecutionState, event: e.ActivityTaskScheduled) -> Touched:
    scheduled_event_id = event.event_id
    state.activities[scheduled_event_id] = PendingActivity(
        scheduled_event_id=scheduled_event_id,
        activity_id=event.activity_id,
        activity_type=event.activity_type,
        task_queue=event.task_queue,
        scheduled_time=event.event_time,
        schedule_to_close_timeout=event.schedule_to_close_timeout,
        schedule_to_start_timeout=event.schedule_to_start_timeout,
        start_to_close_timeout=event.start_to_close_timeout,
        heartbeat_timeout=event.heartbeat_timeout,
        retry_policy=event.retry_policy,
        priority=event.priority,
    )
    state.derived.activity_ids[event.activity_id] = scheduled_event_id
    if event.schedule_to_close_timeout or event.schedule_to_start_timeout:
        state.arm(ITEM_ACTIVITY, scheduled_event_id)
    return (ITEM_ACTIVITY, scheduled_event_id)


def _activity_started(state: ExecutionState, event: e.ActivityTaskStarted) -> Touched:
    state.activities[event.scheduled_event_id].started_event_id = event.event_id
    return (ITEM_ACTIVITY, event.scheduled_event_id)


def _activity_cancel_requested(state: ExecutionState, event: e.ActivityTaskCancelRequested) -> Touched:
    state.activities[event.scheduled_event_id].cancel_requested_event_id = event.event_id
    return (ITEM_ACTIVITY, event.scheduled_event_id)


def _activity_closed(
    state: ExecutionState,
    event: e.ActivityTaskCompleted | e.ActivityTaskFailed | e.ActivityTaskTimedOut | e.ActivityTaskCanceled,
) -> Touched:
    activity = state.activities.pop(event.scheduled_event_id)
    derived = state.derived
    derived.activity_ids.pop(activity.activity_id, None)
    derived.backing_off.discard(event.scheduled_event_id)
    return (ITEM_ACTIVITY, event.scheduled_event_id)


def _timer_started(state: ExecutionState, event: e.TimerStarted) -> Touched:
    due_time = event.event_time + event.start_to_fire_timeout
    timer = PendingTimer(started_event_id=event.event_id, timer_id=event.timer_id, due_time=due_time)
    state.timers[event.event_id] = timer
    state.derived.timer_ids[event.timer_id] = event.event_id
    state.arm(ITEM_TIMER, event.event_id)
    return (ITEM_TIMER, event.event_id)


def _timer_closed(state: ExecutionState, event: e.TimerFired | e.TimerCanceled) -> Touched:
    del state.timers[event.started_event_id]
    state.derived.timer_ids.pop(event.timer_id, None)
    return (ITEM_TIMER, event.started_event_id)


# --- messages --------------------------------------------------------------------------------------------------------


def _remember_request(state: ExecutionState, request_id: str) -> None:
    if request_id:
        recent = state.recent_request_ids
        recent.append(request_id)
        if len(recent) > REQUEST_IDS_KEPT:
            del recent[0]


def _signaled(state: ExecutionState, event: e.WorkflowExecutionSignaled) -> Touched:
    state.signal_count += 1
    _remember_request(state, event.request_id)
    return None


def _cancel_requested(state: ExecutionState, event: e.WorkflowExecutionCancelRequested) -> Touched:
    state.cancel_requested = True
    state.cancel_reason = event.cause
    _remember_request(state, event.request_id)
    return None


def _update_admitted(state: ExecutionState, event: e.WorkflowExecutionUpdateAdmitted) -> Touched:
    update_id = event.request.update_id
    state.updates[update_id] = PendingUpdate(
        update_id=update_id,
        message_id=update_message_id(update_id),
        request=event.request,
        admitted_after_event_id=event.event_id,
        admitted_event_id=event.event_id,
    )
    return None


def _update_accepted(state: ExecutionState, event: e.WorkflowExecutionUpdateAccepted) -> Touched:
    update_id = event.protocol_instance_id
    update = state.updates.get(update_id)
    if update is None:
        update = PendingUpdate(update_id=update_id, message_id=event.accepted_request_message_id)
        state.updates[update_id] = update
    update.accepted_event_id = event.event_id
    update.request = None
    update.admitted_after_event_id = 0
    return None


def _update_completed(state: ExecutionState, event: e.WorkflowExecutionUpdateCompleted) -> Touched:
    state.updates.pop(event.update_id)
    completed = CompletedUpdate(
        update_id=event.update_id,
        accepted_event_id=event.accepted_event_id,
        completed_event_id=event.event_id,
    )
    state.completed_updates[event.accepted_event_id] = completed
    state.derived.update_ids[event.update_id] = completed
    return (ITEM_UPDATE, event.accepted_event_id)


def update_message_id(update_id: str) -> str:
    """The id of the message that carries an update to its workflow (semantics 2.4, rule 20)."""
    return f"{update_id}/request"


# --- other executions ------------------------------------------------------------------------------------------------


def _child_initiated(state: ExecutionState, event: e.StartChildWorkflowExecutionInitiated) -> Touched:
    state.children[event.event_id] = PendingChild(
        initiated_event_id=event.event_id,
        workflow_id=event.workflow_id,
        workflow_type=event.workflow_type,
        namespace=event.namespace,
        parent_close_policy=event.parent_close_policy,
    )
    return (ITEM_CHILD, event.event_id)


def _child_started(state: ExecutionState, event: e.ChildWorkflowExecutionStarted) -> Touched:
    child = state.children[event.initiated_event_id]
    child.run_id = event.workflow_execution.run_id
    child.started_event_id = event.event_id
    return (ITEM_CHILD, event.initiated_event_id)


def _child_closed(
    state: ExecutionState,
    event: e.StartChildWorkflowExecutionFailed
    | e.ChildWorkflowExecutionCompleted
    | e.ChildWorkflowExecutionFailed
    | e.ChildWorkflowExecutionCanceled
    | e.ChildWorkflowExecutionTimedOut
    | e.ChildWorkflowExecutionTerminated,
) -> Touched:
    del state.children[event.initiated_event_id]
    return (ITEM_CHILD, event.initiated_event_id)


def _signal_initiated(state: ExecutionState, event: e.SignalExternalWorkflowExecutionInitiated) -> Touched:
    state.external_signals[event.event_id] = PendingExternal(
        initiated_event_id=event.event_id, target=event.workflow_execution
    )
    return (ITEM_SIGNAL, event.event_id)


def _signal_settled(
    state: ExecutionState, event: e.ExternalWorkflowExecutionSignaled | e.SignalExternalWorkflowExecutionFailed
) -> Touched:
    del state.external_signals[event.initiated_event_id]
    return (ITEM_SIGNAL, event.initiated_event_id)


def _cancel_initiated(state: ExecutionState, event: e.RequestCancelExternalWorkflowExecutionInitiated) -> Touched:
    state.external_cancels[event.event_id] = PendingExternal(
        initiated_event_id=event.event_id, target=event.workflow_execution
    )
    return (ITEM_CANCEL, event.event_id)


def _cancel_settled(
    state: ExecutionState,
    event: e.ExternalWorkflowExecutionCancelRequested | e.RequestCancelExternalWorkflowExecutionFailed,
) -> Touched:
    del state.external_cancels[event.initiated_event_id]
    return (ITEM_CANCEL, event.initiated_event_id)


# --- the run itself --------------------------------------------------------------------------------------------------


def is_null_payload(payload: StoredPayload) -> bool:
    """Whether the payload is a null, or an empty list, which both delete a key of memo or search attributes."""
    if bytes(payload) in _EMPTY_PAYLOADS:
        return True
    whole = from_stored(payload)
    encoding = whole.metadata.get(ENCODING_KEY)
    # One that names a type beside its value, as search attributes do, is not stored as the bare value.
    return encoding == _BINARY_NULL or (encoding == JSON_PLAIN and whole.data in _EMPTY_PAYLOADS)


def _merge(target: dict[str, StoredPayload], changes: dict[str, StoredPayload]) -> None:
    for key, payload in changes.items():
        if is_null_payload(payload):
            target.pop(key, None)
        else:
            target[key] = payload


def _attributes_upserted(state: ExecutionState, event: e.UpsertWorkflowSearchAttributes) -> Touched:
    _merge(state.search_attributes, event.search_attributes)
    return None


def _properties_modified(state: ExecutionState, event: e.WorkflowPropertiesModified) -> Touched:
    _merge(state.memo, event.upserted_memo or {})
    return None


def _options_updated(state: ExecutionState, event: e.WorkflowExecutionOptionsUpdated) -> Touched:
    if event.unset_versioning_override:
        state.versioning_override = None
    elif event.versioning_override is not None:
        state.versioning_override = event.versioning_override
    if event.priority is not None:
        state.priority = event.priority
    return None


def _paused(state: ExecutionState, event: e.WorkflowExecutionPaused) -> Touched:
    state.status = WorkflowExecutionStatus.PAUSED
    return None


def _unpaused(state: ExecutionState, event: e.WorkflowExecutionUnpaused) -> Touched:
    state.status = WorkflowExecutionStatus.RUNNING
    return None


def _nothing(state: ExecutionState, event: e.MarkerRecorded) -> Touched:
    return None


def _not_first(state: ExecutionState, event: e.WorkflowExecutionStarted) -> Touched:
    raise AssertionError(f"event {event.event_id} is a WorkflowExecutionStarted; only event 1 can be one")


CLOSE_STATUS: Final[dict[type[e.BaseEvent], WorkflowExecutionStatus]] = {
    e.WorkflowExecutionCompleted: WorkflowExecutionStatus.COMPLETED,
    e.WorkflowExecutionFailed: WorkflowExecutionStatus.FAILED,
    e.WorkflowExecutionTimedOut: WorkflowExecutionStatus.TIMED_OUT,
    e.WorkflowExecutionCanceled: WorkflowExecutionStatus.CANCELED,
    e.WorkflowExecutionTerminated: WorkflowExecutionStatus.TERMINATED,
    e.WorkflowExecutionContinuedAsNew: WorkflowExecutionStatus.CONTINUED_AS_NEW,
}
"""Which status each close event leads to."""


def _closed(state: ExecutionState, event: e.BaseEvent) -> Touched:
    state.status = CLOSE_STATUS[type(event)]
    state.close_time = event.event_time
    state.close_event_id = event.event_id
    state.workflow_task = None
    state.first_task_at = None
    state.activities = {}
    state.timers = {}
    state.children = {}
    state.external_signals = {}
    state.external_cancels = {}
    state.updates = {key: update for key, update in state.updates.items() if update.accepted_event_id}
    derived = state.derived
    derived.activity_ids = {}
    derived.timer_ids = {}
    derived.backing_off = set()
    derived.deadlines = None
    return None


_TABLE: Final[dict[type[e.BaseEvent], Callable[[ExecutionState, Any], Touched]]] = {
    e.WorkflowExecutionStarted: _not_first,
    e.WorkflowTaskScheduled: _task_scheduled,
    e.WorkflowTaskStarted: _task_started,
    e.WorkflowTaskCompleted: _task_completed,
    e.WorkflowTaskTimedOut: _task_timed_out,
    e.WorkflowTaskFailed: _task_failed,
    e.ActivityTaskScheduled: _activity_scheduled,
    e.ActivityTaskStarted: _activity_started,
    e.ActivityTaskCompleted: _activity_closed,
    e.ActivityTaskFailed: _activity_closed,
    e.ActivityTaskTimedOut: _activity_closed,
    e.ActivityTaskCancelRequested: _activity_cancel_requested,
    e.ActivityTaskCanceled: _activity_closed,
    e.TimerStarted: _timer_started,
    e.TimerFired: _timer_closed,
    e.TimerCanceled: _timer_closed,
    e.MarkerRecorded: _nothing,
    e.WorkflowExecutionSignaled: _signaled,
    e.WorkflowExecutionCancelRequested: _cancel_requested,
    e.WorkflowExecutionUpdateAdmitted: _update_admitted,
    e.WorkflowExecutionUpdateAccepted: _update_accepted,
    e.WorkflowExecutionUpdateCompleted: _update_completed,
    e.StartChildWorkflowExecutionInitiated: _child_initiated,
    e.StartChildWorkflowExecutionFailed: _child_closed,
    e.ChildWorkflowExecutionStarted: _child_started,
    e.ChildWorkflowExecutionCompleted: _child_closed,
    e.ChildWorkflowExecutionFailed: _child_closed,
    e.ChildWorkflowExecutionCanceled: _child_closed,
    e.ChildWorkflowExecutionTimedOut: _child_closed,
    e.ChildWorkflowExecutionTerminated: _child_closed,
    e.SignalExternalWorkflowExecutionInitiated: _signal_initiated,
    e.SignalExternalWorkflowExecutionFailed: _signal_settled,
    e.ExternalWorkflowExecutionSignaled: _signal_settled,
    e.RequestCancelExternalWorkflowExecutionInitiated: _cancel_initiated,
    e.RequestCancelExternalWorkflowExecutionFailed: _cancel_settled,
    e.ExternalWorkflowExecutionCancelRequested: _cancel_settled,
    e.UpsertWorkflowSearchAttributes: _attributes_upserted,
    e.WorkflowPropertiesModified: _properties_modified,
    e.WorkflowExecutionOptionsUpdated: _options_updated,
    e.WorkflowExecutionPaused: _paused,
    e.WorkflowExecutionUnpaused: _unpaused,
    **dict.fromkeys(CLOSE_STATUS, _closed),
}
