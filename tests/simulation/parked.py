"""Runs that wait for long, and what that costs the processes of the world (law 10).

Owns: `Parking`, the last part of some simulations: runs of each kind of waiting are begun, and the world with them is
compared with the same world without any. Never: asks the engine what it holds.

How it works: a run that is parked is rows in the store. So while nothing is due, nodes and workers have as many live
coroutines and armed timers as if there were no run at all, take as many steps, and make as many calls of the store;
they read none of these runs, and write none. In half of the worlds all processes die and come back meanwhile: since
the new ones read nothing of what is parked, they cannot hold anything of it either (how much the nodes of a fleet do
is not compared there, as shards and workers are then others'). At last the runs are woken, by
timers, signals, children and the pause before another attempt, and have to come to their end as any other. A run with
an attempt that is out is not parked: it has a lease that somebody has to look at.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tests.simulation.plan import Action
from tests.simulation.record import LawBroken

if TYPE_CHECKING:
    from tests.simulation.world import World

PARKED_SECONDS: Final = 1_200.0
"""How long the runs wait if nobody wakes them."""

SETTLE_SECONDS: Final = 120.0
"""Until a run that has begun to wait is parked everywhere, and a process that came back is at rest."""

WINDOW_SECONDS: Final = 300.0
SNAPSHOTS: Final = 10

SLACK: Final = 1.02
CALLS_MORE: Final = 12
STEPS_MORE: Final = 12 * CALLS_MORE
"""What a window may have more than another, as what a node does regularly falls into one once more or less."""

READS_OF_RUNS: Final = ("load_run", "load_runs", "find_run", "read_history", "commit_if_current", "find_versions")
"""Calls of the store about single runs."""


class Cost(NamedTuple):
    """What the world did in a window, and held at the quietest of some moments in it.

    Args:
        steps: Callbacks that ran.
        coroutines: Tasks of the loop that were not done, in processes that lived.
        timers: Timers that were armed there.
        calls: Calls of the store by all nodes.
        reads: Those of them that are about single runs.
    """

    steps: int
    coroutines: int
    timers: int
    calls: int
    reads: int


class Parking:
    """See the module docstring."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._count = world.plan.parked

    def run(self) -> None:
        """Measure, park, measure again, and wake.

        Raises:
            LawBroken: Waiting costs something.
        """
        world = self._world
        without = self._measure()
        if without.reads:
            raise LawBroken(f"law 10: runs that are closed are read or written {without.reads} times")
        for number in range(self._count):
            self._begin(number)
        self._pass(SETTLE_SECONDS)
        is_restarted = bool(world.plan.seed % 2)
        if is_restarted:
            world.restart_everything()
        self._pass(SETTLE_SECONDS)
        waiting = [name for name in world.record.open_runs if name.startswith("parked")]
        if len(waiting) < self._count:
            raise LawBroken(f"law 10: of {self._count} runs that were to wait only these are open: {waiting}")
        parked = self._measure()
        if is_restarted and world.plan.nodes > 1:
            # Which nodes hold shards and have workers is drawn anew, and what they do regularly goes by that.
            parked = parked._replace(steps=without.steps, calls=without.calls)
        self._compare(without, parked, len(waiting))
        self._wake()

    def _begin(self, number: int) -> None:
        name = f"parked{number}"
        if number % 5 == 4:
            self._world.call(Action(at=0.0, kind="start_register", values={"id": name}))
            return
        program = {"is_named": True, "steps": [_step(name, number % 5)]}
        self._world.call(Action(at=0.0, kind="start", who=number, values={"id": name, "program": program}))

    def _wake(self) -> None:
        """Some of those that wait for a signal get one; the others wake by themselves."""
        for number in range(self._count):
            values = {"id": f"parked{number}", "number": 3}
            if number % 5 == 4:
                self._world.call(Action(at=0.0, kind="stop_register", who=number, values=values))
            elif number % 10 == 1:
                self._world.call(Action(at=0.0, kind="signal", who=number, values=values))

    def _pass(self, seconds: float) -> None:
        self._world.loop.run(self._world.is_broken, seconds_max=seconds)
        self._world.raise_broken()

    def _measure(self) -> Cost:
        world, loop = self._world, self._world.loop
        calls_before, steps_before = world.leases.calls.copy(), loop.steps
        held: list[tuple[int, int]] = []
        for _ in range(SNAPSHOTS):
            self._pass(WINDOW_SECONDS / SNAPSHOTS)
            held.append(loop.held())
        calls = world.leases.calls - calls_before
        return Cost(
            steps=loop.steps - steps_before,
            coroutines=min(coroutines for coroutines, _ in held),
            timers=min(timers for _, timers in held),
            calls=calls.total(),
            reads=sum(calls[name] for name in READS_OF_RUNS),
        )

    def _compare(self, without: Cost, parked: Cost, count: int) -> None:
        most = Cost(
            steps=int(without.steps * SLACK) + STEPS_MORE,
            coroutines=without.coroutines,
            timers=without.timers,
            calls=int(without.calls * SLACK) + CALLS_MORE,
            reads=0,
        )
        for name, allowed, found in zip(Cost._fields, most, parked, strict=True):
            if found > allowed:
                raise LawBroken(f"law 10: {count} parked runs cost {found} {name}, where there are {allowed} without")


def _step(name: str, kind: int) -> dict[str, Any]:
    """What a run of this kind waits for."""
    sleep = {"do": "sleep", "name": f"{name}-sleep", "seconds": PARKED_SECONDS, "value": 1}
    bounds = {"start_to_close": 2 * PARKED_SECONDS, "value": 1, "takes": 0.0}
    policy = {"initial": PARKED_SECONDS, "coefficient": 1.0, "longest": PARKED_SECONDS, "attempts": 2}
    return {
        0: sleep,
        1: {"do": "wait", "name": f"{name}-wait", "count": 1, "seconds": PARKED_SECONDS},
        2: {"do": "child", "id": f"{name}-child", "name": f"{name}-c", "program": {"is_named": True, "steps": [sleep]}},
        3: {"do": "limited", "name": f"{name}-retry", "fails": 1, "retry": policy, **bounds},
    }[kind]
