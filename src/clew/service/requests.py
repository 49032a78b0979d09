"""Requests and responses of the service contract: plain facts, the same in-process and over the link.

Owns: the structs that only read or answer; those that change a run are offered on from ``model.inputs``.
Never: behaviour. Every request names its namespace; durations of zero mean "not given".
"""

from __future__ import annotations

import enum
from datetime import datetime, timedelta

import msgspec

from clew.model.events import (
    ZERO,
    Event,
    ExecutionRef,
    Header,
    Memo,
    SearchAttributes,
    UpdateOutcome,
    UpdateRequest,
    UserMetadata,
)
from clew.model.failure import Failure
from clew.model.inputs import (
    ActivityCancelReason as ActivityCancelReason,
)
from clew.model.inputs import (
    ActivityTarget as ActivityTarget,
)
from clew.model.inputs import (
    CancelActivityRequest as CancelActivityRequest,
)
from clew.model.inputs import (
    CompleteActivityRequest as CompleteActivityRequest,
)
from clew.model.inputs import (
    CompleteWorkflowTaskRequest as CompleteWorkflowTaskRequest,
)
from clew.model.inputs import (
    FailActivityRequest as FailActivityRequest,
)
from clew.model.inputs import (
    FailWorkflowTaskRequest as FailWorkflowTaskRequest,
)
from clew.model.inputs import (
    HeartbeatActivityRequest as HeartbeatActivityRequest,
)
from clew.model.inputs import (
    Message,
)
from clew.model.inputs import (
    QueryResult as QueryResult,
)
from clew.model.inputs import (
    RecordMarkersRequest as RecordMarkersRequest,
)
from clew.model.inputs import (
    ReleaseActivityRequest as ReleaseActivityRequest,
)
from clew.model.inputs import (
    RequestCancelRequest as RequestCancelRequest,
)
from clew.model.inputs import (
    ResetReapplyExcludeType as ResetReapplyExcludeType,
)
from clew.model.inputs import (
    ResetType as ResetType,
)
from clew.model.inputs import (
    ResetWorkflowRequest as ResetWorkflowRequest,
)
from clew.model.inputs import (
    SignalWorkflowRequest as SignalWorkflowRequest,
)
from clew.model.inputs import (
    StartWorkflowRequest as StartWorkflowRequest,
)
from clew.model.inputs import (
    TaskToken as TaskToken,
)
from clew.model.inputs import (
    TerminateWorkflowRequest as TerminateWorkflowRequest,
)
from clew.model.inputs import (
    UpdateAcceptance as UpdateAcceptance,
)
from clew.model.inputs import (
    UpdateCompletion as UpdateCompletion,
)
from clew.model.inputs import (
    UpdateRejection as UpdateRejection,
)
from clew.model.inputs import (
    UpdateWorkflowOptionsRequest as UpdateWorkflowOptionsRequest,
)
from clew.model.payload import Payloads
from clew.model.policies import (
    DeploymentVersion,
    Priority,
    QueryRejectCondition,
    RetryPolicy,
    VersioningBehavior,
    VersioningOverride,
    WorkflowExecutionStatus,
)

# --- clients: changing a run -----------------------------------------------------------------------------------------


class StartWorkflowResponse(Message, frozen=True, kw_only=True):
    run_id: str
    first_execution_run_id: str
    started: bool = True
    """False when an open run was used instead (conflict policy UseExisting) or the request was a repeat."""


class ResetWorkflowResponse(Message, frozen=True, kw_only=True):
    """`run_id` names the new run, or that which the same request made before."""

    run_id: str


class SignalWithStartRequest(Message, frozen=True, kw_only=True):
    start: StartWorkflowRequest
    signal_name: str
    signal_input: Payloads = ()
    signal_header: Header | None = None


class UpdateStage(enum.Enum):
    """How far an update has come."""

    ADMITTED = "Admitted"
    ACCEPTED = "Accepted"
    COMPLETED = "Completed"


class UpdateWorkflowRequest(Message, frozen=True, kw_only=True):
    """Send an update and wait until it has reached `wait_stage` (or the long-poll time is over)."""

    namespace: str
    workflow_id: str
    request: UpdateRequest
    run_id: str = ""
    first_execution_run_id: str = ""
    wait_stage: UpdateStage = UpdateStage.COMPLETED


class PollUpdateRequest(Message, frozen=True, kw_only=True):
    namespace: str
    workflow_id: str
    update_id: str
    run_id: str = ""
    wait_stage: UpdateStage = UpdateStage.COMPLETED


class UpdateResponse(Message, frozen=True, kw_only=True):
    update_id: str
    workflow_id: str
    run_id: str
    stage: UpdateStage
    outcome: UpdateOutcome | None = None


class UpdateWithStartRequest(Message, frozen=True, kw_only=True):
    start: StartWorkflowRequest
    update: UpdateWorkflowRequest


class UpdateWithStartResponse(Message, frozen=True, kw_only=True):
    start: StartWorkflowResponse
    update: UpdateResponse


# --- clients: reading ------------------------------------------------------------------------------------------------


class QueryWorkflowRequest(Message, frozen=True, kw_only=True):
    namespace: str
    workflow_id: str
    query_type: str
    run_id: str = ""
    query_args: Payloads = ()
    header: Header | None = None
    reject_condition: QueryRejectCondition = QueryRejectCondition.NONE


class QueryWorkflowResponse(Message, frozen=True, kw_only=True):
    result: Payloads = ()
    rejected_status: WorkflowExecutionStatus | None = None


