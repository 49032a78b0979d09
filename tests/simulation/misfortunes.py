"""Misfortunes that are aimed: at what is durable and not yet heard of, at what is on the wire, at who holds a lease.

Owns: `with_misfortunes`. Never: runs anything.

How it works: a plan drawn at large seldom has a misfortune at the moment where it matters. So to the plan of a seed in
which something goes wrong at all come, each in some of the seeds and drawn from a stream of its own: answers of the
store that are heard long after what they tell of is durable; cuts that begin while a call, its answer, or what a node
says to a worker is on the wire, in both directions or in one; nodes that stand still for longer than a lease lasts and
come back; and clocks that jump.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from tests.simulation.plan import Action, Plan

LATE_SECONDS = (0.08, 3.0, 25.0)
"""Up to so long an answer is late: tens of milliseconds, some seconds, or a time in which leases and tasks run out."""

FREEZE_SECONDS = (0.5, 4.0, 12.0, 20.0)
"""A lease is 10 s."""

CUT_MOMENTS = {"cut_worker": ("", "request", "answer", "task"), "cut_client": ("", "request", "answer")}
CUT_WAYS = ("", "", "deaf", "mute")
JUMPS = (-3600.0, -5.0, -0.5, 0.5, 5.0, 60.0)


def with_misfortunes(plan: Plan, action: type[Action]) -> Plan:
    """The plan with some of these in it."""
    plan = _with_late_answers(plan, random.Random(f"late:{plan.seed}"))
    chance = random.Random(f"cuts:{plan.seed}")
    faults = [_aimed(fault, chance) if fault.kind in CUT_MOMENTS else fault for fault in plan.faults]
    if chance.random() < 0.25:
        faults += [_cut(plan, action, chance) for _ in range(chance.choice((1, 2, 4)))]
    faults += _stops_and_jumps(plan, action, random.Random(f"stops:{plan.seed}"))
    return msgspec.structs.replace(plan, faults=tuple(sorted(faults, key=lambda fault: fault.at)))


def _with_late_answers(plan: Plan, chance: random.Random) -> Plan:
    if chance.random() < 0.4:
        return plan
    late, seconds = chance.choice((0.05, 0.2, 0.6)), chance.choice(LATE_SECONDS)
    faults = msgspec.structs.replace(plan.store_faults, late=late, late_seconds=seconds)
    return msgspec.structs.replace(plan, store_faults=faults)


def _aimed(fault: Action, chance: random.Random) -> Action:
    """The same cut, at a moment and in a direction."""
    aim = {"when": chance.choice(CUT_MOMENTS[fault.kind]), "way": chance.choice(CUT_WAYS)}
    return msgspec.structs.replace(fault, values={**fault.values, **aim})


def _cut(plan: Plan, action: type[Action], chance: random.Random) -> Action:
    values: dict[str, Any] = {
        "seconds": round(chance.choice((0.02, 0.5, 6.0)) * (0.5 + chance.random()), 3),
        "here": round(chance.choice((0.0, 0.5, 5.0)) * chance.random(), 3),
        "there": round(chance.choice((0.0, 0.5, 15.0)) * chance.random(), 3),
    }
    kind = chance.choice(sorted(CUT_MOMENTS))
    at = round(chance.random() * plan.seconds, 3)
    return _aimed(action(at=at, kind=kind, who=chance.randrange(3), values=values), chance)


def _stops_and_jumps(plan: Plan, action: type[Action], chance: random.Random) -> list[Action]:
    actions: list[Action] = []
    if chance.random() < 0.25:
        for _ in range(chance.choice((1, 2, 4))):
            values = {"seconds": round(chance.choice(FREEZE_SECONDS) * (0.5 + chance.random()), 3)}
            actions.append(_at(plan, action, chance, "freeze_node", values))
    if chance.random() < 0.1:
        for _ in range(chance.choice((1, 3))):
            values = {"by": round(chance.choice(JUMPS) * chance.random(), 3)}
            actions.append(_at(plan, action, chance, "jump_clock", values))
    return actions


def _at(plan: Plan, action: type[Action], chance: random.Random, kind: str, values: dict[str, Any]) -> Action:
    return action(at=round(chance.random() * plan.seconds, 3), kind=kind, who=chance.randrange(3), values=values)
