"""C014: a wait that timed out is not resolved again later."""

from __future__ import annotations

from datetime import timedelta

import pytest

from clew import workflow
from clew.exceptions import WorkflowFailureError
from clew.testing import ManualClock
from tests.cases.harness import (
    QUEUE,
    engine,
    fire_pending_timer,
    no_errors,
    parked,
    replay_check,
    settled,
    worker,
)


@workflow.defn
class WaitsTwice:
    def __init__(self) -> None:
        self.flag = False

    @workflow.run
    async def run(self) -> str:
        try:
            await workflow.wait_condition(lambda: self.flag, timeout=timedelta(seconds=1))
        except TimeoutError:
            await workflow.wait_condition(lambda: self.flag)
            return "after the timeout"
        return "before the timeout"

    @workflow.signal
    def set(self) -> None:
        self.flag = True


@workflow.defn
class DoesNotCatch:
    @workflow.run
    async def run(self) -> None:
        await workflow.wait_condition(lambda: False, timeout=timedelta(seconds=1))


async def test_the_second_wait_ends_with_the_signal(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    async with engine(clock) as client, worker(client, [WaitsTwice]):
        handle = await client.start_workflow(WaitsTwice.run, id="twice", task_queue=QUEUE)
        await parked(handle)
        await fire_pending_timer(clock, handle, 1)
        await parked(handle)
        await handle.signal(WaitsTwice.set)
        assert await settled(handle) == "after the timeout"
        await replay_check(handle, WaitsTwice)
    no_errors(caplog)


@pytest.mark.parametrize(("is_timer_first", "outcome"), [(True, "after the timeout"), (False, "before the timeout")])
async def test_in_one_task_history_order_decides(
    is_timer_first: bool, outcome: str, caplog: pytest.LogCaptureFixture
) -> None:
    clock = ManualClock()
    async with engine(clock) as client:
        async with worker(client, [WaitsTwice]):
            handle = await client.start_workflow(WaitsTwice.run, id="race", task_queue=QUEUE)
            await parked(handle)
        if is_timer_first:
            await fire_pending_timer(clock, handle, 1)
            await handle.signal(WaitsTwice.set)
        else:
            await handle.signal(WaitsTwice.set)
            await fire_pending_timer(clock, handle, 1)
        async with worker(client, [WaitsTwice]):
            assert await settled(handle) == outcome
        await replay_check(handle, WaitsTwice)
    no_errors(caplog)


async def test_uncaught_the_run_fails() -> None:
    clock = ManualClock()
    async with engine(clock) as client, worker(client, [DoesNotCatch]):
        handle = await client.start_workflow(DoesNotCatch.run, id="uncaught", task_queue=QUEUE)
        await parked(handle)
        await fire_pending_timer(clock, handle, 1)
        error = await settled(handle, 5)
        assert isinstance(error, WorkflowFailureError)
        await replay_check(handle, DoesNotCatch)
