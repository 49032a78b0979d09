"""Events: the recorded facts of a run, in the field's published vocabulary (semantics 2.1, 2.2).

Owns: every event type with its attributes, the union `Event`, and the codec of a stored batch.
Never: says when an event may happen (``core`` does), or what it means to workflow code (``replay`` does).

How it works: each event is a frozen struct, tagged by its type name in the JSON field ``type``. Fields at their default
are left out of the JSON. Numbers of event types are those of the published model (`EVENT_NUMBERS`), kept for front
doors that speak it. Instants are RFC 3339 in UTC, durations ISO 8601, payloads their stored form (`model.payload`).
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final, TypeAlias

import msgspec

from clew.model.failure import Failure, RetryState, TimeoutType
from clew.model.payload import OptionalPayload, Payloads, StoredPayload
from clew.model.policies import (
    DeploymentVersion,
    ParentClosePolicy,
    Priority,
    RetryPolicy,
    VersioningBehavior,
    VersioningOverride,
    WorkflowIDReusePolicy,
)

ZERO: Final = timedelta(0)


class WorkflowTaskFailedCause(enum.Enum):
    """Why a workflow task failed (semantics 2.4, rule 28)."""

    UNHANDLED_COMMAND = "UnhandledCommand"
    BAD_SCHEDULE_ACTIVITY_ATTRIBUTES = "BadScheduleActivityAttributes"
    BAD_REQUEST_CANCEL_ACTIVITY_ATTRIBUTES = "BadRequestCancelActivityAttributes"
    BAD_START_TIMER_ATTRIBUTES = "BadStartTimerAttributes"
    BAD_CANCEL_TIMER_ATTRIBUTES = "BadCancelTimerAttributes"
    BAD_RECORD_MARKER_ATTRIBUTES = "BadRecordMarkerAttributes"
    BAD_COMPLETE_WORKFLOW_EXECUTION_ATTRIBUTES = "BadCompleteWorkflowExecutionAttributes"
    BAD_FAIL_WORKFLOW_EXECUTION_ATTRIBUTES = "BadFailWorkflowExecutionAttributes"
    BAD_CANCEL_WORKFLOW_EXECUTION_ATTRIBUTES = "BadCancelWorkflowExecutionAttributes"
    BAD_REQUEST_CANCEL_EXTERNAL_ATTRIBUTES = "BadRequestCancelExternalWorkflowExecutionAttributes"
    BAD_CONTINUE_AS_NEW_ATTRIBUTES = "BadContinueAsNewAttributes"
    START_TIMER_DUPLICATE_ID = "StartTimerDuplicateId"
    RESET_STICKY_TASK_QUEUE = "ResetStickyTaskQueue"
    WORKFLOW_WORKER_UNHANDLED_FAILURE = "WorkflowWorkerUnhandledFailure"
    BAD_SIGNAL_WORKFLOW_EXECUTION_ATTRIBUTES = "BadSignalWorkflowExecutionAttributes"
    BAD_START_CHILD_EXECUTION_ATTRIBUTES = "BadStartChildExecutionAttributes"
    FORCE_CLOSE_COMMAND = "ForceCloseCommand"
    FAILOVER_CLOSE_COMMAND = "FailoverCloseCommand"
    BAD_SIGNAL_INPUT_SIZE = "BadSignalInputSize"
    RESET_WORKFLOW = "ResetWorkflow"
    BAD_BINARY = "BadBinary"
    SCHEDULE_ACTIVITY_DUPLICATE_ID = "ScheduleActivityDuplicateId"
    BAD_SEARCH_ATTRIBUTES = "BadSearchAttributes"
    NON_DETERMINISTIC_ERROR = "NonDeterministicError"
    BAD_MODIFY_WORKFLOW_PROPERTIES_ATTRIBUTES = "BadModifyWorkflowPropertiesAttributes"
    PENDING_CHILD_WORKFLOWS_LIMIT_EXCEEDED = "PendingChildWorkflowsLimitExceeded"
    PENDING_ACTIVITIES_LIMIT_EXCEEDED = "PendingActivitiesLimitExceeded"
    PENDING_SIGNALS_LIMIT_EXCEEDED = "PendingSignalsLimitExceeded"
    PENDING_REQUEST_CANCEL_LIMIT_EXCEEDED = "PendingRequestCancelLimitExceeded"
    BAD_UPDATE_MESSAGE = "BadUpdateWorkflowExecutionMessage"
    UNHANDLED_UPDATE = "UnhandledUpdate"
    FEATURE_DISABLED = "FeatureDisabled"
    GRPC_MESSAGE_TOO_LARGE = "GrpcMessageTooLarge"
    PAYLOADS_TOO_LARGE = "PayloadsTooLarge"
    EXTERNAL_STORAGE_FAILURE = "ExternalStorageFailure"
    PAUSE_REQUESTED_BEFORE_TASK_STARTED = "PauseRequestedBeforeTaskStarted"


class ContinueAsNewInitiator(enum.Enum):
    """What made a new run of the chain."""

    WORKFLOW = "Workflow"
    RETRY = "Retry"
    CRON_SCHEDULE = "CronSchedule"


class ExternalFailedCause(enum.Enum):
    """Why an effect on another execution did not happen."""

    EXTERNAL_WORKFLOW_EXECUTION_NOT_FOUND = "ExternalWorkflowExecutionNotFound"
    NAMESPACE_NOT_FOUND = "NamespaceNotFound"
    SIGNAL_COUNT_LIMIT_EXCEEDED = "SignalCountLimitExceeded"
    WORKFLOW_ALREADY_EXISTS = "WorkflowAlreadyExists"
    INVALID_VERSIONING_OVERRIDE = "InvalidVersioningOverride"


class UserMetadata(msgspec.Struct, gc=False, frozen=True, omit_defaults=True):
    """Texts that an author gives for people to read: a summary (400 bytes) and details (20 000 bytes)."""

    summary: OptionalPayload = None
    details: OptionalPayload = None


class ExecutionRef(msgspec.Struct, gc=False, frozen=True, omit_defaults=True):
    """Names an execution: a run, or with an empty ``run_id`` the current run of a workflow id."""

    workflow_id: str
    run_id: str = ""
    namespace: str = ""


class SdkMetadata(msgspec.Struct, gc=False, frozen=True, omit_defaults=True):
    """Flags of the SDK that a workflow task was completed under; kept so that replay behaves alike."""

    core_used_flags: tuple[int, ...] = ()
    lang_used_flags: tuple[int, ...] = ()
    sdk_name: str = ""
    sdk_version: str = ""


Header: TypeAlias = dict[str, StoredPayload]
Memo: TypeAlias = dict[str, StoredPayload]
SearchAttributes: TypeAlias = dict[str, StoredPayload]


class BaseEvent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="type", tag=True, gc=False):
    """What every event has: its dense id (from 1) and the store's time at which it happened."""

    event_id: int
    event_time: datetime


