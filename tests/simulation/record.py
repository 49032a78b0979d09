"""What was committed, as seen from outside the engine, and the laws that can be told at once.

Owns: `Record`: the log of every run, kept from the commits as they become durable, and the facts that an
acknowledgement must rest on. Never: asks the engine.

How it works: each committed unit is compared with what was there: event ids go on without a gap, nothing follows a
close, a version grows by one from where it was, one workflow id has one open run. When a caller is answered, the log
must hold what was acknowledged (law 3).
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

from clew.core.codec import decode_state
from clew.core.state import ExecutionState
from clew.model import events as e
from clew.model.policies import WorkflowExecutionStatus
from clew.ports.store import CommitStatus, PendingItem, RunWrite
from tests.simulation.places import named


class LawBroken(AssertionError):
    """A law of the design does not hold; the message names it."""


class RunLog:
    """One run, as committed."""

    def __init__(self, write: RunWrite, number: int) -> None:
        self.run_key = write.run_key
        self.number = number
        """Runs are numbered in the order in which they became durable."""
        self.namespace = write.namespace
        self.workflow_id = named(write.namespace, write.workflow_id)
        """Its name, which says in which namespace it lies (``places``)."""
        self.run_id = write.run_id
        self.version = 0
        self.status = WorkflowExecutionStatus.RUNNING
        self.events: list[e.Event] = []
        self.state_bytes = b""
        self.items: dict[tuple[int, int], PendingItem] = {}
        self.closed_at = 0.0
        """When its close was durable, on the loop's clock."""
        self.is_deleted = False

    def state(self) -> ExecutionState:
        """The snapshot that was stored last."""
        items = [(item.kind, item.item_id, item.data) for item in self.items.values()]
        return decode_state(self.state_bytes, items)

    @property
    def is_open(self) -> bool:
        return self.status.is_open


