"""The composition root of a client of a server: a link in a thread of its own.

Owns: which nodes are dialled, and the service thread that the link lives in. Never: the link itself (``link``).

How it works: as with an engine in this process, everything that talks to the engine lives on a *service loop* in a
thread of its own; only that here a link stands at its end. So a client and a worker need not know which it is.
"""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Final, TypeVar, final

from clew.adapters import SystemClock, to_ns
from clew.bridge import ServiceThread
from clew.link.client import ClientOptions, Dial, LinkClient
from clew.link.remote import as_service
from clew.link.websocket import Node, WebSocketDial
from clew.model.limits import Limits
from clew.model.rejection import Rejection, RejectionCode
from clew.service.contract import Service
from clew.service.errors import RPCError
from clew.service.tls import TLSConfig

T = TypeVar("T")

CONNECT_SECONDS_MAX: Final = 5.0
PATIENCE_SECONDS: Final = 10.0

TURNS_A_ROUND: Final = 48
"""After so many turns of workflow code their answers go to the node, which works on them while the next are run."""

_END_SECONDS_MAX: Final = 5.0

Token = Callable[[], Awaitable[str]]
"""Gives credentials; asked before each greeting, so that they may be short-lived."""


async def connect_server(
    nodes: Sequence[tuple[str, int]],
    *,
    tls: TLSConfig | None = None,
    token: Token | None = None,
    identity: str = "",
    connect_seconds: float = CONNECT_SECONDS_MAX,
    patience_seconds: float = PATIENCE_SECONDS,
) -> LinkedConnection:
    """Connect to one of the nodes of a server, and stay connected to one.

    Args:
        nodes: Host and port of each; a name may stand for several.
        tls: How to speak TLS; plain TCP when not given.
        token: Gives the credentials.
        identity: Who this is, for people.
        connect_seconds: How long to try.
        patience_seconds: How long a call waits for a connection, when the first is lost.

    Raises:
        RPCError: No node can be reached, or it refuses this client.
        ValueError: The TLS settings make no sense.
        ImportError: The library for WebSocket is missing; names the extra.
    """
    chance = random.Random().random
    context = tls.to_context() if tls is not None else None
    domain = tls.domain if tls is not None else None
    dial = WebSocketDial([Node(host, port, context, domain) for host, port in nodes], chance=chance)
    names = ",".join(f"{host}:{port}" for host, port in nodes)
    return await connect_over(
        dial,
        name=names,
        address=names,
        token=token,
        identity=identity,
        connect_seconds=connect_seconds,
        patience_seconds=patience_seconds,
    )


async def connect_over(
    dial: Dial,
    *,
    name: str,
    address: str,
    token: Token | None = None,
    identity: str = "",
    connect_seconds: float = CONNECT_SECONDS_MAX,
    patience_seconds: float = PATIENCE_SECONDS,
) -> LinkedConnection:
    """Connect with the given way to dial; see `connect_server`."""
    options = ClientOptions(
        identity=identity, patience_seconds=patience_seconds, connect_seconds=connect_seconds, address=address
    )
    thread = ServiceThread(f"clew-link:{name}"[:60])
    thread.loop.turns_a_round = TURNS_A_ROUND

    async def start(_: None) -> LinkClient:
        client = LinkClient(dial, token=token, chance=random.Random().random, options=options)
        await client.start()
        return client

    try:
        client = await thread.call(start, None)
    except BaseException:
        thread.stop()
        raise
    return LinkedConnection(thread, client, address)


@final
class LinkedConnection:
    """A link, as clients and workers use it; see ``service.connection.Connection``."""

    def __init__(self, thread: ServiceThread, client: LinkClient, address: str) -> None:
        self._thread = thread
        self._client = client
        self._clock = SystemClock(thread.loop)
        self._is_closed = False
        self.service: Service = as_service(client.service)
        self.service_loop: asyncio.AbstractEventLoop = thread.loop
        self.limits: Limits = client.limits
        self.address: str = address

    @property
    def is_closed(self) -> bool:
        """Whether calls can no longer succeed: `close` was called, or the thread has ended."""
        return self._is_closed or not self._thread.is_alive

    def call(self, method: Callable[[Any], Awaitable[T]], request: Any) -> asyncio.Future[T]:
        """Call one method of `service` from the running loop (any loop); the future belongs to that loop.

        Raises:
            RPCError: This connection is closed.
        """
        if self._is_closed:
            raise RPCError(
                Rejection(
                    code=RejectionCode.UNAVAILABLE,
                    message=f"This client's connection to {self.address} is closed. Call Client.connect again.",
                )
            )
        trace = _current_trace()
        if trace:
            return self._thread.call(partial(self._client.service.in_trace, trace, method), request)
        return self._thread.call(method, request)

    def post(self, callback: Callable[[], None]) -> None:
        """Run `callback` on the service loop soon; from any thread; many posts make one wake-up."""
        self._thread.post(callback)

    def post_last(self, callback: Callable[[], None]) -> None:
        """`post`, by one that does nothing else afterwards: what comes of it may be done before this returns."""
        self._thread.post_last(callback)

    def now_ns(self) -> int:
        """The node's time, nanoseconds since the epoch, by its last word on it."""
        return self._client.now_ns(self._thread.loop.time()) or to_ns(self._clock.now())

    async def close(self) -> None:
        """Say goodbye to the node."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._thread.is_alive:

            async def close(_: None) -> None:
                try:
                    await self._client.close()
                finally:
                    self._thread.stop()

            # It comes to its end also when the caller waits no longer.
            await asyncio.shield(self._thread.call(close, None))
            await asyncio.get_running_loop().run_in_executor(None, self._thread.join, _END_SECONDS_MAX)


def _current_trace() -> str:
    """The trace in which this very call is made, if the program uses OpenTelemetry; empty if not."""
    if "opentelemetry.trace" not in sys.modules:
        return ""
    from opentelemetry import propagate

    carrier: dict[str, str] = {}
    propagate.inject(carrier)
    return carrier.get("traceparent", "")
