"""A node for tests: an engine with its links, listening on a thread of its own."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from typing import Any

from clew.adapters import SystemClock, SystemEntropy, to_ns
from clew.bridge import ServiceThread
from clew.engine import Engine
from clew.link import LinkOptions, LinkServer
from clew.link.admission import Admit
from clew.link.websocket import listen
from clew.stores import is_shared, open_by_address

SECONDS_MAX = 20.0


class Node:
    """One engine on a SQLite file, in memory, or on a PostgreSQL database, with a WebSocket port on loopback."""

    def __init__(
        self, path: str = ":memory:", *, port: int = 0, tls: ssl.SSLContext | None = None, **options: Any
    ) -> None:
        self._tls = tls
        self.path = path
        self.port = port
        self.options = LinkOptions(**options)
        self.admit: Admit | None = None
        self.thread = ServiceThread("test-node")
        self.engine: Engine
        self.server: LinkServer
        self._listener: asyncio.Server

    @property
    def address(self) -> str:
        """What a client connects to."""
        return f"127.0.0.1:{self.port}"

    async def __aenter__(self) -> Node:
        await self.on_loop(self._start)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def on_loop(self, function: Callable[[], Awaitable[Any]]) -> Any:
        """Run something on the node's loop."""

        async def run(_: None) -> Any:
            return await function()

        return await asyncio.wait_for(self.thread.call(run, None), SECONDS_MAX)

    async def stop(self) -> None:
        """Stop in good order."""
        if not self.thread.is_alive:
            return
        await self.on_loop(self._stop)
        self.thread.stop()
        await asyncio.to_thread(self.thread.join, SECONDS_MAX)
        assert self.thread.loop.is_closed()

    async def _start(self) -> None:
        loop = asyncio.get_running_loop()
        clock, entropy = SystemClock(loop), SystemEntropy()
        is_address = self.path == ":memory:" or is_shared(self.path)
        store, fleet, _ = await open_by_address(self.path if is_address else f"sqlite:{self.path}", clock=clock)
        self.engine = Engine(store, clock=clock, entropy=entropy, fleet=fleet)
        await self.engine.start()
        self.server = LinkServer(
            self.engine,
            node=self.engine.node_id,
            new_token=lambda: entropy.token(16).hex(),
            now_ns=lambda: to_ns(clock.now()),
            options=self.options,
            admit=self.admit,
        )
        self._listener = await listen(self.server, "127.0.0.1", self.port, tls=self._tls)
        self.port = self._listener.sockets[0].getsockname()[1]

    async def _stop(self) -> None:
        self._listener.close()
        self.server.drain()
        await self.server.wait_drained(2)
        self.server.close()
        await self.engine.stop()
