"""Long answers: how many there may be at once, and their end when the server stops.

Owns: the places, and the word that the server is stopping. Never: what an answer says.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import final

from clew.model.rejection import Rejection, RejectionCode
from clew.service.errors import RPCError


@final
class Streams:
    """Gives out places for answers that go on for as long as the caller listens."""

    def __init__(self, count_max: int) -> None:
        self._count_max = count_max
        self.count = 0
        self._stopping = asyncio.Event()

    @property
    def is_stopping(self) -> bool:
        """Whether long answers must end."""
        return self._stopping.is_set()

    def stop(self) -> None:
        """End all long answers, and give out no more places."""
        self._stopping.set()

    def check(self) -> None:
        """Refuse when there is no place left.

        Raises:
            RPCError: ``limit_exceeded`` or ``unavailable``.
        """
        if self.is_stopping:
            raise RPCError(
                Rejection(code=RejectionCode.UNAVAILABLE, message="This server is stopping; ask another one, or later.")
            )
        if self.count >= self._count_max:
            raise RPCError(
                Rejection(
                    code=RejectionCode.LIMIT_EXCEEDED,
                    message=f"{self.count} streams are open, as many as this server allows (streams_max); close "
                    "one, or read pages instead.",
                )
            )

    @asynccontextmanager
    async def place(self) -> AsyncGenerator[None, None]:
        """Hold one place."""
        self.check()
        self.count += 1
        try:
            yield
        finally:
            self.count -= 1

    async def sleep(self, seconds: float) -> bool:
        """Wait; False when the server stops meanwhile."""
        try:
            await asyncio.wait_for(self._stopping.wait(), seconds)
        except TimeoutError:
            return True
        return False
