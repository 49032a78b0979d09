"""C017: the loser of a race does not win on replay."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from clew import workflow
from clew.testing import ManualClock
from tests.cases.conftest import Recorded
from tests.cases.harness import (
    QUEUE,
    engine,
    fire_pending_timer,
    no_errors,
    parked,
    settled,
    worker,
)


@workflow.defn
class Race:
    def __init__(self) -> None:
        self.signals: set[str] = set()

    @workflow.run
    async def run(self) -> str:
        a = asyncio.create_task(workflow.wait_condition(lambda: "A" in self.signals))
        timer = asyncio.create_task(workflow.sleep(timedelta(seconds=1)))
        await asyncio.wait([a, timer], return_when=asyncio.FIRST_COMPLETED)
        if not a.done():
            return "timeout"
        await workflow.wait_condition(lambda: "B" in self.signals)
        return "A,B"

    @workflow.signal
    def send(self, name: str) -> None:
        self.signals.add(name)


@pytest.mark.parametrize("cache", [0, 100], ids=["cold", "warm"])
async def test_the_timer_that_fires_later_changes_nothing(
    cache: int, caplog: pytest.LogCaptureFixture, recorded: Recorded
) -> None:
    clock = ManualClock()
    async with engine(clock) as client:
        handle = await client.start_workflow(Race.run, id="race", task_queue=QUEUE)
        async with worker(client, [Race], cache=cache):
            await parked(handle)
            await handle.signal(Race.send, "A")
            await parked(handle)
            await fire_pending_timer(clock, handle, 1)
            await parked(handle)
        # Cold in either case from here on.
        async with worker(client, [Race], cache=cache):
            await handle.signal(Race.send, "B")
            assert await settled(handle) == "A,B"
        await recorded.add(handle, Race)
    no_errors(caplog)