class WorkflowExecutionStarted(BaseEvent, frozen=True, kw_only=True):
    workflow_id: str
    workflow_type: str
    task_queue: str
    input: Payloads = ()
    workflow_execution_timeout: timedelta = ZERO
    workflow_run_timeout: timedelta = ZERO
    workflow_task_timeout: timedelta = timedelta(seconds=10)
    parent: ExecutionRef | None = None
    parent_initiated_event_id: int = 0
    root: ExecutionRef | None = None
    continued_execution_run_id: str = ""
    initiator: ContinueAsNewInitiator | None = None
    continued_failure: Failure | None = None
    last_completion_result: Payloads | None = None
    original_execution_run_id: str = ""
    first_execution_run_id: str = ""
    identity: str = ""
    request_id: str = ""
    retry_policy: RetryPolicy | None = None
    attempt: int = 1
    workflow_execution_expiration_time: datetime | None = None
    cron_schedule: str = ""
    first_workflow_task_backoff: timedelta = ZERO
    memo: Memo | None = None
    search_attributes: SearchAttributes | None = None
    header: Header | None = None
    priority: Priority | None = None
    versioning_override: VersioningOverride | None = None
    user_metadata: UserMetadata | None = None
    eager_execution_accepted: bool = False
    inherited_pinned_version: DeploymentVersion | None = None
    """The worker version that a pinned parent, or the run before in the chain, hands on."""
    key_generation: str = ""
    """What names one intention to act across this chain (design §8): see ``core.idempotency``."""


