"""Databases for single tests: made of one that has the schema already, which takes milliseconds.

Owns: which server the tests use, the template database, and the names of the copies. Never: what is in a database.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final
from urllib.parse import urlsplit, urlunsplit

import pytest

from clew.storage.postgres.driver import import_driver
from tests.postgres.server import QUICK, PostgresServer, running

VARIABLE: Final = "CLEW_TEST_POSTGRES"
"""The connection string of a server to use in place of one's own; its user must be able to create databases."""

long_test: Final = pytest.mark.skipif(
    not os.environ.get("CLEW_TEST_LONG"), reason="long; `make test-postgres` runs it (or set CLEW_TEST_LONG=1)"
)

_lock = threading.Lock()
_servers: list[PostgresServer] = []
_numbers: Iterator[int] = iter(range(1, 1_000_000))
_templates: dict[str, str] = {}
_free: dict[str, list[str]] = {}


def server_dsn() -> str:
    """The server of this test session; started when it is first asked for.

    Raises:
        RuntimeError: There is none, and none can be started: the tests that need one fail.
    """
    named = os.environ.get(VARIABLE)
    if named:
        return named
    with _lock:
        if not _servers:
            _servers.append(running({**QUICK, "max_connections": "300"}))
            atexit.register(_stop_all)
            os.environ[VARIABLE] = _servers[0].dsn  # for the processes that tests start
        return _servers[0].dsn


def _stop_all() -> None:
    while _servers:
        _servers.pop().remove()


def dsn_of(server: str, database: str) -> str:
    """The connection string of another database of the same server."""
    parts = urlsplit(server)
    return urlunsplit((parts.scheme, parts.netloc, f"/{database}", parts.query, ""))


async def execute(dsn: str, *statements: str) -> list[Any]:
    """Run statements one by one; answers the first value of each."""
    connection = await import_driver().connect(dsn=dsn)
    try:
        return [
            await connection.fetchval(statement)
            if statement.startswith("SELECT")
            else await connection.execute(statement)
            for statement in statements
        ]
    finally:
        await connection.close()


async def create_database(options: str = "shards=1") -> str:
    """The connection string of a new database with a store of no runs, options included."""
    from clew.storage.postgres import open_store

    server = server_dsn()
    if options not in _templates:
        template = f"clew_template_{os.getpid()}_{len(_templates)}"
        await execute(server, f"DROP DATABASE IF EXISTS {template}", f"CREATE DATABASE {template} ENCODING 'UTF8'")
        store = await open_store(f"{dsn_of(server, template)}?{options}")
        await store.close()
        _templates[options] = template
    if _free.get(options):
        return _free[options].pop()
    name = f"clew_test_{os.getpid()}_{next(_numbers)}"
    await execute(server, f"DROP DATABASE IF EXISTS {name}", f"CREATE DATABASE {name} TEMPLATE {_templates[options]}")
    return f"{dsn_of(server, name)}?{options}"


def database_for(key: str, options: str = "shards=16") -> str:
    """The connection string of the database that belongs to `key`, made when it is first asked for, in any process."""
    name = f"clew_key_{zlib.crc32(key.encode()):08x}"
    server = server_dsn()

    async def make() -> None:
        if await execute(server, f"SELECT 1 FROM pg_database WHERE datname = '{name}'") == [None]:
            await execute(server, f"CREATE DATABASE {name} ENCODING 'UTF8'")

    # In a thread, so that callers with a running loop need not wait for it in a special way.
    thread = threading.Thread(target=lambda: asyncio.run(make()))
    thread.start()
    thread.join()
    return f"{dsn_of(server, name)}?{options}"


async def reuse_database(dsn: str) -> None:
    """Empty a database, for the next test that asks for one like it; this is several times as fast as a new one."""
    tables = await execute(
        dsn.partition("?")[0],
        "SELECT array_agg(tablename::text) FROM pg_tables "
        "WHERE schemaname = 'clew' AND tablename <> 'schema_migrations'",
    )
    deletes = [f"DELETE FROM clew.{table}" for table in tables[0] if table != "meta"]
    await execute(dsn.partition("?")[0], "; ".join([*deletes, "DELETE FROM clew.meta WHERE key <> 'shard_count'"]))
    _free.setdefault(dsn.partition("?")[2], []).append(dsn)


async def drop_database(dsn: str) -> None:
    """Remove a database with all its sessions."""
    name = urlsplit(dsn).path.removeprefix("/")
    await execute(server_dsn(), f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")


@contextmanager
def own_server(settings: dict[str, str] | None = None) -> Iterator[PostgresServer]:
    """A server that the test may stop, pause or fill up."""
    server = running(settings)
    try:
        yield server
    finally:
        server.remove()
