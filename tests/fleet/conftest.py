"""Fixtures of the fleet tests."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.fleet.shop import FleetShop


@pytest.fixture
async def shop() -> AsyncIterator[FleetShop]:
    """Three nodes on one store in memory, with hints between them."""
    shop = FleetShop()
    await shop.open()
    yield shop
    await shop.close()
