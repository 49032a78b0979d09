"""Rows of the port, to and from what PostgreSQL keeps.

Owns: the columns of a run, and the escape for the one character that PostgreSQL has no place for.
Never: a query, or the stored form of a value (``storage.values``).

How it works: a text in PostgreSQL cannot hold U+0000, which an id may. It is stored as a pair that begins with the
noncharacter U+FDD0; that one is doubled, so that every text has one stored form and comes back as it was.
"""

from __future__ import annotations

from typing import Any, Final

from clew.ports.store import PendingItem, RunRow, TaskKind, TaskRow, Visibility
from clew.storage.values import STATUS_OF_NAME, from_json_text, from_micros, to_json_text, to_micros

RUN_COLUMNS: Final = (
    "run.shard, run.run_key, run.namespace, run.workflow_id, run.run_id, run.version, run.status, run.attention_at, "
    "run.is_busy, run.history_length, run.history_size_bytes, run.workflow_type, run.task_queue, run.start_time, "
    "run.execution_time, run.close_time, run.first_execution_run_id, run.parent_workflow_id, run.parent_run_id, "
    "run.root_workflow_id, run.root_run_id, run.memo, run.search_attributes"
)
"""What `to_run` reads, in its order, of the table ``executions AS run``."""

RUN_COLUMNS_COUNT: Final = 23

TASK_COLUMNS: Final = "task_id, shard, run_key, namespace, task_queue, kind, scheduled_event_id, attempt, priority"

_ESCAPE: Final = "\ufdd0"


def stored_text(text: str) -> str:
    """`text` as PostgreSQL can keep it."""
    if "\x00" in text or _ESCAPE in text:
        return text.replace(_ESCAPE, _ESCAPE * 2).replace("\x00", _ESCAPE + "0")
    return text


def plain_text(text: str) -> str:
    """The inverse of `stored_text`."""
    if _ESCAPE not in text:
        return text
    parts = text.split(_ESCAPE * 2)
    return _ESCAPE.join(part.replace(_ESCAPE + "0", "\x00") for part in parts)


def to_visibility_columns(v: Visibility) -> tuple[Any, ...]:
    """The columns from ``workflow_type`` to ``search_attributes``, in the order of `RUN_COLUMNS`."""
    return (
        stored_text(v.workflow_type),
        stored_text(v.task_queue),
        to_micros(v.start_time),
        to_micros(v.execution_time),
        None if v.close_time is None else to_micros(v.close_time),
        v.first_execution_run_id,
        stored_text(v.parent_workflow_id),
        v.parent_run_id,
        stored_text(v.root_workflow_id),
        v.root_run_id,
        to_json_text(v.memo),
        to_json_text(v.search_attributes),
    )


def to_run(row: Any, state: bytes, items: tuple[PendingItem, ...] = ()) -> RunRow:
    """The run in `row`, which starts with `RUN_COLUMNS`."""
    return RunRow(
        shard=row[0],
        run_key=row[1],
        namespace=plain_text(row[2]),
        workflow_id=plain_text(row[3]),
        run_id=row[4],
        version=row[5],
        status=STATUS_OF_NAME[row[6]],
        attention_at=None if row[7] is None else from_micros(row[7]),
        is_busy=row[8],
        state=state,
        history_length=row[9],
        history_size_bytes=row[10],
        visibility=Visibility(
            workflow_type=plain_text(row[11]),
            task_queue=plain_text(row[12]),
            start_time=from_micros(row[13]),
            execution_time=from_micros(row[14]),
            close_time=None if row[15] is None else from_micros(row[15]),
            first_execution_run_id=row[16],
            parent_workflow_id=plain_text(row[17]),
            parent_run_id=row[18],
            root_workflow_id=plain_text(row[19]),
            root_run_id=row[20],
            memo=from_json_text(row[21]),
            search_attributes=from_json_text(row[22]),
        ),
        items=items,
    )


def to_task(row: Any) -> TaskRow:
    """The task in `row`, which is of `TASK_COLUMNS`."""
    return TaskRow(
        task_id=row[0],
        shard=row[1],
        run_key=row[2],
        namespace=plain_text(row[3]),
        task_queue=plain_text(row[4]),
        kind=TaskKind(row[5]),
        scheduled_event_id=row[6],
        attempt=row[7],
        priority=row[8],
    )
