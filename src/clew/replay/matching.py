"""Requests of workflow code against recorded events: the check that makes replay safe (law 5).

Owns: `Ledger`, the requests of the activation at hand in their order, and their comparison with history.
Never: applies an outcome (``resolutions`` does), decides what a mismatch does to the run (the machine does).

How it works: an activation leaves an ordered list of requests. The events that record them stand right after that
task's WorkflowTaskCompleted, in the same order, whether the task was replayed or live. So when the next events come
in, each command event takes the next request off the list; it must be of the same kind with the same identity. An
activation lasts until its requests are sent: with local activities it goes through their outcomes, and when its task
failed after some of those were recorded, it goes on in the next attempt.
Requests that came to nothing within their own activation (a timer started and cancelled, an activity whose outcome
had arrived when it was cancelled) are dropped on both occasions, since the same events led to them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, Final, final

from clew.exceptions import NondeterminismError
from clew.model import commands as c
from clew.model import events as e
from clew.replay.commands import (
    OpenRequests,
    Pending,
    ScheduleActivity,
    StartTimer,
    call_site,
    is_change_version,
    is_deprecated_patch,
    patch_id_of,
)

COMMAND_EVENTS: Final = frozenset(
    (
        e.ActivityTaskScheduled,
        e.ActivityTaskCancelRequested,
        e.TimerStarted,
        e.TimerCanceled,
        e.MarkerRecorded,
        e.StartChildWorkflowExecutionInitiated,
        e.SignalExternalWorkflowExecutionInitiated,
        e.RequestCancelExternalWorkflowExecutionInitiated,
        e.UpsertWorkflowSearchAttributes,
        e.WorkflowPropertiesModified,
        e.WorkflowExecutionUpdateAccepted,
        e.WorkflowExecutionUpdateCompleted,
        e.WorkflowExecutionCompleted,
        e.WorkflowExecutionFailed,
        e.WorkflowExecutionCanceled,
        e.WorkflowExecutionContinuedAsNew,
    )
)
"""Events that record a request of workflow code (semantics 2.3)."""

DOCS: Final = "docs/how-to/nondeterminism.md"


@final
class Ledger:
    """The requests of one run.

    Args:
        where: Tells the line at which the code of the run waits, for messages.
        traces_sites: Note the line that asks for each request. It takes longer than all the rest, so it is only done
            when a history that was found not to fit is replayed once more, to tell where.
    """

    def __init__(self, where: Callable[[], str], *, traces_sites: bool) -> None:
        self._where = where
        self.traces_sites = traces_sites
        self._asked: list[Pending] = []
        self._unmatched: list[Pending] = []
        self._matched_count = 0
        self.has_unmatched = False
        """Whether requests still wait for their events."""
        self._changed: dict[tuple[type[e.BaseEvent], str], Counter[tuple[bytes, ...]]] = {}
        """For each kind and name: arguments that were asked for more (or less) often than they are recorded."""
        self.activation = 0
        """Number of the activation at hand."""
        self.open = OpenRequests()

    def add(self, pending: Pending) -> None:
        """Take the next request of workflow code."""
        pending.born = self.activation
        if self.traces_sites:
            pending.site = call_site()
        self._asked.append(pending)

    def drop(self, pending: Pending) -> bool:
        """Withdraw a request if the engine has not heard of it; say whether that was so."""
        if pending.born == self.activation:
            pending.is_dropped = True
            return True
        return False

    def let_go(self) -> None:
        """Forget the machine: the run has left the cache."""
        self._where = str

    def begin(self) -> None:
        """Begin the next activation."""
        self.activation += 1

    def asked_since(self, count: int) -> list[Pending]:
        """Give what was asked for in this activation, without the first `count` requests."""
        return [p for p in self._asked[count:] if not p.is_dropped] if len(self._asked) > count else []

    @property
    def asked_count(self) -> int:
        """How often something was asked for in this activation."""
        return len(self._asked)

    def forget_first(self, count: int) -> None:
        """Take out the first `count` requests: they are recorded already, ahead of the others."""
        del self._asked[:count]

    def finish(self, close: Pending | None) -> list[Pending]:
        """End the activation; what it asked for waits for its events.

        Args:
            close: The end of the run, if it came; it stands last whenever in the activation it came.
        """
        asked = [request for request in self._asked if not request.is_dropped] if self._asked else []
        self._asked.clear()
        if close is not None:
            asked.append(close)
        self._unmatched = asked
        self._matched_count = 0
        self.has_unmatched = bool(asked)
        return asked

    # --- history comes in ----------------------------------------------------------------------------------

    def match(self, event: Any) -> None:
        """Take the event that records the next request.

        Raises:
            NondeterminismError: It records another request, or there is none.
        """
        position, unmatched = self._matched_count, self._unmatched
        pending = unmatched[position] if position < len(unmatched) else None
        if (
            type(pending) is ScheduleActivity
            and type(event) is e.ActivityTaskScheduled
            and event.activity_id == pending.activity_id
            and event.activity_type == pending.activity_type
        ):
            # What most requests are, in short.
            self._matched_count = position = position + 1
            self.has_unmatched = position < len(unmatched)
            pending.event_id = event_id = event.event_id
            self.open.activities[event_id] = pending
            if pending.payloads is not event.input and pending.payloads != event.input:
                self._check_order(pending, event)
            return
        while pending is not None and pending.is_optional and not _is_recorded_change_version(event):
            position += 1
            pending = unmatched[position] if position < len(unmatched) else None
        if pending is not None and pending.event_type is type(event):
            differences = pending.differences(event)
            if not differences:
                self._matched_count = position + 1
                self.has_unmatched = position + 1 < len(unmatched)
                pending.record(event.event_id, self.open)
                if pending.has_arguments and pending.payloads != event.input:  # type: ignore[attr-defined]
                    self._check_order(pending, event)
                return
        else:
            differences = []
        if is_skippable(event):
            return
        raise self._mismatch(event, pending, differences)

    def _check_order(self, pending: Any, event: Any) -> None:
        """Take note of changed arguments, which are no mismatch unless they are those of other requests.

        Raises:
            NondeterminismError: The same requests were made in another order, so that each would get another's result.
        """
        balance = self._changed.setdefault((pending.event_type, _name_of(event)), Counter())
        for change, payloads in ((1, pending.payloads), (-1, event.input)):
            key = tuple(bytes(stored) for stored in payloads)
            balance[key] += change
            if not balance[key]:
                del balance[key]
        if not balance:
            raise self._mismatch(event, pending, ["the order of requests that differ only in their arguments"])

    def check_all_matched(self, event: e.BaseEvent) -> None:
        """Make sure that history records every request; `event` is the first that records none.

        Raises:
            NondeterminismError: One is missing.
        """
        for pending in self._unmatched[self._matched_count :]:
            if not pending.is_optional:
                raise self._mismatch(event, pending, [])
        self._matched_count = len(self._unmatched)
        self.has_unmatched = False

    def check_end(self, event_id: int) -> None:
        """Make sure that a history which ends with `event_id`, and of which nothing is cut off, records every request.

        Raises:
            NondeterminismError: One is missing.
        """
        if self.has_unmatched:
            raise self._mismatch(None, self._unmatched[self._matched_count], [], event_id=event_id)

    def where(self) -> str:
        """Tell the line at which the code of the run waits."""
        return self._where()

    def _mismatch(
        self, event: e.BaseEvent | None, pending: Pending | None, differences: list[str], *, event_id: int = 0
    ) -> NondeterminismError:
        event_id = event.event_id if event is not None else event_id
        if event is None:
            recorded = "nothing (it is the last one)"
        else:
            recorded = f"{type(event).__name__} (event {event_id}){_identity(event)}"
            if type(event) not in COMMAND_EVENTS:
                recorded = f"nothing (the next event is {recorded})"
        attempted = pending.describe() if pending is not None else "nothing"
        place = (pending.place() if pending is not None else "") or self._where()
        message = (
            f"Workflow code no longer fits its history at event {event_id}. Recorded: {recorded}. "
            f"Attempted: {attempted}{f' at {place}' if place else ''}."
            + "".join(f" Differs in {difference}." for difference in differences)
            + _hint(event, pending)
            + f" Put the former code back, or guard the change with workflow.patched(). See {DOCS}."
        )
        return NondeterminismError(
            message,
            event_id=event_id,
            recorded=recorded,
            attempted=attempted,
            differences=differences,
            source_line=place,
        )


def is_skippable(event: Any) -> bool:
    """Whether a recorded event needs no request: the marker of a deprecated patch, or the list of patches."""
    return (type(event) is e.MarkerRecorded and is_deprecated_patch(event)) or _is_recorded_change_version(event)


def _is_recorded_change_version(event: Any) -> bool:
    return type(event) is e.UpsertWorkflowSearchAttributes and is_change_version(event)


def _name_of(event: Any) -> str:
    name: str = getattr(event, "activity_type", "") or getattr(event, "signal_name", "") or event.workflow_type
    return name


def _identity(event: Any) -> str:
    names = ("activity_type", "activity_id", "timer_id", "workflow_type", "workflow_id", "signal_name", "update_id")
    found = [f"{name} {getattr(event, name)!r}" for name in names if hasattr(event, name)]
    if isinstance(event, e.MarkerRecorded):
        found.append(f"marker {event.marker_name!r} {patch_id_of(event)}".rstrip())
    return f" of {', '.join(found)}" if found else ""


def _hint(event: e.BaseEvent | None, pending: Pending | None) -> str:
    """What usually is behind it, where that can be told."""
    is_close = pending is not None and pending.is_close
    if not is_close and isinstance(pending, StartTimer) != isinstance(event, e.TimerStarted):
        return (
            " A timer was added or removed; a duration that turned from zero or less to more than zero, or back, does"
            " that: only positive ones start a timer."
        )
    return ""


def to_commands(requests: list[Pending]) -> tuple[c.Command, ...]:
    """Give the commands for the engine."""
    return tuple([request.to_command() for request in requests])
