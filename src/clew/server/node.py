"""One node of the server: an engine, everything in front of it, and the socket.

Owns: the order in which they start and stop. Never: what any of them does.

How it works: the engine lives on a service loop in a thread of its own, and so does everything in front of it: a call
from a worker or over HTTP is served without changing threads. The process's own loop only waits for signals.
Stopping: the node is not ready any more, live views end, workers and clients of the link are asked to go elsewhere,
requests under way are waited for, up to `shutdown_seconds`; then the engine makes durable what it accepted and lets
go of the store.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
from collections.abc import Awaitable, Callable
from typing import Any, Final, cast, final

import uvicorn

from clew.adapters import SystemEntropy
from clew.embedded import EmbeddedConnection
from clew.link import CutCode, LinkServer
from clew.link.websocket import ServerWire
from clew.server.app import create_app
from clew.server.engines import open_engine
from clew.server.front import Front, check_security
from clew.server.metrics.metrics import Metrics
from clew.server.metrics.service import metered
from clew.server.metrics.store import metered_store
from clew.server.settings import ServerSettings, SettingsError
from clew.server.streams import Streams
from clew.server.tracing import link_tracer
from clew.service import operations as o
from clew.service.contract import Service
from clew.service.errors import RPCError

READY_SECONDS_MAX: Final = 2.0
"""How long the store may take to answer before the node counts as not ready."""

_BACKLOG: Final = 1_024
_TOKEN_BYTES: Final = 24

_log: Final = logging.getLogger("clew.server")


@final
class Node:
    """See the module docstring; made by `run_node`."""

    def __init__(self, settings: ServerSettings, connection: EmbeddedConnection, metrics: Metrics) -> None:
        self._settings = settings
        self._metrics = metrics
        self._connection = connection
        self._streams: Streams | None = None
        self._link: LinkServer | None = None
        self._server: _Uvicorn | None = None
        self._is_stopping = False

    async def serve(self, listener: socket.socket, on_started: Callable[[], None]) -> None:
        """Serve until `stop_soon`; on the service loop."""
        service = metered(self._connection.service, self._metrics)
        front = await Front.open(self._settings, self._connection.engine, service)
        try:
            await self._serve(listener, on_started, service, front)
        finally:
            await front.close()

    async def _serve(
        self, listener: socket.socket, on_started: Callable[[], None], service: Service, front: Front
    ) -> None:
        self._streams = Streams(self._settings.streams_max)
        self._link = LinkServer(
            service,
            node=f"{socket.gethostname()}:{listener.getsockname()[1]}",
            new_token=lambda: SystemEntropy().token(_TOKEN_BYTES).hex(),
            now_ns=self._connection.now_ns,
            limits=self._connection.limits,
            admit=front.admission(self._cut_sessions),
            tracer=link_tracer(),
        )
        self._metrics.add_probe(self._look)
        app = create_app(
            front.public,
            settings=self._settings,
            gate=front.gate,
            streams=self._streams,
            is_ready=Readiness(service).why_not,
            metrics=self._metrics,
            middleware=front.middleware,
        )
        self._server = _Uvicorn(_configuration(app, self._link, self._settings, front), on_started)
        if self._is_stopping:
            return
        await self._server.serve(sockets=[listener])
        self._link.close()

    def _look(self) -> None:
        assert self._link is not None, "metrics are asked for while the node serves"
        assert self._streams is not None, "metrics are asked for while the node serves"
        self._metrics.link_sessions.set(self._link.sessions_count)
        self._metrics.link_connections.set(self._link.connections_count)
        self._metrics.streams.set(self._streams.count)

    def _cut_sessions(self, is_meant: Callable[[str], bool], code: CutCode, reason: str) -> int:
        assert self._link is not None, "whoever is let in came over the link"
        return self._link.cut_sessions(is_meant, code, reason)

    def stop_soon(self) -> None:
        """Begin to stop; from any thread."""
        self._connection.post(self._begin_stop)

    def _begin_stop(self) -> None:
        if self._is_stopping:
            return
        self._is_stopping = True
        _log.info("server.stopping within_seconds=%g", self._settings.shutdown_seconds)
        if self._streams is not None:
            self._streams.stop()
        if self._server is not None:
            self._stopping = asyncio.ensure_future(self._drain(self._server))

    async def _drain(self, server: _Uvicorn) -> None:
        if self._link is not None:
            self._link.drain()
            await self._link.wait_drained(self._settings.shutdown_seconds / 2)
        server.should_exit = True


@final
class Readiness:
    """Whether the store answers."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def why_not(self) -> str:
        """Why calls cannot succeed now; empty when they can."""
        try:
            await asyncio.wait_for(self._service.list_namespaces(o.ListNamespacesRequest()), READY_SECONDS_MAX)
        except TimeoutError:
            return f"the store did not answer within {READY_SECONDS_MAX:g} s"
        except RPCError as error:
            return error.code.value
        return ""


