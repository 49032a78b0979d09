"""Reading runs, histories and the lists that the engine works from.

Owns: those queries, as functions of a connection. Never: writes, or visibility queries (``visibility``).
"""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any, Final

from clew.ports.store import DueRun, HistoryBatch, LoadedRun, NamespaceRow, OutboxRow, PendingItem, RunRow
from clew.storage.sqlite.rows import RUN_COLUMNS, fetch_all, from_micros, placeholders, to_micros, to_run

_KEYS_MAX: Final = 1_000
"""Keys in one query; SQLite takes 32,766 variables by default."""


@contextmanager
def snapshot(connection: sqlite3.Connection) -> Generator[None]:
    """Everything read inside is of one moment."""
    connection.execute("BEGIN")
    try:
        yield
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")


def load_run(connection: sqlite3.Connection, shard: int, run_key: int) -> RunRow | None:
    """The run with its pending items."""
    with snapshot(connection):
        return _one_run(connection, "run_key = ? AND shard = ?", (run_key, shard))


def load_runs(
    connection: sqlite3.Connection, runs: Sequence[tuple[int, int]], history_bytes_max: int
) -> list[LoadedRun]:
    """These runs as far as they exist, with their histories where those are short."""
    by_shard: defaultdict[int, list[int]] = defaultdict(list)
    for shard, run_key in runs:
        by_shard[shard].append(run_key)
    found: list[LoadedRun] = []
    with snapshot(connection):
        for shard, run_keys in by_shard.items():
            for start in range(0, len(run_keys), _KEYS_MAX):
                found += _load_some(connection, shard, run_keys[start : start + _KEYS_MAX], history_bytes_max)
    return found


def _load_some(
    connection: sqlite3.Connection, shard: int, run_keys: list[int], history_bytes_max: int
) -> list[LoadedRun]:
    where = f"run_key IN ({placeholders(run_keys)}) AND shard = ?"
    rows = fetch_all(connection, f"SELECT {RUN_COLUMNS}, state FROM executions WHERE {where}", (*run_keys, shard))
    loaded = _with_items(connection, rows)
    short = [row.run_key for row in loaded if row.history_size_bytes <= history_bytes_max]
    batches: defaultdict[int, list[HistoryBatch]] = defaultdict(list)
    if short:
        sql = (
            "SELECT run_key, first_event_id, last_event_id, CAST(events AS BLOB) FROM history "
            f"WHERE shard = ? AND run_key IN ({placeholders(short)}) ORDER BY run_key, first_event_id"
        )
        for run_key, first, last, events in fetch_all(connection, sql, (shard, *short)):
            batches[run_key].append(HistoryBatch(first_event_id=first, last_event_id=last, events=events))
    return [LoadedRun(row=row, history=tuple(batches.get(row.run_key, ()))) for row in loaded]


def find_run(connection: sqlite3.Connection, namespace: str, workflow_id: str, run_id: str) -> RunRow | None:
    """The run of this id, or the latest one."""
    with snapshot(connection):
        if run_id:
            where = "run_id = ? AND namespace = ? AND workflow_id = ?"
            return _one_run(connection, where, (run_id, namespace, workflow_id))
        where = "namespace = ? AND workflow_id = ? ORDER BY run_key DESC LIMIT 1"
        return _one_run(connection, where, (namespace, workflow_id))


def _one_run(connection: sqlite3.Connection, where: str, values: Sequence[Any]) -> RunRow | None:
    rows = fetch_all(connection, f"SELECT {RUN_COLUMNS}, state FROM executions WHERE {where}", values)
    return _with_items(connection, rows)[0] if rows else None


def _with_items(connection: sqlite3.Connection, rows: list[tuple[Any, ...]]) -> list[RunRow]:
    items: defaultdict[int, list[PendingItem]] = defaultdict(list)
    by_shard: defaultdict[int, list[int]] = defaultdict(list)
    for row in rows:
        by_shard[row[0]].append(row[1])
    for shard, run_keys in by_shard.items():
        for start in range(0, len(run_keys), _KEYS_MAX):
            some = run_keys[start : start + _KEYS_MAX]
            sql = (
                "SELECT run_key, kind, item_id, data FROM pending_items "
                f"WHERE shard = ? AND run_key IN ({placeholders(some)}) ORDER BY run_key, kind, item_id"
            )
            for run_key, kind, item_id, data in fetch_all(connection, sql, (shard, *some)):
                items[run_key].append(PendingItem(kind=kind, item_id=item_id, data=data))
    return [to_run(row, row[-1], tuple(items.get(row[1], ()))) for row in rows]