class WorkflowExecutionCompleted(BaseEvent, frozen=True, kw_only=True):
    result: Payloads = ()
    workflow_task_completed_event_id: int = 0
    new_execution_run_id: str = ""


class WorkflowExecutionFailed(BaseEvent, frozen=True, kw_only=True):
    failure: Failure
    retry_state: RetryState = RetryState.RETRY_POLICY_NOT_SET
    workflow_task_completed_event_id: int = 0
    new_execution_run_id: str = ""


class WorkflowExecutionTimedOut(BaseEvent, frozen=True, kw_only=True):
    retry_state: RetryState = RetryState.TIMEOUT
    new_execution_run_id: str = ""


class WorkflowTaskScheduled(BaseEvent, frozen=True, kw_only=True):
    task_queue: str
    start_to_close_timeout: timedelta
    attempt: int = 1
    is_sticky: bool = False


class WorkflowTaskStarted(BaseEvent, frozen=True, kw_only=True):
    scheduled_event_id: int
    identity: str = ""
    request_id: str = ""
    suggest_continue_as_new: bool = False
    suggest_continue_as_new_reasons: tuple[str, ...] = ()
    history_size_bytes: int = 0


class WorkflowTaskCompleted(BaseEvent, frozen=True, kw_only=True):
    scheduled_event_id: int
    started_event_id: int
    identity: str = ""
    sdk_metadata: SdkMetadata | None = None
    versioning_behavior: VersioningBehavior = VersioningBehavior.UNSPECIFIED
    deployment_version: DeploymentVersion | None = None


class WorkflowTaskTimedOut(BaseEvent, frozen=True, kw_only=True):
    scheduled_event_id: int
    started_event_id: int = 0
    timeout_type: TimeoutType = TimeoutType.START_TO_CLOSE


class WorkflowTaskFailed(BaseEvent, frozen=True, kw_only=True):
    scheduled_event_id: int
    started_event_id: int
    cause: WorkflowTaskFailedCause
    failure: Failure | None = None
    identity: str = ""
    base_run_id: str = ""
    new_run_id: str = ""


class ActivityTaskScheduled(BaseEvent, frozen=True, kw_only=True):
    activity_id: str
    activity_type: str
    task_queue: str
    header: Header | None = None
    input: Payloads = ()
    schedule_to_close_timeout: timedelta = ZERO
    schedule_to_start_timeout: timedelta = ZERO
    start_to_close_timeout: timedelta = ZERO
    heartbeat_timeout: timedelta = ZERO
    retry_policy: RetryPolicy | None = None
    workflow_task_completed_event_id: int = 0
    priority: Priority | None = None
    user_metadata: UserMetadata | None = None


class ActivityTaskStarted(BaseEvent, frozen=True, kw_only=True):
    scheduled_event_id: int
    identity: str = ""
    request_id: str = ""
    attempt: int = 1
    last_failure: Failure | None = None


class ActivityTaskCompleted(BaseEvent, frozen=True, kw_only=True):
    scheduled_event_id: int
    started_event_id: int
    result: Payloads = ()
    identity: str = ""


