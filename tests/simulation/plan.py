"""What one simulation does: made from a seed, written as JSON, and small enough to be cut down.

Owns: `Plan`, its generation (`make_plan`), and the swarm: each seed switches some kinds of step and fault off, so that
those left meet more often than if all were always on. Never: runs anything.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from typing import Any

import msgspec

from tests.simulation.again import with_starts_again
from tests.simulation.ahead import is_early, with_early_tasks
from tests.simulation.deploys import with_deploys
from tests.simulation.disks import StoreFaults
from tests.simulation.lifecycles import has_lifecycles, with_lifecycles
from tests.simulation.listing import with_listing
from tests.simulation.misfortunes import with_misfortunes
from tests.simulation.places import OTHER, named
from tests.simulation.readers import with_readers
from tests.simulation.wire import WireFaults
from tests.simulation.zombies import with_zombies

STEP_KINDS = (
    "act", "once", "local", "sleep", "all", "race", "wait", "child", "failing_child", "leave", "tell", "stop", "patch",
    "transfer", "renew", "fail",
)  # fmt: skip
OP_KINDS = ("signal", "update", "query", "cancel", "terminate", "describe", "signal_with_start", "history")
FAULT_KINDS = (
    "crash_node", "stop_node", "freeze_node", "crash_worker", "freeze_worker", "cut_worker", "cut_client", "full_disk",
    "jump_clock", "pause_disk", "lose_hints",
)  # fmt: skip

ACCOUNTS = ("a", "b", "c")

PARKED = (0,) * 9 + (24,)
"""Runs that are parked at the end, of which the plan of a seed draws one."""

LYING = (0.0, 0.0, 0.0, 0.1, 1.0)
"""Shares of answers about leases that lie, of which the plan of a fleet draws one."""

TWO_NAMESPACES_SHARE = 0.2
CALLS_TWICE_MAX = 30
"""What a plan of more calls does is not done once more in another namespace."""

RESETS_SHARE = 4
"""One seed in so many has resets."""


class Action(msgspec.Struct, frozen=True):
    """Something that happens at a time: a client's call or a fault."""

    at: float
    kind: str
    who: int = 0
    values: dict[str, Any] = {}


class Plan(msgspec.Struct, frozen=True):
    """A whole simulation.

    Args:
        seed: Decides all that the plan leaves open.
        store: ``model`` or ``sqlite``.
        nodes: Engine nodes on one store; more than one only on the model store.
        shards: Of the store.
        inside: Whether each node has a worker in its own process, which takes workflow tasks early.
        deploys: When the second and the third version of the workflow code come (``deploys``).
        two_namespaces: Whether there is another namespace, with workers of its own.
        far: Whether the other workers, which are behind links, take them early as well.
        hints_lost: The share of hints between nodes that are lost while there are faults.
        workers: How many.
        clients: How many.
        cached_runs: Of each worker.
        slots: Of each worker, for each kind of task.
        store_faults, wire_faults: Misfortunes while there are faults.
        calls: What clients do.
        faults: What happens to processes.
        skew: Each incarnation of a node starts with its clock off by up to so many seconds.
        seconds: How long faults go on.
        leases_lie: The share of answers about leases and claims that lie while there are faults.
        parked: Runs that are parked when everything else is over (``parked``).
    """

    seed: int
    store: str
    workers: int
    clients: int
    cached_runs: int
    slots: int
    store_faults: StoreFaults
    wire_faults: WireFaults
    calls: tuple[Action, ...]
    faults: tuple[Action, ...]
    skew: float = 0.0
    seconds: float = 30.0
    nodes: int = 1
    shards: int = 1
    hints_lost: float = 0.0
    inside: bool = False
    two_namespaces: bool = False
    deploys: tuple[float, ...] = ()
    far: bool = False
    leases_lie: float = 0.0
    parked: int = 0

    @property
    def is_calm(self) -> bool:
        """Whether nothing goes wrong, apart from what chance does to the order and the pace of things."""
        is_sound = self.store_faults == StoreFaults() and self.wire_faults == WireFaults()
        return is_sound and not self.faults and not self.leases_lie and not self.deploys


