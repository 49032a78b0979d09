"""The stores that the suite runs over; another adapter joins by adding its factory here."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from clew.ports.store import Store
from clew.storage.sqlite import open_store

OpenStore = Callable[[], Awaitable[Store]]


def _sqlite_file(folder: Path) -> OpenStore:
    return lambda: open_store(str(folder / "store.db"))


def _sqlite_memory(folder: Path) -> OpenStore:
    return lambda: open_store("sqlite::memory:")


FACTORIES: dict[str, Callable[[Path], OpenStore]] = {
    "sqlite-file": _sqlite_file,
    "sqlite-memory": _sqlite_memory,
}
DURABLE = ("sqlite-file",)


@pytest.fixture(params=list(FACTORIES))
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Store]:
    """An empty store of each kind."""
    opened = await FACTORIES[request.param](tmp_path)()
    yield opened
    await opened.close()


@pytest.fixture(params=list(DURABLE))
def open_durable(request: pytest.FixtureRequest, tmp_path: Path) -> OpenStore:
    """Opens the same durable store again and again."""
    return FACTORIES[request.param](tmp_path)