class ActivityTaskFailed(BaseEvent, frozen=True, kw_only=True):
    scheduled_event_id: int
    started_event_id: int
    failure: Failure
    identity: str = ""
    retry_state: RetryState = RetryState.RETRY_POLICY_NOT_SET


class ActivityTaskTimedOut(BaseEvent, frozen=True, kw_only=True):
    scheduled_event_id: int
    started_event_id: int
    failure: Failure
    retry_state: RetryState = RetryState.TIMEOUT


class ActivityTaskCancelRequested(BaseEvent, frozen=True, kw_only=True):
    scheduled_event_id: int
    workflow_task_completed_event_id: int = 0


class ActivityTaskCanceled(BaseEvent, frozen=True, kw_only=True):
    scheduled_event_id: int
    started_event_id: int = 0
    details: Payloads = ()
    latest_cancel_requested_event_id: int = 0
    identity: str = ""


class TimerStarted(BaseEvent, frozen=True, kw_only=True):
    timer_id: str
    start_to_fire_timeout: timedelta
    workflow_task_completed_event_id: int = 0
    user_metadata: UserMetadata | None = None


class TimerFired(BaseEvent, frozen=True, kw_only=True):
    timer_id: str
    started_event_id: int


class TimerCanceled(BaseEvent, frozen=True, kw_only=True):
    timer_id: str
    started_event_id: int
    workflow_task_completed_event_id: int = 0
    identity: str = ""


class WorkflowExecutionCancelRequested(BaseEvent, frozen=True, kw_only=True):
    cause: str = ""
    external_initiated_event_id: int = 0
    external_workflow_execution: ExecutionRef | None = None
    identity: str = ""
    request_id: str = ""


class WorkflowExecutionCanceled(BaseEvent, frozen=True, kw_only=True):
    details: Payloads = ()
    workflow_task_completed_event_id: int = 0


class RequestCancelExternalWorkflowExecutionInitiated(BaseEvent, frozen=True, kw_only=True):
    workflow_execution: ExecutionRef
    workflow_task_completed_event_id: int = 0
    child_workflow_only: bool = False
    reason: str = ""


class RequestCancelExternalWorkflowExecutionFailed(BaseEvent, frozen=True, kw_only=True):
    initiated_event_id: int
    cause: ExternalFailedCause
    workflow_execution: ExecutionRef | None = None


class ExternalWorkflowExecutionCancelRequested(BaseEvent, frozen=True, kw_only=True):
    initiated_event_id: int
    workflow_execution: ExecutionRef | None = None


class MarkerRecorded(BaseEvent, frozen=True, kw_only=True):
    marker_name: str
    details: dict[str, Payloads] = msgspec.field(default_factory=dict[str, Payloads])
    header: Header | None = None
    failure: Failure | None = None
    workflow_task_completed_event_id: int = 0
    user_metadata: UserMetadata | None = None


class WorkflowExecutionSignaled(BaseEvent, frozen=True, kw_only=True):
    signal_name: str
    input: Payloads = ()
    identity: str = ""
    header: Header | None = None
    external_workflow_execution: ExecutionRef | None = None
    request_id: str = ""


class WorkflowExecutionTerminated(BaseEvent, frozen=True, kw_only=True):
    reason: str = ""
    details: Payloads = ()
    identity: str = ""


class WorkflowExecutionContinuedAsNew(BaseEvent, frozen=True, kw_only=True):
    new_execution_run_id: str
    workflow_type: str
    task_queue: str
    input: Payloads = ()
    workflow_run_timeout: timedelta = ZERO
    workflow_task_timeout: timedelta = timedelta(seconds=10)
    backoff_start_interval: timedelta = ZERO
    initiator: ContinueAsNewInitiator = ContinueAsNewInitiator.WORKFLOW
    memo: Memo | None = None
    search_attributes: SearchAttributes | None = None
    header: Header | None = None
    workflow_task_completed_event_id: int = 0
    failure: Failure | None = None
    last_completion_result: Payloads | None = None


