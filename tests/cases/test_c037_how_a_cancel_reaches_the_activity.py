"""C037: how a cancel reaches the activity, and how the workflow waits for it.

The documented bound: cancellation reaches a running activity at once, with or without heartbeats (semantics 0.4).
"""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta

import pytest

from clew import activity, workflow
from clew.common import RetryPolicy
from clew.exceptions import ActivityError, CancelledError
from clew.model import events as e
from tests.cases.harness import QUEUE, engine, events, eventually, parked, replay_check, settled, worker

DELIVERY_SECONDS_MAX = 1.0

started: list[float] = []
cancelled: list[float] = []


@pytest.fixture(autouse=True)
def _clear() -> None:
    started.clear()
    cancelled.clear()


async def _clean_up_and(end: str) -> str:
    try:
        started.append(time.monotonic())
        await asyncio.sleep(30)
    except asyncio.CancelledError:
        cancelled.append(time.monotonic())
        await asyncio.sleep(0.3)
        if end == "return":
            return "done"
        if end == "raise":
            raise ValueError("clean-up failed") from None
        raise
    return "never cancelled"


@activity.defn
async def asynchronous(end: str) -> str:
    return await _clean_up_and(end)


@activity.defn
def threaded(end: str) -> str:
    started.append(time.monotonic())
    try:
        for _ in range(3_000):
            time.sleep(0.01)
    except CancelledError:
        cancelled.append(time.monotonic())
        with activity.shield_thread_cancel_exception():
            time.sleep(0.3)
        if end == "return":
            return "done"
        if end == "raise":
            raise ValueError("clean-up failed") from None
        raise
    return "never cancelled"


@workflow.defn
class Cancels:
    def __init__(self) -> None:
        self.is_told = False
        self.is_over = False
        self.outcome = ""

    @workflow.run
    async def run(self, name: str, end: str, kind: str, has_heartbeat: bool) -> tuple[str, float]:
        handle = workflow.start_activity(
            name,
            end,
            start_to_close_timeout=timedelta(seconds=60),
            heartbeat_timeout=timedelta(seconds=20) if has_heartbeat else None,
            retry_policy=RetryPolicy(maximum_attempts=1),
            cancellation_type=workflow.ActivityCancellationType[kind],
        )
        await workflow.wait_condition(lambda: self.is_told)
        before = workflow.time()
        handle.cancel()
        try:
            outcome = str(await handle)
        except ActivityError as error:
            cause = error.cause
            outcome = f"{type(cause).__name__} {getattr(cause, 'type', '') or ''}".strip()
        except asyncio.CancelledError:
            outcome = "asyncio.CancelledError"
        seconds, self.outcome = workflow.time() - before, outcome
        await workflow.wait_condition(lambda: self.is_over)
        return outcome, seconds

    @workflow.query
    def seen(self) -> str:
        return self.outcome

    @workflow.signal
    def finish(self) -> None:
        self.is_over = True

    @workflow.signal
    def tell(self) -> None:
        self.is_told = True


async def _outcome(name: str, end: str, kind: str, has_heartbeat: bool) -> tuple[str, float, list[str]]:
    async with engine() as client, worker(client, [Cancels], [asynchronous, threaded]):
        handle = await client.start_workflow(
            Cancels.run, args=[name, end, kind, has_heartbeat], id="cancels", task_queue=QUEUE
        )
        await eventually(lambda: started)
        await parked(handle)
        told_at = time.monotonic()
        await handle.signal(Cancels.tell)
        await eventually(lambda: handle.query(Cancels.seen))
        if kind == "ABANDON":
            # Only the end of the run reaches it, and that comes later.
            assert cancelled == []
            assert not await events(handle, e.ActivityTaskCancelRequested)
        else:
            await eventually(lambda: cancelled)
            assert cancelled[0] - told_at < DELIVERY_SECONDS_MAX
        await handle.signal(Cancels.finish)
        outcome, seconds = await settled(handle)
        await replay_check(handle, Cancels)
        return outcome, seconds, [type(event).__name__ for event in await events(handle)]


@pytest.mark.parametrize(
    ("name", "has_heartbeat"), [("asynchronous", True), ("asynchronous", False), ("threaded", True)]
)
@pytest.mark.parametrize(
    ("end", "expected"), [("again", "CancelledError"), ("return", "done"), ("raise", "ApplicationError ValueError")]
)
async def test_waiting_sees_how_the_activity_ended(name: str, has_heartbeat: bool, end: str, expected: str) -> None:
    outcome, seconds, _ = await _outcome(name, end, "WAIT_CANCELLATION_COMPLETED", has_heartbeat)
    assert outcome == expected
    assert seconds >= 0.2


@pytest.mark.parametrize("name", ["asynchronous", "threaded"])
async def test_trying_is_cancelled_at_once_and_later_outcomes_have_no_effect(name: str) -> None:
    outcome, seconds, kinds = await _outcome(name, "return", "TRY_CANCEL", True)
    assert outcome == "CancelledError"
    assert seconds < 0.2
    assert "ActivityTaskCompleted" not in kinds


async def test_abandoning_sends_nothing() -> None:
    outcome, seconds, _ = await _outcome("asynchronous", "again", "ABANDON", True)
    assert outcome == "CancelledError"
    assert seconds < 0.2
