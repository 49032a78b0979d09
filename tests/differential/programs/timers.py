"""Timers that fire, are cancelled, and race."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

from temporalio import activity, workflow

SHORT = timedelta(milliseconds=100)
LONG = timedelta(hours=1)


@activity.defn
async def nothing() -> None:
    return None


@workflow.defn
class Sleeps:
    @workflow.run
    async def run(self) -> str:
        await asyncio.sleep(0.1)
        await workflow.sleep(SHORT, summary="a nap")
        return "rested"


@workflow.defn
class CancelsTimer:
    @workflow.run
    async def run(self) -> str:
        nap = asyncio.create_task(asyncio.sleep(3600))
        await asyncio.sleep(0.1)
        nap.cancel()
        try:
            await nap
        except asyncio.CancelledError:
            return "woken"
        return "slept"


@workflow.defn
class CancelsTimerAtOnce:
    """Started and cancelled in one task: the history says nothing of it."""

    @workflow.run
    async def run(self) -> str:
        nap = asyncio.create_task(asyncio.sleep(3600))
        await asyncio.sleep(0)
        nap.cancel()
        await asyncio.gather(nap, return_exceptions=True)
        return "woken"


@workflow.defn
class ConditionTimesOut:
    @workflow.run
    async def run(self) -> str:
        try:
            await workflow.wait_condition(lambda: False, timeout=SHORT)
        except TimeoutError:
            return "timed out"
        return "never"


@workflow.defn
class ConditionHolds:
    def __init__(self) -> None:
        self.done = False

    @workflow.run
    async def run(self) -> str:
        await workflow.wait_condition(lambda: self.done, timeout=LONG)
        return "held"

    @workflow.signal
    def finish(self) -> None:
        self.done = True


@workflow.defn
class WaitFor:
    @workflow.run
    async def run(self) -> str:
        await asyncio.wait_for(workflow.execute_activity(nothing, start_to_close_timeout=LONG), 3600)
        return "in time"


@workflow.defn
class TwoTimers:
    @workflow.run
    async def run(self) -> list[str]:
        seen: list[str] = []

        async def nap(seconds: float, name: str) -> None:
            await asyncio.sleep(seconds)
            seen.append(name)

        await asyncio.gather(nap(3.0, "late"), nap(0.1, "early"))
        return seen


async def alone(bench: Any, program: Any) -> None:
    async with bench.worker([program], [nothing]):
        await bench.settled(await bench.start(program.run))


async def timers_in_sequence(bench: Any) -> None:
    await alone(bench, Sleeps)


async def timer_is_cancelled(bench: Any) -> None:
    await alone(bench, CancelsTimer)


async def timer_is_cancelled_in_its_own_task(bench: Any) -> None:
    await alone(bench, CancelsTimerAtOnce)


async def condition_times_out(bench: Any) -> None:
    await alone(bench, ConditionTimesOut)


async def timers_together(bench: Any) -> None:
    await alone(bench, TwoTimers)


async def activity_beats_its_timeout(bench: Any) -> None:
    await alone(bench, WaitFor)


async def condition_holds_before_its_timeout(bench: Any) -> None:
    async with bench.worker([ConditionHolds]):
        handle = await bench.start(ConditionHolds.run)
        await bench.seen(handle.id, "TimerStarted")
        await handle.signal(ConditionHolds.finish)
        await bench.settled(handle)


PROGRAMS = [
    timers_in_sequence,
    timer_is_cancelled,
    timer_is_cancelled_in_its_own_task,
    condition_times_out,
    timers_together,
    activity_beats_its_timeout,
    condition_holds_before_its_timeout,
]
