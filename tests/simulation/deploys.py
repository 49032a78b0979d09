"""Workflow code that changes while runs are open: before a patch, with it, and when its old path is gone.

Owns: the other versions of `Program`, `with_deploys`, `Deploys`, which brings them about, and `check_deploys`.
Never: what a step does but for the one that changes.

How it works: the first version knows nothing of the change, the second asks `patched`, the third says
`deprecate_patch`. A deployment ends all workers, then starts others with the next version; the third waits, as its
users are told to, until no run is open that the first may have worked on. A step that changes sleeps on its old path,
and does an activity on its new one, so that a history that was made on one path does not replay on the other. Each
history has to replay, whole, with every version that it may meet; and the path that it shows is the one that it has a
marker for.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec

from clew import workflow
from clew.model import events as e
from clew.replay.commands import is_deprecated_patch, patch_id_of
from clew.workflow._definition import Definition
from tests.simulation.programs import Program, Register
from tests.simulation.record import LawBroken, RunLog

if TYPE_CHECKING:
    from tests.simulation.plan import Action, Plan
    from tests.simulation.world import World

DEPLOYS_SHARE: Final = 0.4
"""Of the seeds that have neither resets nor workers in the processes of nodes."""

SETTLED_SECONDS: Final = 40.0
"""After a deployment nothing is on its way any more that was made by the version before."""

LOOK_AGAIN_SECONDS: Final = 1.0
FIRST, SECOND, THIRD = 1, 2, 3


@workflow.defn(name="Program")
class FirstProgram(Program):
    """Knows nothing of the change."""

    @workflow.init
    def __init__(self, program: dict[str, Any]) -> None:
        super().__init__(program)

    @workflow.run
    async def run(self, program: dict[str, Any]) -> dict[str, Any]:
        return await super().run(program)

    async def do_change(self, step: dict[str, Any]) -> int:
        await asyncio.sleep(step["seconds"])
        return 0


@workflow.defn(name="Program")
class ThirdProgram(Program):
    """Has the new path alone."""

    @workflow.init
    def __init__(self, program: dict[str, Any]) -> None:
        super().__init__(program)

    @workflow.run
    async def run(self, program: dict[str, Any]) -> dict[str, Any]:
        return await super().run(program)

    async def do_change(self, step: dict[str, Any]) -> int:
        workflow.deprecate_patch(step["id"])
        return await self.act(step)


def _definitions(program: type[Any]) -> dict[str, Definition]:
    return {"Program": Definition.must_from_class(program), "Register": Definition.must_from_class(Register)}


DEFINITIONS: Final[Mapping[int, dict[str, Definition]]] = {
    FIRST: _definitions(FirstProgram),
    SECOND: _definitions(Program),
    THIRD: _definitions(ThirdProgram),
}
"""The code of each version; worlds without deployments have the second."""


# --- plans ------------------------------------------------------------------------------------------------------------


def with_deploys(plan: Plan) -> Plan:
    """In some seeds: the same with steps that change, and two deployments."""
    chance = random.Random(f"deploys:{plan.seed}")
    if chance.random() >= DEPLOYS_SHARE or plan.inside or not plan.workers:
        return plan
    numbers = itertools.count(1)
    calls: list[Action] = []
    for call in plan.calls:
        if "program" in call.values:
            program = _changing(call.values["program"], chance, numbers, plan.seconds)
            call = msgspec.structs.replace(call, values={**call.values, "program": program})
        calls.append(call)
    second = plan.seconds * chance.choice((0.2, 0.5))
    third = second + plan.seconds * chance.choice((0.1, 0.4))
    return msgspec.structs.replace(plan, calls=tuple(calls), deploys=(round(second, 3), round(third, 3)))


def _changing(program: dict[str, Any], chance: random.Random, numbers: Iterator[int], seconds: float) -> dict[str, Any]:
    """The program with steps that change in place of patches, and between the others."""
    steps: list[dict[str, Any]] = []
    for step in program["steps"]:
        if step["do"] == "patch":
            continue
        if chance.random() < 0.4:
            steps.append(_change(chance, numbers))
        if chance.random() < 0.2:
            steps.append(_pause(chance, numbers, seconds * 0.3))
        if "program" in step:
            step = {**step, "program": _changing(step["program"], chance, numbers, seconds)}
        if "steps" in step:
            step = {**step, "steps": [one for one in step["steps"] if one["do"] != "patch"]}
        steps.append(step)
    if chance.random() < 0.5:
        # The same change before and after a deployment, which has to be taken alike.
        change = _change(chance, numbers)
        again = {**change, "name": f"d{next(numbers)}"}
        steps = [change, _pause(chance, numbers, seconds * 0.6), *steps, again]
    return {**program, "steps": steps}


def _pause(chance: random.Random, numbers: Iterator[int], seconds: float) -> dict[str, Any]:
    return {
        "do": "sleep", "seconds": round(chance.random() * seconds, 3), "value": 1, "name": f"d{next(numbers)}",
    }  # fmt: skip


def _change(chance: random.Random, numbers: Iterator[int]) -> dict[str, Any]:
    number = next(numbers)
    return {
        "do": "change",
        "name": f"d{number}",
        "id": f"change{chance.randrange(2)}",
        "value": 7_000 + number,
        "seconds": chance.choice((0.001, 0.05)),
        "takes": chance.choice((0.0, 0.05)),
    }


# --- deployments ------------------------------------------------------------------------------------------------------


class Deploys:
    """The version of the code that workers are started with."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.version = FIRST if world.plan.deploys else SECOND
        self.runs_of_first: int | None = None
        """Runs that were durable when the second version came; None before."""
        self.runs_before_second: int | None = None
        """Runs that the first version may have worked on: those of a lower number."""

    def begin(self) -> None:
        """See to it that they happen."""
        loop = self._world.loop
        for version, at in enumerate(self._world.plan.deploys, SECOND):
            loop.post(loop.root, at, self._deploy, version)

    def _deploy(self, version: int) -> None:
        loop, record = self._world.loop, self._world.record
        if version == THIRD and not self._is_first_over():
            loop.post(loop.root, LOOK_AGAIN_SECONDS, self._deploy, version)
            return
        loop.note(f"deploy version {version}")
        self.version = version
        if version == SECOND:
            self.runs_of_first = len(record.runs)
            loop.post(loop.root, SETTLED_SECONDS, self._note_settled)
        self._world.restart_workers()

    def _note_settled(self) -> None:
        self.runs_before_second = len(self._world.record.runs)

    def _is_first_over(self) -> bool:
        before = self.runs_before_second
        return before is not None and not any(
            run.is_open and run.number < before for run in self._world.record.runs.values()
        )

    def versions_for(self, run: RunLog) -> Iterator[int]:
        """Those with which its history has to replay."""
        yield SECOND
        if self.runs_before_second is not None and run.number >= self.runs_before_second:
            yield THIRD
        is_old = self.runs_of_first is None or run.number < self.runs_of_first
        if self._world.plan.deploys and is_old and not any(_is_patch(event) for event in run.events):
            yield FIRST


def check_deploys(world: World) -> None:
    """A run takes the new path of a change where its history has the marker of that, and there alone."""
    if not world.plan.deploys:
        return
    for run in world.record.runs.values():
        marked: set[str] = set()
        for event in run.events:
            if isinstance(event, e.MarkerRecorded) and _is_patch(event):
                marked.add(patch_id_of(event))
                is_third = world.deploys.version == THIRD
                if is_deprecated_patch(event) and not is_third:
                    raise LawBroken(f"law 5: {run.workflow_id} has {event}, of a version that there never was")
            if isinstance(event, e.ActivityTaskScheduled) and event.activity_id.startswith("d"):
                [step] = msgspec.json.decode(msgspec.json.encode(event.input))
                if step.get("do") == "change" and step["id"] not in marked:
                    raise LawBroken(f"law 5: {run.workflow_id} took the new path of {step['id']} without a marker")


def _is_patch(event: e.Event) -> bool:
    return isinstance(event, e.MarkerRecorded) and bool(patch_id_of(event))
