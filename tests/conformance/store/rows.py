"""Makes write units for the store suite."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from clew.model.payload import Payload, to_stored
from clew.model.policies import WorkflowExecutionStatus
from clew.ports.store import HistoryBatch, RunRow, RunWrite, Store, TaskKind, TaskRow, Visibility

T0 = datetime(2026, 3, 1, 8, 0, 0, 123456, tzinfo=UTC)
NAMESPACE = "default"


def batch(first: int, last: int | None = None) -> HistoryBatch:
    last = first if last is None else last
    events = [
        {"type": "TimerFired", "event_id": n, "event_time": T0.isoformat(), "timer_id": f"t-{n}"}
        for n in range(first, last + 1)
    ]
    return HistoryBatch(first_event_id=first, last_event_id=last, events=json.dumps(events).encode())


def visibility(**changes: Any) -> Visibility:
    values: dict[str, Any] = {
        "workflow_type": "Claims",
        "task_queue": "claims",
        "start_time": T0,
        "execution_time": T0,
    }
    return Visibility(**{**values, **changes})


def insert(run_key: int, workflow_id: str | None = None, **changes: Any) -> RunWrite:
    values: dict[str, Any] = {
        "shard": 0,
        "run_key": run_key,
        "namespace": NAMESPACE,
        "workflow_id": workflow_id or f"claim-{run_key}",
        "run_id": f"run-{run_key}",
        "expected_version": 0,
        "version": 1,
        "status": WorkflowExecutionStatus.RUNNING,
        "attention_at": T0 + timedelta(seconds=run_key),
        "is_busy": False,
        "state": b"state-1",
        "history_length": 2,
        "history_size_bytes": 100,
        "visibility": visibility(),
        "batches": (batch(1, 2),),
    }
    return RunWrite(**{**values, **changes})


def update(row: RunWrite | RunRow, **changes: Any) -> RunWrite:
    """The next write of the run that `row` describes."""
    version = row.version
    values: dict[str, Any] = {
        "shard": row.shard,
        "run_key": row.run_key,
        "namespace": row.namespace,
        "workflow_id": row.workflow_id,
        "run_id": row.run_id,
        "expected_version": version,
        "version": version + 1,
        "status": WorkflowExecutionStatus.RUNNING,
        "attention_at": row.attention_at,
        "is_busy": row.is_busy,
        "state": f"state-{version + 1}".encode(),
        "history_length": row.history_length + 1,
        "history_size_bytes": row.history_size_bytes + 50,
        "batches": (batch(row.history_length + 1),),
    }
    return RunWrite(**{**values, **changes})


def close(row: RunWrite | RunRow, **changes: Any) -> RunWrite:
    values: dict[str, Any] = {
        "status": WorkflowExecutionStatus.COMPLETED,
        "attention_at": None,
        "is_busy": False,
        "visibility": visibility(close_time=T0 + timedelta(hours=1)),
    }
    return update(row, **{**values, **changes})


def task(task_id: int, **changes: Any) -> TaskRow:
    values: dict[str, Any] = {
        "task_id": task_id,
        "shard": 0,
        "run_key": 1,
        "namespace": NAMESPACE,
        "task_queue": "claims",
        "kind": TaskKind.ACTIVITY,
        "scheduled_event_id": 5,
    }
    return TaskRow(**{**values, **changes})


def attribute(value: Any, kind: str = "") -> msgspec.Raw:
    """A search attribute as a payload; `kind` is written into its metadata when given."""
    metadata = {"encoding": b"json/plain"}
    if kind:
        metadata["type"] = kind.encode()
    return to_stored(Payload(metadata, msgspec.json.encode(value)))


async def load(store: Store, run_key: int) -> RunRow:
    row = await store.load_run(0, run_key)
    assert row is not None, f"run {run_key} is not there"
    return row


async def history_ids(store: Store, run_key: int) -> list[int]:
    """The event ids of a run's whole history, as its batches say."""
    batches = await store.read_history(0, run_key, 1, 1 << 30)
    return [n for b in batches for n in range(b.first_event_id, b.last_event_id + 1)]