class StartChildWorkflowExecutionInitiated(BaseEvent, frozen=True, kw_only=True):
    workflow_id: str
    workflow_type: str
    task_queue: str
    namespace: str = ""
    input: Payloads = ()
    workflow_execution_timeout: timedelta = ZERO
    workflow_run_timeout: timedelta = ZERO
    workflow_task_timeout: timedelta = timedelta(seconds=10)
    parent_close_policy: ParentClosePolicy = ParentClosePolicy.TERMINATE
    workflow_id_reuse_policy: WorkflowIDReusePolicy = WorkflowIDReusePolicy.ALLOW_DUPLICATE
    retry_policy: RetryPolicy | None = None
    cron_schedule: str = ""
    header: Header | None = None
    memo: Memo | None = None
    search_attributes: SearchAttributes | None = None
    priority: Priority | None = None
    workflow_task_completed_event_id: int = 0
    user_metadata: UserMetadata | None = None


class StartChildWorkflowExecutionFailed(BaseEvent, frozen=True, kw_only=True):
    initiated_event_id: int
    workflow_id: str
    workflow_type: str
    cause: ExternalFailedCause
    workflow_task_completed_event_id: int = 0


class ChildWorkflowExecutionStarted(BaseEvent, frozen=True, kw_only=True):
    initiated_event_id: int
    workflow_execution: ExecutionRef
    workflow_type: str


class ChildWorkflowExecutionCompleted(BaseEvent, frozen=True, kw_only=True):
    initiated_event_id: int
    started_event_id: int
    workflow_execution: ExecutionRef
    workflow_type: str
    result: Payloads = ()


class ChildWorkflowExecutionFailed(BaseEvent, frozen=True, kw_only=True):
    initiated_event_id: int
    started_event_id: int
    workflow_execution: ExecutionRef
    workflow_type: str
    failure: Failure
    retry_state: RetryState = RetryState.RETRY_POLICY_NOT_SET


class ChildWorkflowExecutionCanceled(BaseEvent, frozen=True, kw_only=True):
    initiated_event_id: int
    started_event_id: int
    workflow_execution: ExecutionRef
    workflow_type: str
    details: Payloads = ()


class ChildWorkflowExecutionTimedOut(BaseEvent, frozen=True, kw_only=True):
    initiated_event_id: int
    started_event_id: int
    workflow_execution: ExecutionRef
    workflow_type: str
    retry_state: RetryState = RetryState.TIMEOUT


class ChildWorkflowExecutionTerminated(BaseEvent, frozen=True, kw_only=True):
    initiated_event_id: int
    started_event_id: int
    workflow_execution: ExecutionRef
    workflow_type: str


class SignalExternalWorkflowExecutionInitiated(BaseEvent, frozen=True, kw_only=True):
    workflow_execution: ExecutionRef
    signal_name: str
    input: Payloads = ()
    header: Header | None = None
    workflow_task_completed_event_id: int = 0
    child_workflow_only: bool = False


class SignalExternalWorkflowExecutionFailed(BaseEvent, frozen=True, kw_only=True):
    initiated_event_id: int
    cause: ExternalFailedCause
    workflow_execution: ExecutionRef | None = None


class ExternalWorkflowExecutionSignaled(BaseEvent, frozen=True, kw_only=True):
    initiated_event_id: int
    workflow_execution: ExecutionRef | None = None


class UpsertWorkflowSearchAttributes(BaseEvent, frozen=True, kw_only=True):
    search_attributes: SearchAttributes
    workflow_task_completed_event_id: int = 0


class UpdateRequest(msgspec.Struct, gc=False, frozen=True, kw_only=True, omit_defaults=True):
    """What a caller of an update sent."""

    update_id: str
    name: str
    input: Payloads = ()
    header: Header | None = None
    identity: str = ""


