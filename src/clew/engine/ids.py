"""Run keys, and the ids of tasks (which outbox messages share): numbers that grow, and that no other node ever uses.

Owns: how they are made. Never: decides what an id is for.

How it works: a node that is alone takes blocks of numbers from the store, and keeps the next block ready, so that the
hot path never waits for one. Nodes of a fleet would thus number what they make in the order of their blocks, and not
of time; but lists are to be in the order of starts, and tasks of one priority in that of waiting. So there an id is
made of the time, the number of the node, and a count within the millisecond. Clocks differ: who makes a run that
follows another says so, and gets a key above that one's.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Final, Protocol

from clew.engine.background import Background
from clew.ports.clock import Clock
from clew.ports.store import Store, StoreError

logger: Final = logging.getLogger("clew.engine")

BLOCK_SIZE: Final = 20_000
"""Ids in a block. A spare block is at hand and asked for again as soon as it is begun, so that the next one has a whole
block's time to arrive; ids are 63 bits wide."""

EPOCH: Final = datetime(2025, 1, 1, tzinfo=UTC)
"""Where the time of timed ids begins; the 41 bits that it has last until 2094."""

NODE_BITS: Final = 14
NODE_NUMBERS: Final = 1 << NODE_BITS
COUNT_BITS: Final = 8
TIME_SHIFT: Final = COUNT_BITS + NODE_BITS
_COUNT_MASK: Final = (1 << COUNT_BITS) - 1
_MILLISECOND: Final = timedelta(milliseconds=1)

RETRY_SECONDS: Final = 0.5
"""Wait before a block is asked for again that the store did not give."""


class Ids(Protocol):
    """What makes ids."""

    def next_run_key(self, above: int = 0) -> int:
        """The next run key, greater than `above`, the key of the run before."""
        ...

    def next_task_id(self) -> int:
        """The next id for a queued task or an outbox message."""
        ...

    def version_after(self, version: int) -> int:
        """The version of a run that follows this one, and that no other node gives to what follows it."""
        ...

    async def fill(self) -> None:
        """Be ready; to be awaited before anything else."""
        ...

    async def close(self) -> None:
        """Ask the store for nothing more."""
        ...


class TimedIds:
    """Ids in the order of time, whichever node of a fleet makes them; see the module docstring.

    Args:
        clock: The store's clock as the node reads it.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._number = 0
        self._last = 0

    def renumber(self, number: int) -> None:
        """This node makes ids with this number from now on, below `NODE_NUMBERS`."""
        self._number = number

    def next_run_key(self, above: int = 0) -> int:
        """The next run key, greater than `above`, the key of the run before."""
        milliseconds = (self._clock.now() - EPOCH) // _MILLISECOND
        last = self._last
        after = last + 1
        if after & _COUNT_MASK == 0 or after >> COUNT_BITS & (NODE_NUMBERS - 1) != self._number:
            # The last millisecond has no more to give, or went to another number: the next one is begun ahead of time.
            after = self._first_of((last >> TIME_SHIFT) + 1)
        self._last = max(after, self._first_of(milliseconds))
        if self._last <= above:
            self._last = self._first_of((above >> TIME_SHIFT) + 1)
        return self._last

    def next_task_id(self) -> int:
        """The next id for a queued task or an outbox message."""
        return self.next_run_key()

    def version_after(self, version: int) -> int:
        """The version of a run that follows this one, and that no other node gives to what follows it."""
        return self.next_run_key(version)

    def _first_of(self, milliseconds: int) -> int:
        return milliseconds << TIME_SHIFT | self._number << COUNT_BITS

    async def fill(self) -> None:
        """Nothing is kept ready."""

    async def close(self) -> None:
        """Nothing is asked for."""


class IdBlocks:
    """Ascending ids that no other node will ever use."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._version = 0
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

    def next_run_key(self, above: int = 0) -> int:
        """The next run key; all before are smaller, as no other node makes any."""
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

    def version_after(self, version: int) -> int:
        """The next version, which this node gives to no other write.

        Counting alone would not do: when the answer to a commit is lost while the next one of its run is on its way,
        the run is read in between, and what is then decided on it expects the version that the other write gets.
        """
        self._version = max(self._version, version) + 1
        return self._version

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
