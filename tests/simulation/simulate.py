"""Running one plan: the outcome with the hash of its trace, and the search for a smaller plan that fails alike.

Owns: `simulate`, `shrink`, and plans as JSON. Never: makes plans (``plan``), or loops over seeds (``__main__``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from tests.simulation.checkers import check_all
from tests.simulation.disks import StoreFaults
from tests.simulation.plan import Plan
from tests.simulation.wire import WireFaults
from tests.simulation.world import World


class Outcome(msgspec.Struct, frozen=True):
    """What came of a simulation.

    Args:
        error: What was found, as text; empty when every law held.
        digest: Hash of every step that was taken.
    """

    error: str
    digest: str
    steps: int
    commits: int
    runs: int
    nodes: int
    seconds: float
    log: tuple[str, ...] = ()

    @property
    def kind(self) -> str:
        """What the error is about, without the particulars."""
        return self.error.split(":", 2)[1].strip() if self.error.startswith("LawBroken") else self.error.split(":")[0]


def simulate(plan: Plan, *, keeps_log: bool = False) -> Outcome:
    """Run a plan from beginning to end, and check every law."""
    world = World(plan, keeps_log=keeps_log)
    error = ""
    try:
        world.run()
        check_all(world)
    except Exception as found:  # noqa: BLE001 - whatever it is, it is what was found
        error = f"{type(found).__name__}: {found}"
        if found.__cause__ is not None:
            error += f" <- {found.__cause__!r}"
    finally:
        world.close()
    return Outcome(
        error=error,
        digest=world.loop.digest(),
        steps=world.loop.steps,
        commits=world.record.commits,
        runs=len(world.record.runs),
        nodes=world.incarnations,
        seconds=world.loop.time(),
        log=tuple(world.loop.log or ()),
    )


def shrink(plan: Plan, *, tries_max: int = 400, tell: Callable[[str], None] = lambda text: None) -> Plan:
    """A smaller plan that fails in the same way: parts are left out as long as the failure stays."""
    wanted = simulate(plan).kind
    assert wanted, "only a plan that fails can be cut down"
    tries = 0
    is_smaller = True
    while is_smaller and tries < tries_max:
        is_smaller = False
        for candidate in _smaller(plan):
            tries += 1
            if tries >= tries_max:
                break
            if simulate(candidate).kind == wanted:
                plan, is_smaller = candidate, True
                tell(f"{len(plan.calls)} calls, {len(plan.faults)} faults after {tries} tries")
                break
    return plan


def _smaller(plan: Plan) -> Iterator[Plan]:
    replace = msgspec.structs.replace
    for name in ("faults", "calls"):
        actions = getattr(plan, name)
        size = len(actions)
        while size >= 1:
            for start in range(0, len(actions), size):
                yield replace(plan, **{name: actions[:start] + actions[start + size :]})
            size //= 2
    if plan.store_faults != StoreFaults():
        yield replace(plan, store_faults=StoreFaults())
        for name in ("refuse", "lose", "slow", "late", "crash_before", "crash_after"):
            if getattr(plan.store_faults, name):
                yield replace(plan, store_faults=replace(plan.store_faults, **{name: 0.0}))
    if plan.wire_faults != WireFaults():
        yield replace(plan, wire_faults=WireFaults())
        for name in ("slow", "twice", "lose"):
            if getattr(plan.wire_faults, name):
                yield replace(plan, wire_faults=replace(plan.wire_faults, **{name: 0.0}))
    for name, least in (("skew", 0.0), ("workers", 1), ("nodes", 1), ("clients", 1), ("inside", False)):
        if getattr(plan, name) != least:
            yield replace(plan, **{name: least})
    for index, call in enumerate(plan.calls):
        for program in _smaller_programs(call.values.get("program")):
            changed = replace(call, values={**call.values, "program": program})
            yield replace(plan, calls=(*plan.calls[:index], changed, *plan.calls[index + 1 :]))


def _smaller_programs(program: dict[str, Any] | None) -> Iterator[dict[str, Any]]:
    if program is None:
        return
    steps = program["steps"]
    for index, step in enumerate(steps):
        yield {"steps": steps[:index] + steps[index + 1 :]}
        if "steps" in step:
            for inner in _smaller_programs({"steps": step["steps"]}):
                yield {"steps": [*steps[:index], {**step, **inner}, *steps[index + 1 :]]}
        for inner in _smaller_programs(step.get("program")):
            yield {"steps": [*steps[:index], {**step, "program": inner}, *steps[index + 1 :]]}


def to_json(plan: Plan) -> str:
    """A plan as text that `from_json` reads."""
    return msgspec.json.encode(plan).decode()


def from_json(text: str | bytes) -> Plan:
    """The plan that `to_json` wrote."""
    return msgspec.json.decode(text, type=Plan)