class WorkflowExecutionUpdateAccepted(BaseEvent, frozen=True, kw_only=True):
    protocol_instance_id: str
    """The update id."""
    accepted_request_message_id: str = ""
    accepted_request_sequencing_event_id: int = 0
    accepted_request: UpdateRequest | None = None


class UpdateOutcome(msgspec.Struct, gc=False, frozen=True, kw_only=True, omit_defaults=True):
    """How an update ended: a failure, or else its result."""

    result: Payloads = ()
    failure: Failure | None = None


class WorkflowExecutionUpdateCompleted(BaseEvent, frozen=True, kw_only=True):
    update_id: str
    accepted_event_id: int
    outcome: UpdateOutcome
    identity: str = ""


class WorkflowExecutionUpdateAdmitted(BaseEvent, frozen=True, kw_only=True):
    request: UpdateRequest
    origin: str = ""


class WorkflowPropertiesModified(BaseEvent, frozen=True, kw_only=True):
    upserted_memo: Memo | None = None
    workflow_task_completed_event_id: int = 0


class WorkflowExecutionOptionsUpdated(BaseEvent, frozen=True, kw_only=True):
    versioning_override: VersioningOverride | None = None
    unset_versioning_override: bool = False
    attached_request_id: str = ""
    priority: Priority | None = None
    identity: str = ""


class WorkflowExecutionPaused(BaseEvent, frozen=True, kw_only=True):
    identity: str = ""
    reason: str = ""
    request_id: str = ""


class WorkflowExecutionUnpaused(BaseEvent, frozen=True, kw_only=True):
    identity: str = ""
    reason: str = ""
    request_id: str = ""


Event: TypeAlias = (
    WorkflowExecutionStarted
    | WorkflowExecutionCompleted
    | WorkflowExecutionFailed
    | WorkflowExecutionTimedOut
    | WorkflowTaskScheduled
    | WorkflowTaskStarted
    | WorkflowTaskCompleted
    | WorkflowTaskTimedOut
    | WorkflowTaskFailed
    | ActivityTaskScheduled
    | ActivityTaskStarted
    | ActivityTaskCompleted
    | ActivityTaskFailed
    | ActivityTaskTimedOut
    | ActivityTaskCancelRequested
    | ActivityTaskCanceled
    | TimerStarted
    | TimerFired
    | TimerCanceled
    | WorkflowExecutionCancelRequested
    | WorkflowExecutionCanceled
    | RequestCancelExternalWorkflowExecutionInitiated
    | RequestCancelExternalWorkflowExecutionFailed
    | ExternalWorkflowExecutionCancelRequested
    | MarkerRecorded
    | WorkflowExecutionSignaled
    | WorkflowExecutionTerminated
    | WorkflowExecutionContinuedAsNew
    | StartChildWorkflowExecutionInitiated
    | StartChildWorkflowExecutionFailed
    | ChildWorkflowExecutionStarted
    | ChildWorkflowExecutionCompleted
    | ChildWorkflowExecutionFailed
    | ChildWorkflowExecutionCanceled
    | ChildWorkflowExecutionTimedOut
    | ChildWorkflowExecutionTerminated
    | SignalExternalWorkflowExecutionInitiated
    | SignalExternalWorkflowExecutionFailed
    | ExternalWorkflowExecutionSignaled
    | UpsertWorkflowSearchAttributes
    | WorkflowExecutionUpdateAccepted
    | WorkflowExecutionUpdateCompleted
    | WorkflowExecutionUpdateAdmitted
    | WorkflowPropertiesModified
    | WorkflowExecutionOptionsUpdated
    | WorkflowExecutionPaused
    | WorkflowExecutionUnpaused
)

