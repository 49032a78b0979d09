"""C033: the start-to-close clock must not run while a task waits for a thread."""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import threading
import time
from datetime import timedelta
from typing import Any

import pytest

from clew import activity, workflow
from clew.common import RetryPolicy
from tests.cases.harness import QUEUE, engine, replay_check, settled, worker

runs: list[tuple[str, int]] = []
running: dict[str, int] = {}
most: dict[str, int] = {}
_lock = threading.Lock()


@pytest.fixture(autouse=True)
def _clear() -> None:
    runs.clear()
    running.clear()
    most.clear()


def _sleep(where: str) -> None:
    with _lock:
        running[where] = running.get(where, 0) + 1
        most[where] = max(most.get(where, 0), running[where])
        runs.append((where, activity.info().attempt))
    time.sleep(0.5)
    with _lock:
        running[where] -= 1


def _activity(where: str) -> Any:
    @activity.defn(name="sleeper")
    def sleeper() -> None:
        _sleep(where)

    return sleeper


@activity.defn
async def uses_a_thread() -> int:
    await asyncio.to_thread(time.sleep, 0.05)
    return activity.info().attempt


@workflow.defn
class TenAtOnce:
    @workflow.run
    async def run(self, name: str) -> list[Any]:
        steps = [
            workflow.execute_activity(
                name,
                start_to_close_timeout=timedelta(seconds=1.5),
                retry_policy=RetryPolicy(maximum_attempts=1),
            )
            for _ in range(10)
        ]
        return await asyncio.gather(*steps)


async def test_all_succeed_and_a_second_worker_takes_its_share(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with concurrent.futures.ThreadPoolExecutor(2) as first, concurrent.futures.ThreadPoolExecutor(2) as second:
        async with engine() as client:
            one = worker(client, [TenAtOnce], [_activity("one")], activity_executor=first, max_concurrent_activities=10)
            two = worker(client, [], [_activity("two")], activity_executor=second, max_concurrent_activities=10)
            async with one:
                handle = await client.start_workflow(TenAtOnce.run, "sleeper", id="ten", task_queue=QUEUE)
                while not runs:
                    await asyncio.sleep(0.01)
                async with two:
                    assert await settled(handle) == [None] * 10
                    await replay_check(handle, TenAtOnce)
    assert len(runs) == 10
    assert {attempt for _, attempt in runs} == {1}
    assert max(most.values()) <= 2
    assert sum(where == "two" for where, _ in runs) >= 2


async def test_async_activities_with_threads_of_their_own_are_not_starved() -> None:
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        async with engine() as client:
            options: dict[str, Any] = {"activity_executor": pool, "max_concurrent_activities": 20}
            async with worker(client, [TenAtOnce], [_activity("one"), uses_a_thread], **options):
                slow = await client.start_workflow(TenAtOnce.run, "sleeper", id="slow", task_queue=QUEUE)
                while not runs:
                    await asyncio.sleep(0.01)
                clock = time.monotonic()
                quick = await client.start_workflow(TenAtOnce.run, "uses_a_thread", id="quick", task_queue=QUEUE)
                assert await settled(quick) == [1] * 10
                assert time.monotonic() - clock < 2.0
                assert await settled(slow) == [None] * 10
    assert {attempt for _, attempt in runs} == {1}
