"""C004: a cancelled sleep leaves no live timer."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from clew import workflow
from clew.model import events as e
from clew.testing import ManualClock, WorkflowEnvironment
from tests.cases.harness import QUEUE, engine, events, eventually, no_errors, replay_check, settled, worker


@workflow.defn
class CancelsSleeps:
    @workflow.run
    async def run(self) -> list[str]:
        tasks = [
            asyncio.create_task(workflow.sleep(3600)),
            asyncio.create_task(asyncio.sleep(3600)),
            asyncio.create_task(workflow.wait_condition(lambda: False, timeout=timedelta(hours=1))),
        ]
        await workflow.sleep(1)
        for task in tasks:
            task.cancel()
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        await workflow.sleep(5)
        return [type(outcome).__name__ for outcome in outcomes]


@workflow.defn
class ConditionsThatHold:
    def __init__(self) -> None:
        self.is_set = False

    @workflow.run
    async def run(self) -> str:
        await workflow.wait_condition(lambda: True, timeout=timedelta(hours=1))
        await workflow.wait_condition(lambda: self.is_set, timeout=timedelta(hours=1))
        await workflow.sleep(5)
        return "done"

    @workflow.signal
    def set(self) -> None:
        self.is_set = True


async def test_only_the_last_timer_is_pending(
    caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    clock = ManualClock()
    async with engine(clock) as client, worker(client, [CancelsSleeps]):
        handle = await client.start_workflow(CancelsSleeps.run, id="sleeps", task_queue=QUEUE)
        await eventually(lambda: _pending_count(handle, 4))
        clock.advance(timedelta(seconds=1))
        await eventually(lambda: _pending_count(handle, 1))
        (pending,) = (await handle.describe()).pending_timers
        assert pending.due_time - clock.now() == timedelta(seconds=5)
        clock.advance(timedelta(seconds=5))
        assert await settled(handle) == ["CancelledError"] * 3
        assert len(await events(handle, e.TimerCanceled)) == 3
        await replay_check(handle, CancelsSleeps)
    no_errors(caplog)
    assert "Error" not in capfd.readouterr().err


async def test_a_condition_that_holds_makes_no_timer_or_cancels_it() -> None:
    clock = ManualClock()
    async with engine(clock) as client, worker(client, [ConditionsThatHold]):
        handle = await client.start_workflow(ConditionsThatHold.run, id="conditions", task_queue=QUEUE)
        await eventually(lambda: _pending_count(handle, 1))
        assert len(await events(handle, e.TimerStarted)) == 1
        await handle.signal(ConditionsThatHold.set)
        await eventually(lambda: _canceled_count(handle, 1))
        clock.advance(timedelta(seconds=5))
        assert await settled(handle) == "done"
        await replay_check(handle, ConditionsThatHold)


async def test_the_skipping_clock_does_not_jump_an_hour() -> None:
    async with (
        await WorkflowEnvironment.start_time_skipping() as environment,
        worker(environment.client, [CancelsSleeps]),
    ):
        before = await environment.get_current_time()
        handle = await environment.client.start_workflow(CancelsSleeps.run, id="sleeps", task_queue=QUEUE)
        assert await settled(handle) == ["CancelledError"] * 3
        assert timedelta(seconds=6) <= await environment.get_current_time() - before < timedelta(minutes=1)


async def _pending_count(handle: object, count: int) -> bool:
    return len((await handle.describe()).pending_timers) == count  # type: ignore[attr-defined]


async def _canceled_count(handle: object, count: int) -> bool:
    return len(await events(handle, e.TimerCanceled)) == count  # type: ignore[arg-type]
