"""C009: an async generator that is left half-way behaves the same on first execution and on replay."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import AsyncIterator
from typing import Any

import pytest

from clew import activity, workflow
from clew.model import events as e
from clew.testing import ManualClock
from tests.cases.harness import (
    ACTIVITY,
    QUEUE,
    engine,
    events,
    eventually,
    no_errors,
    parked,
    replay_check_all,
    settled,
    worker,
)

RUNS = 20


@activity.defn
async def item(number: int) -> int:
    return number


@activity.defn
async def close() -> None:
    pass


async def generate() -> AsyncIterator[int]:
    try:
        for number in range(5):
            yield await workflow.execute_activity(item, number, **ACTIVITY)
    finally:
        await workflow.execute_activity(close, **ACTIVITY)


@workflow.defn
class WithAclosing:
    @workflow.run
    async def run(self) -> None:
        async with contextlib.aclosing(generate()) as items:  # type: ignore[type-var]
            async for number in items:
                if number == 2:
                    break
        await workflow.sleep(2)


@workflow.defn
class Without:
    @workflow.run
    async def run(self) -> None:
        async for number in generate():
            if number == 2:
                break
        await workflow.sleep(2)


@workflow.defn
class ReturnsDirectly:
    @workflow.run
    async def run(self) -> None:
        async for number in generate():
            if number == 2:
                break


@pytest.mark.parametrize(("kind", "cache"), [(WithAclosing, 100), (Without, 100), (Without, 0), (ReturnsDirectly, 100)])
async def test_the_end_of_the_generator_is_in_history_at_one_place(
    kind: Any, cache: int, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    clock = ManualClock()
    async with engine(clock) as client, worker(client, [kind], [item, close], cache=cache):
        handles = [await client.start_workflow(kind.run, id=f"g-{n}", task_queue=QUEUE) for n in range(RUNS)]
        if kind is not ReturnsDirectly:
            for handle in handles:
                await eventually(lambda handle=handle: _is_sleeping(handle))  # type: ignore[misc]
                await parked(handle)
            gc.collect()
            clock.advance((await handles[0].describe()).pending_timers[0].due_time - clock.now())
        for handle in handles:
            assert await settled(handle) is None
        gc.collect()
        shapes = set()
        for handle in handles:
            found = await events(handle)
            assert isinstance(found[-1], e.WorkflowExecutionCompleted)
            scheduled = [event for event in found if isinstance(event, e.ActivityTaskScheduled)]
            closes = [event.activity_id for event in scheduled if event.activity_type == "close"]
            assert len(scheduled) - len(closes) == 3
            shapes.add(len(closes))
        assert shapes == ({1} if kind is WithAclosing else shapes & {0, 1})
        assert len(shapes) == 1
        await replay_check_all([(await handle.fetch_history(), [kind]) for handle in handles[:3]])
    no_errors(caplog)
    assert "no running event loop" not in capfd.readouterr().err


async def _is_sleeping(handle: Any) -> bool:
    return len((await handle.describe()).pending_timers) == 1
