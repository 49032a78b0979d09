"""Laws about what runs do to each other, and about the runs of a chain, checked when a simulation is over.

Owns: one function a law, as in ``checkers``, which calls them. Never: asks the engine, nor what it reckons: which keys
belong together, and which run was open when, is reckoned here from what was committed, in its order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, Final

from clew.model import events as e
from tests.simulation.lifecycle_checks import CHILD_ENDS, RETRY, started_of
from tests.simulation.places import named
from tests.simulation.record import LawBroken, Record, RunLog
from tests.simulation.world import World

NOT_FOUND: Final = e.ExternalFailedCause.EXTERNAL_WORKFLOW_EXECUTION_NOT_FOUND
SIGNALLED, NOT_SIGNALLED = e.ExternalWorkflowExecutionSignaled, e.SignalExternalWorkflowExecutionFailed
CANCELLED, NOT_CANCELLED = e.ExternalWorkflowExecutionCancelRequested, e.RequestCancelExternalWorkflowExecutionFailed


# --- messages to other runs -------------------------------------------------------------------------------------------


def check_messages_to_others(world: World) -> None:
    """A run is told of its signals and cancels to others what came of them: they arrived, or met nobody."""
    for run in world.record.runs.values():
        state = run.state()
        for event in run.events:
            is_told = isinstance(event, SIGNALLED | NOT_SIGNALLED | CANCELLED | NOT_CANCELLED)
            if is_told and state.recorded_by(event.event_id) == run.run_id:
                _check_message(world.record, run, event, state.recorded_by(event.initiated_event_id))


def _check_message(record: Record, run: RunLog, told: Any, sender: str) -> None:
    asked: Any = run.events[told.initiated_event_id - 1]
    target = named(run.namespace, asked.workflow_execution.workflow_id)
    request_id = f"{sender}:{asked.event_id}"
    since = record.by_run_id[sender].noted_in[asked.event_id - 1]
    until = run.noted_in[told.event_id - 1]
    name = f"{run.workflow_id} was told {type(told).__name__} of event {asked.event_id} to {target}"
    match told:
        case SIGNALLED():
            _require(record.signals_of(target, request_id) >= 1, "law 3", f"{name}, which has no such signal")
        case NOT_SIGNALLED():
            is_there = sender == run.run_id and record.signals_of(target, request_id)
            _require(not is_there, "law 3", f"{name}, which has that signal")
            _require(told.cause is NOT_FOUND, "law 2", f"{name} for {told.cause}")
            _require(not record.was_always_open(target, since, until), "law 2", f"{name}, which was open all the while")
        case CANCELLED():
            _require(record.has_been_there(target, since, until), "law 2", f"{name}, which was not there")
            _require(
                record.was_cancelled(target, request_id, since, until),
                "law 2",
                f"{name}, which was open all the while and has no such request",
            )
        case _:
            _require(told.cause is NOT_FOUND, "law 2", f"{name} for {told.cause}")
            _require(not record.was_always_there(target, since, until), "law 2", f"{name}, which was there")


def check_cancels(world: World) -> None:
    """A cancel that was acknowledged is recorded, or there was nothing open to cancel, or not for the first time."""
    for client in world.clients:
        for call in client.calls:
            if call.action.kind == "cancel" and call.is_ok:
                is_felt = world.record.was_cancelled(
                    call.action.values["id"], call.request_id, call.made_in, call.heard_in
                )
                _require(is_felt, "law 3", f"{call} was answered, and is not recorded")


# --- children ---------------------------------------------------------------------------------------------------------


def check_ends_of_children(world: World) -> None:
    """What a parent is told of the end of its child is the end of that child's chain, and was durable by then."""
    for run in world.record.runs.values():
        for event in run.events:
            if isinstance(event, CHILD_ENDS):
                _check_end(world.record, run, event)


def _check_end(record: Record, parent: RunLog, told: Any) -> None:
    ref, name = told.workflow_execution, f"{parent.workflow_id} was told {type(told).__name__}"
    child = record.by_run_id.get(ref.run_id)
    is_run = child is not None and child.workflow_id == named(parent.namespace, ref.workflow_id)
    _require(is_run, "law 2", f"{name} of {ref}, which is no run")
    assert child is not None
    began = started_of(child)
    is_own = began.parent is not None and began.parent_initiated_event_id == told.initiated_event_id
    is_own = is_own and parent.state().goes_on_with(began.parent.run_id if began.parent is not None else "")
    _require(is_own, "law 2", f"{name} of {ref}, whose parent is {began.parent}")
    wanted = type(told).__name__.removeprefix("ChildWorkflowExecution")
    until = parent.noted_in[told.event_id - 1]
    runs = (run for run in record.runs_of(child.workflow_id) if not run.is_open and 0 < run.closed_in <= until)
    of_chain = [run for run in runs if started_of(run).first_execution_run_id == began.first_execution_run_id]
    ends = [run.events[-1] for run in of_chain if not getattr(run.events[-1], "new_execution_run_id", "")]
    fitting = [end for end in ends if type(end).__name__.removeprefix("WorkflowExecution") == wanted]
    _require(bool(fitting), "law 2", f"{name} of {ref}, which had ended with {ends}")
    if isinstance(told, e.ChildWorkflowExecutionCompleted):
        results = [getattr(end, "result", None) for end in fitting]
        _require(told.result in results, "law 2", f"{name} of {ref} with {told.result}; it gave {results}")


