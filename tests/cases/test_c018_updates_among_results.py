"""C018: replay applies updates among results as they were applied at first, however history is delivered."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from clew import activity, workflow
from clew.model import events as e
from clew.model.history import WorkflowHistory
from clew.testing import ManualClock
from tests.cases.conftest import Recorded
from tests.cases.harness import (
    ACTIVITY,
    QUEUE,
    engine,
    events,
    eventually,
    fire_pending_timer,
    names,
    parked,
    settled,
    within,
    worker,
)


@activity.defn
async def one() -> str:
    return "one"


@activity.defn
async def two() -> str:
    return "two"


@workflow.defn
class Interleaved:
    def __init__(self) -> None:
        self.running = 0
        self.resumed: list[str] = []

    @workflow.run
    async def run(self) -> list[str]:
        await workflow.wait_condition(lambda: bool(self.resumed))
        await workflow.sleep(timedelta(seconds=1))
        return self.resumed

    @workflow.signal
    async def start(self) -> None:
        self.running += 1
        await workflow.execute_activity(one, **ACTIVITY)
        self.running -= 1

    @workflow.update
    async def resume(self) -> str:
        if self.running > 0:
            return "early"
        self.resumed.append(await workflow.execute_activity(two, **ACTIVITY))
        return "resumed"

    @workflow.query
    def running_count(self) -> int:
        return self.running


COMMAND_EVENTS = (
    e.ActivityTaskScheduled,
    e.TimerStarted,
    e.WorkflowExecutionUpdateAccepted,
    e.WorkflowExecutionUpdateCompleted,
    e.WorkflowExecutionCompleted,
)


@pytest.mark.parametrize("cache", [100, 0], ids=["event-by-event", "as-one-batch"])
@pytest.mark.parametrize("has_queries", [False, True], ids=["plain", "with-queries"])
async def test_the_same_commands_however_history_comes(cache: int, has_queries: bool, recorded: Recorded) -> None:
    """A cached run gets the events task by task; without a cache all of history comes in one delivery, each time."""
    clock = ManualClock()
    async with engine(clock) as client, worker(client, [Interleaved], [one, two], cache=cache):
        handle = await client.start_workflow(Interleaved.run, id="interleaved", task_queue=QUEUE)

        async def ask(expected: int) -> None:
            if has_queries:
                assert await within(handle.query(Interleaved.running_count)) == expected

        await parked(handle)
        await ask(0)
        await handle.signal(Interleaved.start)
        await eventually(lambda: _has_completed(handle, 1), "activity one")
        await parked(handle)
        await ask(0)
        assert await within(handle.execute_update(Interleaved.resume)) == "resumed"
        await parked(handle)
        await ask(0)
        await fire_pending_timer(clock, handle, 1)
        assert await settled(handle) == ["two"]
        await ask(0)
        assert names(await events(handle, *COMMAND_EVENTS)) == [
            "ActivityTaskScheduled",
            "WorkflowExecutionUpdateAccepted",
            "ActivityTaskScheduled",
            "WorkflowExecutionUpdateCompleted",
            "TimerStarted",
            "WorkflowExecutionCompleted",
        ]
        await recorded.add(handle, Interleaved)


@workflow.defn
class Sees:
    def __init__(self) -> None:
        self.is_done = False
        self.is_over = False

    @workflow.run
    async def run(self) -> None:
        await workflow.wait_condition(lambda: self.is_over)

    @workflow.signal
    async def work(self) -> None:
        await workflow.execute_activity(one, **ACTIVITY)
        self.is_done = True

    @workflow.update
    def look(self) -> bool:
        return self.is_done

    @workflow.signal
    def finish(self) -> None:
        self.is_over = True


@pytest.mark.parametrize("is_update_first", [False, True], ids=["activity-first", "update-first"])
@pytest.mark.parametrize("cache", [100, 0], ids=["warm", "cold"])
async def test_a_handler_sees_what_came_before_it_in_history(
    cache: int, is_update_first: bool, recorded: Recorded
) -> None:
    async with engine() as client:
        handle = await client.start_workflow(Sees.run, id="sees", task_queue=QUEUE)
        async with worker(client, [Sees]):
            await parked(handle)
            await handle.signal(Sees.work)
            await parked(handle)

        async def complete() -> None:
            async with worker(client, [], [one]):
                await eventually(lambda: _has_completed(handle, 1), "activity one")

        async def update() -> asyncio.Task[bool]:
            sent = asyncio.create_task(handle.execute_update(Sees.look, id="look"))
            await eventually(lambda: _has_update(handle), "the update is admitted")
            return sent

        if is_update_first:
            sent = await update()
            await complete()
        else:
            await complete()
            sent = await update()
        async with worker(client, [Sees], cache=cache):
            assert await within(sent) is not is_update_first
            await handle.signal(Sees.finish)
            await settled(handle)
        history = await handle.fetch_history()
        [completed] = await events(handle, e.WorkflowExecutionUpdateCompleted)
        assert completed.outcome is not None
        await recorded.add(handle, Sees)
        assert _workflow_tasks_between(history) == 1, "activity and update came in one task"


@workflow.defn
class SeesAndActs:
    """What the handler asks for depends on what it saw, so a replay that sees otherwise cannot go unnoticed."""

    def __init__(self) -> None:
        self.is_done = False
        self.is_over = False

    @workflow.run
    async def run(self) -> None:
        await workflow.wait_condition(lambda: self.is_over)

    @workflow.signal
    async def work(self) -> None:
        await workflow.execute_activity(one, **ACTIVITY)
        self.is_done = True

    @workflow.update
    async def look(self) -> str:
        if self.is_done:
            await workflow.sleep(timedelta(milliseconds=1))
            return "slept"
        return await workflow.execute_activity(two, **ACTIVITY)

    @workflow.signal
    def finish(self) -> None:
        self.is_over = True


@pytest.mark.parametrize("is_update_first", [False, True], ids=["activity-first", "update-first"])
async def test_replay_takes_the_same_branch(is_update_first: bool, recorded: Recorded) -> None:
    async with engine() as client:
        handle = await client.start_workflow(SeesAndActs.run, id="acts", task_queue=QUEUE)
        async with worker(client, [SeesAndActs]):
            await parked(handle)
            await handle.signal(SeesAndActs.work)
            await parked(handle)
        sent: Any = None
        if is_update_first:
            sent = asyncio.create_task(handle.execute_update(SeesAndActs.look))
            await eventually(lambda: _has_update(handle), "the update is admitted")
        async with worker(client, [], [one]):
            await eventually(lambda: _has_completed(handle, 1), "activity one")
        if sent is None:
            sent = asyncio.create_task(handle.execute_update(SeesAndActs.look))
            await eventually(lambda: _has_update(handle), "the update is admitted")
        async with worker(client, [SeesAndActs], [one, two], cache=0):
            assert await within(sent) == ("two" if is_update_first else "slept")
            await handle.signal(SeesAndActs.finish)
            await settled(handle)
        await recorded.add(handle, SeesAndActs)


def _workflow_tasks_between(history: WorkflowHistory) -> int:
    """How many workflow tasks took the activity's end and the update."""
    end = next(event.event_id for event in history.events if isinstance(event, e.ActivityTaskCompleted))
    accepted = next(event.event_id for event in history.events if isinstance(event, e.WorkflowExecutionUpdateAccepted))
    return sum(isinstance(event, e.WorkflowTaskStarted) and end < event.event_id < accepted for event in history.events)


async def _has_completed(handle: Any, count: int) -> bool:
    return len(await events(handle, e.ActivityTaskCompleted)) >= count


async def _has_update(handle: Any) -> bool:
    return any("update" in line for line in (await handle.describe()).waiting_for)
