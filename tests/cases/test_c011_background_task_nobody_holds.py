"""C011: a background task that nobody holds is neither collected nor silently lost."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest

from clew import activity, workflow
from tests.cases.harness import ACTIVITY, QUEUE, engine, parked, replay_check, settled, worker

COUNT = 30


@activity.defn
async def work(number: int) -> int:
    return number


@workflow.defn
class FiresAndForgets:
    def __init__(self) -> None:
        self.done: list[int] = []

    @workflow.run
    async def run(self) -> list[int]:
        await workflow.wait_condition(lambda: len(self.done) == COUNT)
        return self.done

    @workflow.signal
    def go(self, number: int) -> None:
        asyncio.create_task(self.background(number))  # noqa: RUF006 - the case

    async def background(self, number: int) -> None:
        cycle: list[Any] = []
        future = asyncio.ensure_future(workflow.execute_activity(work, number, **ACTIVITY))
        cycle.append((cycle, future))
        self.done.append(await future)


@workflow.defn
class BackgroundFails:
    @workflow.run
    async def run(self) -> str:
        asyncio.create_task(self.background())  # noqa: RUF006 - the case
        await workflow.sleep(0.01)
        gc.collect()
        await workflow.sleep(0.01)
        return "done"

    async def background(self) -> None:
        raise ValueError("lost in the background")


async def test_all_arrive_and_replay_gives_the_same_order() -> None:
    async with engine() as client, worker(client, [FiresAndForgets], [work]):
        handle = await client.start_workflow(FiresAndForgets.run, id="forgets", task_queue=QUEUE)
        for number in range(COUNT):
            await handle.signal(FiresAndForgets.go, number)
            if number % 3 == 0:
                await parked(handle)
                gc.collect(2)
        assert sorted(await settled(handle)) == list(range(COUNT))
        await replay_check(handle, FiresAndForgets, runs=2)


async def test_a_background_failure_is_logged_once_with_the_run(caplog: pytest.LogCaptureFixture) -> None:
    async with engine() as client, worker(client, [BackgroundFails]):
        handle = await client.start_workflow(BackgroundFails.run, id="fails", task_queue=QUEUE)
        assert await settled(handle) == "done"
        gc.collect()
        run_id = (await handle.describe()).run_id
    told = [r for r in caplog.records if "lost in the background" in r.getMessage() + str(r.exc_info)]
    assert len(told) == 1
    assert run_id in told[0].getMessage() + str(told[0].__dict__)
