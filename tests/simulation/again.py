"""Workflow ids that are started again and again, by requests that disagree about what to do then.

Owns: `with_starts_again`. Never: runs anything, nor judges (``start_checks`` does).

How it works: to the plan of a seed come a few workflow ids, each with several starts: close upon each other, so that
they meet a run that is open or just about to close, or far apart, so that they find one that is over, completed or
failed. Each has a conflict policy and a reuse policy of its own. In between somebody signals, asks, cancels, ends, or
starts by a signal or an update.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from tests.simulation.plan import Action, Plan

AGAIN_SHARE = 0.3
"""Of the seeds that have no resets."""

POLICIES = ("", "fail", "use", "use", "replace", "replace")
REUSES = ("", "", "", "failed", "reject")
BETWEEN = ("signal", "signal", "describe", "history", "query", "cancel", "terminate", "signal_with_start", "update")
GAPS = (0.0, 0.002, 0.05, 1.0, 6.0)


def with_starts_again(plan: Plan, action: type[Action]) -> Plan:
    """The plan with such ids in it, in some seeds."""
    chance = random.Random(f"again:{plan.seed}")
    if chance.random() >= AGAIN_SHARE:
        return plan
    maker = _Maker(chance, action, plan.seconds)
    more = [call for number in range(chance.choice((1, 2))) for call in maker.calls(f"again{number}")]
    return msgspec.structs.replace(plan, calls=tuple(sorted((*plan.calls, *more), key=lambda call: call.at)))


class _Maker:
    def __init__(self, chance: random.Random, action: type[Action], seconds: float) -> None:
        self._chance = chance
        self._action = action
        self._seconds = seconds
        self._numbers: Iterator[int] = itertools.count(5_000)
        self._policies = tuple(sorted({chance.choice(POLICIES) for _ in range(4)}))

    def calls(self, workflow_id: str) -> list[Action]:
        """All about one id."""
        chance = self._chance
        at = chance.random() * self._seconds * 0.5
        calls: list[Action] = []
        for _ in range(chance.choice((2, 4, 8))):
            calls.append(self._at(at, "start", self._start(workflow_id)))
            gap = chance.choice(GAPS) * chance.random()
            for _ in range(chance.choice((0, 0, 1, 2))):
                kind = chance.choice(BETWEEN)
                values: dict[str, Any] = {"id": workflow_id, "number": next(self._numbers)}
                if kind == "signal_with_start":
                    values["program"] = self._program()
                calls.append(self._at(at + gap * chance.random(), kind, values))
            at += gap
        return calls

    def _at(self, at: float, kind: str, values: dict[str, Any]) -> Action:
        return self._action(at=round(at, 4), kind=kind, who=self._chance.randrange(3), values=values)

    def _start(self, workflow_id: str) -> dict[str, Any]:
        chance = self._chance
        return {
            "id": workflow_id,
            "program": self._program(),
            "policy": chance.choice(self._policies),
            "reuse": chance.choice(REUSES),
        }

    def _program(self) -> dict[str, Any]:
        """Short, or long enough to be met by the next start."""
        chance = self._chance
        steps = [self._step() for _ in range(chance.choice((0, 1, 2, 3)))]
        end = chance.random()
        if end < 0.2:
            steps.append({"do": "fail"})
        elif end < 0.3:
            steps += [{"do": "renew"}, self._step()]
        return {"steps": steps}

    def _step(self) -> dict[str, Any]:
        chance = self._chance
        number = next(self._numbers)
        kind = chance.choice(("act", "local", "sleep", "sleep"))
        if kind == "sleep":
            return {
                "do": kind,
                "seconds": round(chance.choice((0.002, 0.1, 2.0, 8.0)) * chance.random(), 3),
                "value": 1,
            }
        takes = round(chance.choice((0.0, 0.02, 1.0)) * chance.random(), 3)
        return {"do": kind, "value": number, "takes": takes, "fails": chance.choice((0, 0, 1)), "is_plain": True}
