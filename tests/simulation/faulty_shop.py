"""An engine with scripted workers whose store does as the test says.

Owns: `FaultyShop`, and `in_shop`, which runs a check on one. Never: the checks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from clew.adapters import SystemEntropy
from clew.engine import Engine
from clew.stores import open_by_address
from clew.testing.faults import Faults
from tests.conformance.service.scripted import Shop, soon


class FaultyShop(Shop):
    """A shop whose store does as the test says."""

    def __init__(self, path: str = "sqlite::memory:") -> None:
        super().__init__(path)
        self.faults = Faults()

    async def open(self) -> None:
        """Open the store and start an engine on it, with the faults between them."""
        clock = self.clock.attach(asyncio.get_running_loop())
        store, *_ = await open_by_address(self.path, clock=clock)
        self.engine = Engine(self.faults.wrap(store), clock=clock, entropy=SystemEntropy())
        self.service = self.engine
        await self.engine.start()


async def in_shop(check: Callable[[FaultyShop], Awaitable[None]]) -> None:
    """Run a check on an engine in memory."""
    shop = FaultyShop()
    await shop.open()
    try:
        await check(shop)
    finally:
        await shop.close()


async def until(holds: Callable[[], bool]) -> None:
    """Look at every turn of the loop."""

    async def look() -> None:
        while not holds():
            await asyncio.sleep(0)

    await soon(look())
