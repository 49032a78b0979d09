"""C031: one failed heartbeat call does not end heartbeating, and trying does not outlive the attempt."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta
from typing import Any

import pytest

from clew import activity, workflow
from clew.common import RetryPolicy
from clew.exceptions import ActivityError, TimeoutError, WorkflowFailureError
from clew.model import events as e
from tests.cases.harness import (
    QUEUE,
    engine,
    events,
    eventually,
    no_errors,
    replay_check,
    service_faults,
    settled,
    unavailable,
    worker,
)

HEARTBEAT = timedelta(seconds=1)

attempts: list[int] = []
beats: list[float] = []
ends: list[tuple[str, Any, float]] = []


@pytest.fixture(autouse=True)
def _clear() -> None:
    attempts.clear()
    beats.clear()
    ends.clear()


@activity.defn
async def beating(seconds: float) -> str:
    attempts.append(activity.info().attempt)
    until = time.monotonic() + seconds
    try:
        while time.monotonic() < until:
            activity.heartbeat(len(beats))
            beats.append(time.monotonic())
            await asyncio.sleep(0.1)
    except asyncio.CancelledError:
        ends.append(("cancelled", activity.cancellation_details(), time.monotonic()))
        raise
    ends.append(("done", None, time.monotonic()))
    return "done"


@workflow.defn
class Beats:
    @workflow.run
    async def run(self, seconds: float) -> str:
        return await workflow.execute_activity(
            beating,
            seconds,
            start_to_close_timeout=timedelta(seconds=30),
            heartbeat_timeout=HEARTBEAT,
            retry_policy=RetryPolicy(maximum_attempts=1),
        )


async def test_a_short_fault_costs_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async with engine() as client:
        faults = service_faults(client)
        async with worker(client, [Beats], [beating]):
            handle = await client.start_workflow(Beats.run, 3.0, id="short", task_queue=QUEUE)
            await eventually(lambda: faults.calls["heartbeat_activity"] >= 1)
            faults.fail("heartbeat_activity", unavailable(), times=None)
            blocked_at = time.monotonic()
            # The fault lasts half of the heartbeat timeout, well within what is left after the last good one.
            await eventually(lambda: time.monotonic() - blocked_at > 0.5)
            faults.clear("heartbeat_activity")
            assert await settled(handle) == "done"
            assert attempts == [1]
            await replay_check(handle, Beats)
    no_errors(caplog)


async def test_a_long_fault_ends_the_attempt_and_the_activity_learns_it(caplog: pytest.LogCaptureFixture) -> None:
    async with engine() as client:
        faults = service_faults(client)
        async with worker(client, [Beats], [beating]):
            handle = await client.start_workflow(Beats.run, 20.0, id="long", task_queue=QUEUE)
            await eventually(lambda: faults.calls["heartbeat_activity"] >= 1)
            for method in ("heartbeat_activity", "complete_activity", "cancel_activity", "fail_activity"):
                faults.fail(method, unavailable(), times=None)
            error = await settled(handle)
            closed_at = time.monotonic()
            assert isinstance(error, WorkflowFailureError)
            assert isinstance(error.cause, ActivityError)
            assert isinstance(error.cause.cause, TimeoutError)
            await eventually(lambda: ends, seconds_max=5)
            kind, details, ended_at = ends[0]
            assert kind == "cancelled"
            assert details.timed_out or details.not_found
            assert ended_at - closed_at < 1.0
            faults.clear()
            reports = {name: faults.calls[name] for name in ("cancel_activity", "complete_activity", "fail_activity")}
            assert sum(reports.values()) < 10, reports
            assert len(await events(handle, e.ActivityTaskTimedOut)) == 1
            assert attempts == [1]
    no_errors(caplog)
