"""What clients are told, judged at the moment of the answer by what the store holds.

Owns: `Known`, what was durable when a call was made; `untrue`, which says what is wrong with an answer or a refusal.
Never: asks the engine, nor folds a history by its means.

How it works: when a client makes a call, or makes it again, the latest run of its workflow id and the length of that
run's history are noted. An answer may tell of nothing that is not durable (law 3), of nothing older than what was
durable when the call was made (linearizability, by the one clock of the world), and must be what the history says at
the length that it names (law 12). A refusal must be true at some moment of the call (law 11).
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from clew.model import events as e
from clew.model.policies import WorkflowExecutionStatus
from clew.service.requests import GetHistoryResponse, WorkflowDescription
from tests.simulation.record import ACTIVITY_ENDS, CLOSES, Record, RunLog
from tests.simulation.start_checks import STARTS, untrue_start

if TYPE_CHECKING:
    from tests.simulation.clients import Call

STATUSES: Final = {
    e.WorkflowExecutionCompleted: WorkflowExecutionStatus.COMPLETED,
    e.WorkflowExecutionFailed: WorkflowExecutionStatus.FAILED,
    e.WorkflowExecutionTimedOut: WorkflowExecutionStatus.TIMED_OUT,
    e.WorkflowExecutionCanceled: WorkflowExecutionStatus.CANCELED,
    e.WorkflowExecutionTerminated: WorkflowExecutionStatus.TERMINATED,
    e.WorkflowExecutionContinuedAsNew: WorkflowExecutionStatus.CONTINUED_AS_NEW,
}
CHILD_ENDS: Final = (
    e.StartChildWorkflowExecutionFailed,
    e.ChildWorkflowExecutionCompleted,
    e.ChildWorkflowExecutionFailed,
    e.ChildWorkflowExecutionCanceled,
    e.ChildWorkflowExecutionTimedOut,
    e.ChildWorkflowExecutionTerminated,
)
SIGNAL_ENDS: Final = (e.ExternalWorkflowExecutionSignaled, e.SignalExternalWorkflowExecutionFailed)
CANCEL_ENDS: Final = (e.ExternalWorkflowExecutionCancelRequested, e.RequestCancelExternalWorkflowExecutionFailed)
TASK_ENDS: Final = (e.WorkflowTaskCompleted, e.WorkflowTaskFailed, e.WorkflowTaskTimedOut)


class Known(NamedTuple):
    """What was durable of a workflow id at a moment.

    Args:
        run: The latest run; None when there was none.
        events: How long its history was.
        was_open: Whether it was open.
        change: Of the store, right before.
    """

    run: RunLog | None
    events: int = 0
    was_open: bool = False
    change: int = 0

    @staticmethod
    def of(record: Record, workflow_id: str) -> Known:
        """What is durable now."""
        run = record.latest.get(workflow_id)
        now = record.changes
        return Known(None, change=now) if run is None else Known(run, len(run.events), run.is_open, now)

    def __str__(self) -> str:
        return "nothing" if self.run is None else f"run {self.run.run_id} with {self.events} events"

    def since(self, record: Record, workflow_id: str) -> list[RunLog]:
        """The run that was the latest then, and those that came after it."""
        first = 0 if self.run is None else self.run.number
        return [run for run in record.runs_of(workflow_id) if run.number >= first]

    def has_been_open(self, record: Record, workflow_id: str) -> bool:
        """Whether some run was open between then and now."""
        return self.was_open or any(run is not self.run for run in self.since(record, workflow_id))

    def has_been_closed(self, record: Record, workflow_id: str) -> bool:
        """Whether the latest run was a closed one at some moment between then and now."""
        return any(not run.is_open for run in self.since(record, workflow_id))


def untrue(record: Record, call: Call) -> str:
    """What is wrong with what this call was told, with its law; empty when nothing is."""
    if call.action.kind in STARTS and (broken := untrue_start(record, call)):
        return broken
    if call.refusal:
        return _untrue_refusal(record, call)
    if call.action.kind in ("describe", "history") and (stranger := _stranger(record, call)):
        return f"law 4: {call} was told of run {stranger}"
    if call.action.kind == "describe":
        return _untrue_description(record, call.known, call.answer)
    if call.action.kind == "history":
        return _untrue_ends(record, call.known, call.ends)
    return ""


def _stranger(record: Record, call: Call) -> str:
    """A run that was told of, and is of another workflow id, or namespace."""
    told = [call.answer.info.run_id] if call.action.kind == "describe" else [page.run_id for page in call.ends]
    runs = (record.by_run_id.get(run_id) for run_id in told)
    return next((run.run_id for run in runs if run is not None and run.workflow_id != call.action.values["id"]), "")


# --- refusals ---------------------------------------------------------------------------------------------------------


def _untrue_refusal(record: Record, call: Call) -> str:
    workflow_id, known = call.action.values["id"], call.known
    if any(run.is_deleted for run in record.runs_of(workflow_id)):
        return _untrue_after_deletion(record, call)
    match call.refusal:
        case "workflow_not_found":
            holds = known.run is None
        case "workflow_already_completed":
            holds = known.has_been_closed(record, workflow_id)
        case "workflow_already_started" if call.action.kind in STARTS:
            holds = True  # By its policies (``start_checks``).
        case "workflow_already_started" | "workflow_not_closed":
            holds = known.has_been_open(record, workflow_id)
        case _:
            holds = True
    now = [f"{run.run_id} {run.status.value}" for run in record.runs_of(workflow_id)]
    return "" if holds else f"law 11: {call} was refused as {call.refusal}; the store held {known}, and holds {now}"


BY_RUN: Final = frozenset(
    {"history", "pages", "look", "delete", "reset", "update", "write", "swap", "update_with_start"}
)
"""Calls that may name the run which they are about, and so miss it when others of its id are there."""


def _untrue_after_deletion(record: Record, call: Call) -> str:
    """Where runs were deleted: what was forgotten is not there, and what came before it is the latest again."""
    workflow_id, since = call.action.values["id"], call.known.change
    match call.refusal:
        case "workflow_not_found":
            holds = call.action.kind in BY_RUN or not record.was_always_there(workflow_id, since, record.changes)
        case "workflow_already_completed":
            holds = not record.was_always_open(workflow_id, since, record.changes)
        case "workflow_already_started" | "workflow_not_closed":
            moments = record.moments(workflow_id, since, record.changes)
            holds = any(run.was_open_in(change) for change, there in moments for run in there)
        case _:
            holds = True
    return "" if holds else f"law 11: {call} was refused as {call.refusal}; the store said otherwise all the while"


# --- results ----------------------------------------------------------------------------------------------------------


def _untrue_ends(record: Record, known: Known, ends: list[GetHistoryResponse]) -> str:
    """Each end is the one in the history of its run, and what it leads to is what was told next."""
    wanted = ""
    for page in ends:
        run = record.by_run_id.get(page.run_id)
        if run is None or tuple(run.events[-1:]) != page.events or type(run.events[-1]) not in CLOSES:
            return f"law 3: of run {page.run_id} the end {page.events} was told, and its history does not end so"
        if wanted and page.run_id != wanted:
            return f"law 2: who waits for run {wanted} was told the end of run {page.run_id}"
        if not wanted and (old := _outdated(known, run, len(run.events))):
            return f"linearizability: the end of {old}"
        wanted = getattr(page.events[-1], "new_execution_run_id", "")
    return f"law 3: run {wanted} follows, and its end was not told" if wanted else ""


# --- descriptions -----------------------------------------------------------------------------------------------------


def _untrue_description(record: Record, known: Known, told: WorkflowDescription) -> str:
    info = told.info
    run, name = record.by_run_id.get(info.run_id), f"{info.workflow_id} at event {info.history_length}"
    if run is None or len(run.events) < info.history_length:
        return f"law 3: {name} was told, of which the store holds {0 if run is None else len(run.events)}"
    if old := _outdated(known, run, info.history_length):
        return f"linearizability: {old}"
    events = run.events[: info.history_length]
    status = STATUSES.get(type(events[-1]), WorkflowExecutionStatus.RUNNING)
    if info.status is not status:
        return f"law 12: {name} is said to be {info.status.value}, and is {status.value}"
    for what, wanted, given in _facts(events, told):
        if wanted != given:
            return f"law 12: {name}: {what}: told {given}; the history has {wanted}"
    for line in _lines(events) if status.is_open else ():
        if not any(one.startswith(line) for one in told.waiting_for):
            return f"law 12: {name} waits for {line!r}, of which {told.waiting_for} says nothing"
    return ""


def _outdated(known: Known, run: RunLog, length: int) -> str:
    """What is told is of a time before the call was made."""
    if known.run is None or known.run.is_deleted:
        return ""
    if run is known.run and length < known.events:
        return f"{run.workflow_id} was told as of event {length}, when event {known.events} had long been there"
    if run.number < known.run.number:
        return f"{run.workflow_id} was told of run {run.run_id}, when run {known.run.run_id} had followed it"
    return ""


def _facts(events: list[e.Event], told: WorkflowDescription) -> Iterable[tuple[str, Any, Any]]:
    """What it is, what the history says of it, and what was told."""
    is_open = type(events[-1]) not in CLOSES
    resets = (event for event in events if isinstance(event, e.WorkflowTaskFailed))
    seam = next((event for event in resets if event.new_run_id == told.info.run_id), None)
    if seam is None:
        # A run that a reset made begins later than its copied events.
        yield "its start", events[0].event_time, told.info.start_time
    yield "its close", None if is_open else events[-1].event_time, told.info.close_time
    asked = any(isinstance(event, e.WorkflowExecutionCancelRequested) for event in events)
    yield "a cancel request", asked, told.cancel_requested
    if not is_open:
        yield "what it waits for", (), told.waiting_for
        yield "pending activities", (), told.pending_activities
        yield "pending timers", (), told.pending_timers
        return
    activities = {(event.event_id, event.activity_id, _since(event, seam)) for event in _activities(events)}
    yield (
        "pending activities",
        activities,
        {(one.scheduled_event_id, one.activity_id, one.scheduled_time) for one in told.pending_activities},
    )
    timers = {(event.event_id, event.timer_id, _due(event)) for event in _timers(events)}
    yield "pending timers", timers, {(one.started_event_id, one.timer_id, one.due_time) for one in told.pending_timers}
    children = {(event.event_id, event.workflow_id) for event in _children(events)}
    yield "pending children", children, {(one.initiated_event_id, one.workflow_id) for one in told.pending_children}
    updates = _updates(events)
    yield "pending updates", updates, updates & set(told.pending_updates)
    if _has_task(events):
        yield "a pending workflow task", True, told.pending_workflow_task is not None


def _since(event: Any, seam: e.WorkflowTaskFailed | None) -> datetime:
    """Since when an activity waits: one that a reset found without an end is scheduled anew by it."""
    at: datetime = event.event_time
    return at if seam is None or event.event_id > seam.event_id else max(at, seam.event_time)


def _lines(events: list[e.Event]) -> Iterable[str]:
    """How the lines begin that name what the run waits for."""
    yield from (f"activity {event.activity_id} " for event in _activities(events))
    yield from (f"timer {event.timer_id} " for event in _timers(events))
    yield from (f"child workflow {event.workflow_id!r} " for event in _children(events))
    yield from (f"update {update_id} " for update_id in _updates(events))
    for event in _left(events, e.SignalExternalWorkflowExecutionInitiated, SIGNAL_ENDS, "initiated_event_id"):
        yield f"delivery of a signal to workflow {event.workflow_execution.workflow_id!r}"
    for event in _left(events, e.RequestCancelExternalWorkflowExecutionInitiated, CANCEL_ENDS, "initiated_event_id"):
        yield f"delivery of a cancel request to workflow {event.workflow_execution.workflow_id!r}"
    if _has_task(events):
        yield "workflow task"


def _activities(events: list[e.Event]) -> list[Any]:
    return _left(events, e.ActivityTaskScheduled, ACTIVITY_ENDS, "scheduled_event_id")


def _timers(events: list[e.Event]) -> list[Any]:
    return _left(events, e.TimerStarted, (e.TimerFired, e.TimerCanceled), "started_event_id")


def _children(events: list[e.Event]) -> list[Any]:
    return _left(events, e.StartChildWorkflowExecutionInitiated, CHILD_ENDS, "initiated_event_id")


def _due(timer: e.TimerStarted) -> datetime:
    return timer.event_time + timer.start_to_fire_timeout


def _updates(events: list[e.Event]) -> set[str]:
    accepted = {ev.protocol_instance_id for ev in events if isinstance(ev, e.WorkflowExecutionUpdateAccepted)}
    return accepted - {ev.update_id for ev in events if isinstance(ev, e.WorkflowExecutionUpdateCompleted)}


def _has_task(events: list[e.Event]) -> bool:
    """Whether a workflow task is in history that has not come to an end."""
    return bool(_left(events, e.WorkflowTaskScheduled, TASK_ENDS, "scheduled_event_id"))


def _left(events: list[e.Event], begins: type[Any], ends: tuple[type[Any], ...], refers: str) -> list[Any]:
    """What has begun and not ended."""
    ended = {getattr(event, refers) for event in events if isinstance(event, ends)}
    return [event for event in events if isinstance(event, begins) and event.event_id not in ended]