class Record:
    """See the module docstring.

    Args:
        now: What every clock of this world says, if all say the same: then no event can be of a later moment.
        time: The loop's clock.
    """

    def __init__(self, now: Callable[[], datetime] | None = None, time: Callable[[], float] = float) -> None:
        self._now = now
        self._time = time
        self.runs: dict[int, RunLog] = {}
        self.by_run_id: dict[str, RunLog] = {}
        self.latest: dict[str, RunLog] = {}
        """By workflow id: the run that became durable last."""
        self.open_runs: dict[str, int] = {}
        self.commits = 0
        self.conflicts = 0
        self.broken: list[str] = []
        """Laws found broken in a callback that must not raise."""

    # --- commits ----------------------------------------------------------------------------------------------------

    def note(self, unit: tuple[RunWrite, ...], status: CommitStatus) -> None:
        """A unit is durable, or lost its guard."""
        if status is not CommitStatus.COMMITTED:
            self.conflicts += 1
            return
        self.commits += 1
        try:
            for write in unit:
                self._note_write(write)
            for write in unit:
                self._note_open(write)
        except LawBroken as broken:
            self.broken.append(str(broken))

    def _note_write(self, write: RunWrite) -> None:
        run = self.runs.get(write.run_key)
        if run is None:
            if write.run_id in self.by_run_id:
                raise LawBroken(f"law 1: run id {write.run_id} is given twice")
            run = self.runs[write.run_key] = self.by_run_id[write.run_id] = RunLog(write, len(self.runs))
            self.latest[run.workflow_id] = run
        if run.is_deleted:
            raise LawBroken(f"law 1: {run.workflow_id} was deleted, and is written")
        if write.expected_version != run.version:
            raise LawBroken(
                f"law 2: a write of run {run.workflow_id} decided on version {write.expected_version} was committed "
                f"over version {run.version}"
            )
        run.version = write.version
        for batch in write.batches:
            self._note_events(run, list(e.decode_events(batch.events)), batch.first_event_id, batch.last_event_id)
        if run.is_open and not write.status.is_open:
            run.closed_at = self._time()
        run.status = write.status
        run.state_bytes = write.state
        for key in write.items_delete:
            run.items.pop(key, None)
        for item in write.items_put:
            run.items[item.kind, item.item_id] = item

    def _note_events(self, run: RunLog, events: list[e.Event], first: int, last: int) -> None:
        if run.events and type(run.events[-1]) in CLOSES:
            raise LawBroken(f"law 1: {type(events[0]).__name__} follows the close of run {run.workflow_id}")
        wanted = list(range(len(run.events) + 1, len(run.events) + 1 + len(events)))
        if [event.event_id for event in events] != wanted or (first, last) != (wanted[0], wanted[-1]):
            raise LawBroken(f"law 1: events {first}-{last} of {run.workflow_id} follow event {len(run.events)}")
        if self._now is not None and max(event.event_time for event in events) > (now := self._now()):
            raise LawBroken(f"law 8: of {events} one is stamped with a moment that is still to come: it is {now}")
        run.events += events

    def _note_open(self, write: RunWrite) -> None:
        name = named(write.namespace, write.workflow_id)
        before = self.open_runs.get(name)
        if write.status.is_open:
            if before is not None and before != write.run_key:
                raise LawBroken(f"law 4: runs {before} and {write.run_key} of {name} are open at once")
            self.open_runs[name] = write.run_key
        elif before == write.run_key:
            del self.open_runs[name]

    def note_deletion(self, run_key: int) -> None:
        """A run is gone from the store."""
        run = self.runs[run_key]
        if run.is_open or run.is_deleted:
            self.broken.append(f"law 1: {run.workflow_id} was deleted, and was {run.status.value}")
        run.is_deleted = True

    # --- facts ------------------------------------------------------------------------------------------------------

    def runs_of(self, workflow_id: str) -> list[RunLog]:
        """All runs of a workflow id, oldest first."""
        return [run for _, run in sorted(self.runs.items()) if run.workflow_id == workflow_id]

    def signals_of(self, workflow_id: str, request_id: str) -> int:
        """How often a signal is recorded: in history, or durably on its way into it."""
        count = 0
        for run in self.runs_of(workflow_id):
            found = [event for event in run.events if _is_signal(event, request_id)]
            if run.is_open:
                found += [event for event in run.state().buffered_events if _is_signal(event, request_id)]
            count += len(found)
        return count

    def must_hold_cancel(self, workflow_id: str) -> bool:
        """Whether a cancel request of this id that was answered has to be recorded, and is not: no run of it has come
        to an end, so there was one to cancel."""
        runs = self.runs_of(workflow_id)
        events = [
            event for run in runs for event in (*run.events, *(run.state().buffered_events if run.is_open else ()))
        ]
        has_ended = any(
            not run.is_open and not isinstance(run.events[-1], e.WorkflowExecutionContinuedAsNew) for run in runs
        )
        return not has_ended and not any(isinstance(event, e.WorkflowExecutionCancelRequested) for event in events)

    def is_terminated(self, workflow_id: str, reason: str) -> bool:
        """Whether a run of this id was terminated for this reason."""
        return any(
            isinstance(event, e.WorkflowExecutionTerminated) and event.reason == reason
            for run in self.runs_of(workflow_id)
            for event in run.events[-1:]
        )

    def has_outcome(self, run_id: str, scheduled_event_id: int) -> bool:
        """Whether the outcome of an activity is recorded, or its run is over."""
        run = self.by_run_id.get(run_id)
        if run is None or not run.is_open:
            return run is not None
        events = [*run.events, *run.state().buffered_events]
        return any(
            isinstance(event, ACTIVITY_ENDS) and event.scheduled_event_id == scheduled_event_id for event in events
        )

    def updates_of(self, workflow_id: str, update_id: str) -> list[e.WorkflowExecutionUpdateCompleted]:
        """The recorded outcomes of an update."""
        return [
            event
            for run in self.runs_of(workflow_id)
            for event in run.events
            if isinstance(event, e.WorkflowExecutionUpdateCompleted) and event.update_id == update_id
        ]

    def has_accepted(self, run_id: str, update_id: str) -> bool:
        """Whether the acceptance of an update is recorded in this run."""
        run = self.by_run_id.get(run_id)
        return run is not None and any(
            isinstance(event, e.WorkflowExecutionUpdateAccepted) and event.protocol_instance_id == update_id
            for event in run.events
        )

    def what_is_ahead(self, seen: dict[str, Any]) -> str:
        """What workflow code said that it knows, and the store does not hold; empty when it holds everything."""
        run = self.by_run_id.get(seen["run_id"])
        if run is None:
            return f"run {seen['run_id']}"
        results = sum(isinstance(event, e.ActivityTaskCompleted) for event in run.events)
        if seen["heard"] > results:
            return f"{seen['heard']} results of activities, but {results}"
        runs = self.runs_of(run.workflow_id)
        events = [event for one in runs for event in one.events]
        signals = sum(isinstance(event, e.WorkflowExecutionSignaled) for event in events)
        updates = sum(isinstance(event, e.WorkflowExecutionUpdateAccepted) for event in events)
        if len(seen["signals"]) > signals or seen["updates"] > updates:
            return f"what was told of {run.workflow_id} ({seen}), but {signals} signals and {updates} updates"
        return ""


CLOSES = (
    e.WorkflowExecutionCompleted,
    e.WorkflowExecutionFailed,
    e.WorkflowExecutionTimedOut,
    e.WorkflowExecutionCanceled,
    e.WorkflowExecutionTerminated,
    e.WorkflowExecutionContinuedAsNew,
)


ACTIVITY_ENDS = (
    e.ActivityTaskCompleted,
    e.ActivityTaskFailed,
    e.ActivityTaskTimedOut,
    e.ActivityTaskCanceled,
)


def _is_signal(event: object, request_id: str) -> bool:
    return isinstance(event, e.WorkflowExecutionSignaled) and event.request_id == request_id
