"""Which engine a server runs: from a connection string of a store to an engine in this process.

Owns: that choice. Never: an engine or a store.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from clew.embedded import EmbeddedConnection, connect_embedded
from clew.ports.store import Store
from clew.ports.telemetry import Telemetry
from clew.server.settings import SettingsError
from clew.service.errors import RPCError
from clew.stores import is_shared, name_of

_FORMS: Final = (
    "give one with --store: 'sqlite:claims.db' (a file), 'sqlite::memory:' (gone when the server stops) or "
    "'postgresql://…' (which several nodes may share)"
)


async def open_engine(store: str, wrap_store: Callable[[Store], Store], telemetry: Telemetry) -> EmbeddedConnection:
    """Open a store and run the engine on it, in a thread of its own.

    Args:
        store: Connection string.
        wrap_store: Put between engine and store.
        telemetry: Told what the engine does.

    Raises:
        SettingsError: The text names no store that a server can run on.
        RPCError: The store cannot be opened; the message says why.
    """
    if not store:
        raise SettingsError(f"A server needs a store; {_FORMS}.")
    if is_shared(store):
        return await connect_embedded(store, wrap_store=wrap_store, telemetry=telemetry)
    if store.startswith("sqlite:") and (path := _sqlite_path(store)):
        try:
            return await connect_embedded(path, wrap_store=wrap_store, is_joinable=True, telemetry=telemetry)
        except RPCError as error:
            if error.rejection.details.get("reason") == "StoreInUse":
                raise _with_way_out(error, store) from error
            raise
    raise SettingsError(f"{name_of(store)!r} names no store that a server can run on; {_FORMS}.")


def _with_way_out(error: RPCError, store: str) -> RPCError:
    """The same refusal, for whoever does not know that he has another owner."""
    message = (
        f"{error.message}. A program that uses the file joins its owner, and becomes the owner itself when that one "
        "ends: then the runs go on in it. To have a server own them, stop that program, start the server, and start "
        f"the program again, which then joins it. Until then commands with --store {store} reach the runs there"
    )
    return RPCError(msgspec.structs.replace(error.rejection, message=message))


def _sqlite_path(store: str) -> str:
    path = store.removeprefix("sqlite:")
    return path[2:] if path.startswith("///") else path
