"""Work that a part of the engine does beside its calls.

Owns: the tasks of one part, from their start to the log of what went wrong in them. Never: tries anything again.

How it works: asyncio keeps only weak references to tasks, and tells of an error that nobody awaits when the collector
finds it, if ever. So each part holds its tasks here, and an error that ends one is logged at once, by the part's name.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable
from typing import Final

logger: Final = logging.getLogger("clew.engine")


class Background:
    """The background tasks of one part. All methods belong to the engine's loop.

    Args:
        part: Names it in the log.
    """

    __slots__ = ("_part", "_tasks")

    def __init__(self, part: str) -> None:
        self._part = part
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def is_idle(self) -> bool:
        """Whether nothing is under way."""
        return not self._tasks

    def spawn(self, work: Awaitable[None]) -> None:
        """Begin `work`; it handles the errors it expects."""
        task = asyncio.ensure_future(work)
        assert isinstance(task, asyncio.Task), "background work is a coroutine"
        self._tasks.add(task)
        task.add_done_callback(self._done)

    async def wait(self) -> None:
        """Wait until nothing is under way."""
        while self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def cancel(self) -> None:
        """End what is under way."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("%s.background_work_failed", self._part, exc_info=error)
