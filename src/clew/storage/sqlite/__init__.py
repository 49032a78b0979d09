"""The store in one SQLite file: `open_store` for the process that owns it, `open_reader` beside it."""

from __future__ import annotations

from clew.storage.sqlite.store import SqliteReader, SqliteStore, open_reader, open_store

__all__ = ["SqliteReader", "SqliteStore", "open_reader", "open_store"]
