"""Failures: errors as data, in the shape of the field's published model.

Owns: the `Failure` tree as it lies in history. Never: exceptions (``converter`` turns one into the other).
"""

from __future__ import annotations

import enum
from datetime import timedelta
from typing import Final, TypeAlias

import msgspec

from clew.model.payload import OptionalPayload, Payloads

MESSAGE_CHARS_MAX: Final = 4_000
"""Longer failure messages are cut (semantics 1.2: error-message text cut at 4 000 chars)."""


class TimeoutType(enum.Enum):
    """Which of the deadlines ran out."""

    START_TO_CLOSE = "StartToClose"
    SCHEDULE_TO_START = "ScheduleToStart"
    SCHEDULE_TO_CLOSE = "ScheduleToClose"
    HEARTBEAT = "Heartbeat"


class RetryState(enum.Enum):
    """Why an activity or a workflow is, or is not, tried again."""

    IN_PROGRESS = "InProgress"
    NON_RETRYABLE_FAILURE = "NonRetryableFailure"
    TIMEOUT = "Timeout"
    MAXIMUM_ATTEMPTS_REACHED = "MaximumAttemptsReached"
    RETRY_POLICY_NOT_SET = "RetryPolicyNotSet"
    INTERNAL_SERVER_ERROR = "InternalServerError"
    CANCEL_REQUESTED = "CancelRequested"


class _Info(
    msgspec.Struct,
    gc=False,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    tag_field="kind",
    tag=lambda name: name.removesuffix("Info"),
):
    """Base of the kinds of failure."""


class ApplicationInfo(_Info, frozen=True, kw_only=True):
    """Raised by user code. ``type`` is what retry policies and `except` clauses select by."""

    type: str = ""
    non_retryable: bool = False
    details: Payloads = ()
    next_retry_delay: timedelta | None = None
    category: str = ""


class TimeoutInfo(_Info, frozen=True, kw_only=True):
    """A deadline ran out."""

    timeout_type: TimeoutType
    last_heartbeat_details: Payloads = ()


class CanceledInfo(_Info, frozen=True, kw_only=True):
    """Ended because cancellation was requested."""

    details: Payloads = ()


class TerminatedInfo(_Info, frozen=True, kw_only=True):
    """Ended from outside, without a say."""


class ServerInfo(_Info, frozen=True, kw_only=True):
    """An error of the engine itself."""

    non_retryable: bool = False


class ResetWorkflowInfo(_Info, frozen=True, kw_only=True):
    """An activity that was running when its run was reset."""

    last_heartbeat_details: Payloads = ()


class ActivityInfo(_Info, frozen=True, kw_only=True):
    """Wraps the reason (in ``cause``) for which an activity closed."""

    scheduled_event_id: int
    started_event_id: int = 0
    identity: str = ""
    activity_type: str = ""
    activity_id: str = ""
    retry_state: RetryState | None = None


class ChildWorkflowExecutionInfo(_Info, frozen=True, kw_only=True):
    """Wraps the reason (in ``cause``) for which a child workflow closed."""

    namespace: str = ""
    workflow_id: str = ""
    run_id: str = ""
    workflow_type: str = ""
    initiated_event_id: int = 0
    started_event_id: int = 0
    retry_state: RetryState | None = None


FailureInfo: TypeAlias = (
    ApplicationInfo
    | TimeoutInfo
    | CanceledInfo
    | TerminatedInfo
    | ServerInfo
    | ResetWorkflowInfo
    | ActivityInfo
    | ChildWorkflowExecutionInfo
)


class Failure(msgspec.Struct, gc=False, frozen=True, kw_only=True, omit_defaults=True):
    """One error of a chain.

    Args:
        message: What happened, at most `MESSAGE_CHARS_MAX` characters.
        source: Which SDK made it.
        stack_trace: As text, with source lines; may be empty.
        encoded_attributes: Message, stack trace and notes as a payload, when a failure converter hides them from the
            engine.
        cause: What brought this about.
        info: The kind, with what belongs to it.
        notes: What was added to the error on its way, as by a saga of which a compensation failed.
    """

    message: str = ""
    source: str = ""
    stack_trace: str = ""
    encoded_attributes: OptionalPayload = None
    cause: Failure | None = None
    info: FailureInfo | None = None
    notes: tuple[str, ...] = ()
