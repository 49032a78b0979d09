"""Resets: what is copied, what stands at the seam, and what comes again behind it."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

from temporalio import activity, workflow
from temporalio.exceptions import ApplicationError

MINUTE = timedelta(minutes=1)
mended = {"is_mended": False}


@activity.defn
async def step(number: int) -> int:
    return number


@workflow.defn
class Steps:
    """Two activities, each behind a signal."""

    def __init__(self) -> None:
        self.seen: list[int] = []

    @workflow.run
    async def run(self, wanted: int) -> list[int]:
        for number in range(wanted):
            await workflow.wait_condition(lambda number=number: len(self.seen) > number)
            await workflow.execute_activity(step, number, start_to_close_timeout=MINUTE)
        return self.seen

    @workflow.signal
    def add(self, number: int) -> None:
        self.seen.append(number)

    @workflow.update
    async def put(self, number: int) -> int:
        self.seen.append(number)
        return len(self.seen)


@workflow.defn
class Breaks:
    @workflow.run
    async def run(self) -> int:
        number = await workflow.execute_activity(step, 1, start_to_close_timeout=MINUTE)
        if not mended["is_mended"]:
            raise ApplicationError("a bug", type="Bug")
        return number


@workflow.defn
class Sleeps:
    """Sleeps until it is told twice."""

    def __init__(self) -> None:
        self.told = 0

    @workflow.run
    async def run(self) -> int:
        timer = asyncio.create_task(asyncio.sleep(3600))
        await workflow.wait_condition(lambda: self.told > 1)
        timer.cancel()
        return self.told

    @workflow.signal
    def tell(self) -> None:
        self.told += 1


@workflow.defn
class Kid:
    def __init__(self) -> None:
        self.is_done = False

    @workflow.run
    async def run(self) -> str:
        await workflow.wait_condition(lambda: self.is_done)
        return "grown up"

    @workflow.signal
    def finish(self) -> None:
        self.is_done = True


@workflow.defn
class Parent:
    def __init__(self) -> None:
        self.told = 0

    @workflow.run
    async def run(self, kid: str) -> str:
        child = await workflow.start_child_workflow(Kid.run, id=kid)
        await workflow.wait_condition(lambda: self.told > 0)
        return await child

    @workflow.signal
    def tell(self) -> None:
        self.told += 1


@workflow.defn
class GoesOn:
    """Continues as new once, by signal."""

    def __init__(self) -> None:
        self.seen: list[int] = []

    @workflow.run
    async def run(self, number: int) -> list[int]:
        await workflow.wait_condition(lambda: len(self.seen) > 0)
        if number == 0:
            workflow.continue_as_new(number + 1)
        await workflow.wait_condition(lambda: len(self.seen) > 2)
        return self.seen

    @workflow.signal
    def add(self, number: int) -> None:
        self.seen.append(number)


async def reset_of_an_open_run(bench: Any) -> None:
    async with bench.worker([Steps], [step]):
        handle = await bench.start(Steps.run, 3)
        await bench.seen(handle.id, "WorkflowTaskCompleted", 1)
        await handle.signal(Steps.add, 1)
        await bench.seen(handle.id, "WorkflowTaskCompleted", 3)
        await handle.signal(Steps.add, 2)
        await bench.seen(handle.id, "WorkflowTaskCompleted", 5)
    # No worker while it is reset: what the new run begins with is seen before anybody takes its task.
    again = await bench.reset(handle.id, task=3)
    await again.signal(Steps.add, 3)
    async with bench.worker([Steps], [step]):
        await bench.settled(again)


async def reset_of_a_failed_run(bench: Any) -> None:
    mended["is_mended"] = False
    async with bench.worker([Breaks], [step]):
        handle = await bench.start(Breaks.run)
        await bench.settled(handle)
    mended["is_mended"] = True
    again = await bench.reset(handle.id, task=2)
    async with bench.worker([Breaks], [step]):
        await bench.settled(again)


async def reset_to_a_task_not_yet_started(bench: Any) -> None:
    handle = await bench.start(Steps.run, 1)
    await handle.signal(Steps.add, 1)
    async with bench.worker([Steps], [step]):
        await bench.settled(handle)
    again = await bench.reset(handle.id, event_id=3)
    async with bench.worker([Steps], [step]):
        await bench.settled(again)


async def reset_brings_updates_again(bench: Any) -> None:
    async with bench.worker([Steps], [step]):
        handle = await bench.start(Steps.run, 3)
        await bench.seen(handle.id, "WorkflowTaskCompleted", 1)
        await handle.execute_update(Steps.put, 1, id="one")
        await bench.seen(handle.id, "WorkflowTaskCompleted", 3)
        await handle.execute_update(Steps.put, 2, id="two")
        await bench.seen(handle.id, "WorkflowTaskCompleted", 5)
    again = await bench.reset(handle.id, task=1)
    async with bench.worker([Steps], [step]):
        await bench.seen(handle.id, "WorkflowExecutionUpdateCompleted", 2)
        await bench.seen(handle.id, "ActivityTaskCompleted", 2)
        await again.signal(Steps.add, 3)
        await bench.settled(again)


async def reset_leaves_signals_out(bench: Any) -> None:
    async with bench.worker([Steps], [step]):
        handle = await bench.start(Steps.run, 1)
        await bench.seen(handle.id, "WorkflowTaskCompleted", 1)
        await handle.signal(Steps.add, 1)
        await bench.settled(handle)
    again = await bench.reset(handle.id, task=1, without=["signal"])
    await again.signal(Steps.add, 2)
    async with bench.worker([Steps], [step]):
        await bench.settled(again)


async def reset_keeps_a_timer(bench: Any) -> None:
    async with bench.worker([Sleeps]):
        handle = await bench.start(Sleeps.run)
        await bench.seen(handle.id, "WorkflowTaskCompleted", 1)
        await handle.signal(Sleeps.tell)
        await bench.seen(handle.id, "WorkflowTaskCompleted", 2)
    again = await bench.reset(handle.id, task=2)
    await again.signal(Sleeps.tell)
    async with bench.worker([Sleeps]):
        await bench.settled(again)


async def reset_keeps_a_child(bench: Any) -> None:
    async with bench.worker([Parent, Kid]):
        kid = bench.watch(bench.id("kid"))
        handle = await bench.start(Parent.run, kid)
        await bench.seen(handle.id, "WorkflowTaskCompleted", 2)
        await bench.seen(kid, "WorkflowTaskCompleted", 1)
        await handle.signal(Parent.tell)
        await bench.seen(handle.id, "WorkflowTaskCompleted", 3)
        again = await bench.reset(handle.id, task=3)
        await bench.seen(handle.id, "WorkflowTaskCompleted", 3)
        await bench.client.get_workflow_handle(kid).signal(Kid.finish)
        await bench.settled(again)


async def reset_reaches_back_over_a_chain(bench: Any) -> None:
    async with bench.worker([GoesOn]):
        handle = await bench.start(GoesOn.run, 0)
        await bench.seen(handle.id, "WorkflowTaskCompleted", 1)
        await asyncio.sleep(1)  # Runs begin a second apart.
        await handle.signal(GoesOn.add, 1)
        await bench.seen(handle.id, "WorkflowTaskCompleted", 1)
        latest = bench.client.get_workflow_handle(handle.id)
        while (await latest.describe()).run_id == handle.result_run_id:
            await asyncio.sleep(0.02)
        await bench.seen(handle.id, "WorkflowTaskCompleted", 1)
        await latest.signal(GoesOn.add, 2)
        await bench.seen(handle.id, "WorkflowTaskCompleted", 2)
    await bench.reset(handle.id, handle.result_run_id, task=1, without=[])


PROGRAMS = [
    reset_of_an_open_run,
    reset_of_a_failed_run,
    reset_to_a_task_not_yet_started,
    reset_brings_updates_again,
    reset_leaves_signals_out,
    reset_keeps_a_timer,
    reset_keeps_a_child,
    reset_reaches_back_over_a_chain,
]