class DescribeWorkflowRequest(Message, frozen=True, kw_only=True):
    namespace: str
    workflow_id: str
    run_id: str = ""


class AttemptInfo(Message, frozen=True, kw_only=True):
    """One failed attempt of an activity, as kept for people (semantics 0.4)."""

    attempt: int
    started_at: datetime | None = None
    failed_at: datetime | None = None
    worker_identity: str = ""
    failure: Failure | None = None


class PendingActivityInfo(Message, frozen=True, kw_only=True):
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


class PendingTimerInfo(Message, frozen=True, kw_only=True):
    timer_id: str
    started_event_id: int
    due_time: datetime
    summary: str = ""


class PendingChildInfo(Message, frozen=True, kw_only=True):
    workflow_id: str
    run_id: str
    workflow_type: str
    initiated_event_id: int
    parent_close_policy: str = ""


class PendingWorkflowTaskInfo(Message, frozen=True, kw_only=True):
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


class WorkflowExecutionInfo(Message, frozen=True, kw_only=True):
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


class VersioningInfo(Message, frozen=True, kw_only=True):
    """Which versions of the worker a run goes by.

    Args:
        behavior: What its code said with the last completed workflow task.
        version: The version that completed it.
        override: The exception made for this run.
    """

    behavior: VersioningBehavior = VersioningBehavior.UNSPECIFIED
    version: DeploymentVersion | None = None
    override: VersioningOverride | None = None


class UpdateWorkflowOptionsResponse(Message, frozen=True, kw_only=True):
    """`versioning_override` is the one that holds now, or once the workflow task that a worker has ends."""

    run_id: str
    versioning_override: VersioningOverride | None = None


class WorkflowDescription(Message, frozen=True, kw_only=True):
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
    user_metadata: UserMetadata | None = None
    versioning: VersioningInfo | None = None
    """Of a run that goes by worker versions."""
    waiting_for: tuple[str, ...] = ()
    """In words, one line a thing: what this run waits for and since when. Empty when closed."""


class GetHistoryRequest(Message, frozen=True, kw_only=True):
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


class GetHistoryResponse(Message, frozen=True, kw_only=True):
    run_id: str
    events: tuple[Event, ...] = ()
    next_event_id: int = 0
    """Where to go on; 0 at the end of the history of a closed run, or of what there is when not waiting."""


class ListWorkflowsRequest(Message, frozen=True, kw_only=True):
    """List runs, newest first. `query` is the filter language of semantics 1.10; empty means all."""

    namespace: str
    query: str = ""
    page_size: int = 100
    page_token: str = ""


class ListWorkflowsResponse(Message, frozen=True, kw_only=True):
    executions: tuple[WorkflowExecutionInfo, ...] = ()
    next_page_token: str = ""


class CountWorkflowsRequest(Message, frozen=True, kw_only=True):
    namespace: str
    query: str = ""


class CountWorkflowsResponse(Message, frozen=True, kw_only=True):
    count: int
    groups: dict[str, int] = msgspec.field(default_factory=dict[str, int])


# --- workers ---------------------------------------------------------------------------------------------------------


class WorkerHello(Message, frozen=True, kw_only=True):
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
    uses_versioning: bool = False
    """Whether tasks are routed to this worker by `deployment_version`; else that is only recorded."""
    versioning_behavior: VersioningBehavior = VersioningBehavior.UNSPECIFIED
    activities_per_second_max: float | None = None
    is_remote: bool = False
    """Whether it is behind a link, so that it outlives the node that it attaches to."""
    takes_early_tasks: bool = False
    """Of one behind a link: whether it can begin with workflow tasks before their cause is durable
    (`contract.EarlyTaskSink`)."""
    held_attempts: tuple[TaskToken, ...] = ()
    """Attempts at activities that it has from another node, or from this one before it was restarted."""
    former_sessions: tuple[str, ...] = ()
    """The sessions that it had there. What these were given and is not among `held_attempts` it never got, or has
    reported already."""
    sdk_name: str = "clew"
    sdk_version: str = ""


class QueryTask(Message, frozen=True, kw_only=True):
    query_id: str
    query_type: str
    query_args: Payloads = ()
    header: Header | None = None


class UpdateMessage(Message, frozen=True, kw_only=True):
    """An update that waits to be accepted or rejected by this workflow task, in admission order."""

    message_id: str
    request: UpdateRequest
    sequencing_event_id: int = 0


class WorkflowTask(Message, frozen=True, kw_only=True):
    """One turn for workflow code.

    A task with `query` set only asks a question (it has no lease and is answered with `answer_query`); `queries` ride
    on an ordinary task. `events` start after the worker's cached position when `is_partial`, else at event 1.
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


class RecordMarkersResponse(Message, frozen=True, kw_only=True):
    """Markers are in history.

    Args:
        last_event_id: Of the last of them; the others stand right before it.
        event_time: Of all of them.
        is_end_wanted: Something waits for this workflow task to end (a signal, an update, a query); answer it when its
            code has taken in what was recorded.
    """

    last_event_id: int
    event_time: datetime
    is_end_wanted: bool = False


class AnswerQueryRequest(Message, frozen=True, kw_only=True):
    """Answer to a task that carried `query`."""

    token: TaskToken
    result: QueryResult


class ActivityTask(Message, frozen=True, kw_only=True):
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


class HeartbeatActivityResponse(Message, frozen=True, kw_only=True):
    cancel_requested: bool = False
    activity_paused: bool = False
    activity_reset: bool = False
