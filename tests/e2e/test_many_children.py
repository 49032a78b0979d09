"""A run with many children costs the engine the same for each of them, whatever their number."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from clew import workflow
from clew.client import Client
from clew.engine import history, outbox
from clew.model import events as e
from clew.model.events import Event, decode_events
from clew.worker import Worker

QUEUE = "family"
DEADLINE = 240.0
DECODED_MAX = 20
"""Events that are read back and decoded for each child: few, and not those of its siblings."""


@workflow.defn
class Child:
    @workflow.run
    async def run(self, number: int) -> int:
        return number


@workflow.defn
class Parent:
    @workflow.run
    async def run(self, count: int) -> int:
        return sum(await asyncio.gather(*(workflow.execute_child_workflow(Child.run, n) for n in range(count))))


@pytest.mark.parametrize("count", [75, 300])
async def test_children_are_started_and_heard_of_one_by_one(
    count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded_count = 0

    def decode(batch: Any) -> list[Event]:
        nonlocal decoded_count
        events = decode_events(batch)
        decoded_count += len(events)
        return events

    monkeypatch.setattr(outbox, "decode_events", decode)
    monkeypatch.setattr(
        history, "decode_event_batches", lambda batches: [event for batch in batches for event in decode(batch)]
    )
    async with asyncio.timeout(DEADLINE):
        async with (
            await Client.connect(f"sqlite:{tmp_path / 'family.db'}") as client,
            Worker(client, task_queue=QUEUE, workflows=[Parent, Child]),
        ):
            handle = await client.start_workflow(Parent.run, count, id="parent", task_queue=QUEUE)
            assert await handle.result() == sum(range(count))
            assert decoded_count < DECODED_MAX * count
            events = (await handle.fetch_history()).events
    # A full buffer would have taken the task from the worker, which then replays all.
    causes = [event.cause for event in events if isinstance(event, e.WorkflowTaskFailed)]
    assert e.WorkflowTaskFailedCause.FORCE_CLOSE_COMMAND not in causes
    assert sum(isinstance(event, e.ChildWorkflowExecutionCompleted) for event in events) == count
