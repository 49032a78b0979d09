"""Two engines of a fleet on one PostgreSQL database, both in the test's process."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from clew.client import Client
from tests.postgres.databases import create_database, drop_database, execute


@asynccontextmanager
async def two_nodes() -> AsyncIterator[tuple[str, Client, Client]]:
    """The database's connection string, and a client at each node."""
    dsn = await create_database("shards=8")
    # A host a connection string: one that differs in the size of its pool is another node.
    one, other = await Client.connect(f"{dsn}&pool_size=4"), await Client.connect(f"{dsn}&pool_size=5")
    try:
        yield dsn.partition("?")[0], one, other
    finally:
        await one.close()
        await other.close()
        await drop_database(dsn)


async def cut_listeners(dsn: str) -> int:
    """End the sessions that wait for notifications, and answer how many there were."""
    (count,) = await execute(
        dsn,
        "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity "
        "WHERE datname = current_database() AND query ILIKE '%LISTEN%' AND pid <> pg_backend_pid()",
    )
    return int(count)
