"""C027: a cancel does not vanish because an activity finished at that moment."""

from __future__ import annotations

import asyncio
import random
import time
from datetime import timedelta
from typing import Any

import pytest

from clew import activity, workflow
from clew.client import WorkflowFailureError
from clew.exceptions import CancelledError
from clew.model import events as e
from clew.workflow import ActivityCancellationType
from tests.cases.conftest import Recorded
from tests.cases.harness import QUEUE, engine, events, eventually, parked, settled, within, worker

RUNS = 25
"""Of each of three types; the case has 200 in all, which is the same race more often."""
SECONDS_OF_A_STEP = (0.01, 0.04)


@activity.defn
async def awaiting(seconds: float) -> None:
    await asyncio.sleep(seconds)


@activity.defn
def blocking(seconds: float) -> None:
    time.sleep(seconds)


@workflow.defn
class Loops:
    @workflow.run
    async def run(self, kind: int) -> None:
        dice = workflow.random()
        for _ in range(1_000):
            for step in (awaiting, blocking):
                await workflow.execute_activity(
                    step,  # type: ignore[arg-type]
                    dice.uniform(*SECONDS_OF_A_STEP),
                    start_to_close_timeout=timedelta(seconds=10),
                    heartbeat_timeout=timedelta(seconds=5),
                    cancellation_type=ActivityCancellationType(kind),
                )


@pytest.mark.parametrize("kind", list(ActivityCancellationType))
async def test_every_run_ends_within_one_more_step(kind: ActivityCancellationType, recorded: Recorded) -> None:
    dice = random.Random(27)

    async with engine() as client, worker(client, [Loops], [awaiting, blocking]):

        async def one(number: int) -> Any:
            handle = await client.start_workflow(Loops.run, int(kind), id=f"{kind.name}-{number}", task_queue=QUEUE)
            steps = dice.randrange(1, 6)
            await eventually(lambda: _scheduled_count_reaches(handle, steps), "some steps", 30)
            await asyncio.sleep(dice.uniform(0, SECONDS_OF_A_STEP[1]))
            await handle.cancel()
            error = await settled(handle, 20)
            assert isinstance(error, WorkflowFailureError), error
            assert isinstance(error.cause, CancelledError)
            history = await events(handle)
            asked = next(n for n, event in enumerate(history) if isinstance(event, e.WorkflowExecutionCancelRequested))
            later = [event for event in history[asked:] if isinstance(event, e.ActivityTaskScheduled)]
            # One that was being asked for by the task that was running when the request came.
            assert len(later) <= 1
            return handle

        handles = await within(asyncio.gather(*(one(number) for number in range(RUNS))), 60)
        for handle in handles[::5]:
            await recorded.add(handle, Loops)


@workflow.defn
class TwoSteps:
    def __init__(self) -> None:
        self.log: list[str] = []

    @workflow.run
    async def run(self, kind: int) -> None:
        for number in range(2):
            try:
                await workflow.execute_activity(
                    awaiting,
                    0.0,
                    start_to_close_timeout=timedelta(seconds=10),
                    cancellation_type=ActivityCancellationType(kind),
                )
                self.log.append(f"step {number} done")
            except BaseException:
                self.log.append(f"step {number} cancelled")
                raise

    @workflow.query
    def lines(self) -> list[str]:
        return self.log


@pytest.mark.parametrize("kind", list(ActivityCancellationType))
@pytest.mark.parametrize("is_cancel_first", [False, True], ids=["completion-first", "cancel-first"])
async def test_both_in_one_task(kind: ActivityCancellationType, is_cancel_first: bool, recorded: Recorded) -> None:
    async with engine() as client:
        handle = await client.start_workflow(TwoSteps.run, int(kind), id="two", task_queue=QUEUE)
        async with worker(client, [TwoSteps]):
            await parked(handle)
        if is_cancel_first:
            await handle.cancel()
        async with worker(client, [], [awaiting]):
            await eventually(lambda: _completed(handle), "the first activity")
        if not is_cancel_first:
            await handle.cancel()
        async with worker(client, [TwoSteps], [awaiting]):
            error = await settled(handle)
            assert isinstance(error, WorkflowFailureError)
            assert isinstance(error.cause, CancelledError)
            log = await within(handle.query(TwoSteps.lines))
        # The result may be consumed; then the next await raises.
        assert log in (["step 0 cancelled"], ["step 0 done", "step 1 cancelled"])
        if not is_cancel_first:
            assert log == ["step 0 done", "step 1 cancelled"], "what came first in history is seen"
        assert len(await events(handle, e.ActivityTaskCompleted)) == 1, "no second step was run"
        await recorded.add(handle, TwoSteps)


async def _scheduled_count_reaches(handle: Any, count: int) -> bool:
    return len(await events(handle, e.ActivityTaskScheduled)) >= count


async def _completed(handle: Any) -> bool:
    return bool(await events(handle, e.ActivityTaskCompleted))


cleanups: list[str] = []


@activity.defn
async def stubborn() -> str:
    """Ends as if it had not been asked to stop."""
    try:
        await asyncio.sleep(30)
    except asyncio.CancelledError:
        return "done"
    return "never cancelled"


@activity.defn
async def clean_up() -> None:
    cleanups.append("clean")


WAITS: Any = {
    "start_to_close_timeout": timedelta(seconds=60),
    "cancellation_type": ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
}


@workflow.defn
class CleansUp:
    """Its clean-up is not shielded: the one request to cancel must reach `run` once."""

    @workflow.run
    async def run(self, form: str) -> None:
        try:
            if form == "gather":
                await asyncio.gather(*(workflow.execute_activity(stubborn, **WAITS) for _ in range(2)))
            elif form == "task in gather":
                await asyncio.gather(asyncio.create_task(self._step()), workflow.execute_activity(stubborn, **WAITS))
            elif form == "task":
                await asyncio.create_task(self._step())
            else:
                await workflow.execute_activity(stubborn, **WAITS)
            await workflow.sleep(60)
        except asyncio.CancelledError:
            await workflow.execute_activity(clean_up, start_to_close_timeout=timedelta(seconds=10))
            raise

    async def _step(self) -> str:
        return await workflow.execute_activity(stubborn, **WAITS)


@pytest.mark.parametrize("form", ["plain", "task", "gather", "task in gather"])
async def test_what_outlives_the_cancel_neither_loses_nor_doubles_it(form: str, recorded: Recorded) -> None:
    cleanups.clear()
    async with engine() as client, worker(client, [CleansUp], [stubborn, clean_up]):
        handle = await client.start_workflow(CleansUp.run, form, id=form, task_queue=QUEUE)
        await eventually(lambda: _has_started(handle), "the activity runs")
        await handle.cancel()
        error = await settled(handle)
        assert isinstance(error, WorkflowFailureError), error
        assert isinstance(error.cause, CancelledError)
        assert cleanups == ["clean"]
        await recorded.add(handle, CleansUp)


async def _has_started(handle: Any) -> bool:
    pending = (await handle.describe()).pending_activities
    return bool(pending) and all(one.state == "Started" for one in pending)
