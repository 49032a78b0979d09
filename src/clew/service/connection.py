"""How clients and workers reach an engine, wherever it runs.

Owns: the Protocol `Connection`. Never: threads, loops or sockets (the embedded composition root and ``link`` have
them).

How it works: the engine (or the link to it) lives on a *service loop* of its own, in a thread of its own, so that user
code that blocks its loop starves neither leases nor timers. A client on any other loop calls through `call`; a worker's
shell runs on the service loop itself and uses `service` directly.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Protocol, TypeVar

from clew.model.limits import Limits
from clew.service.contract import Service

T = TypeVar("T")


class Connection(Protocol):
    """One way to one engine, shared by the clients and workers of a process."""

    service: Service
    """Only to be called on `service_loop`."""

    service_loop: asyncio.AbstractEventLoop
    limits: Limits
    address: str

    @property
    def is_closed(self) -> bool:
        """Whether calls can no longer succeed: `close` was called, or the engine's thread has ended."""
        ...

    def call(self, method: Callable[[Any], Awaitable[T]], request: Any) -> asyncio.Future[T]:
        """Call one method of `service` from the running loop (any loop); the future belongs to that loop."""
        ...

    def post(self, callback: Callable[[], None]) -> None:
        """Run `callback` on the service loop soon; from any thread; cheap, many posts make one wake-up."""
        ...

    def post_last(self, callback: Callable[[], None]) -> None:
        """`post`, by one that does nothing else afterwards: what comes of it may be done before this returns."""
        ...

    def now_ns(self) -> int:
        """The engine's time, nanoseconds since the epoch (a skipping clock in tests)."""
        ...

    async def close(self) -> None:
        """Let go of the engine; the last one of the process stops it after what was accepted is durable."""
        ...
