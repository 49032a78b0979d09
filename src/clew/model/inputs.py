"""Inputs of the history machine: what clients and workers ask of a run, as plain facts.

Owns: the request structs that ``core`` decides on; ``service.requests`` offers them on, beside those that only read.
Never: behaviour. Every request names its namespace; durations of zero mean "not given".
"""

from __future__ import annotations

import enum
from datetime import timedelta

import msgspec

from clew.model.commands import Command, RecordMarker
from clew.model.events import (
    ZERO,
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
    RetryPolicy,
    VersioningBehavior,
    VersioningOverride,
    WorkflowIDConflictPolicy,
    WorkflowIDReusePolicy,
)


class Message(msgspec.Struct, gc=False, frozen=True, kw_only=True, omit_defaults=True):
    """Base of every request and response."""


class StartWorkflowRequest(Message, frozen=True, kw_only=True):
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


class UpdateWorkflowOptionsRequest(Message, frozen=True, kw_only=True):
    """Change what an open run was started with.

    Args:
        versioning_override: The new exception from the routing of worker versions; None takes away the present one.
    """

    namespace: str
    workflow_id: str
    run_id: str = ""
    versioning_override: VersioningOverride | None = None
    identity: str = ""


class SignalWorkflowRequest(Message, frozen=True, kw_only=True):
    namespace: str
    workflow_id: str
    signal_name: str
    request_id: str
    run_id: str = ""
    input: Payloads = ()
    identity: str = ""
    header: Header | None = None


class RequestCancelRequest(Message, frozen=True, kw_only=True):
    namespace: str
    workflow_id: str
    request_id: str
    run_id: str = ""
    first_execution_run_id: str = ""
    identity: str = ""
    reason: str = ""


class TerminateWorkflowRequest(Message, frozen=True, kw_only=True):
    namespace: str
    workflow_id: str
    run_id: str = ""
    first_execution_run_id: str = ""
    identity: str = ""
    reason: str = ""
    details: Payloads = ()


class ResetType(enum.Enum):
    """A point to reset to, by what stands there instead of by an event id."""

    UNSPECIFIED = "Unspecified"
    FIRST_WORKFLOW_TASK = "FirstWorkflowTask"
    LAST_WORKFLOW_TASK = "LastWorkflowTask"


class ResetReapplyExcludeType(enum.Enum):
    """What came after the point of a reset and is not to come again."""

    SIGNAL = "Signal"
    UPDATE = "Update"


class ResetWorkflowRequest(Message, frozen=True, kw_only=True):
    """Go on from an earlier point of a run, as a new run.

    The point is given in one of three ways: `event_id`, `reset_type`, or `build_id`.

    Args:
        run_id: The run to go back to; empty for the latest.
        reason: Why, for people; it must be given.
        event_id: What the history is copied up to, without that event: one behind the start of a workflow task, or
            between that and its scheduling.
        reset_type: The first or the last workflow task that completed.
        build_id: The first workflow task that this build completed.
        reapply_exclude: What came after the point and is left out.
        request_id: Makes a repeat of the same call harmless.
    """

    namespace: str
    workflow_id: str
    reason: str
    request_id: str
    run_id: str = ""
    event_id: int = 0
    reset_type: ResetType = ResetType.UNSPECIFIED
    build_id: str = ""
    reapply_exclude: tuple[ResetReapplyExcludeType, ...] = ()
    identity: str = ""


class TaskToken(Message, frozen=True, kw_only=True, tag=True):
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
    seal: bytes = b""
    """Proof that the server gave this token away; only servers that authenticate make and want one."""
    early: int = 0
    """Numbers a workflow task that went over a link before its cause was durable (``link.early``); else 0."""


class UpdateAcceptance(Message, frozen=True, kw_only=True):
    message_id: str
    update_id: str
    request: UpdateRequest | None = None
    sequencing_event_id: int = 0


class UpdateRejection(Message, frozen=True, kw_only=True):
    message_id: str
    update_id: str
    failure: Failure


class UpdateCompletion(Message, frozen=True, kw_only=True):
    message_id: str
    update_id: str
    outcome: UpdateOutcome


class QueryResult(Message, frozen=True, kw_only=True):
    """The answer to one query: a failure, or else the result."""

    query_id: str
    result: Payloads = ()
    failure: Failure | None = None


class CompleteWorkflowTaskRequest(Message, frozen=True, kw_only=True):
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


class RecordMarkersRequest(Message, frozen=True, kw_only=True):
    """Record markers at once, while their workflow task goes on (docs/adr/0016); it counts as a sign of life.

    Args:
        token: Of the workflow task.
        markers: What to record, in order.
        after_event_id: The last event that the worker knows of: the task's start, or the last marker recorded since. By
            it a repeat of the call is recognised.
        identity: Of the worker.
    """

    token: TaskToken
    markers: tuple[RecordMarker, ...]
    after_event_id: int
    identity: str = ""


class FailWorkflowTaskRequest(Message, frozen=True, kw_only=True):
    token: TaskToken
    cause: WorkflowTaskFailedCause
    failure: Failure | None = None
    identity: str = ""


class ActivityTarget(Message, frozen=True, kw_only=True, tag=True):
    """Names an activity without its token, for asynchronous completion by ids."""

    namespace: str
    workflow_id: str
    activity_id: str
    run_id: str = ""


class CompleteActivityRequest(Message, frozen=True, kw_only=True):
    token: TaskToken | ActivityTarget
    result: Payloads = ()
    identity: str = ""


class FailActivityRequest(Message, frozen=True, kw_only=True):
    token: TaskToken | ActivityTarget
    failure: Failure
    identity: str = ""
    last_heartbeat_details: Payloads | None = None


class CancelActivityRequest(Message, frozen=True, kw_only=True):
    """Report that the activity ended because it was asked to."""

    token: TaskToken | ActivityTarget
    details: Payloads = ()
    identity: str = ""


class ReleaseActivityRequest(Message, frozen=True, kw_only=True):
    """Give an attempt back unused: it never ran (unknown type, shutdown before start), so no attempt is spent."""

    token: TaskToken
    reason: str
    identity: str = ""


class HeartbeatActivityRequest(Message, frozen=True, kw_only=True):
    token: TaskToken | ActivityTarget
    details: Payloads = ()
    identity: str = ""


class ActivityCancelReason(enum.Enum):
    """Why a running attempt is told to stop."""

    CANCEL_REQUESTED = "CancelRequested"
    TIMED_OUT = "TimedOut"
    NOT_FOUND = "NotFound"
