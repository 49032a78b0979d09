"""Plans of worlds in which runs and activities end, begin again and are ended by others.

Owns: `with_lifecycles`. Never: runs anything.

How it works: to the plan of a seed come runs that fail and are tried again, runs that come back by a cron schedule,
runs that run out of time; parents that close while children go on, under each close policy; activities with timeouts
and retry policies of their own, and some that somebody else completes, with the token of the attempt; updates that
start their run; and deletions. So that an idempotency key stands for one intention over the retries of a run, as over
its resets, each step names its activities itself.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from tests.simulation.plan import Action, Plan

EVERY, AMONG = frozenset({0, 3}), 5
"""Seeds that leave one of these behind when divided by five have such a world, unless they have resets."""

CRONS = ("* * * * *", "@every 2s", "@every 7s")


def has_lifecycles(seed: int) -> bool:
    """Whether the plan of a seed is of this kind."""
    return seed % AMONG in EVERY


def with_lifecycles(plan: Plan, action: type[Action]) -> Plan:
    """The plan with all this in it, some of it in each seed."""
    maker = _Maker(random.Random(f"lifecycles:{plan.seed}"), action, plan.seconds)
    calls = sorted((*plan.calls, *maker.calls()), key=lambda call: call.at)
    return msgspec.structs.replace(plan, calls=tuple(calls))


class _Maker:
    def __init__(self, chance: random.Random, action: type[Action], seconds: float) -> None:
        self._chance = chance
        self._action = action
        self._seconds = seconds
        self._numbers: Iterator[int] = itertools.count(1)

    def calls(self) -> list[Action]:
        makers = (
            self._retried,
            self._timed_out,
            self._cron,
            self._parent,
            self._bounded,
            self._asked,
            self._many,
            self._together,
        )
        share = self._chance.choice((0.3, 0.6, 1.0))
        calls: list[Action] = []
        for make in makers:
            if make == self._bounded or self._chance.random() < share:
                calls += make()
        if self._chance.random() < share:
            calls += self._deletions(calls)
        return calls

    # --- runs -------------------------------------------------------------------------------------------------------

    def _retried(self) -> list[Action]:
        """A run that fails, and is tried again."""
        chance = self._chance
        steps = [self._short() for _ in range(chance.choice((0, 1, 2)))]
        policy = self._policy(chance.choice((1, 2, 3, 4)))
        return [self._start("retried", [*steps, {"do": "fail"}], retry=policy)]

    def _timed_out(self) -> list[Action]:
        """A run that runs out of time, in the middle of something."""
        chance = self._chance
        steps = [
            self._short(),
            {"do": "sleep", "seconds": chance.choice((1.0, 30.0, 200.0)), "value": 1},
            self._short(),
        ]
        retry = self._policy(chance.choice((1, 2))) if chance.random() < 0.5 else None
        timeout = chance.choice((2.0, 9.0))
        more = {"run_timeout": timeout} if chance.random() < 0.5 else {"execution_timeout": timeout}
        return [self._start("timed", steps, retry=retry, **more)]

    def _cron(self) -> list[Action]:
        """A run that comes back until it is ended."""
        chance = self._chance
        steps: list[dict[str, Any]] = [self._short() for _ in range(chance.choice((0, 1)))]
        if chance.random() < 0.3:
            steps.append({"do": "sleep", "seconds": 3.0, "value": 1})
        retry = None
        if chance.random() < 0.3:
            steps.append({"do": "fail"})
            retry = self._policy(2) if chance.random() < 0.5 else None
        return [self._start("cron", steps, cron=chance.choice(CRONS), retry=retry)]

    def _parent(self) -> list[Action]:
        """A run that leaves children behind, and closes in one of all ways."""
        chance = self._chance
        steps: list[dict[str, Any]] = []
        for policy in chance.sample(("TERMINATE", "ABANDON", "REQUEST_CANCEL"), chance.choice((1, 2, 3))):
            child = [self._short(), {"do": "sleep", "seconds": chance.choice((0.5, 150.0)), "value": 1}, self._short()]
            named = [self._named(step) for step in child]
            program = {"is_named": True, "steps": named}
            steps.append({"do": "leave", "id": f"left{next(self._numbers)}", "program": program, "policy": policy})
        steps += [{"do": "sleep", "seconds": chance.choice((0.0, 0.5)), "value": 1}]
        end = chance.choice(("complete", "fail", "renew", "terminate"))
        if end in ("fail", "renew"):
            steps += [{"do": end}]
        start = self._start("parent", steps)
        if end != "terminate":
            return [start]
        values = {"id": start.values["id"], "number": next(self._numbers)}
        at = round(start.at + chance.choice((0.1, 1.0, 4.0)) * (0.5 + chance.random()), 3)
        return [start, self._action(at=at, kind="terminate", who=chance.randrange(3), values=values)]

    def _bounded(self) -> list[Action]:
        """Activities with timeouts and policies of their own, in a row or at once."""
        chance = self._chance
        steps = [self._limited() for _ in range(chance.choice((1, 3, 5)))]
        return [self._start("bounded", [{"do": "all", "steps": steps}] if chance.random() < 0.5 else steps)]

    def _asked(self) -> list[Action]:
        """A run that an update starts, some of them more than once, and by several clients."""
        chance = self._chance
        start = self._start("asked", [self._short(), {"do": "sleep", "seconds": 1.0, "value": 1}])
        calls: list[Action] = []
        for _ in range(chance.choice((1, 2, 4))):
            values = {**start.values, "number": next(self._numbers) * chance.choice((1, 1, 1, -1))}
            at = round(start.at + chance.choice((0.0, 0.01, 2.0)) * chance.random(), 3)
            calls.append(self._action(at=at, kind="update_with_start", who=chance.randrange(3), values=values))
        return calls

    def _many(self) -> list[Action]:
        """Signals, one close upon the other."""
        chance = self._chance
        steps = [{"do": "wait", "count": chance.choice((1, 3)), "seconds": 2.0}, self._short(), self._short()]
        start = self._start("told", steps)
        at, who = start.at, chance.randrange(3)
        calls = [start]
        for _ in range(chance.choice((4, 12))):
            at = round(at + chance.choice((0.0, 0.002, 0.02, 0.3)) * chance.random(), 4)
            values = {"id": start.values["id"], "number": next(self._numbers)}
            calls.append(self._action(at=at, kind="signal", who=who, values=values))
        return calls

    def _together(self) -> list[Action]:
        """Timers that are due at one instant, and a signal that may come beside them."""
        chance = self._chance
        seconds = chance.choice((0.5, 3.0))
        timers = [{"do": "sleep", "seconds": seconds, "value": 1} for _ in range(chance.choice((2, 5)))]
        start = self._start("together", [{"do": "all", "steps": timers}, self._short()])
        at = round(start.at + seconds * (0.9 + 0.2 * chance.random()), 4)
        values = {"id": start.values["id"], "number": next(self._numbers)}
        return [start, self._action(at=at, kind="signal", who=chance.randrange(3), values=values)]

    def _deletions(self, calls: list[Action]) -> list[Action]:
        """Somebody deletes what has closed, or has not."""
        chance = self._chance
        ids = sorted({call.values["id"] for call in calls})
        found: list[Action] = []
        for _ in range(chance.choice((1, 3, 6))):
            values = {"id": chance.choice(ids), "of": chance.choice(("latest", "first"))}
            at = round(chance.random() * self._seconds, 3)
            found.append(self._action(at=at, kind="delete", who=chance.randrange(3), values=values))
        return found

    def _start(self, name: str, steps: list[dict[str, Any]], **more: Any) -> Action:
        chance = self._chance
        program = {"is_named": True, "steps": [self._named(step) for step in steps]}
        values = {"id": f"{name}{next(self._numbers)}", "program": program}
        values |= {key: value for key, value in more.items() if value is not None}
        at = round(chance.random() * self._seconds * 0.6, 3)
        return self._action(at=at, kind="start", who=chance.randrange(3), values=values)

    # --- steps ------------------------------------------------------------------------------------------------------

    def _named(self, step: dict[str, Any]) -> dict[str, Any]:
        step = {**step, "name": f"l{next(self._numbers)}"}
        if "steps" in step:
            step["steps"] = [self._named(one) for one in step["steps"]]
        return step

    def _short(self) -> dict[str, Any]:
        chance = self._chance
        kind = chance.choice(("act", "local"))
        takes = round(chance.choice((0.0, 0.01, 0.3)) * chance.random(), 3)
        return {"do": kind, "value": next(self._numbers), "takes": takes, "fails": chance.choice((0, 0, 2))}

    def _limited(self) -> dict[str, Any]:
        """An activity that may well not be done in time, or not in so many attempts."""
        chance = self._chance
        step: dict[str, Any] = {
            "do": "limited",
            "value": next(self._numbers),
            "takes": round(chance.choice((0.0, 0.1, 3.0)) * (0.5 + chance.random()), 3),
            "fails": chance.choice((0, 1, 3, 9)),
            "retry": self._policy(chance.choice((1, 2, 3, 5))),
            "start_to_close": chance.choice((1.0, 5.0)),
        }
        if chance.random() < 0.4:
            step["schedule_to_close"] = chance.choice((2.0, 6.0))
        if chance.random() < 0.3:
            step["schedule_to_start"] = chance.choice((0.3, 2.0))
        if chance.random() < 0.3:
            step |= {"heartbeat": 0.8, "is_mute": True}
        if chance.random() < 0.4:
            # Nobody reports, or somebody else does, before or after its time is over.
            step |= {"do": "outer", "fails": 0, "after": chance.choice((None, 0.0, 0.2, 0.9, 4.0))}
        return step

    def _policy(self, attempts: int) -> dict[str, float]:
        chance = self._chance
        initial, coefficient = chance.choice((0.4, 1.0, 3.0)), chance.choice((1.0, 1.5, 2.0))
        return {"initial": initial, "coefficient": coefficient, "longest": initial * 3, "attempts": attempts}
