"""The event that asked for an effect, when memory has another one in its place."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from clew.engine.outbox import Outbox
from clew.model import events as e
from clew.ports.store import HistoryBatch
from tests.unit.engine.test_runs import NOW


async def test_an_event_that_another_node_forestalled_is_not_taken_for_the_one_that_asked() -> None:
    """Found by partitions: the delivery failed with an AssertionError, and again until the run was loaded anew."""
    forestalled = e.TimerCanceled(event_id=7, event_time=NOW, timer_id="1", started_event_id=5)
    asked = e.StartChildWorkflowExecutionInitiated(
        event_id=7, event_time=NOW, namespace="n", workflow_id="c", workflow_type="C", task_queue="q"
    )
    stored = HistoryBatch(first_event_id=7, last_event_id=7, events=e.encode_events([asked]))

    async def read_history(*_: Any) -> list[HistoryBatch]:
        return [stored]

    outbox = Outbox.__new__(Outbox)
    outbox._store = SimpleNamespace(read_history=read_history)  # type: ignore[assignment]
    kept: list[Any] = []
    entry: Any = SimpleNamespace(
        event_at=lambda _: forestalled,
        keep_initiated=kept.extend,
        shard=0,
        run_key=1,
        state=SimpleNamespace(run_id="r"),
    )
    assert await outbox._asking_event(entry, 7, e.StartChildWorkflowExecutionInitiated) == asked
    assert await outbox._event(entry, 7) is forestalled
    assert kept == [asked]
