"""C020: a patch check in a loop gives one constant answer per run and id."""

from __future__ import annotations

import pytest

from clew import activity, workflow
from clew.model import events as e
from tests.cases.conftest import Recorded
from tests.cases.harness import ACTIVITY, QUEUE, engine, events, eventually, parked, settled, worker

ROUNDS = 6


@activity.defn
async def old() -> str:
    return "old"


@activity.defn
async def new() -> str:
    return "new"


class _Rounds:
    def __init__(self) -> None:
        self.allowed = 0
        self.done: list[str] = []

    async def turn(self, number: int) -> None:
        await workflow.wait_condition(lambda: self.allowed > number)

    @workflow.signal
    def allow(self) -> None:
        self.allowed += 1

    @workflow.query
    def done_rounds(self) -> list[str]:
        return self.done


@workflow.defn(name="Rounds")
class Before(_Rounds):
    @workflow.run
    async def run(self) -> list[str]:
        for number in range(ROUNDS):
            await self.turn(number)
            self.done.append(await workflow.execute_activity(old, **ACTIVITY))
        return self.done


@workflow.defn(name="Rounds")
class After(_Rounds):
    @workflow.run
    async def run(self) -> list[str]:
        for number in range(ROUNDS):
            await self.turn(number)
            step = new if workflow.patched("p") else old
            self.done.append(await workflow.execute_activity(step, **ACTIVITY))
        return [*self.done, str(workflow.patched("p"))]


@pytest.mark.parametrize("cache", [0, 100], ids=["cold-after-each-task", "cold-after-each-round"])
@pytest.mark.parametrize("is_old_run", [True, False], ids=["old-run", "fresh-run"])
async def test_the_answer_is_constant(is_old_run: bool, cache: int, recorded: Recorded) -> None:
    """The documented rule: the first check of an id decides for the whole run."""
    async with engine() as client:
        handle = await client.start_workflow(Before.run, id="rounds", task_queue=QUEUE)
        word = "old" if is_old_run else "new"
        for number in range(ROUNDS):
            code = Before if is_old_run and number < ROUNDS // 2 else After
            async with worker(client, [code], [old, new], cache=cache):
                await handle.signal(Before.allow)
                if number < ROUNDS - 1:
                    expected = [word] * (number + 1)

                    async def has_done(expected: list[str] = expected) -> bool:
                        return await handle.query(Before.done_rounds) == expected

                    await eventually(has_done, f"{expected}")
                    await parked(handle)
                else:
                    assert await settled(handle) == [word] * ROUNDS + [str(not is_old_run)]
        kinds = [event.activity_type for event in await events(handle, e.ActivityTaskScheduled)]
        assert kinds == [word] * ROUNDS
        assert len(await events(handle, e.MarkerRecorded)) == (0 if is_old_run else 1)
        await recorded.add(handle, After)
