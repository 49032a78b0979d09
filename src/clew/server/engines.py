"""Which engine a server runs: from a connection string of a store to an engine in this process.

Owns: that choice. Never: an engine or a store.
"""

from __future__ import annotations

import re
from typing import Final

from clew.embedded import EmbeddedConnection, connect_embedded
from clew.server.settings import SettingsError

_FORMS: Final = "give one with --store: 'sqlite:claims.db' (a file), or 'sqlite::memory:' (gone when the server stops)"


async def open_engine(store: str) -> EmbeddedConnection:
    """Open a store and run the engine on it, in a thread of its own.

    Raises:
        SettingsError: The text names no store that a server can run on.
        RPCError: The store cannot be opened; the message says why.
    """
    if not store:
        raise SettingsError(f"A server needs a store; {_FORMS}.")
    if store.startswith("sqlite:") and (path := _sqlite_path(store)):
        return await connect_embedded(path)
    shown = re.sub(r"(://[^/@:]*):[^/@]*@", r"\1:…@", store)
    raise SettingsError(f"{shown!r} names no store that a server can run on; {_FORMS}.")


def _sqlite_path(store: str) -> str:
    path = store.removeprefix("sqlite:")
    return path[2:] if path.startswith("///") else path
