"""C003: no queue item is lost when a timeout and an item coincide."""

from __future__ import annotations

import asyncio

from clew import workflow
from clew.testing import ManualClock
from tests.cases.harness import QUEUE, engine, eventually, fire_pending_timer, parked, replay_check, settled, worker

ITEMS = 30


@workflow.defn
class Consumer:
    def __init__(self) -> None:
        self.queue: asyncio.Queue[int | None] = asyncio.Queue()

    @workflow.run
    async def run(self) -> tuple[list[int], int]:
        items: list[int] = []
        timeouts = 0
        while True:
            try:
                item = await asyncio.wait_for(self.queue.get(), 1)
            except TimeoutError:
                timeouts += 1
                continue
            if item is None:
                return items, timeouts
            items.append(item)

    @workflow.signal
    def put(self, item: int | None) -> None:
        self.queue.put_nowait(item)


async def test_items_arrive_each_once_and_in_order() -> None:
    clock = ManualClock()
    async with engine(clock) as client:
        handle = await client.start_workflow(Consumer.run, id="consumer", task_queue=QUEUE)
        async with worker(client, [Consumer]):
            await parked(handle)
        for number in range(1, ITEMS + 1):
            if number % 2:
                await fire_pending_timer(clock, handle, number)
                await handle.signal(Consumer.put, number)
            else:
                await handle.signal(Consumer.put, number)
                await fire_pending_timer(clock, handle, number)
            async with worker(client, [Consumer]):
                await parked(handle)
                # A timeout leaves the loop waiting with a new timer; so does an item.
                await eventually(lambda: _has_pending_timer(handle))
        await handle.signal(Consumer.put, None)
        async with worker(client, [Consumer]):
            items, timeouts = await settled(handle)
        assert items == list(range(1, ITEMS + 1))
        assert 0 <= timeouts <= ITEMS
        await replay_check(handle, Consumer)


async def _has_pending_timer(handle: object) -> bool:
    return len((await handle.describe()).pending_timers) == 1  # type: ignore[attr-defined]