def make_plan(seed: int, store: str = "") -> Plan:
    """The plan of a seed.

    Args:
        seed: Any number.
        store: ``model`` or ``sqlite``; by default the seed decides.
    """
    chance = random.Random(f"plan:{seed}")
    drawn_store = chance.choice(("model", "sqlite"))
    seconds = chance.choice((5.0, 20.0, 60.0))
    maker = _Maker(chance, seconds)
    calm = chance.random() < 0.1
    has_fleet = (store or drawn_store) == "model" and chance.random() < 0.7
    plan = Plan(
        seed=seed,
        store=store or drawn_store,
        nodes=chance.choice((2, 3)) if has_fleet else 1,
        shards=chance.choice((1, 4, 8)) if has_fleet else 1,
        hints_lost=chance.choice((0.0, 0.1, 1.0)),
        workers=chance.choice((1, 1, 2, 3)),
        clients=chance.choice((1, 2, 3)),
        cached_runs=chance.choice((0, 1, 1000, 1000)),
        slots=chance.choice((1, 2, 10, 100)),
        store_faults=StoreFaults() if calm else maker.store_faults(),
        wire_faults=WireFaults() if calm else maker.wire_faults(),
        calls=maker.calls(),
        faults=() if calm else maker.faults(),
        skew=chance.choice((0.0, 0.0, 0.5, 5.0)),
        seconds=seconds,
        inside=random.Random(f"inside:{seed}").random() < 0.4,
        far=random.Random(f"far:{seed}").random() < 0.3,
        leases_lie=random.Random(f"leases:{seed}").choice(LYING) if has_fleet and not calm else 0.0,
        parked=random.Random(f"parked:{seed}").choice(PARKED),
    )
    if is_early(seed):
        plan = with_early_tasks(plan, Action)
    if not plan.is_calm:
        plan = with_misfortunes(plan, Action)
    if seed % RESETS_SHARE == RESETS_SHARE - 1:
        return with_listing(with_readers(with_zombies(with_resets(plan), Action), Action))
    plan = with_zombies(with_lifecycles(plan, Action) if has_lifecycles(seed) else plan, Action)
    return with_listing(with_readers(with_deploys(with_two_namespaces(with_starts_again(plan, Action))), Action))


def with_two_namespaces(plan: Plan) -> Plan:
    """In some seeds: the same once more in another namespace, under the same workflow ids, at other times."""
    chance = random.Random(f"namespaces:{plan.seed}")
    if chance.random() >= TWO_NAMESPACES_SHARE or len(plan.calls) > CALLS_TWICE_MAX:
        return plan
    calls = list(plan.calls)
    spread = chance.choice((0.001, 0.1, 2.0))
    for call in plan.calls:
        values = {**call.values, "id": named(OTHER, call.values["id"])}
        at = round(call.at + spread * chance.random(), 4)
        calls.append(msgspec.structs.replace(call, at=at, who=chance.randrange(3), values=values))
    return msgspec.structs.replace(plan, two_namespaces=True, calls=tuple(sorted(calls, key=lambda call: call.at)))


def with_resets(plan: Plan) -> Plan:
    """The same with resets of its roots in between.

    A run that is reset may take its steps in another order than before, where they race. So that an idempotency key
    stands for one intention all the same, each step names its activities itself.
    """
    chance = random.Random(f"resets:{plan.seed}")
    numbers = itertools.count(1)
    calls: list[Action] = []
    starts: dict[str, float] = {}
    for call in plan.calls:
        program = call.values.get("program")
        if program is not None:
            starts.setdefault(call.values["id"], call.at)
            call = msgspec.structs.replace(call, values={**call.values, "program": _named(program, numbers)})
        calls.append(call)
    for _ in range(chance.choice((1, 2, 4))):
        workflow_id, at = chance.choice(sorted(starts.items()))
        values = {
            "id": workflow_id,
            "point": chance.choice(("first", "last", "last", 0.3, 0.7)),
            "of": chance.choice(("latest", "latest", "latest", "first")),
            "without": chance.choice(((), (), (), ("Signal",), ("Update",))),
        }
        at = round(at + 0.01 + chance.random() * chance.choice((0.5, 1.0)) * (plan.seconds - at), 3)
        calls.append(Action(at=at, kind="reset", who=chance.randrange(3), values=values))
    return msgspec.structs.replace(plan, calls=tuple(sorted(calls, key=lambda action: action.at)))


