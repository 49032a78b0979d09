"""Runs in a worker's cache, and what is done with their machines on workflow threads.

Owns: `CachedRun` and the kinds of turn. Never: decides which turn comes when (``_workflow_tasks`` does).

How it works: the service loop makes a turn and hands it to a thread; while it is there, the machine belongs to that
thread alone. Each turn keeps what came of it, result or error, for the service loop to look at.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Final, Protocol, TypeAlias, final

from clew.model.commands import RecordMarker
from clew.model.inputs import CompleteWorkflowTaskRequest
from clew.model.payload import payloads_size
from clew.replay import ActivationResult, LocalActivityOutcome, LocalActivityRequest, step_marker
from clew.service.requests import RecordMarkersResponse, WorkflowTask
from clew.worker._local_activities import LocalRun


class Machine(Protocol):
    """What a worker needs of the machine of one run; see `clew.replay.WorkflowMachine`."""

    @property
    def cached_through_event_id(self) -> int: ...
    @property
    def applied_event_id(self) -> int: ...
    @property
    def tasks_count(self) -> int: ...
    @property
    def buried_count(self) -> int: ...
    def activate(self, task: WorkflowTask) -> ActivationResult: ...
    def finish_local_activity(self, outcome: LocalActivityOutcome) -> ActivationResult: ...
    def take_recorded(
        self,
        outcomes: Sequence[LocalActivityOutcome],
        *,
        last_event_id: int,
        event_time: datetime,
        is_end_wanted: bool = False,
    ) -> ActivationResult: ...
    def extend_task(self) -> ActivationResult | None: ...
    def evict(self) -> None: ...


class Machines(Protocol):
    """Makes machines, and completes their answers with what only the worker knows."""

    def make(self, task: WorkflowTask) -> Machine:
        """Make the machine for the run of `task`; on a workflow thread.

        Raises:
            ClewError: There is no workflow of that type.
        """
        ...

    def sign(self, completion: CompleteWorkflowTaskRequest, *, is_sticky: bool) -> CompleteWorkflowTaskRequest: ...


EVENTS_QUICK_MAX: Final = 100
"""A task that brings no more events than this is applied as quickly as most; a long history is not."""

TASKS_QUICK_MAX: Final = 100
"""A run of no more tasks than this is evicted as quickly as most."""

RECORDED_BYTES_MAX: Final = 1024 * 1024
"""A call that records results takes no more from here on; one alone may be larger, and the engine takes 4 MiB."""

Job: TypeAlias = "WorkflowTask | ExtendTask"

Finished: TypeAlias = tuple[LocalActivityRequest, LocalActivityOutcome]
"""A local activity that has an outcome."""


@final
class ExtendTask:
    """The time of the open task runs out while local activities go on."""


@final
class CachedRun:
    """One run in the cache; on the service loop.

    Attributes:
        machine: Its machine, once a turn has made it.
        turn: What is being done with it on a thread, or is about to be.
        task: The workflow task that has no answer yet.
        jobs: What waits for the turn to end. Like `finished` made when there is something to put in: a deque takes 750
            bytes, and few runs need one.
        locals: Its local activities that run, by sequence number.
        finished: Those that have an outcome which is neither recorded nor taken.
        unrecorded: Markers that go ahead of the next one.
        is_recording: Whether markers are on their way into history; there is no turn meanwhile.
        is_settling: Whether what came of the last turn is just being looked at.
        position: The last event that the machine knows of.
        began_at: When the open task was handed over, on the service loop's clock.
        started_at: When the run started, if that is measured.
        renewed_at: When the time of the open task began, on the service loop's clock.
        extension: Wakes up when the time of the open task runs out.
        is_dropped: Whether it has left the cache; its machine goes with its last turn.
        is_early: Whether the open task was taken before its cause was durable, and that is not known to be so yet.
        held: What the turn of such a task has asked for, if that must wait until then.
        is_void: Whether that cause was lost: the task must not be answered.
    """

    __slots__ = (
        "began_at", "extension", "finished", "held", "is_dropped", "is_early", "is_recording", "is_settling",
        "is_void", "jobs", "key_generation", "locals", "machine", "position", "renewed_at", "run_id",
        "started_at", "task", "turn", "unrecorded", "workflow_type",
    )  # fmt: skip

    def __init__(self, run_id: str, workflow_type: str) -> None:
        self.run_id = run_id
        self.workflow_type = workflow_type
        self.machine: Machine | None = None
        self.turn: RunTurn | None = None
        self.task: WorkflowTask | None = None
        self.jobs: deque[Job] | None = None
        self.locals: dict[int, LocalRun] = {}
        self.finished: deque[Finished] | None = None
        self.unrecorded: list[RecordMarker] = []
        self.is_recording = False
        self.is_settling = False
        self.position = 0
        self.renewed_at = 0.0
        self.began_at = 0.0
        self.started_at: datetime | None = None
        self.extension: asyncio.TimerHandle | None = None
        self.key_generation = ""
        self.is_dropped = False
        self.is_early = False
        self.held: ActivationResult | None = None
        self.is_void = False

    def put_job(self, job: Job) -> None:
        """Let it wait for the turn to end."""
        if self.jobs is None:
            self.jobs = deque()
        self.jobs.append(job)

    def put_finished(self, finished: Finished) -> None:
        """Keep an outcome until it is recorded or taken."""
        if self.finished is None:
            self.finished = deque()
        self.finished.append(finished)

    def take_steps(self) -> tuple[tuple[RecordMarker, ...], list[LocalActivityOutcome]]:
        """Take the steps that have finished, up to the next one in a batch: markers to record, and outcomes to give."""
        finished = self.finished
        markers = self.unrecorded
        if finished is not None and len(finished) == 1 and not markers and finished[0][0].input.durable != "batch":
            # The usual: one, alone.
            request, outcome = finished.popleft()
            return (step_marker(request, outcome),), [outcome]
        outcomes: list[LocalActivityOutcome] = []
        self.unrecorded = []
        size = 0
        while finished and finished[0][0].input.durable != "batch" and size < RECORDED_BYTES_MAX:
            request, outcome = finished.popleft()
            size += payloads_size(outcome.result)
            markers.append(step_marker(request, outcome))
            outcomes.append(outcome)
        return tuple(markers), outcomes


class RunTurn:
    """One thing to do with the machine of a run, on a workflow thread."""

    __slots__ = ("error", "kind", "machine", "of", "result")

    def __init__(self, of: CachedRun) -> None:
        self.of = of
        self.machine: Machine | None = of.machine
        self.kind: str | None = of.workflow_type
        self.result: ActivationResult | None = None
        self.error: BaseException | None = None

    def run(self) -> None:
        """Do it, and keep what comes of it."""
        try:
            self.result = self._do()
        except BaseException as error:  # noqa: BLE001 - becomes the failure of the task
            self.error = error

    @property
    def progress(self) -> int:
        """How far the machine has got in its history."""
        return self.machine.applied_event_id if self.machine is not None else 0

    def discard(self) -> None:
        """It came back after it was given up, so nobody else touches its machine any more."""
        if self.machine is not None:
            self.machine.evict()

    def _do(self) -> ActivationResult | None:
        raise NotImplementedError


@final
class Activation(RunTurn):
    """Take one workflow task; makes the machine if there is none."""

    __slots__ = ("make", "task")

    def __init__(self, of: CachedRun, task: WorkflowTask, make: Callable[[WorkflowTask], Machine]) -> None:
        # As the base class would; there are too many of these to ask it.
        self.of = of
        self.machine = of.machine
        self.kind = of.workflow_type if len(task.events) <= EVENTS_QUICK_MAX else None
        self.result = None
        self.error = None
        self.task = task
        self.make = make

    def run(self) -> None:
        """As the base class does, in one call."""
        try:
            machine = self.machine
            if machine is None:
                machine = self.machine = self.of.machine = self.make(self.task)
            self.result = machine.activate(self.task)
        except BaseException as error:  # noqa: BLE001 - becomes the failure of the task
            self.error = error


@final
class RecordedSteps(RunTurn):
    """Take outcomes of local activities that have been recorded."""

    __slots__ = ("answer", "outcomes")

    def __init__(self, of: CachedRun, outcomes: list[LocalActivityOutcome], answer: RecordMarkersResponse) -> None:
        super().__init__(of)
        self.outcomes = outcomes
        self.answer = answer

    def _do(self) -> ActivationResult | None:
        assert self.machine is not None, "only a run with a machine has local activities"
        answer = self.answer
        return self.machine.take_recorded(
            self.outcomes,
            last_event_id=answer.last_event_id,
            event_time=answer.event_time,
            is_end_wanted=answer.is_end_wanted,
        )


@final
class LocalOutcome(RunTurn):
    """Take the outcome of a local activity in a batch."""

    __slots__ = ("outcome",)

    def __init__(self, of: CachedRun, outcome: LocalActivityOutcome) -> None:
        super().__init__(of)
        self.outcome = outcome

    def _do(self) -> ActivationResult | None:
        assert self.machine is not None, "only a run with a machine has local activities"
        return self.machine.finish_local_activity(self.outcome)


@final
class Extension(RunTurn):
    """Answer the open task before its time is over; its local activities run on."""

    __slots__ = ()

    def _do(self) -> ActivationResult | None:
        assert self.machine is not None, "only a run with a machine has local activities"
        return self.machine.extend_task()


@final
class Eviction:
    """The end of a cached run.

    Args:
        machine: Of the run.
        kind: The workflow type. A run of many tasks goes to a thread all the same: it takes 30 µs a task.
    """

    __slots__ = ("kind", "machine")

    def __init__(self, machine: Machine, kind: str | None) -> None:
        self.machine = machine
        self.kind = kind if machine.tasks_count <= TASKS_QUICK_MAX else None

    @property
    def progress(self) -> int:
        """How many of its objects have been laid to rest."""
        return self.machine.buried_count

    def run(self) -> None:
        """Evict it."""
        self.machine.evict()

    def discard(self) -> None:
        """Nothing is left to do."""
