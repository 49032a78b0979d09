"""Rows of the port, to and from what SQLite keeps.

Owns: the columns of a run. Never: a query, or the stored form of a value (``storage.values``).
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from typing import Any, Final

from clew.ports.store import PendingItem, RunRow, Visibility
from clew.storage.values import OPEN_STATUSES as OPEN_STATUSES
from clew.storage.values import STATUS_NAMES as STATUS_NAMES
from clew.storage.values import STATUS_OF_NAME as STATUS_OF_NAME
from clew.storage.values import from_json_text, to_json_text
from clew.storage.values import from_micros as from_micros
from clew.storage.values import to_micros as to_micros

NO_INSTANT: Final = -100_000_000_000_000_000
"""Stands for NULL in the view ``clew_write``; before the year 1, where no instant is."""

RUN_COLUMNS: Final = (
    "shard, run_key, namespace, workflow_id, run_id, version, status, attention_at, is_busy, history_length, "
    "history_size_bytes, workflow_type, task_queue, start_time, execution_time, close_time, first_execution_run_id, "
    "parent_workflow_id, parent_run_id, root_workflow_id, root_run_id, memo, search_attributes"
)
"""What `to_run` reads, in its order; the state comes behind it where it is wanted."""


def to_visibility_columns(v: Visibility) -> tuple[Any, ...]:
    """The columns from ``workflow_type`` to ``search_attributes``, in the order and form of the view ``clew_write``."""
    return (
        v.workflow_type,
        v.task_queue,
        to_micros(v.start_time),
        to_micros(v.execution_time),
        NO_INSTANT if v.close_time is None else to_micros(v.close_time),
        v.first_execution_run_id,
        v.parent_workflow_id,
        v.parent_run_id,
        v.root_workflow_id,
        v.root_run_id,
        to_json_text(v.memo) or "",
        to_json_text(v.search_attributes) or "",
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
            memo=from_json_text(row[21]),
            search_attributes=from_json_text(row[22]),
        ),
        items=items,
    )


def placeholders(values: Iterable[object]) -> str:
    """``?, ?, …``, one a value."""
    return ", ".join("?" for _ in values)


def fetch_all(connection: sqlite3.Connection, sql: str, values: Iterable[Any] = ()) -> list[tuple[Any, ...]]:
    """All rows of a query."""
    return connection.execute(sql, tuple(values)).fetchall()