async def run_node(
    settings: ServerSettings,
    on_started: Callable[[str], None],
    before_stop: Callable[[], Awaitable[None]] | None = None,
) -> None:
    """Run a node until the process is told to stop (SIGTERM, SIGINT); a second time, it does not wait.

    Args:
        settings: Of the server.
        on_started: Told the URL, once the node answers.
        before_stop: Awaited first when the process is told to stop.

    Raises:
        SettingsError: The address cannot be listened on, or everybody could do everything there; or the store is none.
        RPCError: The store cannot be opened.
    """
    for warning in check_security(settings):
        _log.warning("server.exposed %s", warning)
    listener = listen(settings)
    with listener:
        url = url_of(listener, is_encrypted=settings.tls is not None)
        metrics = Metrics()
        connection = await open_engine(settings.store, lambda store: metered_store(store, metrics), metrics)
        try:
            node = Node(settings, connection, metrics)
            stop = _Stop(node, before_stop)
            for number in (signal.SIGTERM, signal.SIGINT):
                asyncio.get_running_loop().add_signal_handler(number, stop)
            serving = asyncio.run_coroutine_threadsafe(
                node.serve(listener, lambda: on_started(url)), connection.service_loop
            )
            await asyncio.wrap_future(serving)
        finally:
            await connection.close()
        _log.info("server.stopped")


@final
class _Stop:
    """What a signal does; on the loop of the process."""

    def __init__(self, node: Node, before: Callable[[], Awaitable[None]] | None) -> None:
        self._node = node
        self._before = before
        self._task: asyncio.Task[None] | None = None

    def __call__(self) -> None:
        if self._task is None:
            self._task = asyncio.ensure_future(self._stop())
        else:
            self._node.stop_soon()

    async def _stop(self) -> None:
        try:
            if self._before is not None:
                await self._before()
        finally:
            self._node.stop_soon()


def listen(settings: ServerSettings) -> socket.socket:
    """The socket to listen on.

    Raises:
        SettingsError: It cannot be had.
    """
    try:
        found = socket.getaddrinfo(
            settings.host or None, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        family, kind, protocol, _, address = found[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise SettingsError(f"Cannot listen on {settings.host!r}: {error.strerror}.") from error
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise SettingsError(
            f"Cannot listen on {settings.host} port {settings.port}: {error.strerror}. If another server runs there, "
            "stop it, or give another --port (0 takes a free one)."
        ) from error
    listener.setblocking(False)
    return listener


def url_of(listener: socket.socket, *, is_encrypted: bool = False) -> str:
    """Where a browser on this machine finds the server."""
    address: tuple[str, int] = listener.getsockname()[:2]
    host, port = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(address[0], address[0]), address[1]
    scheme = "https" if is_encrypted else "http"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


@final
class _Uvicorn(uvicorn.Server):
    """Tells when it answers."""

    def __init__(self, config: uvicorn.Config, on_started: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_started = on_started

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to answer."""
        await super().startup(sockets)
        self._on_started()


def _configuration(app: Any, link: LinkServer, settings: ServerSettings, front: Front) -> uvicorn.Config:
    def upgrade(config: uvicorn.Config, server_state: Any, app_state: Any) -> ServerWire:
        """A connection that becomes a WebSocket is the link's own from there on: no layer lies between."""
        return ServerWire(link, front.judge)

    config = uvicorn.Config(
        app,
        http=cast(Any, front.http_protocol),
        ws=cast(Any, upgrade),
        log_config=None,
        access_log=False,
        server_header=False,
        date_header=True,
        proxy_headers=bool(settings.trusted_proxies),
        forwarded_allow_ips=list(settings.trusted_proxies),
        lifespan="off",
        limit_concurrency=settings.connections_max,
        timeout_graceful_shutdown=max(1, round(settings.shutdown_seconds / 2)),
    )
    config.load()
    config.ssl = front.tls  # made by us, so that it can be renewed; uvicorn makes one from files only
    return config


__all__ = ["Node", "Readiness", "listen", "run_node", "url_of"]
