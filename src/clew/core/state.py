"""The state of one run: all that the next decision needs, and nothing that only history needs.

Owns: `ExecutionState` and the cheap questions one may ask of it. Never: changes by itself (``core.evolve`` moves it
forward by events, ``core.step`` and the ``decide_*`` functions by facts that have no event), or is encoded
(``core.codec`` does).

How it works: the fields fall into three groups. *Durable* ones follow from history: folding the events gives them
again, which `facts.durable_facts` states and the property tests check after every transition. *Facts without events*
(attempts, leases, sticky session, admitted updates, buffered events, what people are shown) live only here and in the
stored snapshot. *Derived* ones (indexes, the heap of deadlines) are rebuilt after a load and never stored.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from functools import cached_property
from typing import Final

import msgspec

from clew.core import deadlines
from clew.core.deadlines import DeadlineHeap, Entry
from clew.core.pending import (
    CompletedUpdate,
    PendingActivity,
    PendingChild,
    PendingExternal,
    PendingTimer,
    PendingUpdate,
    PendingWorkflowTask,
)
from clew.core.transition import ITEM_ACTIVITY, ITEM_TIMER
from clew.model.events import ZERO, Event, ExecutionRef, Memo, SearchAttributes, WorkflowTaskFailedCause
from clew.model.failure import Failure
from clew.model.policies import (
    DeploymentVersion,
    Priority,
    RetryPolicy,
    VersioningBehavior,
    VersioningOverride,
    WorkflowExecutionStatus,
)

FEW_ITEMS: Final = 8
"""Up to so many pending activities and timers, looking at all of them costs less than keeping a heap."""

HEAP_SLACK: Final = 256
"""Entries that the heap of deadlines may hold beyond four a pending item, before those out of date are dropped."""

WIDE_ITEMS: int = 64
"""A run with more pending items than this keeps each in a row of its own from then on (design §5)."""


class WorkflowTaskProblem(msgspec.Struct, gc=False, frozen=True, kw_only=True, array_like=True):
    """Why the last workflow task did not complete; shown to people until one does.

    Args:
        cause: None for a task that timed out.
        attempt: The attempt that failed.
        failed_at: When.
    """

    attempt: int
    failed_at: datetime
    cause: WorkflowTaskFailedCause | None = None
    failure: Failure | None = None
    identity: str = ""


class Origin(msgspec.Struct, gc=False, frozen=True, array_like=True):
    """A run that this one goes on with after a reset: it recorded the events before `until_event_id` that no earlier
    origin did."""

    run_id: str
    until_event_id: int


class Derived:
    """Indexes over the state of one run: rebuilt after a load, never stored."""

    __slots__ = ("activity_ids", "backing_off", "deadlines", "timer_ids", "update_ids")

    def __init__(self, state: ExecutionState) -> None:
        # A new run has none of them, and each comprehension is a call.
        self.activity_ids: dict[str, int] = {}
        self.timer_ids: dict[str, int] = {}
        self.backing_off: set[int] = set()
        self.update_ids: dict[str, CompletedUpdate] = {}
        self.deadlines: DeadlineHeap | None = None
        if state.activities:
            self.activity_ids = {a.activity_id: a.scheduled_event_id for a in state.activities.values()}
            self.backing_off = {a.scheduled_event_id for a in state.activities.values() if a.next_attempt_time}
        if state.timers:
            self.timer_ids = {t.timer_id: t.started_event_id for t in state.timers.values()}
        if state.completed_updates:
            self.update_ids = {u.update_id: u for u in state.completed_updates.values()}


class ExecutionState(msgspec.Struct, kw_only=True, array_like=True, dict=True):
    """One run, as the next decision needs it.

    Fields are stored by position: append new ones with a default, never move one.

    Durable facts come first; from `version` on no event holds them.
    """

    # identity and options
    namespace: str
    workflow_id: str
    run_id: str
    workflow_type: str
    task_queue: str
    start_time: datetime
    execution_time: datetime
    first_execution_run_id: str
    key_generation: str
    status: WorkflowExecutionStatus = WorkflowExecutionStatus.RUNNING
    next_event_id: int = 1
    close_time: datetime | None = None
    close_event_id: int = 0
    parent: ExecutionRef | None = None
    parent_initiated_event_id: int = 0
    root: ExecutionRef | None = None
    """None for a run that is the root itself; ask `root_ref`. Each transition writes all of this."""
    start_request_id: str = ""
    attempt: int = 1
    cron_schedule: str = ""
    retry_policy: RetryPolicy | None = None
    workflow_execution_timeout: timedelta = ZERO
    workflow_run_timeout: timedelta = ZERO
    workflow_task_timeout: timedelta = timedelta(seconds=10)
    execution_deadline: datetime | None = None
    run_deadline: datetime | None = None
    memo: Memo = {}
    search_attributes: SearchAttributes = {}
    priority: Priority | None = None
    versioning_override: VersioningOverride | None = None
    versioning_behavior: VersioningBehavior = VersioningBehavior.UNSPECIFIED
    deployment_version: DeploymentVersion | None = None

    # progress
    first_task_at: datetime | None = None
    """When the first workflow task is scheduled, while that is put off (start delay, retry, cron)."""
    previous_started_event_id: int = 0
    """Started event of the last completed workflow task; 0 before the first completes."""
    workflow_task: PendingWorkflowTask | None = None
    activities: dict[int, PendingActivity] = {}
    timers: dict[int, PendingTimer] = {}
    children: dict[int, PendingChild] = {}
    external_signals: dict[int, PendingExternal] = {}
    external_cancels: dict[int, PendingExternal] = {}
    updates: dict[str, PendingUpdate] = {}
    """By update id, in order of admission; those accepted follow from history. A closed run keeps those that it had
    accepted and not completed."""
    completed_updates: dict[int, CompletedUpdate] = {}
    """By accepted event id."""
    cancel_requested: bool = False
    cancel_reason: str = ""
    signal_count: int = 0
    recent_request_ids: list[str] = []
    """Of signals and cancel requests, the latest last."""

    # facts without events
    version: int = 0
    history_size_bytes: int = 0
    is_wide: bool = False
    lease_count: int = 0
    sticky_session: str = ""
    workflow_task_attempt: int = 1
    """The attempt that the next workflow task is."""
    is_close_attempted: bool = False
    is_first_task_held: bool = False
    """A child's first workflow task waits until the parent has recorded its start."""
    buffered_events: list[Event] = []
    """Events that came while a workflow task was started; they have no id (0) yet."""
    buffered_bytes: int = 0
    last_workflow_task_failure: WorkflowTaskProblem | None = None
    waiting_on: tuple[str, ...] = ()
    """Where the code stands, as told with the last completed workflow task."""
    attached_request_ids: list[str] = []
    """Request ids of starts that were answered with this run."""
    extended_since: datetime | None = None
    """When the workflow task was scheduled that has been extended by empty answers since."""
    earlier_updates: dict[str, str] = {}
    """Which run of the chain took an update, for the latest ones; see `chain`."""
    earlier_request_ids: list[str] = []
    """Of signals and cancel requests that went to earlier runs of the chain of late."""
    origins: list[Origin] = []
    """The runs that resets went back to, one after the other, until this one; the oldest first."""
    resets: dict[str, str] = {}
    """Which run each of the latest resets of the chain made, by request id."""

    @cached_property
    def derived(self) -> Derived:
        """Indexes; see `Derived`."""
        return Derived(self)

    @property
    def is_open(self) -> bool:
        """Whether the run can still change."""
        return self.close_event_id == 0

    @property
    def history_length(self) -> int:
        """Events in history."""
        return self.next_event_id - 1

    @property
    def is_task_started(self) -> bool:
        """Whether a worker holds the workflow task, so that events must be buffered."""
        return self.workflow_task is not None and self.workflow_task.started_event_id != 0

    @property
    def is_busy(self) -> bool:
        """Whether work of this run is, or should be, out at a worker: all that a restart must look at."""
        if self.close_event_id:
            return False
        task = self.workflow_task
        if task is not None and task.not_before is None:
            return True
        return len(self.activities) > len(self.derived.backing_off)

    @property
    def needs_started_event(self) -> bool:
        """Whether closing this run may start another from its first event (workflow retry, cron).

        Whoever makes a decision that may close such a run passes that event as `started`.
        """
        return self.retry_policy is not None or bool(self.cron_schedule)

    @property
    def ref(self) -> ExecutionRef:
        """This run, as other executions name it."""
        return ExecutionRef(self.workflow_id, self.run_id, self.namespace)

    @property
    def root_ref(self) -> ExecutionRef:
        """The run at the top of the tree of children that this one belongs to; itself, if nothing is above it."""
        return self.root or self.ref

    def recorded_by(self, event_id: int) -> str:
        """The id of the run that recorded this event first: this one, unless a reset copied the event."""
        for origin in self.origins:
            if event_id < origin.until_event_id:
                return origin.run_id
        return self.run_id

    def goes_on_with(self, run_id: str) -> bool:
        """Whether this is the run, or goes on with it after a reset."""
        return run_id == self.run_id or any(origin.run_id == run_id for origin in self.origins)

    def next_attention(self) -> datetime | None:
        """The earliest instant at which something happens to this run by itself."""
        if self.close_event_id:
            return None
        if len(self.activities) + len(self.timers) <= FEW_ITEMS:
            self.derived.deadlines = None
            return self._earliest_deadline()
        return self.deadline_heap().peek(self.deadline_of)

    def deadline_heap(self) -> DeadlineHeap:
        """The heap of deadlines, which a run with few of them does not keep."""
        heap = self.derived.deadlines
        if heap is None:
            heap = self.derived.deadlines = DeadlineHeap(self.present_deadlines())
        return heap

    def _earliest_deadline(self) -> datetime | None:
        """The same as the top of the heap, by looking at everything: cheaper while that is little."""
        earliest = self.run_deadline
        found = [] if self.execution_deadline is None else [self.execution_deadline]
        if self.first_task_at is not None and not self.is_first_task_held:
            found.append(self.first_task_at)
        if self.workflow_task is not None and (when := self.workflow_task.deadline()) is not None:
            found.append(when)
        for activity in self.activities.values():
            if (when := activity.deadline()) is not None:
                found.append(when)
        for timer in self.timers.values():
            if not timer.is_closing:
                found.append(timer.due_time)
        for when in found:
            if earliest is None or when < earliest:
                earliest = when
        return earliest

    def deadline_of(self, kind: int, item_id: int) -> datetime | None:
        """The present deadline of one thing; None when it has none or is gone."""
        if kind == ITEM_TIMER:
            timer = self.timers.get(item_id)
            return timer.deadline() if timer is not None else None
        if kind == ITEM_ACTIVITY:
            activity = self.activities.get(item_id)
            return activity.deadline() if activity is not None else None
        if kind == deadlines.KIND_WORKFLOW_TASK:
            return self.workflow_task.deadline() if self.workflow_task is not None else None
        if kind == deadlines.KIND_FIRST_TASK:
            return None if self.is_first_task_held else self.first_task_at
        if kind == deadlines.KIND_RUN_TIMEOUT:
            return self.run_deadline
        assert kind == deadlines.KIND_EXECUTION_TIMEOUT, f"unknown kind of deadline: {kind}"
        return self.execution_deadline

    def deadline_keys(self) -> list[tuple[int, int]]:
        """Everything that may have a deadline, as ``(kind, item id)``."""
        keys = [
            (deadlines.KIND_WORKFLOW_TASK, 0),
            (deadlines.KIND_FIRST_TASK, 0),
            (deadlines.KIND_RUN_TIMEOUT, 0),
            (deadlines.KIND_EXECUTION_TIMEOUT, 0),
        ]
        keys += [(ITEM_ACTIVITY, item_id) for item_id in self.activities]
        keys += [(ITEM_TIMER, item_id) for item_id in self.timers]
        return keys

    def arm(self, kind: int, item_id: int = 0) -> None:
        """Note that this thing has a new, or an earlier, deadline."""
        heap = self.derived.deadlines
        if heap is None or (when := self.deadline_of(kind, item_id)) is None:
            return
        heap.push(when, kind, item_id)
        if len(heap) > HEAP_SLACK and len(heap) > HEAP_SLACK + 4 * self.pending_item_count:
            self.derived.deadlines = DeadlineHeap(self.present_deadlines())

    def present_deadlines(self) -> list[Entry]:
        """Every deadline, once, in no order."""
        keys = self.deadline_keys()
        return [(when, *key) for key in keys if (when := self.deadline_of(*key)) is not None]

    @property
    def pending_item_count(self) -> int:
        """Pending things, as far as they would be rows of a wide run."""
        return (
            len(self.activities)
            + len(self.timers)
            + len(self.children)
            + len(self.external_signals)
            + len(self.external_cancels)
            + len(self.completed_updates)
        )
