"""Opening the store that a connection string names, with what an engine on it needs.

Owns: which adapter an address belongs to, and whether an engine there is one of a fleet. Never: runs an engine.

How it works: an address is ``sqlite:path`` or a ``postgresql://`` URL. A SQLite file has one engine; a PostgreSQL
database any number, so an engine there takes part in its fleet. The nodes of a fleet go by the time of the
database. With another clock than the system's (tests have such) that is the time, and the engine is no node.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple, cast

from clew.adapters import SystemClock
from clew.engine.fleet import FleetSettings
from clew.ports.clock import Clock
from clew.ports.store import Store
from clew.process_mark import has_ended, mark_of_this_process
from clew.storage.postgres.address import without_password

if TYPE_CHECKING:
    from clew.storage.postgres import Inbox

_POSTGRES: Final = ("postgresql:", "postgres:")


class OpenedStore(NamedTuple):
    """A store, and how an engine on it takes part in a fleet; None when it is alone."""

    store: Store
    fleet: FleetSettings | None
    inbox: Inbox | None = None
    """Requests that were made inside other people's transactions; whoever runs the engine drains it."""


def is_shared(address: str) -> bool:
    """Whether engines in several processes may use the store of this address at a time."""
    return address.startswith(_POSTGRES)


def name_of(address: str) -> str:
    """The address for people: without a password."""
    return without_password(address) if is_shared(address) else address


async def open_reader_by_address(address: str) -> Store:
    """Open the store of `address` for reading, whoever uses it; only the reading methods of what is given can be used.

    Raises:
        StoreError: There is no such store, or it is not one of this version.
    """
    if not is_shared(address):
        from clew.storage.sqlite import open_reader

        return cast(Store, await open_reader(address))
    from clew.storage.postgres import open_reader as open_postgres_reader

    return await open_postgres_reader(address)


async def open_by_address(address: str, *, clock: Clock) -> OpenedStore:
    """Open the store of `address` for an engine whose clock is `clock`.

    Raises:
        StoreError: With what is wrong.
    """
    if not is_shared(address):
        from clew.storage.sqlite import open_store

        return OpenedStore(await open_store(address, clock=clock), None)
    from clew.storage.postgres import Inbox, PostgresNotifier
    from clew.storage.postgres import open_store as open_postgres

    if not isinstance(clock, SystemClock):
        return OpenedStore(await open_postgres(address, clock=clock), None)
    store = await open_postgres(address)
    notifier = PostgresNotifier(store.address)
    fleet = FleetSettings(
        notifier=notifier, lease=store.address.lease, process=mark_of_this_process(), has_ended=has_ended
    )
    return OpenedStore(store, fleet, Inbox(store, notifier))