# --- keys -------------------------------------------------------------------------------------------------------------


def check_keys_of_a_chain(world: World) -> None:
    """One intention has one key in all the runs that share it, a retry and a reset; and in no other run."""
    keys: dict[tuple[str, str], str] = {}
    generations: dict[str, str] = {}
    for (run_id, workflow_id, activity_id), used in world.outside.keys.items():
        run = world.record.by_run_id.get(run_id)
        if run is None:
            continue
        generation, name = _generation(world.record, run), f"activity {activity_id} of {workflow_id}"
        for key in used:
            before = keys.setdefault((generation, activity_id), key)
            _require(before == key, "law 7", f"{name} has another key in run {run_id} than before in its generation")
            other = generations.setdefault(key, generation)
            _require(other == generation, "law 7", f"{name} has the key of {other} in {generation}")


def _generation(record: Record, run: RunLog) -> str:
    """The run that had this one's intentions first: by a reset or a retry they go over, and by nothing else."""
    while True:
        seam = next(
            (ev for ev in run.events if isinstance(ev, e.WorkflowTaskFailed) and ev.new_run_id == run.run_id), None
        )
        if seam is not None:
            run = record.by_run_id[seam.base_run_id]
        elif started_of(run).initiator is RETRY:
            run = record.by_run_id[started_of(run).continued_execution_run_id]
        else:
            return run.run_id


# --- starts -----------------------------------------------------------------------------------------------------------


def check_starts_are_once(world: World) -> None:
    """A repeat of a start makes no second run: it is known by the latest chain of its id, until that is deleted."""
    for runs in _chains_by_id(world.record):
        for one, other in pairwise(runs):
            request_id = started_of(other).request_id
            is_gone = 0 < one.deleted_in < other.opened_in
            is_twice = bool(request_id) and request_id == started_of(one).request_id and not is_gone
            _require(not is_twice, "law 3", f"{one.workflow_id} was started more than once by request {request_id}")


def _chains_by_id(record: Record) -> Iterator[list[RunLog]]:
    """By workflow id: the first run of each chain, in the order in which they began."""
    firsts: dict[str, list[RunLog]] = {}
    for run in sorted(record.runs.values(), key=lambda run: run.number):
        if started_of(run).first_execution_run_id == run.run_id:
            firsts.setdefault(run.workflow_id, []).append(run)
    yield from firsts.values()


# --- updates ----------------------------------------------------------------------------------------------------------


def check_failed_updates(world: World) -> None:
    """An update is told as failed only as recorded, or as its validator says, or as its run has closed over it."""
    for client in world.clients:
        for call in client.calls:
            if call.action.kind not in ("update", "write", "swap", "update_with_start") or not call.is_ok:
                continue
            workflow_id = call.action.values["id"]
            is_bad = call.action.kind in ("update", "update_with_start") and call.action.values["number"] < 0
            accepted = [run for run in world.record.runs_of(workflow_id) if _has_accepted(run, call.request_id)]
            _require(not (is_bad and accepted), "law 11", f"{call} was accepted, which its validator refuses")
            if call.answer.outcome.failure is None:
                _require(not is_bad, "law 11", f"{call} was told as done, which its validator refuses")
                continue
            is_recorded = bool(world.record.updates_of(workflow_id, call.request_id))
            is_over = any(not run.is_open for run in accepted)
            _require(is_bad or is_recorded or is_over, "law 3", f"{call} was told as failed: {call.answer.outcome}")


def _has_accepted(run: RunLog, update_id: str) -> bool:
    accepted = (ev for ev in run.events if isinstance(ev, e.WorkflowExecutionUpdateAccepted))
    return any(event.protocol_instance_id == update_id for event in accepted)


# --- timers -----------------------------------------------------------------------------------------------------------


def check_timers_of_one_instant(world: World) -> None:
    """Timers of a run that are due at one instant fire in one commit, in the order in which they were started."""
    for run in world.record.runs.values():
        fired = {ev.started_event_id: ev.event_id for ev in run.events if isinstance(ev, e.TimerFired)}
        together: dict[Any, list[int]] = {}
        for event in run.events:
            if isinstance(event, e.TimerStarted) and event.event_id in fired:
                due = event.event_time + event.start_to_fire_timeout
                together.setdefault(due, []).append(fired[event.event_id])
        for due, event_ids in together.items():
            commits = Counter(run.noted_in[event_id - 1] for event_id in event_ids)
            is_one = len(commits) == 1 and event_ids == sorted(event_ids)
            if not any(ev.new_run_id for ev in run.events if isinstance(ev, e.WorkflowTaskFailed)):
                _require(is_one, "law 2", f"{run.workflow_id}: timers due at {due} fired as events {event_ids}")


def _require(holds: bool, law: str, text: str) -> None:
    if not holds:
        raise LawBroken(f"{law}: {text}")


CHAIN_CHECKS = (
    check_messages_to_others, check_cancels, check_ends_of_children, check_keys_of_a_chain, check_starts_are_once,
    check_failed_updates, check_timers_of_one_instant,
)  # fmt: skip
