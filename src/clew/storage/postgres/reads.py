"""Reading runs, histories and the lists that the engine works from.

Owns: those queries, as functions of a connection. Never: writes, or visibility queries (``visibility``).

How it works: each is one statement, and so sees one moment. What the engine reads by itself names the shards it wants
and is found in them by an index (``SHARD_LOCAL`` and the tests keep that).
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from clew.ports.store import DueRun, HistoryBatch, LoadedRun, NamespaceRow, OutboxRow, PendingItem, RunRow
from clew.storage.postgres.rows import RUN_COLUMNS, RUN_COLUMNS_COUNT, plain_text, stored_text, to_run
from clew.storage.values import from_micros, to_micros

if TYPE_CHECKING:
    from clew.storage.postgres.connections import Connection

_BATCHES_MAX: Final = 500
"""Rows of history in one query."""

_ITEMS: Final = (
    "LEFT JOIN LATERAL (SELECT array_agg(p.kind ORDER BY p.kind, p.item_id) AS kinds, "
    "array_agg(p.item_id ORDER BY p.kind, p.item_id) AS ids, array_agg(p.data ORDER BY p.kind, p.item_id) AS datas "
    "FROM {s}.pending_items AS p WHERE p.shard = run.shard AND p.run_key = run.run_key) AS items ON true"
)
_RUN: Final = (
    f"SELECT {RUN_COLUMNS}, run.state, items.kinds, items.ids, items.datas FROM {{s}}.executions AS run {_ITEMS}"
)

LOAD_RUN: Final = f"{_RUN} WHERE run.shard = $1 AND run.run_key = $2"
LOAD_RUNS: Final = (
    f"SELECT {RUN_COLUMNS}, run.state, items.kinds, items.ids, items.datas, batches.firsts, batches.lasts, "
    "batches.events FROM unnest($1::int4[], $2::int8[]) AS wanted (shard, run_key) "
    "JOIN {s}.executions AS run ON run.shard = wanted.shard AND run.run_key = wanted.run_key "
    f"{_ITEMS} LEFT JOIN LATERAL (SELECT array_agg(h.first_event_id ORDER BY h.first_event_id) AS firsts, "
    "array_agg(h.last_event_id ORDER BY h.first_event_id) AS lasts, "
    "array_agg(h.events ORDER BY h.first_event_id) AS events FROM {s}.history AS h WHERE h.shard = run.shard "
    "AND h.run_key = run.run_key AND run.history_size_bytes <= $3) AS batches ON true"
)
FIND_RUN: Final = f"{_RUN} WHERE run.shard = $1 AND run.run_id = $2 AND run.run_id <> ''"
"""Without the other names: a plan made for an empty table might look for those by an index of lists."""

FIND_LATEST: Final = (
    f"{_RUN} WHERE run.shard = $1 AND (run.namespace = $2) IS TRUE AND run.workflow_id = $3 AND run.is_latest"
)
"""The namespace is said so that no index can be searched by it, for the same reason."""
READ_HISTORY: Final = (
    "SELECT first_event_id, last_event_id, events FROM ("
    "SELECT first_event_id, last_event_id, events, "
    "sum(octet_length(events)) OVER (ORDER BY first_event_id) - octet_length(events) AS before FROM ("
    "SELECT first_event_id, last_event_id, events FROM {s}.history WHERE shard = $1 AND run_key = $2 "
    "AND first_event_id >= coalesce((SELECT max(first_event_id) FROM {s}.history "
    "WHERE shard = $1 AND run_key = $2 AND first_event_id <= $3), 0) AND last_event_id >= $3 "
    f"ORDER BY first_event_id LIMIT {_BATCHES_MAX}) AS page) AS summed WHERE before = 0 "
    "OR before + octet_length(events) <= $4 ORDER BY first_event_id"
)
FIND_DUE: Final = (
    "SELECT shard, run_key, attention_at FROM {s}.executions "
    "WHERE shard = ANY($1::int4[]) AND is_open AND wake_after <= $2 AND attention_at <= $2 "
    "ORDER BY attention_at, shard, run_key LIMIT $3"
)
FIND_BUSY: Final = (
    f"{_RUN} WHERE run.shard = ANY($1::int4[]) AND run.is_open AND run.is_busy AND run.run_key > $2 "
    "ORDER BY run.run_key LIMIT $3"
)
READ_OUTBOX: Final = (
    "SELECT message_id, shard, run_key, body FROM {s}.outbox WHERE shard = ANY($1::int4[]) AND message_id > $2 "
    "ORDER BY message_id LIMIT $3"
)
FIND_VERSIONS: Final = (
    "SELECT e.run_key, e.version FROM unnest($1::int4[], $2::int8[]) AS d (shard, run_key) "
    "JOIN {s}.executions AS e ON e.shard = d.shard AND e.run_key = d.run_key"
)


def _whole(row: Any) -> RunRow:
    state, kinds, ids, datas = row[RUN_COLUMNS_COUNT : RUN_COLUMNS_COUNT + 4]
    items: tuple[PendingItem, ...] = ()
    if kinds is not None:
        items = tuple(
            PendingItem(kind=kind, item_id=item_id, data=data)
            for kind, item_id, data in zip(kinds, ids, datas, strict=True)
        )
    return to_run(row, state, items)


async def load_run(connection: Connection, schema: str, shard: int, run_key: int) -> RunRow | None:
    """The run with its pending items."""
    row = await connection.fetchrow(LOAD_RUN.format(s=schema), shard, run_key)
    return None if row is None else _whole(row)


async def load_runs(
    connection: Connection, schema: str, runs: Sequence[tuple[int, int]], history_bytes_max: int
) -> list[LoadedRun]:
    """These runs as far as they exist, with their histories where those are short."""
    if not runs:
        return []
    shards, keys = zip(*runs, strict=True)
    rows = await connection.fetch(LOAD_RUNS.format(s=schema), shards, keys, history_bytes_max)
    return [LoadedRun(row=_whole(row), history=_batches_of(row)) for row in rows]


def _batches_of(row: Any) -> tuple[HistoryBatch, ...]:
    firsts, lasts, events = row["firsts"], row["lasts"], row["events"]
    if firsts is None:
        return ()
    return tuple(
        HistoryBatch(first_event_id=first, last_event_id=last, events=encoded)
        for first, last, encoded in zip(firsts, lasts, events, strict=True)
    )


async def find_run(
    connection: Connection, schema: str, shard: int, namespace: str, workflow_id: str, run_id: str
) -> RunRow | None:
    """The run of this id, or the latest one."""
    names = (stored_text(namespace), stored_text(workflow_id))
    if run_id:
        row = await connection.fetchrow(FIND_RUN.format(s=schema), shard, stored_text(run_id))
        if row is not None and (row["namespace"], row["workflow_id"]) != names:
            return None
    else:
        row = await connection.fetchrow(FIND_LATEST.format(s=schema), shard, *names)
    return None if row is None else _whole(row)


async def read_history(
    connection: Connection, schema: str, shard: int, run_key: int, from_event_id: int, bytes_max: int
) -> list[HistoryBatch]:
    """Batches from the one that contains `from_event_id` on, up to `bytes_max`, at least one."""
    batches: list[HistoryBatch] = []
    size = 0
    while True:
        rows = await connection.fetch(
            READ_HISTORY.format(s=schema), shard, run_key, from_event_id, max(0, bytes_max - size)
        )
        for first, last, events in rows:
            size += len(events)
            if batches and size > bytes_max:
                return batches
            batches.append(HistoryBatch(first_event_id=first, last_event_id=last, events=events))
        if len(rows) < _BATCHES_MAX:
            return batches
        from_event_id = batches[-1].last_event_id + 1


async def find_due_runs(
    connection: Connection, schema: str, shards: Sequence[int], until: datetime, limit: int
) -> list[DueRun]:
    """Open runs that are due, earliest first."""
    rows = await connection.fetch(FIND_DUE.format(s=schema), shards, to_micros(until), limit)
    return [DueRun(shard=shard, run_key=run_key, attention_at=from_micros(at)) for shard, run_key, at in rows]


async def find_busy_runs(
    connection: Connection, schema: str, shards: Sequence[int], after_run_key: int, limit: int
) -> list[RunRow]:
    """Open runs with work out, in the order of their keys."""
    rows = await connection.fetch(FIND_BUSY.format(s=schema), shards, after_run_key, limit)
    return [_whole(row) for row in rows]


async def find_versions(connection: Connection, schema: str, runs: Sequence[tuple[int, int]]) -> dict[int, int]:
    """The stored version of each of these runs, by run key."""
    if not runs:
        return {}
    shards, keys = zip(*runs, strict=True)
    rows = await connection.fetch(FIND_VERSIONS.format(s=schema), shards, keys)
    return {row[0]: row[1] for row in rows}


async def read_outbox(
    connection: Connection, schema: str, shards: Sequence[int], after_message_id: int, limit: int
) -> list[OutboxRow]:
    """Undelivered messages, oldest first."""
    rows = await connection.fetch(READ_OUTBOX.format(s=schema), shards, after_message_id, limit)
    return [
        OutboxRow(message_id=message_id, shard=shard, run_key=run_key, body=body)
        for message_id, shard, run_key, body in rows
    ]


async def list_namespaces(connection: Connection, schema: str, name: str | None = None) -> list[NamespaceRow]:
    """All namespaces by name, or the one of `name`."""
    rows = await connection.fetch(
        f"SELECT name, secret, retention_seconds, settings FROM {schema}.namespaces "
        "WHERE $1::text IS NULL OR name = $1 ORDER BY name",
        None if name is None else stored_text(name),
    )
    return [
        NamespaceRow(name=plain_text(found), secret=secret, retention_seconds=seconds, settings=settings)
        for found, secret, seconds, settings in rows
    ]
