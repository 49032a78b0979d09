"""C051: handlers that are unfinished when the run ends, and handlers that interleave."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from clew import activity, workflow
from clew.client import WorkflowUpdateFailedError
from clew.exceptions import ApplicationError
from tests.cases.conftest import Recorded
from tests.cases.harness import ACTIVITY, QUEUE, engine, eventually, parked, settled, within, worker

ITEMS = 8

gates: dict[str, asyncio.Event] = {}
done: list[str] = []


@pytest.fixture(autouse=True)
def _clear() -> None:
    gates.clear()
    done.clear()


@activity.defn
async def gated(name: str) -> str:
    await gates.setdefault(name, asyncio.Event()).wait()
    done.append(name)
    return name


@activity.defn
async def read(number: int) -> int:
    # Later ones come back earlier, if nothing keeps them in order.
    await asyncio.sleep(0.01 * (ITEMS - number))
    return number


@workflow.defn
class Returns:
    def __init__(self) -> None:
        self.is_over = False
        self.log: list[str] = []

    @workflow.run
    async def run(self, waits: bool) -> list[str]:
        await workflow.wait_condition(lambda: self.is_over)
        if waits:
            await workflow.wait_condition(workflow.all_handlers_finished)
        return self.log

    @workflow.signal
    def finish(self) -> None:
        self.is_over = True

    @workflow.signal
    async def slow_signal(self) -> None:
        self.log.append(await workflow.execute_activity(gated, "signal", **ACTIVITY))

    @workflow.update
    async def slow_update(self) -> str:
        name = await workflow.execute_activity(gated, "update", **ACTIVITY)
        self.log.append(name)
        return name


@pytest.mark.parametrize("waits", [False, True], ids=["returns-at-once", "waits-for-handlers"])
async def test_the_run_returns_while_handlers_work(
    waits: bool, caplog: pytest.LogCaptureFixture, recorded: Recorded
) -> None:
    caplog.set_level(logging.WARNING, "clew.workflow")
    async with engine() as client, worker(client, [Returns], [gated]):
        handle = await client.start_workflow(Returns.run, waits, id="returns", task_queue=QUEUE)
        await handle.signal(Returns.slow_signal)
        update = asyncio.create_task(handle.execute_update(Returns.slow_update, id="u-1"))
        await eventually(lambda: len(gates) == 2, "both handlers are in their activities")
        await handle.signal(Returns.finish)
        if waits:
            await parked(handle)
            for gate in gates.values():
                gate.set()
            assert await within(update) == "update"
            assert sorted(await settled(handle)) == ["signal", "update"]
            assert _warnings(caplog) == []
        else:
            assert await settled(handle) == []
            with pytest.raises(WorkflowUpdateFailedError) as caught:
                await within(update)
            assert isinstance(caught.value.cause, ApplicationError)
            [warning] = _warnings(caplog)
            assert "'slow_signal'" in warning
            assert "'slow_update'" in warning
            assert "u-1" in warning
            assert "workflow_id=returns" in warning
            for gate in gates.values():
                gate.set()
        await recorded.add(handle, Returns)


def _warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if "unfinished_handlers" in r.getMessage()]


@workflow.defn
class ReadsAndWrites:
    """Each handler reads the list, awaits an activity, and writes the list back with one item more."""

    def __init__(self) -> None:
        self.items: list[int] = []
        self.started: list[int] = []
        self.finished = 0
        self.lock = asyncio.Lock()

    @workflow.run
    async def run(self, is_locked: bool) -> tuple[list[int], list[int]]:
        await workflow.wait_condition(lambda: self.finished == ITEMS)
        return self.started, self.items

    @workflow.signal
    async def plain(self, number: int) -> None:
        self.started.append(number)
        await self._append(number)

    @workflow.signal
    async def locked(self, number: int) -> None:
        self.started.append(number)
        async with self.lock:
            await self._append(number)

    async def _append(self, number: int) -> None:
        items = list(self.items)
        items.append(await workflow.execute_activity(read, number, **ACTIVITY))
        self.items = items
        self.finished += 1


@pytest.mark.parametrize("is_locked", [False, True], ids=["unlocked", "locked"])
@pytest.mark.parametrize("cache", [100, 0], ids=["warm", "cold"])
@pytest.mark.parametrize("is_one_task", [True, False], ids=["one-task", "several-tasks"])
async def test_handlers_start_in_order_and_a_lock_keeps_their_state(
    is_locked: bool, cache: int, is_one_task: bool, recorded: Recorded
) -> None:
    async with engine() as client:
        handle: Any = await client.start_workflow(ReadsAndWrites.run, is_locked, id="items", task_queue=QUEUE)
        signal: Any = ReadsAndWrites.locked if is_locked else ReadsAndWrites.plain

        async def send() -> None:
            for number in range(ITEMS):
                await handle.signal(signal, number)

        if is_one_task:
            await send()
        async with worker(client, [ReadsAndWrites], [read], cache=cache):
            if not is_one_task:
                await send()
            started, items = await settled(handle)
        assert started == list(range(ITEMS)), "handlers start in the order of arrival"
        if is_locked:
            assert items == list(range(ITEMS)), "no item is lost, and the lock is fair"
        elif is_one_task:
            assert len(items) < ITEMS, "without a lock they overwrite each other, as they would anywhere"
        await recorded.add(handle, ReadsAndWrites)
