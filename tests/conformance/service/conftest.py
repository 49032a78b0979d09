"""Fixtures of the service suite: one engine on one store, in the test's hand."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.conformance.service.scripted import Shop
from tests.postgres.databases import create_database, reuse_database


@asynccontextmanager
async def _opened(kind: str, folder: Path) -> AsyncIterator[Shop]:
    if kind == "postgres":
        path = await create_database("shards=16")
    else:
        path = f"sqlite:{folder / 'shop.db'}" if kind.endswith("file") else "sqlite::memory:"
    shop = Shop(path, is_linked=kind.startswith("link"))
    await shop.open()
    yield shop
    await shop.close()
    if kind == "postgres":
        await reuse_database(path)


@pytest.fixture(params=["file", "memory", "link", "postgres"])
async def shop(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Shop]:
    """An engine on a store in a file, in memory and in PostgreSQL, and one that is reached over a link."""
    async with _opened(request.param, tmp_path) as shop:
        yield shop


@pytest.fixture(params=["file", "link-to-file", "postgres"])
async def file_shop(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Shop]:
    """An engine on a store that is durable, for tests that let go of it and take it up again."""
    async with _opened(request.param, tmp_path) as shop:
        yield shop
