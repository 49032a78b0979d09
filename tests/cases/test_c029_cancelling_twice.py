"""C029: cancelling twice, and cancelling what has just ended."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from clew import activity, workflow
from clew.client import WorkflowFailureError
from clew.exceptions import ActivityError, CancelledError, is_cancelled_exception
from clew.model import events as e
from clew.testing import ManualClock
from clew.workflow import ActivityCancellationType
from tests.cases.conftest import Recorded
from tests.cases.harness import (
    QUEUE,
    engine,
    events,
    eventually,
    fire_pending_timer,
    no_errors,
    parked,
    settled,
    within,
    worker,
)

OPTIONS: Any = {"start_to_close_timeout": timedelta(seconds=60), "heartbeat_timeout": timedelta(seconds=10)}


@activity.defn
async def quick() -> str:
    return "quick"


@activity.defn
async def beats() -> None:
    while True:
        activity.heartbeat()
        await asyncio.sleep(0.02)


@workflow.defn
class HoldsActivity:
    def __init__(self) -> None:
        self.log: list[str] = []
        self.is_over = False

    @workflow.run
    async def run(self, name: str, kind: int) -> list[str]:
        task = asyncio.current_task()
        assert task is not None
        self.handle = workflow.start_activity(
            name, result_type=str, cancellation_type=ActivityCancellationType(kind), **OPTIONS
        )
        try:
            self.log.append(str(await self.handle))
        except ActivityError as error:
            self.log.append("activity cancelled" if is_cancelled_exception(error) else repr(error))
        except asyncio.CancelledError:
            self.log.append("run cancelled")
            task.uncancel()
        self.log.append(f"cancelling {task.cancelling()}")
        try:
            await workflow.wait_condition(lambda: self.is_over or task.cancelling() > 0 or "run cancelled" in self.log)
        except asyncio.CancelledError:
            self.log.append("run cancelled")
        return self.log

    @workflow.signal
    def drop(self) -> None:
        self.handle.cancel()

    @workflow.signal
    def finish(self) -> None:
        self.is_over = True


@pytest.mark.parametrize("kind", list(ActivityCancellationType))
@pytest.mark.parametrize("is_run_first", [False, True], ids=["handle-first", "run-first"])
async def test_handle_and_run_in_one_task(
    kind: ActivityCancellationType, is_run_first: bool, recorded: Recorded, caplog: pytest.LogCaptureFixture
) -> None:
    async with engine() as client:
        handle = await client.start_workflow(HoldsActivity.run, args=["beats", int(kind)], id="twice", task_queue=QUEUE)
        async with worker(client, [HoldsActivity]):
            await parked(handle)
        stimuli = [handle.signal(HoldsActivity.drop), handle.cancel()]
        for stimulus in reversed(stimuli) if is_run_first else stimuli:
            await stimulus
        async with worker(client, [HoldsActivity], [beats]):
            log = await settled(handle)
        # As in asyncio, two cancellations of one await are one exception; then the count tells of the run's own.
        assert log in (
            ["activity cancelled", "cancelling 0", "run cancelled"],
            ["activity cancelled", "cancelling 1"],
            ["run cancelled", "cancelling 0"],
        )
        assert len(await events(handle, e.ActivityTaskCancelRequested)) <= 1
        assert not await events(handle, e.WorkflowTaskFailed)
        await recorded.add(handle, HoldsActivity)
    no_errors(caplog)


@workflow.defn
class HoldsTimer:
    def __init__(self) -> None:
        self.log: list[str] = []

    @workflow.run
    async def run(self) -> list[str]:
        main = asyncio.current_task()
        assert main is not None
        self.timer = asyncio.create_task(workflow.sleep(timedelta(seconds=1)))
        try:
            await self.timer
            self.log.append("fired")
        except asyncio.CancelledError:
            self.log.append("timer cancelled")
        self.log.append(f"cancelling {main.cancelling()}")
        await workflow.sleep(timedelta(seconds=1))
        return self.log

    @workflow.signal
    def drop(self) -> None:
        self.timer.cancel()


@pytest.mark.parametrize(
    ("is_signal_first", "outcome", "canceled_count"), [(False, "fired", 0), (True, "timer cancelled", 0)]
)
async def test_timer_fires_and_is_cancelled_in_one_task(
    is_signal_first: bool,
    outcome: str,
    canceled_count: int,
    recorded: Recorded,
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = ManualClock()
    async with engine(clock) as client:
        handle = await client.start_workflow(HoldsTimer.run, id="timer", task_queue=QUEUE)
        async with worker(client, [HoldsTimer]):
            await parked(handle)
        if is_signal_first:
            await handle.signal(HoldsTimer.drop)
        await fire_pending_timer(clock, handle, 1)
        if not is_signal_first:
            await handle.signal(HoldsTimer.drop)
        async with worker(client, [HoldsTimer]):
            await parked(handle)
            await fire_pending_timer(clock, handle, 2)
            assert await settled(handle) == [outcome, "cancelling 0"]
        assert len(await events(handle, e.TimerCanceled)) == canceled_count, "it had fired: there is nothing to cancel"
        assert not await events(handle, e.WorkflowTaskFailed)
        await recorded.add(handle, HoldsTimer)
    no_errors(caplog)


@pytest.mark.parametrize("kind", list(ActivityCancellationType))
@pytest.mark.parametrize("is_signal_first", [False, True], ids=["completion-first", "cancel-first"])
async def test_activity_completes_and_is_cancelled_in_one_task(
    kind: ActivityCancellationType, is_signal_first: bool, recorded: Recorded, caplog: pytest.LogCaptureFixture
) -> None:
    async with engine() as client:
        handle = await client.start_workflow(
            HoldsActivity.run, args=["quick", int(kind)], id="completes", task_queue=QUEUE
        )
        async with worker(client, [HoldsActivity]):
            await parked(handle)
        if is_signal_first:
            await handle.signal(HoldsActivity.drop)
        async with worker(client, [], [quick]):
            await eventually(lambda: _completed(handle), "the activity")
        if not is_signal_first:
            await handle.signal(HoldsActivity.drop)
        async with worker(client, [HoldsActivity]):
            await handle.signal(HoldsActivity.finish)
            log = await within(handle.result())
        if not is_signal_first:
            assert log == ["quick", "cancelling 0"], "as the order in history"
        else:
            assert log[-1] == "cancelling 0"
            assert log[0] in ("quick", "activity cancelled")
            if kind is not ActivityCancellationType.WAIT_CANCELLATION_COMPLETED:
                assert log[0] == "activity cancelled", "as the order in history"
        assert not await events(handle, e.ActivityTaskCancelRequested), "there is nobody left to be asked"
        assert not await events(handle, e.WorkflowTaskFailed)
        await recorded.add(handle, HoldsActivity)
    no_errors(caplog)


async def test_cancelling_a_closed_run_is_no_error() -> None:
    async with engine() as client, worker(client, [HoldsTimer]):
        handle = await client.start_workflow(HoldsTimer.run, id="closed", task_queue=QUEUE)
        await parked(handle)
        await handle.cancel()
        await handle.cancel()
        error = await settled(handle)
        assert len(await events(handle, e.WorkflowExecutionCancelRequested)) == 1
        assert isinstance(error, (list, WorkflowFailureError))
        if isinstance(error, WorkflowFailureError):
            assert isinstance(error.cause, CancelledError)
        await handle.cancel()


async def _completed(handle: Any) -> bool:
    return bool(await events(handle, e.ActivityTaskCompleted))
