"""Plans with readers: clients that go through whole histories page by page, while they grow.

Owns: `with_readers`. Never: runs anything.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from tests.simulation.plan import Action, Plan

COUNTS = (0, 2, 4, 8)
SIZES = (1, 3, 10, 1_000)
SOON = (0.0, 0.001, 0.01, 0.1)
"""Seconds after another call for the same run at which a reader comes: what that causes is then on its way."""


def with_readers(plan: Plan, action: type[Action]) -> Plan:
    """The plan with readers of some of its runs, of which most come right after another call, and some stay."""
    chance = random.Random(f"readers:{plan.seed}")
    calls = list(plan.calls)
    for _ in range(chance.choice(COUNTS)):
        other = chance.choice(plan.calls)
        at = (
            other.at + chance.choice(SOON) * chance.random()
            if chance.random() < 0.7
            else plan.seconds * chance.random()
        )
        values = {"id": other.values["id"], "size": chance.choice(SIZES), "stays": chance.random() < 0.5}
        calls.append(action(at=round(at, 4), kind="pages", who=chance.randrange(3), values=values))
    return msgspec.structs.replace(plan, calls=tuple(sorted(calls, key=lambda call: call.at)))
