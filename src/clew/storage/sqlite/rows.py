"""Rows of the port, to and from what SQLite keeps.

Owns: instants as microseconds, statuses as names, the columns of a run. Never: a query.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import msgspec

from clew.model.events import Memo, SearchAttributes
from clew.model.policies import WorkflowExecutionStatus
from clew.ports.store import PendingItem, RunRow, Visibility

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

STATUS_NAMES: Final[dict[WorkflowExecutionStatus, str]] = {s: s.value for s in WorkflowExecutionStatus}
STATUS_OF_NAME: Final = {s.value: s for s in WorkflowExecutionStatus}
OPEN_STATUSES: Final = frozenset(s for s in WorkflowExecutionStatus if s.is_open)

RUN_COLUMNS: Final = (
    "shard, run_key, namespace, workflow_id, run_id, version, status, attention_at, is_busy, history_length, "
    "history_size_bytes, workflow_type, task_queue, start_time, execution_time, close_time, first_execution_run_id, "
    "parent_workflow_id, parent_run_id, root_workflow_id, root_run_id, memo, search_attributes"
)
"""What `to_run` reads, in its order; the state comes behind it where it is wanted."""

_encode_json = msgspec.json.Encoder().encode
_decode_payloads = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def to_micros(instant: datetime) -> int:
    """Whole microseconds since 1970; `instant` must be aware."""
    since = instant - EPOCH
    return since.days * 86_400_000_000 + since.seconds * 1_000_000 + since.microseconds


def from_micros(micros: int) -> datetime:
    """The inverse of `to_micros`."""
    return EPOCH + timedelta(microseconds=micros)


def to_json_text(payloads: Memo | SearchAttributes | None) -> str | None:
    """Payloads by name as JSON text; None stays None."""
    return None if payloads is None else _encode_json(payloads).decode()


def _from_json_text(text: str | None) -> dict[str, msgspec.Raw] | None:
    if text is None:
        return None
    return {name: msgspec.Raw(bytes(raw)) for name, raw in _decode_payloads(text).items()}


def to_visibility_columns(v: Visibility) -> tuple[Any, ...]:
    """The columns from ``workflow_type`` to ``search_attributes``, in the order of the view ``clew_put``."""
    return (
        v.workflow_type,
        v.task_queue,
        to_micros(v.start_time),
        to_micros(v.execution_time),
        None if v.close_time is None else to_micros(v.close_time),
        v.first_execution_run_id,
        v.parent_workflow_id,
        v.parent_run_id,
        v.root_workflow_id,
        v.root_run_id,
        to_json_text(v.memo),
        to_json_text(v.search_attributes),
    )


def to_run(row: tuple[Any, ...], state: bytes, items: tuple[PendingItem, ...] = ()) -> RunRow:
    """The run in `row`, which starts with `RUN_COLUMNS`."""
    return RunRow(
        shard=row[0],
        run_key=row[1],
        namespace=row[2],
        workflow_id=row[3],
        run_id=row[4],
        version=row[5],
        status=STATUS_OF_NAME[row[6]],
        attention_at=None if row[7] is None else from_micros(row[7]),
        is_busy=bool(row[8]),
        state=state,
        history_length=row[9],
        history_size_bytes=row[10],
        visibility=Visibility(
            workflow_type=row[11],
            task_queue=row[12],
            start_time=from_micros(row[13]),
            execution_time=from_micros(row[14]),
            close_time=None if row[15] is None else from_micros(row[15]),
            first_execution_run_id=row[16],
            parent_workflow_id=row[17],
            parent_run_id=row[18],
            root_workflow_id=row[19],
            root_run_id=row[20],
            memo=_from_json_text(row[21]),
            search_attributes=_from_json_text(row[22]),
        ),
        items=items,
    )


def placeholders(values: Iterable[object]) -> str:
    """``?, ?, …``, one a value."""
    return ", ".join("?" for _ in values)


def fetch_all(connection: sqlite3.Connection, sql: str, values: Iterable[Any] = ()) -> list[tuple[Any, ...]]:
    """All rows of a query."""
    return connection.execute(sql, tuple(values)).fetchall()
