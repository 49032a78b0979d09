"""Commands: what workflow code asks for, in the field's published vocabulary (semantics 2.3).

Owns: every command with its attributes, and the union `Command`. Never: says what becomes of one (``core`` does).
Each command except `ProtocolMessage` makes exactly one event, in command order, right after WorkflowTaskCompleted.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Final, TypeAlias

import msgspec

from clew.model.events import (
    ZERO,
    ContinueAsNewInitiator,
    ExecutionRef,
    Header,
    Memo,
    SearchAttributes,
    UserMetadata,
)
from clew.model.failure import Failure
from clew.model.payload import Payloads
from clew.model.policies import (
    ParentClosePolicy,
    Priority,
    RetryPolicy,
    VersioningBehavior,
    WorkflowIDReusePolicy,
)


class BaseCommand(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="type", tag=True, gc=False):
    """What every command may carry."""

    user_metadata: UserMetadata | None = None


class ScheduleActivityTask(BaseCommand, frozen=True, kw_only=True):
    activity_id: str
    activity_type: str
    task_queue: str = ""
    header: Header | None = None
    input: Payloads = ()
    schedule_to_close_timeout: timedelta = ZERO
    schedule_to_start_timeout: timedelta = ZERO
    start_to_close_timeout: timedelta = ZERO
    heartbeat_timeout: timedelta = ZERO
    retry_policy: RetryPolicy | None = None
    request_eager_execution: bool = False
    priority: Priority | None = None


class RequestCancelActivityTask(BaseCommand, frozen=True, kw_only=True):
    scheduled_event_id: int


class StartTimer(BaseCommand, frozen=True, kw_only=True):
    timer_id: str
    start_to_fire_timeout: timedelta


class CompleteWorkflowExecution(BaseCommand, frozen=True, kw_only=True):
    result: Payloads = ()


class FailWorkflowExecution(BaseCommand, frozen=True, kw_only=True):
    failure: Failure


class CancelTimer(BaseCommand, frozen=True, kw_only=True):
    timer_id: str


class CancelWorkflowExecution(BaseCommand, frozen=True, kw_only=True):
    details: Payloads = ()


class RequestCancelExternalWorkflowExecution(BaseCommand, frozen=True, kw_only=True):
    workflow_execution: ExecutionRef
    child_workflow_only: bool = False
    reason: str = ""


class RecordMarker(BaseCommand, frozen=True, kw_only=True):
    marker_name: str
    details: dict[str, Payloads] = msgspec.field(default_factory=dict[str, Payloads])
    header: Header | None = None
    failure: Failure | None = None


class ContinueAsNewWorkflowExecution(BaseCommand, frozen=True, kw_only=True):
    workflow_type: str = ""
    task_queue: str = ""
    input: Payloads = ()
    workflow_run_timeout: timedelta = ZERO
    workflow_task_timeout: timedelta = ZERO
    backoff_start_interval: timedelta = ZERO
    retry_policy: RetryPolicy | None = None
    initiator: ContinueAsNewInitiator = ContinueAsNewInitiator.WORKFLOW
    cron_schedule: str = ""
    header: Header | None = None
    memo: Memo | None = None
    search_attributes: SearchAttributes | None = None
    initial_versioning_behavior: VersioningBehavior = VersioningBehavior.UNSPECIFIED
    """``AutoUpgrade``: the next run of a pinned one begins on the version that new runs get."""


class StartChildWorkflowExecution(BaseCommand, frozen=True, kw_only=True):
    workflow_id: str
    workflow_type: str
    task_queue: str = ""
    namespace: str = ""
    input: Payloads = ()
    workflow_execution_timeout: timedelta = ZERO
    workflow_run_timeout: timedelta = ZERO
    workflow_task_timeout: timedelta = ZERO
    parent_close_policy: ParentClosePolicy = ParentClosePolicy.TERMINATE
    workflow_id_reuse_policy: WorkflowIDReusePolicy = WorkflowIDReusePolicy.ALLOW_DUPLICATE
    retry_policy: RetryPolicy | None = None
    cron_schedule: str = ""
    header: Header | None = None
    memo: Memo | None = None
    search_attributes: SearchAttributes | None = None
    priority: Priority | None = None


class SignalExternalWorkflowExecution(BaseCommand, frozen=True, kw_only=True):
    workflow_execution: ExecutionRef
    signal_name: str
    input: Payloads = ()
    header: Header | None = None
    child_workflow_only: bool = False


class UpsertSearchAttributes(BaseCommand, frozen=True, kw_only=True):
    search_attributes: SearchAttributes


class ProtocolMessage(BaseCommand, frozen=True, kw_only=True):
    """Gives the place among the commands at which the named message (of the same task answer) is processed."""

    message_id: str


class ModifyWorkflowProperties(BaseCommand, frozen=True, kw_only=True):
    upserted_memo: Memo


Command: TypeAlias = (
    ScheduleActivityTask
    | RequestCancelActivityTask
    | StartTimer
    | CompleteWorkflowExecution
    | FailWorkflowExecution
    | CancelTimer
    | CancelWorkflowExecution
    | RequestCancelExternalWorkflowExecution
    | RecordMarker
    | ContinueAsNewWorkflowExecution
    | StartChildWorkflowExecution
    | SignalExternalWorkflowExecution
    | UpsertSearchAttributes
    | ProtocolMessage
    | ModifyWorkflowProperties
)

CLOSE_COMMANDS: Final = (
    CompleteWorkflowExecution,
    FailWorkflowExecution,
    CancelWorkflowExecution,
    ContinueAsNewWorkflowExecution,
)
"""Commands that close the run; one of them must be the last of its task."""

COMMAND_NUMBERS: Final[dict[type[BaseCommand], int]] = {
    ScheduleActivityTask: 1,
    RequestCancelActivityTask: 2,
    StartTimer: 3,
    CompleteWorkflowExecution: 4,
    FailWorkflowExecution: 5,
    CancelTimer: 6,
    CancelWorkflowExecution: 7,
    RequestCancelExternalWorkflowExecution: 8,
    RecordMarker: 9,
    ContinueAsNewWorkflowExecution: 10,
    StartChildWorkflowExecution: 11,
    SignalExternalWorkflowExecution: 12,
    UpsertSearchAttributes: 13,
    ProtocolMessage: 14,
    ModifyWorkflowProperties: 16,
}
"""Numbers of the published model. Not ours yet: 17, 18 (Nexus)."""
