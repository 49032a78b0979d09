"""The store in a PostgreSQL database: `open_store`, for any number of processes at once.

A name is loaded when it is first used: whoever only asks whether an address is one of PostgreSQL loads no store.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from clew.storage.postgres.address import Address, parse_address
    from clew.storage.postgres.inbox import Inbox
    from clew.storage.postgres.notifier import PostgresNotifier
    from clew.storage.postgres.store import PostgresStore, open_reader, open_store

__all__ = ["Address", "Inbox", "PostgresNotifier", "PostgresStore", "open_reader", "open_store", "parse_address"]

_HOME_OF: Final = {
    "Address": "address",
    "Inbox": "inbox",
    "PostgresNotifier": "notifier",
    "PostgresStore": "store",
    "open_reader": "store",
    "open_store": "store",
    "parse_address": "address",
}


def __getattr__(name: str) -> Any:
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{home}"), name)
