"""Ids that the store hands out in blocks, kept ready so that the hot path never waits for one.

Owns: the blocks of run keys and of task ids (which outbox messages share). Never: decides what an id is for.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from clew.engine.background import Background
from clew.ports.store import Store, StoreError

logger: Final = logging.getLogger("clew.engine")

BLOCK_SIZE: Final = 20_000
"""Ids in a block. A spare block is at hand and asked for again as soon as it is begun, so that the next one has a whole
block's time to arrive; ids are 63 bits wide."""

RETRY_SECONDS: Final = 0.5
"""Wait before a block is asked for again that the store did not give."""


class IdBlocks:
    """Ascending ids that no other node will ever use."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._run_next: int = 0
        self._run_end: int = 0
        self._run_spare = 0
        self._task_next: int = 0
        self._task_end: int = 0
        self._task_spare = 0
        self._background = Background("ids")

    async def fill(self) -> None:
        """Reserve the first blocks; to be awaited before anything else."""
        self._run_next = await self._store.reserve_run_keys(BLOCK_SIZE)
        self._run_end = self._run_next + BLOCK_SIZE
        self._run_spare = await self._store.reserve_run_keys(BLOCK_SIZE)
        self._task_next = await self._store.reserve_task_ids(BLOCK_SIZE)
        self._task_end = self._task_next + BLOCK_SIZE
        self._task_spare = await self._store.reserve_task_ids(BLOCK_SIZE)

    async def close(self) -> None:
        """Ask for no more blocks."""
        await self._background.cancel()

    def next_run_key(self) -> int:
        """The next run key."""
        if self._run_next == self._run_end:
            assert self._run_spare, "a spare block of run keys is fetched long before the current one ends"
            self._run_next, self._run_spare = self._run_spare, 0
            self._run_end = self._run_next + BLOCK_SIZE
            self._background.spawn(self._refill_runs())
        key = self._run_next
        self._run_next += 1
        return key

    def next_task_id(self) -> int:
        """The next id for a queued task or an outbox message."""
        if self._task_next == self._task_end:
            assert self._task_spare, "a spare block of task ids is fetched long before the current one ends"
            self._task_next, self._task_spare = self._task_spare, 0
            self._task_end = self._task_next + BLOCK_SIZE
            self._background.spawn(self._refill_tasks())
        task_id = self._task_next
        self._task_next += 1
        return task_id

    async def _refill_runs(self) -> None:
        self._run_spare = await self._reserve(self._store.reserve_run_keys)

    async def _refill_tasks(self) -> None:
        self._task_spare = await self._reserve(self._store.reserve_task_ids)

    async def _reserve(self, reserve: Callable[[int], Awaitable[int]]) -> int:
        """A block, asked for until the store gives it: without a spare one the node would come to a stop."""
        while True:
            try:
                return await reserve(BLOCK_SIZE)
            except StoreError as error:
                logger.warning("ids.refill_delayed error=%s", error)
                await asyncio.sleep(RETRY_SECONDS)
