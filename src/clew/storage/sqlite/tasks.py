"""Tasks that wait for a worker, and who has claimed which.

Owns: the claims. Never: a lease (that is a fact of the run's state).

How it works: a claim only keeps a task from being given out twice while the claimant turns it into a lease, which
removes the row. One process owns the file, so claims live in its memory: they cost no write, and are gone with the
process that held them. They belong to the writer thread, which thereby sees claims and removals in one order.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from datetime import datetime
from typing import Final

from clew.ports.store import Backlog, TaskKind, TaskRow
from clew.storage.sqlite.rows import fetch_all

_COLUMNS: Final = "task_id, shard, run_key, namespace, task_queue, kind, scheduled_event_id, attempt, priority"
_SELECT: Final = (
    f"SELECT {_COLUMNS} FROM tasks WHERE namespace = ? AND task_queue = ? AND kind = ? ORDER BY priority, task_id"
)


class TaskClaims:
    """The claims of this process; used by the writer thread alone."""

    def __init__(self) -> None:
        self._until: dict[int, datetime] = {}

    def claim(
        self,
        connection: sqlite3.Connection,
        namespace: str,
        task_queue: str,
        kind: TaskKind,
        limit: int,
        now: datetime,
        until: datetime,
    ) -> list[TaskRow]:
        """Up to `limit` tasks without a claim that is good at `now`, claimed until `until`."""
        found: list[TaskRow] = []
        if limit <= 0:
            return found
        cursor = connection.execute(_SELECT, (namespace, task_queue, int(kind)))
        for row in cursor:
            if self._until.get(row[0], now) > now:
                continue
            self._until[row[0]] = until
            found.append(_to_task(row))
            if len(found) == limit:
                break
        cursor.close()
        return found

    def forget(self, task_ids: Iterable[int]) -> None:
        """Drop the claims on these tasks: they are released, or gone."""
        for task_id in task_ids:
            self._until.pop(task_id, None)


def count_tasks(connection: sqlite3.Connection, namespace: str, task_queue: str, kind: TaskKind) -> int:
    """How many tasks wait in a queue, claimed ones included."""
    sql = "SELECT count(*) FROM tasks WHERE namespace = ? AND task_queue = ? AND kind = ?"
    count: int = fetch_all(connection, sql, (namespace, task_queue, int(kind)))[0][0]
    return count


def list_backlogs(connection: sqlite3.Connection) -> list[Backlog]:
    """Every queue and kind with a waiting task."""
    counts = fetch_all(
        connection,
        "SELECT count(*), min(task_id) FROM tasks GROUP BY namespace, task_queue, kind "
        "ORDER BY namespace, task_queue, kind",
    )
    found: list[Backlog] = []
    for count, task_id in counts:
        for row in fetch_all(connection, f"SELECT {_COLUMNS} FROM tasks WHERE task_id = ?", (task_id,)):
            oldest = _to_task(row)
            found.append(
                Backlog(
                    namespace=oldest.namespace,
                    task_queue=oldest.task_queue,
                    kind=oldest.kind,
                    count=count,
                    oldest=oldest,
                )
            )
    return found


def find_queued_events(connection: sqlite3.Connection, shard: int, run_key: int) -> set[int]:
    """The scheduled event ids for which a run has a task row."""
    sql = "SELECT scheduled_event_id FROM tasks WHERE shard = ? AND run_key = ?"
    return {event_id for (event_id,) in fetch_all(connection, sql, (shard, run_key))}


def _to_task(row: tuple[int, int, int, str, str, int, int, int, int]) -> TaskRow:
    return TaskRow(
        task_id=row[0],
        shard=row[1],
        run_key=row[2],
        namespace=row[3],
        task_queue=row[4],
        kind=TaskKind(row[5]),
        scheduled_event_id=row[6],
        attempt=row[7],
        priority=row[8],
    )
