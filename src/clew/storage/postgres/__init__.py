"""The store in a PostgreSQL database: `open_store`, for any number of processes at once."""

from __future__ import annotations

from clew.storage.postgres.address import Address, parse_address
from clew.storage.postgres.inbox import Inbox
from clew.storage.postgres.notifier import PostgresNotifier
from clew.storage.postgres.store import PostgresStore, open_reader, open_store

__all__ = ["Address", "Inbox", "PostgresNotifier", "PostgresStore", "open_reader", "open_store", "parse_address"]
