"""What a worker gives a machine, and what it gets back.

Owns: `MachineOptions` and `ActivationResult`. Never: behaviour.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, final

import msgspec

from clew.common import MetricMeter, VersioningBehavior, WorkerDeploymentVersion
from clew.model.commands import RecordMarker
from clew.model.failure import Failure
from clew.model.inputs import CompleteWorkflowTaskRequest, FailWorkflowTaskRequest
from clew.model.payload import Payloads
from clew.service.requests import AnswerQueryRequest
from clew.workflow._interceptor import StartLocalActivityInput, WorkflowInboundInterceptor


class NondeterminismPolicy(enum.Enum):
    """What a mismatch between code and history does to the run."""

    SUSPEND = "suspend"
    """It fails the workflow task, so that a deployment heals the run."""
    FAIL = "fail"
    """It fails the run."""


@final
@dataclass(frozen=True, kw_only=True)
class MachineOptions:
    """How runs of one worker are run.

    Args:
        failure_exception_types: Exceptions that fail any run of the worker in place of the workflow task.
        nondeterminism_policy: What a mismatch does.
        interceptors: Classes of inbound interceptors, outermost first.
        extern_functions: What interceptors offer to workflow code.
        is_guarded: Whether the determinism guard watches activations.
        reports_waiting: Whether answers say where the code waits (`CompleteWorkflowTaskRequest.waiting_on`).
        deployment_version: Of the worker.
        versioning_behavior: Of workflows that name none.
        metric_meter: Where metrics go; None drops them.
        is_eager: Whether activities may be handed to this worker with the answer to its task.
        runs_local_activities: Whether the worker can run local activities and take results without an answer.
        identity: Of the worker; empty for one whose answers somebody else completes with what only a worker knows.
        is_sticky: Whether the worker keeps runs between their tasks.
    """

    failure_exception_types: Sequence[type[BaseException]] = ()
    nondeterminism_policy: NondeterminismPolicy = NondeterminismPolicy.SUSPEND
    interceptors: Sequence[type[WorkflowInboundInterceptor]] = ()
    extern_functions: Mapping[str, Callable[..., Any]] = field(default_factory=dict[str, Callable[..., Any]])
    is_guarded: bool = True
    reports_waiting: bool = True
    deployment_version: WorkerDeploymentVersion | None = None
    versioning_behavior: VersioningBehavior = VersioningBehavior.UNSPECIFIED
    metric_meter: MetricMeter | None = None
    is_eager: bool = True
    runs_local_activities: bool = False
    identity: str = ""
    is_sticky: bool = False


@final
class LocalActivityRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A local activity that the worker is to run, with its retries.

    What comes of it is recorded at once and then given to `WorkflowMachine.take_recorded`; that of one which is durable
    only with its workflow task (`input.durable` is ``"batch"``) goes to `WorkflowMachine.finish_local_activity`.
    `input` may be that of others, too: it is not to be changed, and the arguments are those in `payloads`.
    """

    sequence: int
    activity_id: str
    activity_type: str
    input: StartLocalActivityInput
    payloads: Payloads
    attempt: int = 1
    ordinal: int = 1
    """Which one it is of those that the code has started under this id."""


@final
class LocalActivityOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """What came of a local activity.

    Args:
        sequence: Of its request.
        result: What it gave, if it completed.
        failure: Why it did not, after the last attempt.
        is_cancelled: Whether it stopped because it was asked to.
        attempt: The last attempt.
        backoff: It is to be tried again, but only after so long that the run should wait and not the worker; `failure`
            then says why.
    """

    sequence: int
    result: Payloads = ()
    failure: Failure | None = None
    is_cancelled: bool = False
    attempt: int = 1
    backoff: timedelta | None = None


@final
class ActivationResult(msgspec.Struct, frozen=True, kw_only=True):
    """What came of one workflow task.

    Args:
        completion: The answer to the task; None while it waits for local activities (only with
            `MachineOptions.runs_local_activities`): then the outcome of one of them leads to it, or
            `WorkflowMachine.extend_task` when that would take too long.
        is_closed: Whether the run has asked to end; there is no use in keeping it.
        is_replaying: Whether the task only rebuilt what had happened.
        local_activities: Local activities to start, whether or not the task is answered already.
        cancelled_local_activities: Sequence numbers of those that are to stop.
        forgotten_local_activities: Sequence numbers of those whose outcome nobody waits for any more; it must not be
            recorded.
        unrecorded_markers: Of local activities in a batch, since the last result. When the next marker is recorded
            while the task is open, these have to stand before it.
        is_answer_alone: Whether there is an answer and nothing of what follows it here; false says nothing.
    """

    completion: CompleteWorkflowTaskRequest | FailWorkflowTaskRequest | AnswerQueryRequest | None
    is_closed: bool = False
    is_replaying: bool = False
    local_activities: tuple[LocalActivityRequest, ...] = ()
    cancelled_local_activities: tuple[int, ...] = ()
    forgotten_local_activities: tuple[int, ...] = ()
    unrecorded_markers: tuple[RecordMarker, ...] = ()
    is_answer_alone: bool = False
