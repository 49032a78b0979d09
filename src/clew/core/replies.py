"""What decisions answer their callers with, beside the transition.

Owns: the reply structs, which travel in ``Transition.reply`` and never leave the engine's process.
"""

from __future__ import annotations

from datetime import datetime
from typing import TypeAlias

import msgspec

from clew.core.pending import PendingActivity
from clew.model.events import UpdateRequest, WorkflowTaskScheduled, WorkflowTaskStarted
from clew.model.policies import WorkflowExecutionStatus
from clew.model.rejection import Rejection


class _Reply(msgspec.Struct, gc=False, frozen=True, kw_only=True):
    """Base of the replies."""


class SentUpdate(_Reply, frozen=True, kw_only=True):
    """An update that rides on a workflow task, in order of admission."""

    message_id: str
    request: UpdateRequest
    sequencing_event_id: int


class StartedWorkflowTask(_Reply, frozen=True, kw_only=True):
    """A workflow task was given to a worker.

    Args:
        previous_started_event_id: Started event of the last completed task; a worker that has the run cached needs only
            the events after it.
        synthetic_events: For a task that is not in history: its Scheduled and Started, to be sent after the last real
            event. Their ids are those the real ones get if the task ends in history.
        updates: Updates that the task must answer.
    """

    lease_id: int
    scheduled_event_id: int
    started_event_id: int
    attempt: int
    previous_started_event_id: int
    scheduled_time: datetime
    started_time: datetime
    synthetic_events: tuple[WorkflowTaskScheduled | WorkflowTaskStarted, ...] = ()
    updates: tuple[SentUpdate, ...] = ()


class RecordedMarkers(_Reply, frozen=True, kw_only=True):
    """Markers were recorded while their workflow task goes on.

    Args:
        last_event_id: Of the last of them; the others stand right before it.
        event_time: Of all of them.
        is_end_wanted: There is news for the workflow, or more history than its task was told of: the task should end.
    """

    last_event_id: int
    event_time: datetime
    is_end_wanted: bool = False


class DroppedWorkflowTask(_Reply, frozen=True, kw_only=True):
    """A task made for updates alone ended without a trace, because they were all rejected.

    Its event ids are given again to other events: a worker that has the run cached goes back to
    `reset_event_id`, the started event of the last task that history has.
    """

    reset_event_id: int


class StartedActivity(_Reply, frozen=True, kw_only=True):
    """An attempt of an activity was given to a worker.

    `activity` is the live record: read it at once, do not keep it. With the workflow id and the secret of the
    namespace, `key_generation` and the activity id make the idempotency key (``core.idempotency``).
    """

    lease_id: int
    attempt: int
    key_generation: str
    activity: PendingActivity


class HeartbeatReply(_Reply, frozen=True, kw_only=True):
    """What a heartbeat is answered with."""

    cancel_requested: bool = False


class UpdateAdmission(_Reply, frozen=True, kw_only=True):
    """How far an update has come.

    Neither event id: admitted. `accepted_event_id` alone: accepted. Both: ended; the outcome is in the
    WorkflowExecutionUpdateCompleted event of `completed_event_id`. With `run_id`, an earlier run of the chain took it,
    and knows how far it has come.
    """

    update_id: str
    accepted_event_id: int = 0
    completed_event_id: int = 0
    is_new: bool = False
    run_id: str = ""


class ExistingRun(_Reply, frozen=True, kw_only=True):
    """The latest run of a workflow id, as far as a start needs to know it."""

    run_id: str
    first_execution_run_id: str
    status: WorkflowExecutionStatus
    start_time: datetime
    start_request_id: str = ""
    request_ids: tuple[str, ...] = ()
    """Other requests that were answered with this run."""


class Start(_Reply, frozen=True, kw_only=True):
    """Start a new run."""


class TerminateThenStart(_Reply, frozen=True, kw_only=True):
    """Terminate the open run with `reason`, and start a new one in the same unit."""

    run_id: str
    reason: str


class UseExisting(_Reply, frozen=True, kw_only=True):
    """Answer with the open run; the request id should be remembered (`decide_attach_request`)."""

    run_id: str
    first_execution_run_id: str


class Repeat(_Reply, frozen=True, kw_only=True):
    """The same request came before: answer as it was answered then."""

    run_id: str
    first_execution_run_id: str


StartVerdict: TypeAlias = Start | TerminateThenStart | UseExisting | Repeat | Rejection
