"""The one door to the history machine: every decision by name.

Owns: nothing; it gathers the `decide_*` functions, so that a caller imports one module. All take the state they own and
answer with a `Transition` (the state has moved) or a `Rejection` (it has not); see ``core.transition``.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from clew.core.replies import ExistingRun, StartVerdict
from clew.core.state import ExecutionState
from clew.core.transition import ActivityTaskReady, Transition, WorkflowTaskReady
from clew.model.events import Event, ExecutionRef, ExternalFailedCause, UpdateRequest, WorkflowExecutionStarted
from clew.model.inputs import (
    CancelActivityRequest,
    CompleteActivityRequest,
    CompleteWorkflowTaskRequest,
    FailActivityRequest,
    FailWorkflowTaskRequest,
    HeartbeatActivityRequest,
    ReleaseActivityRequest,
    RequestCancelRequest,
    SignalWorkflowRequest,
    StartWorkflowRequest,
    TaskToken,
    TerminateWorkflowRequest,
)
from clew.model.limits import LIMITS_DEFAULT, Limits
from clew.model.rejection import Rejection

# Signatures first; each is replaced by its import as it is written.


def decide_start(
    request: StartWorkflowRequest,
    *,
    run_id: str,
    now: datetime,
    key_generation: str,
    parent: ExecutionRef | None = None,
    parent_initiated_event_id: int = 0,
    root: ExecutionRef | None = None,
    hold_first_task: bool = False,
    signal: SignalWorkflowRequest | None = None,
    limits: Limits = LIMITS_DEFAULT,
) -> tuple[ExecutionState, Transition] | Rejection:
    raise NotImplementedError


def decide_id_policy(
    request: StartWorkflowRequest, existing: ExistingRun, now: datetime, *, limits: Limits = LIMITS_DEFAULT
) -> StartVerdict:
    raise NotImplementedError


def decide_attach_request(state: ExecutionState, request_id: str, now: datetime) -> Transition:
    raise NotImplementedError


def decide_release_first_task(state: ExecutionState, now: datetime) -> Transition | Rejection:
    raise NotImplementedError


def decide_signal(
    state: ExecutionState,
    request: SignalWorkflowRequest,
    now: datetime,
    *,
    external: ExecutionRef | None = None,
    dispatch_now: bool = False,
    limits: Limits = LIMITS_DEFAULT,
) -> Transition | Rejection:
    raise NotImplementedError


def decide_cancel_request(
    state: ExecutionState,
    request: RequestCancelRequest,
    now: datetime,
    *,
    external: ExecutionRef | None = None,
    external_initiated_event_id: int = 0,
    limits: Limits = LIMITS_DEFAULT,
) -> Transition | Rejection:
    raise NotImplementedError


def decide_terminate(state: ExecutionState, request: TerminateWorkflowRequest, now: datetime) -> Transition | Rejection:
    raise NotImplementedError


def decide_start_workflow_task(
    state: ExecutionState,
    *,
    scheduled_event_id: int,
    attempt: int,
    session: str,
    identity: str,
    now: datetime,
    request_id: str = "",
    limits: Limits = LIMITS_DEFAULT,
) -> Transition | Rejection:
    """Reply: `StartedWorkflowTask`."""
    raise NotImplementedError


def decide_complete_workflow_task(
    state: ExecutionState,
    request: CompleteWorkflowTaskRequest,
    now: datetime,
    *,
    session: str,
    new_run_id: Callable[[], str],
    started: WorkflowExecutionStarted | None = None,
    limits: Limits = LIMITS_DEFAULT,
) -> Transition | Rejection:
    """`started` (event 1) must be given when ``state.needs_started_event``."""
    raise NotImplementedError


def decide_fail_workflow_task(
    state: ExecutionState,
    request: FailWorkflowTaskRequest,
    now: datetime,
    *,
    limits: Limits = LIMITS_DEFAULT,
) -> Transition | Rejection:
    raise NotImplementedError


def decide_start_activity(
    state: ExecutionState, *, scheduled_event_id: int, attempt: int, session: str, identity: str, now: datetime
) -> Transition | Rejection:
    """Reply: `StartedActivity`."""
    raise NotImplementedError


def decide_complete_activity(
    state: ExecutionState, request: CompleteActivityRequest, now: datetime, *, limits: Limits = LIMITS_DEFAULT
) -> Transition | Rejection:
    raise NotImplementedError


def decide_fail_activity(
    state: ExecutionState, request: FailActivityRequest, now: datetime, *, limits: Limits = LIMITS_DEFAULT
) -> Transition | Rejection:
    raise NotImplementedError


def decide_cancel_activity(
    state: ExecutionState, request: CancelActivityRequest, now: datetime, *, limits: Limits = LIMITS_DEFAULT
) -> Transition | Rejection:
    raise NotImplementedError


def decide_release_activity(
    state: ExecutionState, request: ReleaseActivityRequest, now: datetime
) -> Transition | Rejection:
    raise NotImplementedError


def decide_detach_activity(state: ExecutionState, token: TaskToken, now: datetime) -> Transition | Rejection:
    raise NotImplementedError


def decide_heartbeat_activity(
    state: ExecutionState, request: HeartbeatActivityRequest, now: datetime
) -> Transition | Rejection:
    """Reply: `HeartbeatReply`."""
    raise NotImplementedError


def decide_due(
    state: ExecutionState,
    now: datetime,
    limits: Limits = LIMITS_DEFAULT,
    *,
    new_run_id: Callable[[], str] | None = None,
    started: WorkflowExecutionStarted | None = None,
) -> Transition | None:
    """`started` and `new_run_id` must be given when ``state.needs_started_event``."""
    raise NotImplementedError


def decide_sessions_lost(
    state: ExecutionState, is_lost: Callable[[str], bool], now: datetime, *, limits: Limits = LIMITS_DEFAULT
) -> Transition | None:
    raise NotImplementedError


def outstanding_tasks(state: ExecutionState) -> list[WorkflowTaskReady | ActivityTaskReady]:
    raise NotImplementedError


def decide_admit_update(
    state: ExecutionState, request: UpdateRequest, now: datetime, limits: Limits = LIMITS_DEFAULT
) -> Transition | Rejection:
    """Reply: `UpdateAdmission`."""
    raise NotImplementedError


def decide_child_started(
    state: ExecutionState, initiated_event_id: int, run_id: str, now: datetime, *, limits: Limits = LIMITS_DEFAULT
) -> Transition | Rejection:
    raise NotImplementedError


def decide_child_start_failed(
    state: ExecutionState,
    initiated_event_id: int,
    cause: ExternalFailedCause,
    now: datetime,
    *,
    limits: Limits = LIMITS_DEFAULT,
) -> Transition | Rejection:
    raise NotImplementedError


def decide_child_closed(
    state: ExecutionState,
    initiated_event_id: int,
    closing: Event,
    now: datetime,
    *,
    run_id: str = "",
    limits: Limits = LIMITS_DEFAULT,
) -> Transition | Rejection:
    raise NotImplementedError


def decide_external_signaled(
    state: ExecutionState, initiated_event_id: int, now: datetime, *, limits: Limits = LIMITS_DEFAULT
) -> Transition | Rejection:
    raise NotImplementedError


def decide_external_signal_failed(
    state: ExecutionState,
    initiated_event_id: int,
    cause: ExternalFailedCause,
    now: datetime,
    *,
    limits: Limits = LIMITS_DEFAULT,
) -> Transition | Rejection:
    raise NotImplementedError


def decide_external_cancel_requested(
    state: ExecutionState, initiated_event_id: int, now: datetime, *, limits: Limits = LIMITS_DEFAULT
) -> Transition | Rejection:
    raise NotImplementedError


def decide_external_cancel_failed(
    state: ExecutionState,
    initiated_event_id: int,
    cause: ExternalFailedCause,
    now: datetime,
    *,
    limits: Limits = LIMITS_DEFAULT,
) -> Transition | Rejection:
    raise NotImplementedError
