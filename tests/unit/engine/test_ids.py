"""Blocks of ids survive a store that fails while one is asked for."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from clew.engine import ids
from clew.engine.ids import BLOCK_SIZE, IdBlocks
from clew.ports.store import Store, StoreUnavailable


class Counter:
    """The part of a store that gives blocks; the next `failures` calls fail."""

    def __init__(self) -> None:
        self.next = 1
        self.failures = 0
        self.calls = 0

    async def reserve_run_keys(self, count: int) -> int:
        self.calls += 1
        if self.failures:
            self.failures -= 1
            raise StoreUnavailable("away")
        first, self.next = self.next, self.next + count
        return first

    reserve_task_ids = reserve_run_keys


async def test_a_refill_is_asked_for_until_the_store_gives_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ids, "RETRY_SECONDS", 0.0)
    store = Counter()
    blocks = IdBlocks(cast("Store", cast("Any", store)))
    await blocks.fill()
    store.failures = 3
    taken = [blocks.next_run_key() for _ in range(BLOCK_SIZE + 1)]
    async with asyncio.timeout(5):
        while not blocks._background.is_idle:
            await asyncio.sleep(0)
    assert store.calls == 4 + 3 + 1, "the first blocks, the failures, and the one that came"
    taken += [blocks.next_run_key() for _ in range(BLOCK_SIZE)]
    assert len(set(taken)) == len(taken)
    assert taken == sorted(taken)
    await blocks.close()