EVENT_NUMBERS: Final[dict[type[BaseEvent], int]] = {
    WorkflowExecutionStarted: 1,
    WorkflowExecutionCompleted: 2,
    WorkflowExecutionFailed: 3,
    WorkflowExecutionTimedOut: 4,
    WorkflowTaskScheduled: 5,
    WorkflowTaskStarted: 6,
    WorkflowTaskCompleted: 7,
    WorkflowTaskTimedOut: 8,
    WorkflowTaskFailed: 9,
    ActivityTaskScheduled: 10,
    ActivityTaskStarted: 11,
    ActivityTaskCompleted: 12,
    ActivityTaskFailed: 13,
    ActivityTaskTimedOut: 14,
    ActivityTaskCancelRequested: 15,
    ActivityTaskCanceled: 16,
    TimerStarted: 17,
    TimerFired: 18,
    TimerCanceled: 19,
    WorkflowExecutionCancelRequested: 20,
    WorkflowExecutionCanceled: 21,
    RequestCancelExternalWorkflowExecutionInitiated: 22,
    RequestCancelExternalWorkflowExecutionFailed: 23,
    ExternalWorkflowExecutionCancelRequested: 24,
    MarkerRecorded: 25,
    WorkflowExecutionSignaled: 26,
    WorkflowExecutionTerminated: 27,
    WorkflowExecutionContinuedAsNew: 28,
    StartChildWorkflowExecutionInitiated: 29,
    StartChildWorkflowExecutionFailed: 30,
    ChildWorkflowExecutionStarted: 31,
    ChildWorkflowExecutionCompleted: 32,
    ChildWorkflowExecutionFailed: 33,
    ChildWorkflowExecutionCanceled: 34,
    ChildWorkflowExecutionTimedOut: 35,
    ChildWorkflowExecutionTerminated: 36,
    SignalExternalWorkflowExecutionInitiated: 37,
    SignalExternalWorkflowExecutionFailed: 38,
    ExternalWorkflowExecutionSignaled: 39,
    UpsertWorkflowSearchAttributes: 40,
    WorkflowExecutionUpdateAccepted: 41,
    WorkflowExecutionUpdateCompleted: 43,
    WorkflowPropertiesModified: 46,
    WorkflowExecutionUpdateAdmitted: 47,
    WorkflowExecutionOptionsUpdated: 55,
    WorkflowExecutionPaused: 58,
    WorkflowExecutionUnpaused: 59,
}
"""Numbers of the published model. Not ours yet: 44, 45 (unused there), 48-54, 56, 57 (Nexus), 60 (time skipping)."""

_encoder: Final = msgspec.json.Encoder()
_decoder: Final = msgspec.json.Decoder(list[Event])


def encode_events(events: Sequence[Event]) -> bytes:
    """Encode one stored batch: a UTF-8 JSON array of events."""
    return _encoder.encode(events)


def decode_events(data: bytes) -> list[Event]:
    """Decode one stored batch.

    Raises:
        msgspec.DecodeError: The bytes are not a batch of known events.
    """
    return _decoder.decode(data)


_EMPTY: Final = b"[]"

SMALL_BATCH_BYTES: Final = 2_048
"""Larger ones gain nothing by being decoded together, and would be kept by each other."""


def decode_event_batches(batches: Sequence[bytes]) -> list[Event]:
    """Decode stored batches that follow one another; faster than one by one where each is small.

    The payloads of an event keep the bytes they were decoded from, which here are those of all the batches.

    Raises:
        msgspec.DecodeError: The bytes of one are not a batch of known events.
    """
    if len(batches) > 1 and all(data[:1] == b"[" and data[-1:] == b"]" for data in batches) and _are_small(batches):
        try:
            return _decoder.decode(b"[" + b",".join([data[1:-1] for data in batches]) + b"]")
        except msgspec.DecodeError:
            pass  # One by one, the error tells of the batch alone.
    return [event for data in batches for event in decode_events(data)]


def _are_small(batches: Sequence[bytes]) -> bool:
    return all(len(_EMPTY) < len(data) <= SMALL_BATCH_BYTES for data in batches)


def event_type(event: BaseEvent) -> str:
    """The field's name for the event, as it stands in history."""
    return type(event).__name__
