"""A run whose activities end faster than its code takes notice keeps its workflow tasks."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path

import pytest

from clew import activity, workflow
from clew.client import Client
from clew.engine import held_results
from clew.model import events as e
from clew.worker import Worker

QUEUE = "wide"
COUNT = 500
DEADLINE = 240.0


@activity.defn
async def echo(number: int) -> int:
    return number


@workflow.defn
class Wide:
    @workflow.run
    async def run(self, count: int) -> int:
        timeout = timedelta(minutes=5)
        steps = [workflow.execute_activity(echo, n, start_to_close_timeout=timeout) for n in range(count)]
        return sum(await asyncio.gather(*steps))


async def test_no_task_is_taken_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A machine that is too busy to answer a task within some seconds must not decide this test.
    monkeypatch.setattr(held_results, "HELD_MAX_TIME", timedelta(seconds=DEADLINE))
    monkeypatch.setattr(held_results, "TICK_SECONDS", DEADLINE)
    async with asyncio.timeout(DEADLINE):
        async with (
            await Client.connect(f"sqlite:{tmp_path / 'wide.db'}") as client,
            Worker(client, task_queue=QUEUE, workflows=[Wide], activities=[echo], max_concurrent_activities=300),
        ):
            handle = await client.start_workflow(Wide.run, COUNT, id="wide", task_queue=QUEUE)
            assert await handle.result() == sum(range(COUNT))
            events = (await handle.fetch_history()).events
    assert not [event for event in events if isinstance(event, e.WorkflowTaskFailed)]
    assert sum(isinstance(event, e.ActivityTaskCompleted) for event in events) == COUNT
