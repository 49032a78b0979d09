"""C040: one blocking coroutine must not starve the heartbeats, threads and workflow tasks of others."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from datetime import timedelta

import pytest

from clew import activity, workflow
from clew.common import RetryPolicy
from clew.model import events as e
from tests.cases.harness import ACTIVITY, QUEUE, engine, events, settled, within, worker

BLOCK_SECONDS = 3.0
HEARTBEAT = timedelta(seconds=1)

attempts: Counter[str] = Counter()


@pytest.fixture(autouse=True)
def _clear() -> None:
    attempts.clear()


@activity.defn
async def blocker() -> None:
    attempts["x"] += 1
    time.sleep(BLOCK_SECONDS)


@activity.defn
async def beats(number: int) -> None:
    attempts[f"y{number}"] += 1
    for _ in range(25):
        activity.heartbeat()
        await asyncio.sleep(0.2)


@activity.defn
def beats_in_a_thread(number: int) -> None:
    attempts[f"z{number}"] += 1
    for _ in range(25):
        activity.heartbeat()
        time.sleep(0.2)


@workflow.defn
class All:
    @workflow.run
    async def run(self) -> None:
        options = {"start_to_close_timeout": timedelta(seconds=30), "heartbeat_timeout": HEARTBEAT}
        retry = RetryPolicy(initial_interval=timedelta(milliseconds=100))
        steps = [workflow.execute_activity(beats, n, retry_policy=retry, **options) for n in range(5)]  # type: ignore[arg-type]
        steps += [
            workflow.execute_activity(beats_in_a_thread, n, retry_policy=retry, **options)  # type: ignore[arg-type]
            for n in range(5)
        ]
        steps.append(workflow.execute_activity(blocker, **ACTIVITY))
        await asyncio.gather(*steps)


@workflow.defn
class Ticks:
    @workflow.run
    async def run(self) -> int:
        for _ in range(20):
            await workflow.sleep(0.05)
        return 20


async def test_only_those_on_the_blocked_loop_can_suffer_and_the_log_names_the_blocker(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING)
    async with engine() as client, worker(client, [All, Ticks], [blocker, beats, beats_in_a_thread]):
        handle = await client.start_workflow(All.run, id="all", task_queue=QUEUE)
        ticks = [await client.start_workflow(Ticks.run, id=f"ticks-{n}", task_queue=QUEUE) for n in range(3)]
        assert await settled(handle, 40) is None
        for one in ticks:
            assert await within(one.result()) == 20
        for one in [handle, *ticks]:
            assert not await events(one, e.WorkflowTaskTimedOut)
        assert [attempts[f"z{n}"] for n in range(5)] == [1] * 5
        if any(attempts[f"y{n}"] > 1 for n in range(5)):
            assert any("blocker" in record.getMessage() for record in caplog.records)
