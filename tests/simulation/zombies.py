"""Plans in which somebody reports on an attempt that has lost its lease.

Owns: `with_zombies`. Never: runs anything.

How it works: an activity is left to somebody else, who has the token of its first attempt and lets its time pass. When
the second attempt is under way, and a client has perhaps asked the run to be cancelled, so that a report of that would
be welcome from who holds the lease now, the first one reports: a heartbeat, a failure, or that it was cancelled.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from tests.simulation.plan import Action, Plan

SHARE = 0.2
VALUE = 1_000_003
ATTEMPT_SECONDS = 2.0
REPORTS = ("cancelled", "failed", "heartbeat")


def with_zombies(plan: Plan, action: type[Action]) -> Plan:
    """The plan with one such attempt, in some worlds."""
    chance = random.Random(f"zombies:{plan.seed}")
    if chance.random() >= SHARE:
        return plan
    start_at = round(chance.random() * plan.seconds * 0.7, 3)
    second_at = ATTEMPT_SECONDS + 0.4
    step = {
        "do": "outer", "name": "undead", "value": VALUE, "takes": 0.0, "fails": 0, "start_to_close": ATTEMPT_SECONDS,
        "retry": {"initial": 0.4, "coefficient": 1.0, "longest": 0.4, "attempts": 4}, "after": None, "is_awaited": True,
        "late": [
            {"as": kind, "after": round(second_at + chance.random() * ATTEMPT_SECONDS, 3)}
            for kind in chance.sample(REPORTS, chance.choice((1, 3)))
        ],
    }  # fmt: skip
    values = {"id": "zombie", "program": {"is_named": True, "steps": [step]}}
    calls = [action(at=start_at, kind="start", who=chance.randrange(3), values=values)]
    if chance.random() < 0.7:
        at = round(start_at + second_at + chance.random() * 0.5 * ATTEMPT_SECONDS, 3)
        calls.append(action(at=at, kind="cancel", who=chance.randrange(3), values={"id": "zombie", "number": 0}))
    return msgspec.structs.replace(plan, calls=tuple(sorted((*plan.calls, *calls), key=lambda one: one.at)))
