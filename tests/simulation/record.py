"""What was committed, as seen from outside the engine, and the laws that can be told at once.

Owns: `Record`: the log of every run, kept from the commits as they become durable, and the facts that an
acknowledgement must rest on. Never: asks the engine.

How it works: each committed unit is compared with what was there: event ids go on without a gap, nothing follows a
close, a version grows by one from where it was, one workflow id has one open run. When a caller is answered, the log
must hold what was acknowledged (law 3).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
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
        self.noted_in: list[int] = []
        """Of each event: the change of the store (`Record.changes`) that made it durable."""
        self.opened_in = self.closed_in = self.deleted_in = 0
        """The changes by which it began, closed, and was deleted; 0 for what has not happened."""
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

    def was_there_in(self, change: int) -> bool:
        """Whether the store held it right after this change."""
        return self.opened_in <= change and not 0 < self.deleted_in <= change

    def was_open_in(self, change: int) -> bool:
        """Whether it was open right after this change."""
        return self.opened_in <= change and not 0 < self.closed_in <= change


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
        self.changes = 0
        """Commits and deletions, in their order: the clock of what is durable."""
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
        self.changes += 1
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
            run.opened_in = self.changes
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
            run.closed_in = self.changes
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
        run.noted_in += [self.changes] * len(events)

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
        self.changes += 1
        run.is_deleted, run.deleted_in = True, self.changes

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

    def moments(self, workflow_id: str, since: int, until: int) -> Iterator[tuple[int, list[RunLog]]]:
        """From a change to another: the runs of this id that the store held, whenever that or their states changed."""
        runs = self.runs_of(workflow_id)
        changes = {change for run in runs for change in (run.opened_in, run.closed_in, run.deleted_in)}
        for change in sorted({since, *(one for one in changes if since < one <= until)}):
            yield change, [run for run in runs if run.was_there_in(change)]

    def was_always_open(self, workflow_id: str, since: int, until: int) -> bool:
        """Whether at every moment from a change to another some run of this id was open."""
        moments = self.moments(workflow_id, since, until)
        return all(any(run.was_open_in(change) for run in there) for change, there in moments)

    def was_always_there(self, workflow_id: str, since: int, until: int) -> bool:
        """Whether at every moment from a change to another the store held some run of this id."""
        return all(there for _, there in self.moments(workflow_id, since, until))

    def has_been_there(self, workflow_id: str, since: int, until: int) -> bool:
        """Whether at any moment from a change to another the store held some run of this id."""
        return any(there for _, there in self.moments(workflow_id, since, until))

    def was_cancelled(self, workflow_id: str, request_id: str, since: int, until: int) -> bool:
        """Whether a cancel request that was made after a change, and done before another, has been felt.

        It is recorded, or met a run that had one already, or there was none that was open. One that was buffered for a
        while is in history later than it was felt.
        """
        for run in self.runs_of(workflow_id):
            buffered = run.state().buffered_events if run.is_open else ()
            asked = [ev for ev in (*run.events, *buffered) if isinstance(ev, e.WorkflowExecutionCancelRequested)]
            if any(event.request_id == request_id for event in asked):
                return True
            if asked and (run.is_open or run.closed_in >= since):
                return True
        return not self.was_always_open(workflow_id, since, until)

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
