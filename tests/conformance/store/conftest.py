"""The stores that the suite runs over; another adapter joins by adding its factory here."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from clew.ports.store import Store
from clew.storage.postgres import open_store as open_postgres
from clew.storage.sqlite import open_store
from tests.postgres.databases import create_database, reuse_database

OpenStore = Callable[[], Awaitable[Store]]


def _sqlite_file(folder: Path) -> OpenStore:
    return lambda: open_store(str(folder / "store.db"))


def _sqlite_memory(folder: Path) -> OpenStore:
    return lambda: open_store("sqlite::memory:")


def _postgres(dsn: str) -> OpenStore:
    return lambda: open_postgres(dsn)


FACTORIES: dict[str, Callable[[Path], OpenStore]] = {
    "sqlite-file": _sqlite_file,
    "sqlite-memory": _sqlite_memory,
}
POSTGRES = "postgres"
DURABLE = ("sqlite-file", POSTGRES)


@asynccontextmanager
async def _opener(kind: str, folder: Path) -> AsyncIterator[OpenStore]:
    """What opens an empty store of this kind; also again, if it is durable."""
    if kind != POSTGRES:
        yield FACTORIES[kind](folder)
        return
    dsn = await create_database()
    yield _postgres(dsn)
    await reuse_database(dsn)


@pytest.fixture(params=[*FACTORIES, POSTGRES])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Store]:
    """An empty store of each kind."""
    async with _opener(request.param, tmp_path) as open_store_of_kind:
        opened = await open_store_of_kind()
        yield opened
        await opened.close()


@pytest.fixture(params=list(DURABLE))
async def open_durable(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[OpenStore]:
    """Opens the same durable store again and again."""
    async with _opener(request.param, tmp_path) as open_store_of_kind:
        yield open_store_of_kind
