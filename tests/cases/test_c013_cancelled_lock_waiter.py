"""C013: a cancelled waiter of a lock passes the wake-up on."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from clew import activity, workflow
from clew.exceptions import WorkflowUpdateFailedError
from tests.cases.harness import ACTIVITY, QUEUE, engine, eventually, replay_check, settled, within, worker


@activity.defn
async def guarded(number: int) -> int:
    return number


@workflow.defn
class Locked:
    def __init__(self) -> None:
        self.log: list[int] = []
        self.waiting: list[int] = []
        self.tasks: dict[int, asyncio.Task[Any]] = {}
        self.is_over = False
        self.kind = ""

    @workflow.run
    async def run(self, kind: str) -> list[int]:
        self.kind = kind
        self.lock: Any = asyncio.Semaphore(2) if kind == "semaphore" else asyncio.Lock()
        self.condition = asyncio.Condition(self.lock) if kind == "condition" else None
        await workflow.wait_condition(lambda: self.is_over)
        return self.log

    @workflow.update
    async def hold(self, number: int) -> int:
        await workflow.wait_condition(lambda: self.kind != "")
        task = asyncio.current_task()
        assert task is not None
        self.tasks[number] = task
        self.waiting.append(number)
        async with self.condition or self.lock:
            await workflow.execute_activity(guarded, number, **ACTIVITY)
            self.log.append(number)
        return number

    @workflow.signal
    def drop(self, number: int) -> None:
        self.tasks[number].cancel()

    @workflow.signal
    def finish(self) -> None:
        self.is_over = True

    @workflow.query
    def waiting_numbers(self) -> list[int]:
        return self.waiting


@pytest.mark.parametrize("kind", ["lock", "semaphore", "condition"])
async def test_nobody_waits_for_ever(kind: str) -> None:
    # The first that has to wait: a semaphore of two lets the second update in.
    victim = 3 if kind == "semaphore" else 2
    others = [number for number in range(1, 7) if number != victim]
    async with engine() as client:
        async with worker(client, [Locked]):
            handle = await client.start_workflow(Locked.run, kind, id=kind, task_queue=QUEUE)
            updates = []
            for number in range(1, 7):
                updates.append(asyncio.create_task(handle.execute_update(Locked.hold, number)))
                await eventually(lambda number=number: _is_waiting(handle, number))  # type: ignore[misc]
        async with worker(client, [], [guarded]):
            # The first holder's activity ends: with the drop it is one workflow task.
            await eventually(lambda: _completed(handle))
        await handle.signal(Locked.drop, victim)
        async with worker(client, [Locked], [guarded]):
            with pytest.raises(WorkflowUpdateFailedError):
                await within(updates[victim - 1])
            for number in others:
                assert await within(updates[number - 1]) == number
            await handle.signal(Locked.finish)
            log = await settled(handle)
        # Two at a time may end in either order.
        assert (sorted(log) if kind == "semaphore" else log) == others
        await replay_check(handle, Locked)


async def _is_waiting(handle: Any, number: int) -> bool:
    return number in await handle.query(Locked.waiting_numbers)


async def _completed(handle: Any) -> bool:
    history = await handle.fetch_history()
    return any(type(event).__name__ == "ActivityTaskCompleted" for event in history)
