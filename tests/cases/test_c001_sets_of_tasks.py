"""C001: sets of tasks must not make replay depend on memory addresses."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
from typing import Any

import pytest

from clew import activity, workflow
from tests.cases.harness import ACTIVITY, QUEUE, engine, replay_check_all, replay_outcomes, settled, worker

WORDS = frozenset({"ash", "birch", "cedar", "elm", "fir", "larch", "oak", "pine"})


@activity.defn
async def a(number: int) -> int:
    await asyncio.sleep(random.random() * 0.05)
    return number


@activity.defn
async def b(number: int) -> int:
    return number


@activity.defn
async def echo(word: str) -> str:
    return word


@workflow.defn
class WaitInALoop:
    @workflow.run
    async def run(self) -> list[int]:
        pending = {asyncio.create_task(workflow.execute_activity(a, n, **ACTIVITY)) for n in range(8)}
        order: list[int] = []
        while pending:
            done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                order += [await workflow.execute_activity(b, task.result(), **ACTIVITY)]
        return order


@workflow.defn
class AsCompleted:
    @workflow.run
    async def run(self) -> list[int]:
        tasks = [asyncio.create_task(workflow.execute_activity(a, n, **ACTIVITY)) for n in range(8)]
        return [
            await workflow.execute_activity(b, await first, **ACTIVITY) for first in asyncio.as_completed(set(tasks))
        ]


@workflow.defn
class BareCoroutines:
    @workflow.run
    async def run(self) -> list[int]:
        async def step(number: int) -> int:
            first = await workflow.execute_activity(a, number, **ACTIVITY)
            return await workflow.execute_activity(b, first, **ACTIVITY)

        gathered = await asyncio.gather(*(step(n) for n in range(4)))
        completed = [await first for first in asyncio.as_completed([step(n) for n in range(4, 8)])]
        return [*gathered, *completed]


@workflow.defn
class SetOfStrings:
    @workflow.run
    async def run(self) -> dict[str, str]:
        steps = {word: asyncio.create_task(workflow.execute_activity(echo, word, **ACTIVITY)) for word in WORDS}
        return {word: await step for word, step in steps.items()}


@pytest.mark.slow
async def test_wait_and_as_completed_replay_alike_everywhere() -> None:
    kinds: list[type[Any]] = [WaitInALoop, AsCompleted, BareCoroutines]
    async with engine() as client, worker(client, kinds, [a, b]):
        handles = [await client.start_workflow(kind.run, id=kind.__name__, task_queue=QUEUE) for kind in kinds]
        for handle in handles:
            assert sorted(await settled(handle)) == list(range(8))
        histories = [(await handle.fetch_history(), [kind]) for handle, kind in zip(handles, kinds, strict=True)]
    await replay_check_all(histories, runs=20)


async def test_a_set_of_strings_ends_in_a_reported_mismatch_or_in_the_same_order() -> None:
    async with engine() as client, worker(client, [SetOfStrings], [echo]):
        handle = await client.start_workflow(SetOfStrings.run, id="words", task_queue=QUEUE)
        assert await settled(handle) == {word: word for word in WORDS}
        history = await handle.fetch_history()
    scheduled = list(WORDS)
    for seed in range(1, 6):
        (outcome,) = await asyncio.to_thread(replay_outcomes, [(history, [SetOfStrings])], seed)
        if _order_under(seed) == scheduled:
            assert outcome == "ok"
        else:
            assert outcome.startswith("NondeterminismError"), outcome


def _order_under(seed: int) -> list[str]:
    code = f"print('\\n'.join(frozenset({set(WORDS)!r})))"
    done = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONHASHSEED": str(seed)}, capture_output=True, text=True, check=True
    )
    return done.stdout.split()
