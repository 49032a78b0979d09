"""Tasks that wait for a worker, and who has claimed which.

Owns: their SQL. Never: a lease (that is a fact of the run's state).

How it works: a claim is an instant in the row, written for rows that nobody else is writing at this moment (``SKIP
LOCKED``), so any number of nodes claim from one queue without waiting for each other. It only keeps a task from being
given out twice while the claimant turns it into a lease, which removes the row; it runs out by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Final

from clew.ports.store import Backlog, TaskKind, TaskRow
from clew.storage.postgres.rows import TASK_COLUMNS, stored_text, to_task
from clew.storage.values import to_micros

if TYPE_CHECKING:
    from clew.storage.postgres.connections import Connection

CLAIM: Final = (
    "WITH found AS MATERIALIZED (SELECT shard, task_id, priority FROM {s}.tasks "
    "WHERE namespace = $1 AND task_queue = $2 AND kind = $3 "
    "AND claimed_until <= (SELECT coalesce($4::int8, (extract(epoch FROM clock_timestamp()) * 1000000)::int8)) "
    "ORDER BY priority, task_id LIMIT $5 FOR UPDATE SKIP LOCKED), "
    "claimed AS (UPDATE {s}.tasks AS t SET claimed_until = $6 FROM found WHERE t.shard = found.shard "
    "AND t.task_id = found.task_id RETURNING "
    + ", ".join(f"t.{column}" for column in TASK_COLUMNS.split(", "))
    + ") SELECT * FROM claimed ORDER BY priority, task_id"
)
# Joins, as servers before 17 may use an array for the first column of an index only, and then read all of each shard.
RELEASE: Final = (
    "UPDATE {s}.tasks AS t SET claimed_until = 0 "
    "FROM unnest($1::int4[]) AS u (shard), unnest($2::int8[]) AS d (task_id) "
    "WHERE t.shard = u.shard AND t.task_id = d.task_id AND t.claimed_until > 0"
)
DELETE: Final = (
    "DELETE FROM {s}.tasks AS t USING unnest($1::int4[]) AS u (shard), unnest($2::int8[]) AS d (task_id) "
    "WHERE t.shard = u.shard AND t.task_id = d.task_id"
)
QUEUED_EVENTS: Final = "SELECT scheduled_event_id FROM {s}.tasks WHERE shard = $1 AND run_key = $2"
COUNT: Final = "SELECT count(*) FROM {s}.tasks WHERE namespace = $1 AND task_queue = $2 AND kind = $3"
BACKLOGS: Final = (
    "SELECT " + ", ".join(f"t.{column}" for column in TASK_COLUMNS.split(", ")) + ", q.count FROM "
    "(SELECT namespace, task_queue, kind, count(*) AS count, min(task_id) AS oldest FROM {s}.tasks "
    "GROUP BY namespace, task_queue, kind) AS q JOIN {s}.tasks AS t ON t.namespace = q.namespace "
    "AND t.task_queue = q.task_queue AND t.kind = q.kind AND t.task_id = q.oldest "
    "ORDER BY t.namespace, t.task_queue, t.kind"
)


async def claim_tasks(
    connection: Connection,
    schema: str,
    namespace: str,
    task_queue: str,
    kind: TaskKind,
    limit: int,
    now: int | None,
    until: datetime,
) -> list[TaskRow]:
    """Up to `limit` tasks without a good claim at `now` (None: by the server's clock), claimed until `until`."""
    if limit <= 0:
        return []
    rows = await connection.fetch(
        CLAIM.format(s=schema),
        stored_text(namespace),
        stored_text(task_queue),
        int(kind),
        now,
        limit,
        to_micros(until),
    )
    return [to_task(row) for row in rows]


async def release_tasks(connection: Connection, schema: str, shards: Sequence[int], task_ids: Sequence[int]) -> None:
    """Make claimed tasks claimable again."""
    await connection.execute(RELEASE.format(s=schema), shards, task_ids)


async def delete_tasks(connection: Connection, schema: str, shards: Sequence[int], task_ids: Sequence[int]) -> None:
    """Remove stale tasks; one that is not there is no error."""
    await connection.execute(DELETE.format(s=schema), shards, task_ids)


async def find_queued_events(connection: Connection, schema: str, shard: int, run_key: int) -> set[int]:
    """The scheduled event ids for which this run has a task row."""
    return {row[0] for row in await connection.fetch(QUEUED_EVENTS.format(s=schema), shard, run_key)}


async def count_tasks(connection: Connection, schema: str, namespace: str, task_queue: str, kind: TaskKind) -> int:
    """How many tasks wait in a queue, claimed ones included."""
    count: int = await connection.fetchval(
        COUNT.format(s=schema), stored_text(namespace), stored_text(task_queue), int(kind)
    )
    return count


async def list_backlogs(connection: Connection, schema: str) -> list[Backlog]:
    """Every queue and kind with a waiting task."""
    found: list[Backlog] = []
    for row in await connection.fetch(BACKLOGS.format(s=schema)):
        oldest = to_task(row)
        found.append(
            Backlog(
                namespace=oldest.namespace,
                task_queue=oldest.task_queue,
                kind=oldest.kind,
                count=row["count"],
                oldest=oldest,
            )
        )
    return found
