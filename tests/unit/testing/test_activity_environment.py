"""Activities run by the testing kit."""

from __future__ import annotations

import asyncio
import dataclasses
import threading
import time
from typing import Any

import pytest

from clew import activity
from clew.activity import ActivityCancellationDetails
from clew.exceptions import CancelledError
from clew.testing import ActivityEnvironment


@activity.defn
async def asynchronous(name: str) -> str:
    activity.heartbeat("half", 1)
    return f"{name} {activity.info().attempt}"


@activity.defn
def plain(name: str) -> str:
    activity.heartbeat(name)
    return f"{name} {activity.info().idempotency_key}"


async def test_runs_with_info_and_heartbeats() -> None:
    environment = ActivityEnvironment()
    environment.info = dataclasses.replace(environment.info, attempt=3, idempotency_key="key")
    beats: list[tuple[Any, ...]] = []
    environment.on_heartbeat = lambda *details: beats.append(details)
    assert await environment.run(asynchronous, "a") == "a 3"
    assert environment.run(plain, "b") == "b key"
    assert beats == [("half", 1), ("b",)]
    assert not activity.in_activity()


async def test_cancel_reaches_an_async_activity() -> None:
    environment = ActivityEnvironment()
    began = asyncio.Event()

    async def waits() -> str:
        began.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            details = activity.cancellation_details()
            assert details is not None
            return f"cancelled {details.timed_out} {activity.is_cancelled()}"
        return "never"

    running = asyncio.ensure_future(environment.run(waits))
    await began.wait()
    environment.cancel(ActivityCancellationDetails(timed_out=True))
    assert await asyncio.wait_for(running, 5) == "cancelled True True"


def _run_in_thread(environment: ActivityEnvironment, fn: Any) -> tuple[threading.Thread, list[Any]]:
    outcome: list[Any] = []

    def run() -> None:
        try:
            outcome.append(environment.run(fn))
        except CancelledError as error:
            outcome.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, outcome


def test_cancel_is_raised_in_a_thread() -> None:
    environment = ActivityEnvironment()
    began = threading.Event()

    def loops() -> None:
        began.set()
        while True:
            time.sleep(0.001)

    thread, outcome = _run_in_thread(environment, loops)
    assert began.wait(5)
    environment.cancel()
    thread.join(5)
    assert isinstance(outcome[0], CancelledError)


def test_an_activity_may_ask_not_to_be_interrupted() -> None:
    environment = ActivityEnvironment()
    began = threading.Event()

    @activity.defn(no_thread_cancel_exception=True)
    def asks() -> str:
        began.set()
        activity.wait_for_cancelled_sync(5)
        return f"asked {activity.is_cancelled()}"

    thread, outcome = _run_in_thread(environment, asks)
    assert began.wait(5)
    environment.cancel()
    thread.join(5)
    assert outcome == ["asked True"]


async def test_worker_shutdown_is_seen() -> None:
    environment = ActivityEnvironment()
    began = asyncio.Event()

    async def waits() -> bool:
        began.set()
        await activity.wait_for_worker_shutdown()
        return activity.is_worker_shutdown()

    running = asyncio.ensure_future(environment.run(waits))
    await began.wait()
    environment.worker_shutdown()
    assert await asyncio.wait_for(running, 5) is True


async def test_errors_come_out_as_they_are() -> None:
    def fails() -> None:
        raise ValueError("as it is")

    with pytest.raises(ValueError, match="as it is"):
        ActivityEnvironment().run(fails)
