"""The writes that are not commits of runs: namespaces, reserved numbers, retention.

Owns: those transactions, as functions of the writer's connection. Never: the write path of runs (``commit``).
"""

from __future__ import annotations

import sqlite3
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any, Final

from clew.ports.store import Deletion, NamespaceRow
from clew.storage.sqlite.bulk import delete_rows
from clew.storage.sqlite.rows import fetch_all, placeholders, to_micros

RUN_KEYS: Final = "next_run_key"
TASK_IDS: Final = "next_task_id"

TASKS_DELETE: Final = delete_rows("tasks", "task_id", 1)
OUTBOX_DELETE: Final = delete_rows("outbox", "message_id", 1)

_HIGHEST_USED: Final = {
    RUN_KEYS: "SELECT max(run_key) FROM executions",
    TASK_IDS: "SELECT max(id) FROM (SELECT max(task_id) AS id FROM tasks UNION ALL SELECT max(message_id) FROM outbox)",
}


@contextmanager
def transaction(connection: sqlite3.Connection) -> Generator[None]:
    """All that is written inside is committed, or nothing."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def put_namespace(connection: sqlite3.Connection, row: NamespaceRow) -> bool:
    """Create the namespace unless it is there; whether it was created."""
    with transaction(connection):
        cursor = connection.execute(
            "INSERT OR IGNORE INTO namespaces (name, secret, retention_seconds, settings) VALUES (?, ?, ?, ?)",
            (row.name, row.secret, row.retention_seconds, row.settings),
        )
        return cursor.rowcount == 1


def delete_tasks(connection: sqlite3.Connection, task_ids: Sequence[int]) -> None:
    """Remove stale tasks; one that is not there is no error."""
    with transaction(connection):
        TASKS_DELETE.execute(connection, list(task_ids))


def delete_outbox(connection: sqlite3.Connection, message_ids: Sequence[int]) -> None:
    """Remove delivered messages; one that is not there is no error."""
    with transaction(connection):
        OUTBOX_DELETE.execute(connection, list(message_ids))


def read_next_number(connection: sqlite3.Connection, counter: str) -> int:
    """The first number of `counter` that was never given out, as far as the file knows."""
    written = fetch_all(connection, "SELECT value FROM meta WHERE key = ?", (counter,))
    (highest,) = fetch_all(connection, _HIGHEST_USED[counter])[0]
    return max(int(written[0][0]) if written else 1, (highest or 0) + 1)


def write_next_number(connection: sqlite3.Connection, counter: str, number: int) -> None:
    """Make it durable that numbers below `number` may have been given out."""
    with transaction(connection):
        connection.execute("INSERT OR REPLACE INTO meta (key, value) VALUES (?, ?)", (counter, number))


def read_or_put_meta(connection: sqlite3.Connection, key: str, value: int) -> int:
    """A number that was fixed when the store was made; `value` fixes it now."""
    found = fetch_all(connection, "SELECT value FROM meta WHERE key = ?", (key,))
    if found:
        return int(found[0][0])
    with transaction(connection):
        connection.execute("INSERT INTO meta (key, value) VALUES (?, ?)", (key, value))
    return value


def delete_run(connection: sqlite3.Connection, shard: int, run_key: int) -> Deletion:
    """Remove one closed run; the latest of a workflow id is the one with the highest key of those that are there."""
    with transaction(connection):
        rows = fetch_all(
            connection,
            "SELECT is_open, EXISTS (SELECT 1 FROM outbox WHERE outbox.shard = run.shard "
            "AND outbox.run_key = run.run_key) FROM executions AS run WHERE run_key = ? AND shard = ?",
            (run_key, shard),
        )
        if not rows:
            return Deletion.NOT_FOUND
        is_open, is_undelivered = rows[0]
        if is_open or is_undelivered:
            return Deletion.OPEN if is_open else Deletion.UNDELIVERED
        _delete_runs(connection, [(run_key, shard)])
        return Deletion.DELETED


def delete_closed_runs(connection: sqlite3.Connection, namespace: str, closed_before: datetime, limit: int) -> int:
    """Remove closed runs, oldest first; those with undelivered messages stay until these are delivered."""
    with transaction(connection):
        rows = fetch_all(
            connection,
            "SELECT run_key, shard FROM executions AS run "
            "WHERE namespace = ? AND close_time IS NOT NULL AND close_time < ? "
            "AND NOT is_open AND NOT EXISTS "
            "(SELECT 1 FROM outbox WHERE outbox.shard = run.shard AND outbox.run_key = run.run_key) "
            "ORDER BY close_time LIMIT ?",
            (namespace, to_micros(closed_before), limit),
        )
        _delete_runs(connection, rows)
        return len(rows)


def _delete_runs(connection: sqlite3.Connection, rows: Sequence[tuple[Any, ...]]) -> None:
    """Remove runs, each named by its key and shard, with all that belongs to them."""
    for shard in {shard for _, shard in rows}:
        of_shard = [run_key for run_key, its_shard in rows if its_shard == shard]
        for table in ("history", "pending_items", "tasks"):
            where = f"shard = ? AND run_key IN ({placeholders(of_shard)})"
            connection.execute(f"DELETE FROM {table} WHERE {where}", (shard, *of_shard))
    keys = [run_key for run_key, _ in rows]
    for table in ("search_attributes", "executions") if keys else ():
        connection.execute(f"DELETE FROM {table} WHERE run_key IN ({placeholders(keys)})", keys)
