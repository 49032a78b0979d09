"""API keys: rows that change by compare-and-swap.

Owns: their SQL. Never: what is in them.
"""

from __future__ import annotations

import sqlite3

from clew.ports.store import ApiKeyRow
from clew.storage.sqlite.rows import fetch_all
from clew.storage.sqlite.writes import transaction

_SELECT = "SELECT key_id, revision, body FROM api_keys "


def get_api_key(connection: sqlite3.Connection, key_id: str) -> ApiKeyRow | None:
    """The key with this id."""
    found = fetch_all(connection, _SELECT + "WHERE key_id = ?", (key_id,))
    return _to_row(found[0]) if found else None


def list_api_keys(connection: sqlite3.Connection) -> list[ApiKeyRow]:
    """All keys, by id."""
    return [_to_row(values) for values in fetch_all(connection, _SELECT + "ORDER BY key_id")]


def put_api_key_if_revision(connection: sqlite3.Connection, row: ApiKeyRow) -> bool:
    """Write the key if the stored revision is the one before; whether it was."""
    with transaction(connection):
        if row.revision == 1:
            done = connection.execute(
                "INSERT OR IGNORE INTO api_keys (key_id, revision, body) VALUES (?, ?, ?)",
                (row.key_id, row.revision, row.body),
            )
        else:
            done = connection.execute(
                "UPDATE api_keys SET revision = ?, body = ? WHERE key_id = ? AND revision = ?",
                (row.revision, row.body, row.key_id, row.revision - 1),
            )
        return done.rowcount == 1


def _to_row(values: tuple[str, int, bytes]) -> ApiKeyRow:
    key_id, revision, body = values
    return ApiKeyRow(key_id=key_id, revision=revision, body=body)
