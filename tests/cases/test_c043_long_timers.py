"""C043: long timers, exact comparisons, and durations at the end of time."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from clew import workflow
from clew.model import events as e
from clew.testing import ManualClock
from tests.cases.harness import (
    QUEUE,
    engine,
    events,
    eventually,
    fire_pending_timer,
    parked,
    replay_check,
    settled,
    worker,
)

DAY = timedelta(days=1)


@workflow.defn
class Race:
    def __init__(self) -> None:
        self.flag = False

    @workflow.run
    async def run(self, days: int) -> str:
        try:
            await workflow.wait_condition(lambda: self.flag, timeout=timedelta(days=days))
        except TimeoutError:
            return "timer"
        await workflow.sleep(1)
        return "signal"

    @workflow.signal
    def set(self) -> None:
        self.flag = True


@workflow.defn
class TwentyTimers:
    @workflow.run
    async def run(self) -> list[bool]:
        in_time = []
        for _ in range(20):
            due = workflow.now() + timedelta(seconds=1.0005)
            await workflow.sleep(1.0005)
            in_time.append(workflow.now() >= due)
        return in_time


@workflow.defn
class EndOfTime:
    def __init__(self) -> None:
        self.flag = False

    @workflow.run
    async def run(self, is_max: bool) -> str:
        duration = timedelta.max if is_max else datetime(9999, 12, 31, tzinfo=UTC) - workflow.now()
        try:
            await workflow.wait_condition(lambda: self.flag, timeout=duration)
        except (ValueError, OverflowError) as error:
            return f"refused: {error}"
        return "quiet"

    @workflow.signal
    def set(self) -> None:
        self.flag = True


@pytest.mark.parametrize("days", [45, 400])
async def test_a_signal_on_day_seven_wins(days: int) -> None:
    clock = ManualClock()
    async with engine(clock) as client, worker(client, [Race]):
        handle = await client.start_workflow(Race.run, days, id="race", task_queue=QUEUE)
        await parked(handle)
        clock.advance(7 * DAY)
        await handle.signal(Race.set)
        await eventually(lambda: _canceled(handle))
        await parked(handle)
        clock.advance(timedelta(seconds=1))
        assert await settled(handle) == "signal"
        assert len(await events(handle, e.TimerStarted)) == 2
        await replay_check(handle, Race)


async def test_twenty_timers_are_twenty_and_none_is_early() -> None:
    clock = ManualClock()
    async with engine(clock) as client, worker(client, [TwentyTimers]):
        handle = await client.start_workflow(TwentyTimers.run, id="twenty", task_queue=QUEUE)
        for number in range(1, 21):
            await eventually(lambda number=number: _started(handle, number))  # type: ignore[misc]
            await parked(handle)
            await fire_pending_timer(clock, handle, number)
        assert await settled(handle) == [True] * 20
        started, fired = await events(handle, e.TimerStarted), await events(handle, e.TimerFired)
        assert len(started) == len(fired) == 20
        for start, fire in zip(started, fired, strict=True):
            assert fire.event_time - start.event_time >= timedelta(seconds=1.0005)
        await replay_check(handle, TwentyTimers)


@pytest.mark.parametrize("is_max", [False, True])
async def test_the_end_of_time_is_quiet_or_refused(is_max: bool) -> None:
    clock = ManualClock()
    async with engine(clock) as client, worker(client, [EndOfTime]):
        handle = await client.start_workflow(EndOfTime.run, is_max, id="end", task_queue=QUEUE)
        await eventually(lambda: _is_waiting_or_closed(handle))
        if (await handle.describe()).close_time is None:
            clock.advance(timedelta(days=3650))
            await parked(handle)
            await handle.signal(EndOfTime.set)
        outcome = await settled(handle)
        assert outcome == "quiet" or outcome.startswith("refused: ")
        assert len(await events(handle)) < 20
        await replay_check(handle, EndOfTime)


async def _is_waiting_or_closed(handle: object) -> bool:
    description = await handle.describe()  # type: ignore[attr-defined]
    return bool(description.pending_timers) or description.status.name != "RUNNING"


async def _canceled(handle: object) -> bool:
    return len(await events(handle, e.TimerCanceled)) == 1  # type: ignore[arg-type]


async def _started(handle: object, count: int) -> bool:
    return len(await events(handle, e.TimerStarted)) == count  # type: ignore[arg-type]