def read_history(
    connection: sqlite3.Connection, shard: int, run_key: int, from_event_id: int, bytes_max: int
) -> list[HistoryBatch]:
    """Batches from the one that contains `from_event_id` on, up to `bytes_max`, at least one."""
    start = (
        "SELECT first_event_id, last_event_id, CAST(events AS BLOB) FROM history WHERE shard = ? AND run_key = ? "
        "AND first_event_id >= coalesce((SELECT max(first_event_id) FROM history "
        "WHERE shard = ? AND run_key = ? AND first_event_id <= ?), 0) ORDER BY first_event_id"
    )
    batches: list[HistoryBatch] = []
    size = 0
    cursor = connection.execute(start, (shard, run_key, shard, run_key, from_event_id))
    for first, last, events in cursor:
        if last < from_event_id:
            continue
        size += len(events)
        if batches and size > bytes_max:
            break
        batches.append(HistoryBatch(first_event_id=first, last_event_id=last, events=events))
    cursor.close()
    return batches


def find_due_runs(
    connection: sqlite3.Connection, shards: Sequence[int] | None, until: datetime, limit: int
) -> list[DueRun]:
    """Open runs that are due, earliest first."""
    only, values = _only_shards(shards)
    sql = (
        "SELECT shard, run_key, attention_at FROM executions "
        f"WHERE is_open AND attention_at IS NOT NULL AND attention_at <= ?{only} "
        "ORDER BY attention_at, shard, run_key LIMIT ?"
    )
    return [
        DueRun(shard=shard, run_key=run_key, attention_at=from_micros(at))
        for shard, run_key, at in fetch_all(connection, sql, (to_micros(until), *values, limit))
    ]


def find_busy_runs(
    connection: sqlite3.Connection, shards: Sequence[int] | None, after_run_key: int, limit: int
) -> list[RunRow]:
    """Open runs with work out, in the order of their keys."""
    only, values = _only_shards(shards)
    sql = (
        f"SELECT {RUN_COLUMNS}, state FROM executions WHERE is_open AND is_busy AND run_key > ?{only} "
        "ORDER BY run_key LIMIT ?"
    )
    with snapshot(connection):
        return _with_items(connection, fetch_all(connection, sql, (after_run_key, *values, limit)))


def find_versions(connection: sqlite3.Connection, runs: Sequence[tuple[int, int]]) -> dict[int, int]:
    """The stored version of each of these runs, by run key."""
    versions: dict[int, int] = {}
    for start in range(0, len(runs), _KEYS_MAX):
        keys = [run_key for _, run_key in runs[start : start + _KEYS_MAX]]
        sql = f"SELECT run_key, version FROM executions WHERE run_key IN ({placeholders(keys)})"
        versions.update(fetch_all(connection, sql, keys))
    return versions


def read_outbox(
    connection: sqlite3.Connection, shards: Sequence[int] | None, after_message_id: int, limit: int
) -> list[OutboxRow]:
    """Undelivered messages, oldest first."""
    only, values = _only_shards(shards)
    sql = f"SELECT message_id, shard, run_key, body FROM outbox WHERE message_id > ?{only} ORDER BY message_id LIMIT ?"
    return [
        OutboxRow(message_id=message_id, shard=shard, run_key=run_key, body=body)
        for message_id, shard, run_key, body in fetch_all(connection, sql, (after_message_id, *values, limit))
    ]


def _only_shards(shards: Sequence[int] | None) -> tuple[str, Sequence[int]]:
    if shards is None:
        return "", ()
    return f" AND shard IN ({placeholders(shards)})", shards


def list_namespaces(connection: sqlite3.Connection, name: str | None = None) -> list[NamespaceRow]:
    """All namespaces by name, or the one of `name`."""
    where, values = ("", ()) if name is None else (" WHERE name = ?", (name,))
    sql = f"SELECT name, secret, retention_seconds, settings FROM namespaces{where} ORDER BY name"
    return [
        NamespaceRow(name=name, secret=secret, retention_seconds=seconds, settings=settings)
        for name, secret, seconds, settings in fetch_all(connection, sql, values)
    ]
