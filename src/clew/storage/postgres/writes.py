"""The writes that are not commits of runs: namespaces, deployments, API keys, reserved numbers, retention.

Owns: their SQL, as functions of a connection. Never: the write path of runs (``commit``).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Final

from clew.ports.store import ApiKeyRow, Deletion, DeploymentRow, NamespaceRow
from clew.storage.postgres.rows import plain_text, stored_text
from clew.storage.values import to_micros

if TYPE_CHECKING:
    from clew.storage.postgres.connections import Connection

RUN_KEYS: Final = "next_run_key"
TASK_IDS: Final = "next_task_id"
WRITERS: Final = "next_writer_id"
SHARD_COUNT: Final = "shard_count"

FIND_EXPIRED: Final = (
    "SELECT run.shard, run.run_key FROM {s}.executions AS run "
    "WHERE run.namespace = $1 AND NOT run.is_open AND run.close_time IS NOT NULL AND run.close_time < $2 "
    "AND NOT EXISTS (SELECT 1 FROM {s}.outbox AS o WHERE o.shard = run.shard AND o.run_key = run.run_key) "
    "AND NOT (run.is_latest AND EXISTS (SELECT 1 FROM {s}.executions AS p "
    "WHERE p.shard = run.shard AND p.run_key = run.previous_run_key)) "
    "ORDER BY run.close_time LIMIT $3"
)
"""Oldest first. The latest run of a workflow id goes after the one before it, so that the id never loses its latest."""

DELETE_RUNS: Final = (
    "WITH doomed AS MATERIALIZED (SELECT e.shard, e.run_key FROM {s}.executions AS e "
    "JOIN unnest($2::int8[]) AS d (run_key) ON e.shard = $1 AND e.run_key = d.run_key "
    "WHERE NOT e.is_open FOR UPDATE OF e SKIP LOCKED), "
    + ", ".join(
        f"d{n} AS (DELETE FROM {{s}}.{table} AS t USING doomed WHERE t.shard = doomed.shard "
        "AND t.run_key = doomed.run_key)"
        for n, table in enumerate(("history", "pending_items", "tasks", "search_attributes"))
    )
    + ", gone AS (DELETE FROM {s}.executions AS t USING doomed WHERE t.shard = doomed.shard "
    "AND t.run_key = doomed.run_key RETURNING 1) SELECT count(*) FROM gone"
)
DELETE_OUTBOX: Final = (
    "DELETE FROM {s}.outbox AS o USING unnest($1::int4[]) AS u (shard), unnest($2::int8[]) AS d (message_id) "
    "WHERE o.shard = u.shard AND o.message_id = d.message_id"
)


_FIND_DOOMED: Final = (
    "SELECT run.namespace, run.workflow_id, run.previous_run_key, run.is_latest, run.is_open, "
    "EXISTS (SELECT 1 FROM {s}.outbox AS o WHERE o.shard = run.shard AND o.run_key = run.run_key) "
    "FROM {s}.executions AS run WHERE run.shard = $1 AND run.run_key = $2 FOR UPDATE"
)

_RELINK: Final = (
    "WITH RECURSIVE later AS (SELECT run_key, previous_run_key FROM {s}.executions "
    "WHERE shard = $1 AND workflow_id = $3 AND namespace = $4 AND is_latest "
    "UNION ALL SELECT e.run_key, e.previous_run_key FROM later JOIN {s}.executions AS e "
    "ON e.shard = $1 AND e.run_key = later.previous_run_key WHERE later.previous_run_key <> $2) "
    "UPDATE {s}.executions AS e SET previous_run_key = $5 FROM later "
    "WHERE e.shard = $1 AND e.run_key = later.run_key AND later.previous_run_key = $2"
)
"""The run that follows one which goes has the one before that before it. There is no index on what comes before; the
runs of one workflow id are followed back from the latest."""

_PROMOTE: Final = "UPDATE {s}.executions SET is_latest = true WHERE shard = $1 AND run_key = $2"


async def delete_run(connection: Connection, schema: str, shard: int, run_key: int) -> Deletion:
    """Remove one closed run; the one before it becomes the latest of its workflow id if it was that.

    A start that follows on it at the same time waits for its row, finds it gone, and is decided again.
    """
    async with connection.transaction():
        row = await connection.fetchrow(_FIND_DOOMED.format(s=schema), shard, run_key)
        if row is None:
            return Deletion.NOT_FOUND
        namespace, workflow_id, previous, is_latest, is_open, is_undelivered = row
        if is_open or is_undelivered:
            return Deletion.OPEN if is_open else Deletion.UNDELIVERED
        if not is_latest:
            await connection.execute(_RELINK.format(s=schema), shard, run_key, workflow_id, namespace, previous)
        count = await delete_runs(connection, schema, shard, [run_key])
        assert count == 1, "a closed run whose row is locked is there"
        if is_latest and previous:
            await connection.execute(_PROMOTE.format(s=schema), shard, previous)
    return Deletion.DELETED


async def reserve(connection: Connection, schema: str, counter: str, count: int) -> int:
    """The first of `count` consecutive numbers that no one else will ever get."""
    first: int = await connection.fetchval(
        f"INSERT INTO {schema}.meta (key, value) VALUES ($1, 1 + $2::int8) "
        f"ON CONFLICT (key) DO UPDATE SET value = {schema}.meta.value + $2 RETURNING value - $2",
        counter,
        count,
    )
    return first


async def read_or_put_meta(connection: Connection, schema: str, key: str, value: int) -> int:
    """A number that was fixed when the store was made; `value` fixes it now."""
    await connection.execute(
        f"INSERT INTO {schema}.meta (key, value) VALUES ($1, $2) ON CONFLICT (key) DO NOTHING", key, value
    )
    found: int = await connection.fetchval(f"SELECT value FROM {schema}.meta WHERE key = $1", key)
    return found


async def read_meta(connection: Connection, schema: str, key: str) -> int | None:
    """A number that was fixed when the store was made; None when it was not yet."""
    found: int | None = await connection.fetchval(f"SELECT value FROM {schema}.meta WHERE key = $1", key)
    return found


async def put_namespace(connection: Connection, schema: str, row: NamespaceRow) -> bool:
    """Create the namespace unless it is there; whether it was created."""
    created = await connection.fetchval(
        f"INSERT INTO {schema}.namespaces (name, secret, retention_seconds, settings) VALUES ($1, $2, $3, $4) "
        "ON CONFLICT (name) DO NOTHING RETURNING true",
        stored_text(row.name),
        row.secret,
        row.retention_seconds,
        row.settings,
    )
    return created is True


async def list_deployments(connection: Connection, schema: str) -> list[DeploymentRow]:
    """All deployments, by namespace and name."""
    rows = await connection.fetch(
        f"SELECT namespace, name, revision, body FROM {schema}.deployments ORDER BY namespace, name"
    )
    return [
        DeploymentRow(namespace=plain_text(namespace), name=plain_text(name), revision=revision, body=body)
        for namespace, name, revision, body in rows
    ]


async def put_deployment_if_revision(connection: Connection, schema: str, row: DeploymentRow) -> bool:
    """Write the deployment if the stored revision is the one before; whether it was."""
    if row.revision == 1:
        sql = (
            f"INSERT INTO {schema}.deployments (namespace, name, revision, body) VALUES ($1, $2, $3, $4) "
            "ON CONFLICT (namespace, name) DO NOTHING RETURNING true"
        )
    else:
        sql = (
            f"UPDATE {schema}.deployments SET revision = $3, body = $4 "
            "WHERE namespace = $1 AND name = $2 AND revision = $3 - 1 RETURNING true"
        )
    done = await connection.fetchval(sql, stored_text(row.namespace), stored_text(row.name), row.revision, row.body)
    return done is True


async def delete_deployment_if_revision(
    connection: Connection, schema: str, namespace: str, name: str, revision: int
) -> bool:
    """Remove the deployment if the stored revision is this one; whether it was."""
    done = await connection.fetchval(
        f"DELETE FROM {schema}.deployments WHERE namespace = $1 AND name = $2 AND revision = $3 RETURNING true",
        stored_text(namespace),
        stored_text(name),
        revision,
    )
    return done is True


async def list_api_keys(connection: Connection, schema: str, key_id: str | None = None) -> list[ApiKeyRow]:
    """All API keys by id, or the one of `key_id`."""
    rows = await connection.fetch(
        f"SELECT key_id, revision, body FROM {schema}.api_keys WHERE $1::text IS NULL OR key_id = $1 ORDER BY key_id",
        None if key_id is None else stored_text(key_id),
    )
    return [ApiKeyRow(key_id=plain_text(found), revision=revision, body=body) for found, revision, body in rows]


async def put_api_key_if_revision(connection: Connection, schema: str, row: ApiKeyRow) -> bool:
    """Write the key if the stored revision is the one before; whether it was."""
    if row.revision == 1:
        sql = (
            f"INSERT INTO {schema}.api_keys (key_id, revision, body) VALUES ($1, $2, $3) "
            "ON CONFLICT (key_id) DO NOTHING RETURNING true"
        )
    else:
        sql = (
            f"UPDATE {schema}.api_keys SET revision = $2, body = $3 WHERE key_id = $1 AND revision = $2 - 1 "
            "RETURNING true"
        )
    done = await connection.fetchval(sql, stored_text(row.key_id), row.revision, row.body)
    return done is True


async def delete_outbox(connection: Connection, schema: str, shards: Sequence[int], message_ids: Sequence[int]) -> None:
    """Remove delivered messages; one that is not there is no error."""
    await connection.execute(
        DELETE_OUTBOX.format(s=schema),
        shards,
        message_ids,
    )


async def find_expired_runs(
    connection: Connection, schema: str, namespace: str, closed_before: datetime, limit: int
) -> dict[int, list[int]]:
    """Closed runs that retention may remove, by shard; those with undelivered messages are left out."""
    found: defaultdict[int, list[int]] = defaultdict(list)
    rows = await connection.fetch(
        FIND_EXPIRED.format(s=schema), stored_text(namespace), to_micros(closed_before), limit
    )
    for shard, run_key in rows:
        found[shard].append(run_key)
    return dict(found)


async def delete_runs(connection: Connection, schema: str, shard: int, run_keys: Sequence[int]) -> int:
    """Remove closed runs of one shard with all they have; answers how many."""
    count: int = await connection.fetchval(DELETE_RUNS.format(s=schema), shard, run_keys)
    return count
