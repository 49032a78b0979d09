"""The faults of chaos, and which ones a tape calls for.

Owns: kinds and places of faults, and their order. Never: how one is brought about.
"""

from __future__ import annotations

import enum
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final, final

from clew.testing.chaos._tape import Report, RunTape, Tape


class FaultKind(enum.Enum):
    """What goes wrong."""

    NONE = "none"
    COLD = "cold"
    """No run is ever cached: each workflow task is replayed from the start of its history."""
    DUPLICATES = "duplicates"
    """Each call that changes something, of client and worker, arrives twice."""
    OUTCOME = "outcome"
    """The worker is gone after it did its work, and before the engine hears of it."""
    WORKER = "worker"
    """The worker is gone just after a commit."""
    ENGINE = "engine"
    """Engine and worker are gone just after a commit, as when a process is killed."""


@final
@dataclass(frozen=True)
class Fault:
    """One fault at one place.

    Args:
        kind: What.
        title: The same for people, to stand after "chaos: ".
        run: Number of the run it strikes.
        event_id: The event it follows.
        report: The report that is lost.
    """

    kind: FaultKind
    title: str
    run: int = -1
    event_id: int = 0
    report: Report | None = None


NO_FAULT: Final = Fault(FaultKind.NONE, "undisturbed")

_METHODS: Final = {
    "complete_workflow_task": "the answer to the workflow task",
    "fail_workflow_task": "the failure of the workflow task",
    "record_markers": "the outcome of the local activity",
    "complete_activity": "the result of the activity",
    "fail_activity": "the failure of the activity",
    "cancel_activity": "the cancellation of the activity",
}
REPORTS: Final = frozenset(_METHODS)


def faults_for(tape: Tape, *, kinds: Collection[FaultKind], limit: int) -> list[Fault]:
    """Give the faults that an undisturbed go calls for, the cheapest and most telling first.

    A commit may hold several events; between them nothing can happen, so there is one fault for all of them.

    Args:
        tape: Of the undisturbed go.
        kinds: Which to give.
        limit: Most faults; of more, so many are taken, evenly over the test.
    """
    faults: list[Fault] = []
    if FaultKind.COLD in kinds:
        faults.append(Fault(FaultKind.COLD, "every workflow task replayed from the start"))
    if FaultKind.DUPLICATES in kinds:
        faults.append(Fault(FaultKind.DUPLICATES, "every call delivered twice"))
    placed: list[Fault] = []
    if FaultKind.OUTCOME in kinds:
        placed += [_lost_outcome(tape, report) for report in tape.reports]
    for kind in (FaultKind.WORKER, FaultKind.ENGINE):
        if kind in kinds:
            placed += [_crash(kind, run, event_id) for run in tape.runs for event_id in run.commits]
    room = max(limit - len(faults), 0)
    if len(placed) > room:
        placed = [placed[at * len(placed) // room] for at in range(room)]
    return faults + placed


def _lost_outcome(tape: Tape, report: Report) -> Fault:
    run = tape.runs[report.run]
    place = _event_text(run, report.after_event_id or report.scheduled_event_id)
    title = f"worker crashed before {_METHODS[report.method]} of {run.workflow_id!r} arrived ({place})"
    return Fault(FaultKind.OUTCOME, title, report=report)


def _crash(kind: FaultKind, run: RunTape, event_id: int) -> Fault:
    title = f"{kind.value} crashed after {_event_text(run, event_id)} of {run.workflow_id!r}"
    return Fault(kind, title, run=run.number, event_id=event_id)


def _event_text(run: RunTape, event_id: int) -> str:
    event = next((one for one in run.events if one.event_id == event_id), None)
    if event is None:
        return f"event {event_id}"
    name = getattr(event, "activity_type", "") or getattr(event, "signal_name", "")
    return f"event {event_id}, {type(event).__name__}{f' {name}' if name else ''}"