def _named(program: dict[str, Any], numbers: Iterator[int]) -> dict[str, Any]:
    def named(step: dict[str, Any]) -> dict[str, Any]:
        step = {**step, "name": f"n{next(numbers)}"}
        if "steps" in step:
            step["steps"] = [named(one) for one in step["steps"]]
        if "program" in step:
            step["program"] = _named(step["program"], numbers)
        return step

    return {**program, "is_named": True, "steps": [named(step) for step in program["steps"]]}


class _Maker:
    """Draws the parts of a plan."""

    def __init__(self, chance: random.Random, seconds: float) -> None:
        self._chance = chance
        self._seconds = seconds
        self._count = 0
        self._steps = self._some(STEP_KINDS, "act")
        self._ops = self._some(OP_KINDS, "signal")
        self._faults = self._some(FAULT_KINDS, "crash_node")
        self._roots: list[str] = []

    def _some(self, kinds: tuple[str, ...], always: str) -> list[str]:
        share = self._chance.choice((0.3, 0.6, 1.0))
        return [kind for kind in kinds if kind == always or self._chance.random() < share]

    def _next(self) -> int:
        self._count += 1
        return self._count

    # --- misfortunes ------------------------------------------------------------------------------------------------

    def store_faults(self) -> StoreFaults:
        rate = self._chance.choice((0.0, 0.01, 0.05, 0.2))
        return StoreFaults(
            refuse=rate * self._chance.random(),
            lose=rate * self._chance.random(),
            slow=self._chance.choice((0.0, 0.05, 0.5)),
            slow_seconds=self._chance.choice((0.01, 0.2, 2.0)),
            crash_before=rate * self._chance.random() * 0.2,
            crash_after=rate * self._chance.random() * 0.2,
        )

    def wire_faults(self) -> WireFaults:
        rate = self._chance.choice((0.0, 0.05, 0.2))
        return WireFaults(
            slow=self._chance.choice((0.0, 0.05, 0.5)),
            slow_seconds=self._chance.choice((0.01, 0.2, 3.0)),
            twice=rate * self._chance.random(),
            lose=rate * self._chance.random(),
        )

    def faults(self) -> tuple[Action, ...]:
        chance = self._chance
        actions: list[Action] = []
        for _ in range(chance.choice((0, 1, 3, 8))):
            kind = chance.choice(self._faults)
            values: dict[str, Any] = {"seconds": round(chance.choice((0.05, 1.0, 12.0)) * (0.5 + chance.random()), 3)}
            if kind.startswith("cut"):
                values["here"] = round(chance.choice((0.0, 0.5, 5.0)) * chance.random(), 3)
                values["there"] = round(chance.choice((0.0, 0.5, 15.0)) * chance.random(), 3)
            if kind == "jump_clock":
                values["by"] = round(chance.choice((-3600.0, -5.0, -0.5, 0.5, 5.0, 60.0)) * chance.random(), 3)
            at = round(chance.random() * self._seconds, 3)
            actions.append(Action(at=at, kind=kind, who=chance.randrange(3), values=values))
        return tuple(sorted(actions, key=lambda action: action.at))

    # --- calls ------------------------------------------------------------------------------------------------------

    def calls(self) -> tuple[Action, ...]:
        chance = self._chance
        actions: list[Action] = []
        for number in range(chance.choice((1, 3, 6))):
            workflow_id = f"w{number}"
            self._roots.append(workflow_id)
            at = round(chance.random() * self._seconds * 0.5, 3)
            values = {
                "id": workflow_id,
                "program": self.program(2),
                "policy": chance.choice(("", "", "use", "replace")),
            }
            actions.append(Action(at=at, kind="start", who=chance.randrange(3), values=values))
            for _ in range(chance.choice((0, 2, 5))):
                actions.append(self._call(at, workflow_id))
        if chance.random() < 0.5:
            actions += self._register()
        return tuple(sorted(actions, key=lambda action: action.at))

    def _call(self, start_at: float, workflow_id: str) -> Action:
        chance = self._chance
        kind = chance.choice(self._ops)
        values: dict[str, Any] = {"id": workflow_id, "number": self._next()}
        if kind == "update" and chance.random() < 0.2:
            values["number"] = -values["number"]
        if kind == "signal_with_start":
            values["program"] = self.program(1)
        at = round(start_at + 0.001 + chance.random() * (self._seconds - start_at), 3)
        return Action(at=at, kind=kind, who=chance.randrange(3), values=values)

    def _register(self) -> list[Action]:
        chance = self._chance
        start_at = round(chance.random() * self._seconds * 0.2, 3)
        actions = [Action(at=start_at, kind="start_register", values={"id": "register"})]
        spread = chance.choice((0.2, 2.0, 0.8 * self._seconds))
        for _ in range(chance.choice((4, 10, 16))):
            kind = chance.choice(("write", "read", "swap"))
            values = {"id": "register", "number": chance.randrange(1, 6), "wanted": chance.randrange(0, 4)}
            at = round(start_at + 0.01 + chance.random() * spread, 3)
            actions.append(Action(at=at, kind=kind, who=chance.randrange(3), values=values))
        return actions

    # --- programs ---------------------------------------------------------------------------------------------------

    def program(self, depth: int) -> dict[str, Any]:
        return {"steps": [self._step(depth) for _ in range(self._chance.choice((1, 2, 4, 8)))]}

    def _step(self, depth: int) -> dict[str, Any]:
        chance = self._chance
        kind = chance.choice(self._steps)
        if kind in ("all", "child", "failing_child", "leave") and depth == 0:
            kind = "act"
        if kind == "fail" and chance.random() < 0.7:
            kind = "sleep"
        step: dict[str, Any] = {"do": kind}
        match kind:
            case "act" | "once" | "race" | "local":
                step |= self._activity()
                if kind == "race":
                    step["seconds"] = round(chance.choice((0.0, 0.1, 1.0, 5.0)), 3)
            case "sleep":
                step |= {"seconds": round(chance.choice((0.0, 0.01, 0.5, 10.0)) * (1 + chance.random()), 3), "value": 1}
            case "all":
                inner = [self._step(depth - 1) for _ in range(chance.choice((2, 3, 6)))]
                # To go on as a new run with work of its own under way is not what this is about.
                step["steps"] = [one if one["do"] != "renew" else {"do": "act", **self._activity()} for one in inner]
            case "wait":
                step |= {"count": chance.choice((1, 2)), "seconds": chance.choice((0.5, 5.0))}
            case "child" | "failing_child" | "leave":
                step |= {"id": f"c{self._next()}", "program": self.program(depth - 1)}
                step["policy"] = chance.choice(("TERMINATE", "ABANDON", "REQUEST_CANCEL"))
            case "tell" | "stop":
                step |= {"to": chance.choice([*self._roots, f"c{max(self._count, 1)}"]), "number": self._next()}
            case "patch":
                step |= {"id": f"p{chance.randrange(3)}", "value": 1}
            case "transfer":
                source, target = chance.sample(ACCOUNTS, 2)
                step |= {"source": source, "target": target, "amount": chance.randrange(1, 50)}
                step["seconds"] = chance.choice((0.0, 0.5))
            case _:
                pass
        return step

    def _activity(self) -> dict[str, Any]:
        chance = self._chance
        value = self._next()
        return {
            "value": value,
            # Those without a policy take the express way.
            "is_plain": value % 2 == 0,
            "takes": round(chance.choice((0.0, 0.01, 0.3, 4.0)) * (0.5 + chance.random()), 3),
            "fails": chance.choice((0, 0, 0, 1, 3)),
            "heartbeat": chance.choice((0, 0, 1.0)),
        }
