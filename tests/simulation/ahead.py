"""Plans of worlds in which workflow code runs ahead of what is durable, and what it ran ahead of is lost.

Owns: `with_early_tasks`. Never: runs anything.

How it works: tasks that are given out early matter only where many things meet: a worker in the node's own process, a
run whose next task is begun while its cause is on its way to the store, a store that fails right then, and something
else that comes in the place of what was lost (docs/adr/0029). Plans drawn at large hardly ever have all of them at
once. These have programs of branches that race, with steps so short that the results of one fall into the commit of
another; questions all the while; a store that is slow and refuses, or is done and loses its answer; and hardly anything
else, so that the little that is there meets often.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import msgspec

from tests.simulation.disks import StoreFaults
from tests.simulation.wire import WireFaults

if TYPE_CHECKING:
    from tests.simulation.plan import Action, Plan

EARLY_SHARE = 5
"""One seed in so many is such a world."""

STEPS = (
    ("act",),
    ("act",),
    ("act", "act", "act", "local"),
    ("act", "act", "sleep"),
    ("act", "local", "sleep", "patch"),
)
OPS = (
    ("query",),
    ("query", "query", "signal"),
    ("query", "signal", "update", "update"),
    ("query", "describe", "cancel"),
)
FAULTS = ("crash_node", "pause_disk", "full_disk", "freeze_worker", "crash_worker", "jump_clock")


def is_early(seed: int) -> bool:
    """Whether the plan of a seed is of this kind."""
    return seed % EARLY_SHARE == 1


def with_early_tasks(plan: Plan, action: type[Action]) -> Plan:
    """The plan of the same seed, of this kind."""
    chance = random.Random(f"early:{plan.seed}")
    calm = chance.random() < 0.2
    maker = _Maker(chance, action, plan.seed)
    seconds = chance.choice((5.0, 20.0))
    nodes, workers = min(plan.nodes, chance.choice((1, 1, 2))), chance.choice((0, 0, 0, 1))
    is_far = random.Random(f"far:{plan.seed}").random() < 0.3
    return msgspec.structs.replace(
        plan,
        inside=not is_far,
        far=is_far,
        nodes=nodes,
        workers=max(workers, 1) if is_far else workers,
        clients=chance.choice((1, 3)),
        cached_runs=1000,
        slots=chance.choice((10, 100, 100)),
        store_faults=StoreFaults() if calm else maker.store_faults(),
        wire_faults=WireFaults()
        if calm
        else WireFaults(slow=chance.choice((0.0, 0.05)), slow_seconds=0.2, twice=chance.choice((0.0, 0.05))),
        calls=maker.calls(seconds),
        faults=() if calm else maker.faults(seconds),
        skew=0.0,
        seconds=seconds,
    )


class _Maker:
    def __init__(self, chance: random.Random, action: type[Action], seed: int) -> None:
        self._chance = chance
        self._action = action
        self._numbers: Iterator[int] = itertools.count(1)
        self._steps = chance.choice(STEPS)
        self._ops = chance.choice(OPS)
        self._here = random.Random(f"here:{seed}").choice((0.0, 0.0, 0.5, 1.0))

    def store_faults(self) -> StoreFaults:
        chance = self._chance
        rate = chance.choice((0.05, 0.15, 0.3))
        return StoreFaults(
            refuse=rate * chance.choice((0.2, 1.0)),
            lose=rate * chance.choice((0.0, 0.5, 1.0)),
            slow=chance.choice((0.1, 0.5, 0.9)),
            slow_seconds=chance.choice((0.005, 0.05, 0.2)),
            crash_before=chance.choice((0.0, 0.0, 0.01)),
            crash_after=chance.choice((0.0, 0.0, 0.01)),
            commits_only=True,
            here=self._here,
        )

    def faults(self, seconds: float) -> tuple[Action, ...]:
        chance = self._chance
        actions = [
            self._action(
                at=round(chance.random() * seconds, 3),
                kind=chance.choice(FAULTS),
                who=chance.randrange(3),
                values={"seconds": round(chance.choice((0.02, 0.2, 1.0)) * (0.5 + chance.random()), 3), "by": 0.5},
            )
            for _ in range(chance.choice((0, 0, 1, 3)))
        ]
        return tuple(sorted(actions, key=lambda action: action.at))

    def calls(self, seconds: float) -> tuple[Action, ...]:
        chance = self._chance
        calls: list[Action] = []
        for number in range(chance.choice((1, 4, 8))):
            workflow_id, start_at = f"w{number}", round(chance.random() * seconds * 0.8, 3)
            values = {"id": workflow_id, "program": self._program()}
            calls.append(self._action(at=start_at, kind="start", who=chance.randrange(3), values=values))
            for _ in range(chance.choice((0, 2, 10))):
                at = round(start_at + chance.random() * chance.choice((0.1, 0.5, seconds - start_at)), 3)
                values = {"id": workflow_id, "number": next(self._numbers)}
                calls.append(self._action(at=at, kind=chance.choice(self._ops), who=chance.randrange(3), values=values))
        return tuple(sorted(calls, key=lambda action: action.at))

    def _program(self) -> dict[str, Any]:
        chance = self._chance
        steps: list[dict[str, Any]] = []
        for _ in range(chance.choice((1, 2, 3))):
            branches = [{"do": "branch", "steps": self._some(chance.choice((1, 3, 6)))} for _ in range(self._width())]
            steps += [{"do": "all", "steps": branches}] if len(branches) > 1 else branches[0]["steps"]
        return {"steps": steps}

    def _width(self) -> int:
        return self._chance.choice((1, 2, 2, 4))

    def _some(self, count: int) -> list[dict[str, Any]]:
        return [self._step() for _ in range(count)]

    def _step(self) -> dict[str, Any]:
        chance = self._chance
        kind = chance.choice(self._steps)
        number = next(self._numbers)
        if kind == "sleep":
            return {"do": kind, "seconds": chance.choice((0.001, 0.02)), "value": number}
        if kind == "patch":
            return {"do": kind, "id": f"p{chance.randrange(3)}", "value": number}
        takes = round(chance.choice((0.0, 0.002, 0.02, 0.1)) * (0.5 + chance.random()), 4)
        return {"do": kind, "value": number, "takes": takes, "fails": chance.choice((0, 0, 0, 1)), "is_plain": True}
