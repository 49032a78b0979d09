"""C089: stopping a worker with parked runs is quick and silent, and leaves no trace in their histories."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import time
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest

from clew import activity, workflow
from tests.cases.harness import QUEUE, engine, events, parked, replay_check_all, settled, worker

RUNS = 100
KINDS = ["sleep", "activity", "lock", "resource", "generator", "group", "shield"]
cleanups: list[str] = []


@activity.defn
async def wait_for_release() -> str:
    # Ends by the worker's shutdown, and at once in the second worker.
    if activity.info().attempt == 1:
        await asyncio.sleep(60)
    return "released"


@activity.defn
async def clean_up(who: str) -> None:
    cleanups.append(who)


ACTIVITY: dict[str, Any] = {"start_to_close_timeout": timedelta(seconds=120)}


@workflow.defn
class Parked:
    def __init__(self) -> None:
        self.is_released = False
        self.lock = asyncio.Lock()

    @workflow.run
    async def run(self, kind: str) -> str:
        try:
            await getattr(self, f"park_in_{kind}")()
        finally:
            workflow.logger.warning("cleaning up")
            await workflow.execute_activity(clean_up, workflow.info().workflow_id, **ACTIVITY)
        return kind

    @workflow.signal
    def release(self) -> None:
        self.is_released = True

    async def released(self) -> None:
        await workflow.wait_condition(lambda: self.is_released)

    async def park_in_sleep(self) -> None:
        with contextlib.suppress(asyncio.TimeoutError):
            await workflow.wait_condition(lambda: self.is_released, timeout=timedelta(hours=1))

    async def park_in_activity(self) -> None:
        await workflow.execute_activity(wait_for_release, **ACTIVITY)

    async def park_in_lock(self) -> None:
        await self.lock.acquire()
        holder = asyncio.create_task(self.release_lock())
        async with self.lock:
            pass
        await holder

    async def release_lock(self) -> None:
        await self.released()
        self.lock.release()

    async def park_in_resource(self) -> None:
        async with self.resource():
            await self.released()

    @contextlib.asynccontextmanager
    async def resource(self) -> AsyncIterator[None]:
        try:
            yield
        finally:
            await workflow.sleep(timedelta(milliseconds=1))

    async def park_in_generator(self) -> None:
        async for _ in self.numbers():
            await self.released()

    async def numbers(self) -> AsyncIterator[int]:
        try:
            yield 1
        finally:
            await asyncio.sleep(0)

    async def park_in_group(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self.released())
            group.create_task(self.released())

    async def park_in_shield(self) -> None:
        await asyncio.shield(self.released())


@pytest.fixture(autouse=True)
def _clear() -> None:
    cleanups.clear()


async def test_a_stop_with_a_hundred_parked_runs_leaves_no_trace(
    caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    async with engine() as client:
        kinds = [KINDS[n % len(KINDS)] for n in range(RUNS)]
        async with worker(
            client, [Parked], [wait_for_release, clean_up], graceful_shutdown_timeout=timedelta(0)
        ) as one:
            handles = [
                await client.start_workflow(Parked.run, kind, id=f"{kind}-{n}", task_queue=QUEUE)
                for n, kind in enumerate(kinds)
            ]
            for handle in handles:
                await parked(handle)
            before = [len(await events(handle)) for handle in handles]
            caplog.clear()
            began = time.monotonic()
            await one.shutdown()
            assert time.monotonic() - began < 2
        gc.collect()
        assert cleanups == [], "no clean-up ran at the stop"
        assert [len(await events(handle)) for handle in handles] == before
        loud = [r for r in caplog.records if r.levelno >= logging.WARNING and "asyncio" not in r.message]
        assert [record.getMessage() for record in loud] == []

        # Before there is a worker: the activities end by themselves once there is one, and with them their runs.
        for handle in handles:
            await handle.signal(Parked.release)
        async with worker(client, [Parked], [wait_for_release, clean_up]):
            assert [await settled(handle) for handle in handles] == kinds
        assert sorted(cleanups) == sorted(handle.id for handle in handles), "each clean-up ran once"
        await replay_check_all([(await handle.fetch_history(), [Parked]) for handle in handles[: len(KINDS)]])
    gc.collect()
    assert capfd.readouterr().err == ""
