"""Requests and responses of the service contract: plain facts, the same in-process and over the link.

Owns: the structs. Never: behaviour. Every request names its namespace; durations of zero mean "not given".
"""

from __future__ import annotations

import enum
from datetime import datetime, timedelta

import msgspec

from clew.model.commands import Command
from clew.model.events import (
    ZERO,
    Event,
    ExecutionRef,
    Header,
    Memo,
    SdkMetadata,
    SearchAttributes,
    UpdateOutcome,
    UpdateRequest,
    UserMetadata,
    WorkflowTaskFailedCause,
)
from clew.model.failure import Failure
from clew.model.payload import Payloads
from clew.model.policies import (
    DeploymentVersion,
    Priority,
    QueryRejectCondition,
    RetryPolicy,
    VersioningBehavior,
    VersioningOverride,
    WorkflowExecutionStatus,
    WorkflowIDConflictPolicy,
    WorkflowIDReusePolicy,
)


class _Message(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Base of every request and response."""


# --- clients: changing a run -----------------------------------------------------------------------------------------


class StartWorkflowRequest(_Message, frozen=True, kw_only=True):
    """Start a run; `request_id` makes a repeat of the same call harmless."""

    namespace: str
    workflow_id: str
    workflow_type: str
    task_queue: str
    request_id: str
    input: Payloads = ()
    identity: str = ""
    workflow_execution_timeout: timedelta = ZERO
    workflow_run_timeout: timedelta = ZERO
    workflow_task_timeout: timedelta = ZERO
    id_reuse_policy: WorkflowIDReusePolicy = WorkflowIDReusePolicy.ALLOW_DUPLICATE
    id_conflict_policy: WorkflowIDConflictPolicy = WorkflowIDConflictPolicy.UNSPECIFIED
    retry_policy: RetryPolicy | None = None
    cron_schedule: str = ""
    start_delay: timedelta = ZERO
    memo: Memo | None = None
    search_attributes: SearchAttributes | None = None
    header: Header | None = None
    priority: Priority | None = None
    versioning_override: VersioningOverride | None = None
    user_metadata: UserMetadata | None = None


class StartWorkflowResponse(_Message, frozen=True, kw_only=True):
    run_id: str
    first_execution_run_id: str
    started: bool = True
    """False when an open run was used instead (conflict policy UseExisting) or the request was a repeat."""


class SignalWorkflowRequest(_Message, frozen=True, kw_only=True):
    namespace: str
    workflow_id: str
    signal_name: str
    request_id: str
    run_id: str = ""
    input: Payloads = ()
    identity: str = ""
    header: Header | None = None


class SignalWithStartRequest(_Message, frozen=True, kw_only=True):
    start: StartWorkflowRequest
    signal_name: str
    signal_input: Payloads = ()
    signal_header: Header | None = None


class RequestCancelRequest(_Message, frozen=True, kw_only=True):
    namespace: str
    workflow_id: str
    request_id: str
    run_id: str = ""
    first_execution_run_id: str = ""
    identity: str = ""
    reason: str = ""


class TerminateWorkflowRequest(_Message, frozen=True, kw_only=True):
    namespace: str
    workflow_id: str
    run_id: str = ""
    first_execution_run_id: str = ""
    identity: str = ""
    reason: str = ""
    details: Payloads = ()


class UpdateStage(enum.Enum):
    """How far an update has come."""

    ADMITTED = "Admitted"
    ACCEPTED = "Accepted"
    COMPLETED = "Completed"


class UpdateWorkflowRequest(_Message, frozen=True, kw_only=True):
    """Send an update and wait until it has reached `wait_stage` (or the long-poll time is over)."""

    namespace: str
    workflow_id: str
    request: UpdateRequest
    run_id: str = ""
    first_execution_run_id: str = ""
    wait_stage: UpdateStage = UpdateStage.COMPLETED


class PollUpdateRequest(_Message, frozen=True, kw_only=True):
    namespace: str
    workflow_id: str
    update_id: str
    run_id: str = ""
    wait_stage: UpdateStage = UpdateStage.COMPLETED


class UpdateResponse(_Message, frozen=True, kw_only=True):
    update_id: str
    workflow_id: str
    run_id: str
    stage: UpdateStage
    outcome: UpdateOutcome | None = None


class UpdateWithStartRequest(_Message, frozen=True, kw_only=True):
    start: StartWorkflowRequest
    update: UpdateWorkflowRequest


class UpdateWithStartResponse(_Message, frozen=True, kw_only=True):
    start: StartWorkflowResponse
    update: UpdateResponse


# --- clients: reading ------------------------------------------------------------------------------------------------


class QueryWorkflowRequest(_Message, frozen=True, kw_only=True):
    namespace: str
    workflow_id: str
    query_type: str
    run_id: str = ""
    query_args: Payloads = ()
    header: Header | None = None
    reject_condition: QueryRejectCondition = QueryRejectCondition.NONE


class QueryWorkflowResponse(_Message, frozen=True, kw_only=True):
    result: Payloads = ()
    rejected_status: WorkflowExecutionStatus | None = None


class DescribeWorkflowRequest(_Message, frozen=True, kw_only=True):
    namespace: str
    workflow_id: str
    run_id: str = ""


class AttemptInfo(_Message, frozen=True, kw_only=True):
    """One failed attempt of an activity, as kept for people (semantics 0.4)."""

    attempt: int
    started_at: datetime | None = None
    failed_at: datetime | None = None
    worker_identity: str = ""
    failure: Failure | None = None


class PendingActivityInfo(_Message, frozen=True, kw_only=True):
    activity_id: str
    activity_type: str
    task_queue: str
    state: str
    """``Scheduled``, ``Started``, ``CancelRequested`` or ``BackingOff``."""
    scheduled_event_id: int
    attempt: int
    maximum_attempts: int = 0
    scheduled_time: datetime | None = None
    last_started_time: datetime | None = None
    last_heartbeat_time: datetime | None = None
    heartbeat_details: Payloads = ()
    next_attempt_time: datetime | None = None
    expiration_time: datetime | None = None
    last_failure: Failure | None = None
    last_worker_identity: str = ""
    attempts: tuple[AttemptInfo, ...] = ()
    waiting_reason: str = ""
    """In words: what this activity waits for, such as "no worker polls queue 'x' since …"."""


class PendingTimerInfo(_Message, frozen=True, kw_only=True):
    timer_id: str
    started_event_id: int
    due_time: datetime
    summary: str = ""


class PendingChildInfo(_Message, frozen=True, kw_only=True):
    workflow_id: str
    run_id: str
    workflow_type: str
    initiated_event_id: int
    parent_close_policy: str = ""


class PendingWorkflowTaskInfo(_Message, frozen=True, kw_only=True):
    state: str
    """``Scheduled``, ``Started`` or ``BackingOff``."""
    attempt: int
    scheduled_time: datetime | None = None
    started_time: datetime | None = None
    next_attempt_time: datetime | None = None
    identity: str = ""
    last_failure_cause: str = ""
    last_failure: Failure | None = None
    waiting_reason: str = ""


class WorkflowExecutionInfo(_Message, frozen=True, kw_only=True):
    """One row of a list, and the head of a description."""

    namespace: str
    workflow_id: str
    run_id: str
    workflow_type: str
    task_queue: str
    status: WorkflowExecutionStatus
    start_time: datetime
    execution_time: datetime | None = None
    close_time: datetime | None = None
    history_length: int = 0
    history_size_bytes: int = 0
    first_execution_run_id: str = ""
    parent: ExecutionRef | None = None
    root: ExecutionRef | None = None
    memo: Memo | None = None
    search_attributes: SearchAttributes | None = None


class WorkflowDescription(_Message, frozen=True, kw_only=True):
    """Everything about one run, and why it waits (law 12)."""

    info: WorkflowExecutionInfo
    attempt: int = 1
    workflow_execution_timeout: timedelta = ZERO
    workflow_run_timeout: timedelta = ZERO
    workflow_task_timeout: timedelta = ZERO
    cron_schedule: str = ""
    cancel_requested: bool = False
    pending_activities: tuple[PendingActivityInfo, ...] = ()
    pending_timers: tuple[PendingTimerInfo, ...] = ()
    pending_children: tuple[PendingChildInfo, ...] = ()
    pending_workflow_task: PendingWorkflowTaskInfo | None = None
    pending_updates: tuple[str, ...] = ()
    buffered_events: tuple[str, ...] = ()
    waiting_for: tuple[str, ...] = ()
    """In words, one line a thing: what this run waits for and since when. Empty when closed."""


class GetHistoryRequest(_Message, frozen=True, kw_only=True):
    """Read events from `from_event_id` on.

    With `wait_new_event`, the answer waits (up to the long-poll time) until there is at least one event to give.
    """

    namespace: str
    workflow_id: str
    run_id: str = ""
    from_event_id: int = 1
    events_max: int = 1_000
    wait_new_event: bool = False
    close_event_only: bool = False


class GetHistoryResponse(_Message, frozen=True, kw_only=True):
    run_id: str
    events: tuple[Event, ...] = ()
    next_event_id: int = 0
    """Where to go on; 0 at the end of the history of a closed run, or of what there is when not waiting."""


class ListWorkflowsRequest(_Message, frozen=True, kw_only=True):
    """List runs, newest first. `query` is the filter language of semantics 1.10; empty means all."""

    namespace: str
    query: str = ""
    page_size: int = 100
    page_token: str = ""


class ListWorkflowsResponse(_Message, frozen=True, kw_only=True):
    executions: tuple[WorkflowExecutionInfo, ...] = ()
    next_page_token: str = ""


class CountWorkflowsRequest(_Message, frozen=True, kw_only=True):
    namespace: str
    query: str = ""


class CountWorkflowsResponse(_Message, frozen=True, kw_only=True):
    count: int
    groups: dict[str, int] = msgspec.field(default_factory=dict)


# --- workers ---------------------------------------------------------------------------------------------------------


class WorkerHello(_Message, frozen=True, kw_only=True):
    """What a worker says when it attaches to a task queue.

    ``None`` for the types means any type (a dynamic handler is registered).
    """

    namespace: str
    task_queue: str
    identity: str
    instance_id: str
    """Unique per worker object and process; names its sticky queue."""
    workflow_types: tuple[str, ...] | None = None
    activity_types: tuple[str, ...] | None = None
    takes_workflow_tasks: bool = True
    takes_activity_tasks: bool = True
    is_sticky: bool = True
    sticky_schedule_to_start_timeout: timedelta = timedelta(seconds=10)
    deployment_version: DeploymentVersion | None = None
    versioning_behavior: VersioningBehavior = VersioningBehavior.UNSPECIFIED
    activities_per_second_max: float | None = None
    sdk_name: str = "clew"
    sdk_version: str = ""


class TaskToken(_Message, frozen=True, kw_only=True, tag=True):
    """Names one lease of one task; a stale one is refused without a state change (law 6)."""

    namespace: str
    workflow_id: str
    run_id: str
    shard: int
    run_key: int
    scheduled_event_id: int
    attempt: int
    lease_id: int
    """Fencing number: grows with every lease that the run gives away."""
    started_event_id: int = 0
    activity_id: str = ""


class QueryTask(_Message, frozen=True, kw_only=True):
    query_id: str
    query_type: str
    query_args: Payloads = ()
    header: Header | None = None


class UpdateMessage(_Message, frozen=True, kw_only=True):
    """An update that waits to be accepted or rejected by this workflow task, in admission order."""

    message_id: str
    request: UpdateRequest
    sequencing_event_id: int = 0


class WorkflowTask(_Message, frozen=True, kw_only=True):
    """One turn for workflow code.

    A task with `query` set only asks a question (it has no lease and is answered with `answer_query`); `queries` ride on
    an ordinary task. `events` start after the worker's cached position when `is_partial`, else at event 1.
    """

    token: TaskToken
    workflow_type: str
    task_queue: str
    attempt: int = 1
    previous_started_event_id: int = 0
    started_event_id: int = 0
    events: tuple[Event, ...] = ()
    is_partial: bool = False
    query: QueryTask | None = None
    queries: tuple[QueryTask, ...] = ()
    messages: tuple[UpdateMessage, ...] = ()
    scheduled_time: datetime | None = None
    started_time: datetime | None = None
    workflow_task_timeout: timedelta = timedelta(seconds=10)


class QueryResult(_Message, frozen=True, kw_only=True):
    """The answer to one query: a failure, or else the result."""

    query_id: str
    result: Payloads = ()
    failure: Failure | None = None


class UpdateAcceptance(_Message, frozen=True, kw_only=True):
    message_id: str
    update_id: str
    request: UpdateRequest | None = None
    sequencing_event_id: int = 0


class UpdateRejection(_Message, frozen=True, kw_only=True):
    message_id: str
    update_id: str
    failure: Failure


class UpdateCompletion(_Message, frozen=True, kw_only=True):
    message_id: str
    update_id: str
    outcome: UpdateOutcome


class CompleteWorkflowTaskRequest(_Message, frozen=True, kw_only=True):
    token: TaskToken
    commands: tuple[Command, ...] = ()
    acceptances: tuple[UpdateAcceptance, ...] = ()
    rejections: tuple[UpdateRejection, ...] = ()
    completions: tuple[UpdateCompletion, ...] = ()
    query_results: tuple[QueryResult, ...] = ()
    identity: str = ""
    is_sticky: bool = False
    """The worker keeps the run cached and wants its next task."""
    force_create_new_workflow_task: bool = False
    sdk_metadata: SdkMetadata | None = None
    versioning_behavior: VersioningBehavior = VersioningBehavior.UNSPECIFIED
    deployment_version: DeploymentVersion | None = None
    waiting_on: tuple[str, ...] = ()
    """Where the code stands, for people: one ``what @ file:line`` a waiting coroutine."""


class FailWorkflowTaskRequest(_Message, frozen=True, kw_only=True):
    token: TaskToken
    cause: WorkflowTaskFailedCause
    failure: Failure | None = None
    identity: str = ""


class AnswerQueryRequest(_Message, frozen=True, kw_only=True):
    """Answer to a task that carried `query`."""

    token: TaskToken
    result: QueryResult


class ActivityTask(_Message, frozen=True, kw_only=True):
    """One attempt of an activity, leased to this worker."""

    token: TaskToken
    activity_id: str
    activity_type: str
    workflow_type: str
    task_queue: str
    attempt: int
    idempotency_key: str
    header: Header | None = None
    input: Payloads = ()
    heartbeat_details: Payloads = ()
    scheduled_time: datetime | None = None
    current_attempt_scheduled_time: datetime | None = None
    started_time: datetime | None = None
    schedule_to_close_timeout: timedelta = ZERO
    start_to_close_timeout: timedelta = ZERO
    heartbeat_timeout: timedelta = ZERO
    retry_policy: RetryPolicy | None = None
    priority: Priority | None = None


class ActivityTarget(_Message, frozen=True, kw_only=True, tag=True):
    """Names an activity without its token, for asynchronous completion by ids."""

    namespace: str
    workflow_id: str
    activity_id: str
    run_id: str = ""


class CompleteActivityRequest(_Message, frozen=True, kw_only=True):
    token: TaskToken | ActivityTarget
    result: Payloads = ()
    identity: str = ""


class FailActivityRequest(_Message, frozen=True, kw_only=True):
    token: TaskToken | ActivityTarget
    failure: Failure
    identity: str = ""
    last_heartbeat_details: Payloads | None = None


class CancelActivityRequest(_Message, frozen=True, kw_only=True):
    """Report that the activity ended because it was asked to."""

    token: TaskToken | ActivityTarget
    details: Payloads = ()
    identity: str = ""


class ReleaseActivityRequest(_Message, frozen=True, kw_only=True):
    """Give an attempt back unused: it never ran (unknown type, shutdown before start), so no attempt is spent."""

    token: TaskToken
    reason: str
    identity: str = ""


class HeartbeatActivityRequest(_Message, frozen=True, kw_only=True):
    token: TaskToken | ActivityTarget
    details: Payloads = ()
    identity: str = ""


class HeartbeatActivityResponse(_Message, frozen=True, kw_only=True):
    cancel_requested: bool = False
    activity_paused: bool = False
    activity_reset: bool = False


class ActivityCancelReason(enum.Enum):
    """Why a running attempt is told to stop."""

    CANCEL_REQUESTED = "CancelRequested"
    TIMED_OUT = "TimedOut"
    NOT_FOUND = "NotFound"
