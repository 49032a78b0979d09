"""Fixtures of the service suite: one engine on one store, in the test's hand."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.conformance.service.scripted import Shop


@pytest.fixture(params=["file", "memory", "link"])
async def shop(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Shop]:
    """An engine on a store in a file, on one in memory, and one that is reached over a link."""
    path = str(tmp_path / "shop.db") if request.param == "file" else ":memory:"
    shop = Shop(path, is_linked=request.param == "link")
    await shop.open()
    yield shop
    await shop.close()


@pytest.fixture(params=["file", "link"])
async def file_shop(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Shop]:
    """An engine on a file, for tests that let go of it and take it up again."""
    shop = Shop(str(tmp_path / "shop.db"), is_linked=request.param == "link")
    await shop.open()
    yield shop
    await shop.close()
