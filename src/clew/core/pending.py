"""What a run waits for: one mutable record for each thing that is pending.

Owns: the records of activities, timers, children, messages to other executions, updates and the workflow task, and the
deadlines that each of them has. Never: decides what happens when a deadline passes (``core.due`` does).

How it works: a record mixes *durable* facts, which follow from history (they are set by ``core.evolve`` alone), and
facts that no event holds: attempts, leases, heartbeats, failures that were retried. The second kind is named in the
docstring of each record. A record whose closing event is buffered stays until that event enters history, and is marked
`is_closing` so that nothing else can happen to it.

Records are stored as JSON arrays: fields may be appended with a default, never moved.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

import msgspec

from clew.core.tables import ActivityPhase, WorkflowTaskPhase
from clew.model.events import ZERO, ExecutionRef, UpdateRequest
from clew.model.failure import Failure
from clew.model.limits import STICKY_SCHEDULE_TO_START_TIMEOUT_DEFAULT
from clew.model.payload import Payloads
from clew.model.policies import ParentClosePolicy, Priority, RetryPolicy

PRIORITY_DEFAULT: Final = 3


class _Pending(msgspec.Struct, gc=False, kw_only=True, array_like=True):
    """Base of the records."""


class AttemptRecord(msgspec.Struct, gc=False, kw_only=True, array_like=True, frozen=True):
    """A failed attempt of an activity, kept for people (semantics 0.4)."""

    attempt: int
    started_at: datetime | None = None
    failed_at: datetime | None = None
    worker_identity: str = ""
    failure: Failure | None = None


class PendingActivity(_Pending, kw_only=True):
    """An activity that was scheduled and has not closed.

    Without events: everything from `attempt` on. An attempt is *backing off* while `next_attempt_time` is set, else
    *scheduled* while `started_time` is None, else *started*. `attempt_scheduled_time` is when the attempt could first
    be taken by a worker. `attempts` holds the last failed attempts, oldest first. `session` is empty for a started
    attempt that no worker holds any more (it is completed by token, from anywhere).
    """

    scheduled_event_id: int
    activity_id: str
    activity_type: str
    task_queue: str
    scheduled_time: datetime
    schedule_to_close_timeout: timedelta = ZERO
    schedule_to_start_timeout: timedelta = ZERO
    start_to_close_timeout: timedelta = ZERO
    heartbeat_timeout: timedelta = ZERO
    retry_policy: RetryPolicy | None = None
    priority: Priority | None = None
    cancel_requested_event_id: int = 0
    started_event_id: int = 0
    attempt: int = 1
    attempt_scheduled_time: datetime | None = None
    started_time: datetime | None = None
    lease_id: int = 0
    session: str = ""
    identity: str = ""
    last_heartbeat_time: datetime | None = None
    heartbeat_details: Payloads = ()
    next_attempt_time: datetime | None = None
    last_failure: Failure | None = None
    last_identity: str = ""
    attempts: list[AttemptRecord] = []
    is_closing: bool = False
    release_reason: str = ""

    @property
    def is_started(self) -> bool:
        """Whether a worker holds the current attempt."""
        return self.started_time is not None

    @property
    def phase(self) -> ActivityPhase:
        """Where the activity stands."""
        if self.is_closing:
            return ActivityPhase.CLOSING
        if self.started_time is not None:
            return ActivityPhase.STARTED
        return ActivityPhase.SCHEDULED if self.next_attempt_time is None else ActivityPhase.BACKING_OFF

    @property
    def is_cancel_requested(self) -> bool:
        """Whether the workflow asked for cancellation."""
        return self.cancel_requested_event_id != 0

    @property
    def priority_key(self) -> int:
        """1 (first) to 5 (last)."""
        return (
            PRIORITY_DEFAULT
            if self.priority is None or self.priority.priority_key is None
            else (self.priority.priority_key)
        )

    @property
    def expiration_time(self) -> datetime | None:
        """When the schedule-to-close timeout ends; None when there is none."""
        return self.scheduled_time + self.schedule_to_close_timeout if self.schedule_to_close_timeout else None

    @property
    def schedule_to_start_deadline(self) -> datetime | None:
        """When the current attempt must have been taken."""
        if not self.schedule_to_start_timeout:
            return None
        return (self.attempt_scheduled_time or self.scheduled_time) + self.schedule_to_start_timeout

    @property
    def start_to_close_deadline(self) -> datetime | None:
        """When the started attempt must have ended."""
        if self.started_time is None or not self.start_to_close_timeout:
            return None
        return self.started_time + self.start_to_close_timeout

    @property
    def heartbeat_deadline(self) -> datetime | None:
        """When the next heartbeat of the started attempt must have come."""
        if self.started_time is None or not self.heartbeat_timeout:
            return None
        return (self.last_heartbeat_time or self.started_time) + self.heartbeat_timeout

    def deadline(self) -> datetime | None:
        """The earliest instant at which something happens to this activity by itself."""
        if self.is_closing:
            return None
        # Written out, not through the properties above: this is asked on every transition.
        timeout = self.schedule_to_close_timeout
        earliest = self.scheduled_time + timeout if timeout else None
        if self.next_attempt_time is not None:
            return _earlier(earliest, self.next_attempt_time)
        started = self.started_time
        if started is None:
            return _earlier(earliest, self.schedule_to_start_deadline) if self.schedule_to_start_timeout else earliest
        timeout = self.start_to_close_timeout
        if timeout and (earliest is None or started + timeout < earliest):
            earliest = started + timeout
        return _earlier(earliest, self.heartbeat_deadline) if self.heartbeat_timeout else earliest


class PendingTimer(_Pending, kw_only=True):
    """A timer that was started and has neither fired nor been cancelled. Without events: `is_closing`."""

    started_event_id: int
    timer_id: str
    due_time: datetime
    is_closing: bool = False

    def deadline(self) -> datetime | None:
        """When the timer fires."""
        return None if self.is_closing else self.due_time


class PendingChild(_Pending, kw_only=True):
    """A child that was initiated and has not closed. Without events: `is_start_buffered`, `is_closing`."""

    initiated_event_id: int
    workflow_id: str
    workflow_type: str
    namespace: str = ""
    parent_close_policy: ParentClosePolicy = ParentClosePolicy.TERMINATE
    run_id: str = ""
    started_event_id: int = 0
    is_start_buffered: bool = False
    buffered_run_id: str = ""
    is_closing: bool = False

    @property
    def ref(self) -> ExecutionRef:
        """The child, as other parts name it."""
        return ExecutionRef(self.workflow_id, self.run_id, self.namespace)


class PendingExternal(_Pending, kw_only=True):
    """A signal or cancel request on its way to another execution. Without events: `is_closing`."""

    initiated_event_id: int
    target: ExecutionRef
    is_closing: bool = False


class PendingUpdate(_Pending, kw_only=True):
    """An update that was admitted and has not completed.

    Until it is accepted nothing of it is in history, and `request` holds what the caller sent; afterwards
    `accepted_event_id` names the event that does. One that a reset brought on is in history from its admission:
    `admitted_event_id`. `sent_lease_id` is the workflow task that last carried it.
    `admitted_after_event_id` is its place among the events, so that workflow code meets it in the order of arrival; 0
    while events without ids (buffered ones) went before it, which puts it after all events of its task.
    """

    update_id: str
    message_id: str
    request: UpdateRequest | None = None
    accepted_event_id: int = 0
    sent_lease_id: int = 0
    admitted_after_event_id: int = 0
    admitted_event_id: int = 0


class CompletedUpdate(_Pending, kw_only=True):
    """An update that ended, kept so that a repeat of the call finds its outcome in history."""

    update_id: str
    accepted_event_id: int
    completed_event_id: int


class PendingWorkflowTask(_Pending, kw_only=True):
    """The one workflow task of the run.

    A *virtual* task is not in history: a retry after a failure (transient), or one made for updates alone
    (speculative). Its event ids are those that its events get if they are ever written. `not_before` is set while a
    retry backs off. `recorded_event_id` and `recorded_time` are of the latest marker that was recorded while the task
    went on; its time to close runs from then.
    """

    scheduled_event_id: int
    attempt: int
    scheduled_time: datetime
    start_to_close_timeout: timedelta
    started_event_id: int = 0
    started_time: datetime | None = None
    lease_id: int = 0
    session: str = ""
    identity: str = ""
    is_virtual: bool = False
    is_speculative: bool = False
    sticky_session: str = ""
    not_before: datetime | None = None
    request_id: str = ""
    suggest_continue_as_new: bool = False
    suggest_continue_as_new_reasons: tuple[str, ...] = ()
    history_size_bytes: int = 0
    recorded_event_id: int = 0
    recorded_time: datetime | None = None

    @property
    def is_started(self) -> bool:
        """Whether a worker holds the task."""
        return self.started_event_id != 0

    @property
    def phase(self) -> WorkflowTaskPhase:
        """Where the task stands."""
        if self.started_event_id:
            return WorkflowTaskPhase.STARTED
        return WorkflowTaskPhase.SCHEDULED if self.not_before is None else WorkflowTaskPhase.BACKING_OFF

    def deadline(self) -> datetime | None:
        """The earliest instant at which something happens to this task by itself."""
        if self.started_time is not None:
            return (self.recorded_time or self.started_time) + self.start_to_close_timeout
        if self.not_before is not None:
            return self.not_before
        if self.sticky_session:
            return self.scheduled_time + STICKY_SCHEDULE_TO_START_TIMEOUT_DEFAULT
        return None


def _earlier(left: datetime | None, right: datetime | None) -> datetime | None:
    if left is None:
        return right
    if right is None:
        return left
    return left if left <= right else right
