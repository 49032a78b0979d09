"""Where the money is, checked when a simulation is over (law 6).

Owns: `check_bank`. Never: asks the engine, nor cares whether anything went wrong in the world.

How it works: a transfer takes money from one account, and puts it into another when it was told that the first is done.
Transfers of one workflow id that say the same are counted together, by what the bank did under each key: a key moves
its amount once; no more is put than was taken; each completion in a history is of something that the bank did; a run
that completed has done both sides of each of its transfers; and what is missing was under way in a run that came to
another end.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, Final, NamedTuple

from clew.model import events as e
from clew.model.policies import WorkflowExecutionStatus
from tests.simulation.clients import value_of
from tests.simulation.outside import BALANCE
from tests.simulation.record import LawBroken, RunLog
from tests.simulation.world import World

WHOLE: Final = frozenset({WorkflowExecutionStatus.COMPLETED, WorkflowExecutionStatus.CONTINUED_AS_NEW})
"""Ends of runs that leave no transfer between its sides."""


class Transfer(NamedTuple):
    """What distinguishes transfers: those that agree in it are counted together."""

    workflow_id: str
    source: str
    target: str
    amount: int


class _Sides:
    """How often each transfer was taken from its source, and put into its target."""

    def __init__(self) -> None:
        self.taken: Counter[Transfer] = Counter()
        self.put: Counter[Transfer] = Counter()

    def add(self, workflow_id: str, values: dict[str, Any]) -> None:
        """One side of one transfer."""
        transfer = Transfer(workflow_id, values["source"], values["target"], values["amount"])
        (self.taken if values["change"] < 0 else self.put)[transfer] += 1

    def require_taken_first(self, what: str) -> None:
        """What was put was taken before."""
        if not self.put <= self.taken:
            raise LawBroken(f"law 6: {what}: more was put than was taken: {self.put - self.taken}")


def check_bank(world: World) -> None:
    """Money moves, and neither appears nor vanishes, whatever happens to the runs that move it."""
    _check_balances(world)
    done = _done(world)
    done.require_taken_first("the bank")
    for run in world.record.runs.values():
        _check_run(world, run)
    whole = {name for name, runs in _by_workflow(world).items() if all(run.status in WHOLE for run in runs)}
    missing = [transfer for transfer in done.taken - done.put if transfer.workflow_id in whole]
    if missing:
        raise LawBroken(f"law 6: money was taken and put nowhere, though nothing was broken off: {missing}")


def _check_balances(world: World) -> None:
    """Each account has what it had, and what was moved, once for each key."""
    wanted = dict.fromkeys(world.outside.balances, BALANCE)
    for key, (intention, _) in world.outside.done.items():
        if _is_move(world, key):
            account, change = intention
            wanted[account] += change
    if wanted != world.outside.balances:
        raise LawBroken(f"law 6: the bank holds {world.outside.balances}; by what was done it is {wanted}")


def _is_move(world: World, key: str) -> bool:
    return "change" in world.outside.inputs[key]


def _done(world: World) -> _Sides:
    """What the bank did."""
    sides = _Sides()
    for key in world.outside.done:
        if _is_move(world, key):
            sides.add(world.outside.owners[key][0], world.outside.inputs[key])
    return sides


def _check_run(world: World, run: RunLog) -> None:
    """What its history says of transfers is what the bank did, in the order in which it must be."""
    asked: dict[int, tuple[str, dict[str, Any]]] = {}
    sides = _Sides()
    seen = _Sides()
    """The first sides that are completed, and the second that are asked for."""
    for event in run.events:
        if isinstance(event, e.ActivityTaskScheduled) and event.activity_type == "bank":
            values = value_of(event.input)
            asked[event.event_id] = event.activity_id, values
            if values["change"] > 0:
                seen.add(run.workflow_id, values)
                seen.require_taken_first(f"{run.workflow_id} at event {event.event_id}")
        if isinstance(event, e.ActivityTaskCompleted) and event.scheduled_event_id in asked:
            activity_id, values = asked[event.scheduled_event_id]
            _check_effect(world, run, event.scheduled_event_id, activity_id, values)
            sides.add(run.workflow_id, values)
            if values["change"] < 0:
                seen.add(run.workflow_id, values)
    if run.status in WHOLE and sides.taken != sides.put:
        raise LawBroken(
            f"law 6: {run.workflow_id} {run.status.value} with half of transfers: {sides.taken - sides.put}"
        )


def _check_effect(world: World, run: RunLog, event_id: int, activity_id: str, values: dict[str, Any]) -> None:
    """The bank did, under a key of this activity, what its completion stands for."""
    # What a reset copied was done by the run that recorded it.
    recorded_by = run.state().recorded_by(event_id)
    keys = world.outside.keys.get((recorded_by, run.workflow_id, activity_id), set())
    wanted = (values["account"], values["change"])
    if not any(world.outside.done.get(key, (None, 0))[0] == wanted for key in keys):
        raise LawBroken(f"law 6: {run.workflow_id}: {activity_id} is completed, and the bank did not do it: {values}")


def _by_workflow(world: World) -> dict[str, list[RunLog]]:
    runs: dict[str, list[RunLog]] = {}
    for run in world.record.runs.values():
        runs.setdefault(run.workflow_id, []).append(run)
    return runs
