"""The composition root of the embedded shape: an engine inside this process, on a SQLite file or PostgreSQL.

Owns: which engine runs for which store in this process, and for how long. Never: engine, store or client behaviour.

How it works: there is one *host* a store and process: a service thread (`bridge.ServiceThread`) with an engine and its
store in it. Every `connect` to the same store shares the host and counts as one user; when the last has closed, the
host drains the engine, closes the store and ends its thread. Whoever connects while a host is starting or stopping
waits for that.
"""

from __future__ import annotations

import asyncio
import atexit
import importlib
import logging
import os
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from typing import Any, Final, TypeVar, final

from clew.adapters import SystemClock, SystemEntropy, to_ns
from clew.bridge import ServiceThread
from clew.collector import settle_collector
from clew.engine import Engine
from clew.inbox import InboxDrain
from clew.link.frames import LinkOptions
from clew.link.server import LinkServer
from clew.link.unix import SocketPath, UnixListener
from clew.model.limits import LIMITS_DEFAULT, Limits
from clew.model.rejection import Rejection, RejectionCode
from clew.ports import store as ports
from clew.ports.clock import Clock
from clew.ports.entropy import Entropy
from clew.ports.telemetry import SILENCE, Telemetry
from clew.service.contract import Service
from clew.service.errors import RPCError
from clew.stores import is_shared, name_of, open_by_address
from clew.switch_interval import settle_switch_interval

T = TypeVar("T")

MEMORY: Final = ":memory:"
"""A store that lives and dies with its connection; every `connect` gets one of its own."""

_EXIT_SECONDS_MAX: Final = 5.0
"""How long a program that did not close its clients is held up at its end, so that what was accepted gets on disk."""

_LEAVE_SECONDS_MAX: Final = 2.0
"""How long a stop waits for other processes to end the reports that they have under way."""

_DOOR_OPTIONS: Final = LinkOptions(resume_seconds=0.0, release_seconds=0.0)
"""Between two processes of one machine no connection breaks by itself: when it is gone, so is the process."""

_log: Final = logging.getLogger("clew.service")

_hosts: Final[dict[str, _Host]] = {}
_hosts_lock: Final = threading.Lock()


def _as_it_is(store: ports.Store) -> ports.Store:
    return store


async def connect_embedded(
    place: str,
    *,
    limits: Limits = LIMITS_DEFAULT,
    clock: Callable[[asyncio.AbstractEventLoop], Clock] = SystemClock,
    entropy: Entropy | None = None,
    wrap_store: Callable[[ports.Store], ports.Store] = _as_it_is,
    is_joinable: bool = False,
    telemetry: Telemetry = SILENCE,
) -> EmbeddedConnection:
    """Open an engine in this process on a SQLite file or a PostgreSQL database, or share the one that is open.

    Args:
        place: The file, made when missing; or `MEMORY`; or a ``postgresql://`` address.
        limits: What runs may take, where a namespace does not say its own; those of the first connection hold.
        clock: Makes the engine's clock for its loop (tests pass a skipping one).
        entropy: Source of ids and secrets; the operating system's when not given.
        wrap_store: Gets the opened store and gives what the engine uses in its place (tests put faults in between).
        is_joinable: Let other processes join, over a Unix socket beside the file; as the first connection says.
        telemetry: Told what the engine does, for whoever measures; as the first connection says.

    Raises:
        RPCError: The file cannot be used: another process owns it, it is not a Clew store, no room, no permission.
    """
    key = _canonical(place)
    while True:
        host, going = _join_host(key, lambda: _Host(key, limits, clock, entropy, wrap_store, is_joinable, telemetry))
        if host is None:
            assert going is not None, "either a host to join or one whose end is awaited"
            await asyncio.wrap_future(going)
            continue
        try:
            await asyncio.wrap_future(host.started)
        except asyncio.CancelledError:
            host.release()
            raise
        except RPCError:
            await _wait_ended(host)
            raise
        return EmbeddedConnection(host)


def _canonical(place: str) -> str:
    """One name for one file, so that a link or a relative path finds the same host; an address stays as it is."""
    return place if place == MEMORY or is_shared(place) else os.path.realpath(place)


def _address(key: str) -> str:
    return key if is_shared(key) else f"sqlite:{key}"


def _join_host(key: str, make: Callable[[], _Host]) -> tuple[_Host | None, Future[None] | None]:
    with _hosts_lock:
        host = _hosts.get(key)
        if host is not None and (host.users_count == 0 or not host.thread.is_alive):
            # Also one that was broken off: its users are still counted, and it serves none of them.
            return None, host.stopped
        if host is None or key == MEMORY:
            host = make()
            if key != MEMORY:
                _hosts[key] = host
        host.users_count += 1
        return host, None


@final
class _Host:
    """One engine with its store, in a service thread.

    `users_count` is guarded by the registry's lock; 0 means that the host is ending, and so does a stopped thread.
    """

    def __init__(
        self,
        key: str,
        limits: Limits,
        clock: Callable[[asyncio.AbstractEventLoop], Clock],
        entropy: Entropy | None,
        wrap_store: Callable[[ports.Store], ports.Store],
        is_joinable: bool,
        telemetry: Telemetry,
    ) -> None:
        self._telemetry = telemetry
        self.key = key
        self.name = name_of(key)
        """The key for people."""
        self.limits = limits
        self._wrap_store = wrap_store
        self._is_joinable = is_joinable and key != MEMORY and not is_shared(key)
        self.users_count = 0
        self.started: Future[None] = Future()
        self.stopped: Future[None] = Future()
        # Marked as running, so that a caller that stops waiting cannot cancel them for the others.
        self.started.set_running_or_notify_cancel()
        self.stopped.set_running_or_notify_cancel()
        self.thread = ServiceThread(f"clew-service:{os.path.basename(self.name)}")
        self.clock = clock(self.thread.loop)
        self._entropy = entropy if entropy is not None else SystemEntropy()
        self.engine: Engine | None = None
        self._task: asyncio.Task[None] | None = None
        self._release_wanted: asyncio.Event | None = None
        self.thread.post(self._begin)

    def release(self) -> None:
        """One user less; the last one makes the host end."""
        with _hosts_lock:
            self.users_count -= 1
            if self.users_count != 0:
                return
        self.thread.post(self._want_release)

    def _want_release(self) -> None:
        assert self._release_wanted is not None, "the host's task is begun by the first post"
        self._release_wanted.set()

    def _begin(self) -> None:
        self._release_wanted = asyncio.Event()
        self._task = self.thread.loop.create_task(self._live(self._release_wanted), name="clew-host")

    async def _live(self, release_wanted: asyncio.Event) -> None:
        try:
            await self._serve(release_wanted)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is the answer to whoever connects
            if self.started.done():
                _log.exception("engine.stop_failed store=%s", self.name)
            else:
                self.started.set_exception(_to_rpc_error(error, self.name))
        finally:
            self._forget()
            self.thread.stop()
            self.stopped.set_result(None)

    async def _serve(self, release_wanted: asyncio.Event) -> None:
        store, fleet, inbox = await open_by_address(_address(self.key), clock=self.clock)
        try:
            engine = Engine(
                self._wrap_store(store),
                clock=self.clock,
                entropy=self._entropy,
                limits=self.limits,
                fleet=fleet,
                telemetry=self._telemetry,
            )
            await engine.start()
        except BaseException:
            await store.close()
            raise
        self.engine = engine
        door = await self._open_door(engine)
        drain = None if inbox is None else InboxDrain(inbox, engine)
        settle_collector()
        settle_switch_interval()
        self.started.set_result(None)
        try:
            await release_wanted.wait()
        except asyncio.CancelledError:
            # The service was broken off: others must be able to open the store at once, and not wait at its door.
            try:
                if door is not None:
                    door.cut()
            finally:
                await store.close()
            raise
        if drain is not None:
            await drain.close()
        if door is not None:
            await door.close()
        await engine.stop()

    async def _open_door(self, engine: Engine) -> _Door | None:
        """Let other processes in, where that is wanted and possible."""
        where = SocketPath.beside(self.key) if self._is_joinable else None
        if where is None:
            return None
        server = LinkServer(
            engine,
            node=engine.node_id,
            new_token=lambda: self._entropy.token(16).hex(),
            now_ns=lambda: to_ns(self.clock.now()),
            limits=self.limits,
            options=_DOOR_OPTIONS,
        )
        try:
            return _Door(server, await UnixListener.open(where, server))
        except OSError as error:
            # The store can be used all the same, by this process alone.
            _log.warning("engine.not_joinable socket=%s error=%s", where.path, error)
            return None

    def _forget(self) -> None:
        with _hosts_lock:
            self.users_count = 0
            if _hosts.get(self.key) is self:
                del _hosts[self.key]


@final
class _Door:
    """The way in for other processes."""

    def __init__(self, server: LinkServer, listener: UnixListener) -> None:
        self._server = server
        self._listener = listener

    async def close(self) -> None:
        """Send everybody away; they find another owner, or one of them becomes it."""
        self._listener.close()
        self._server.drain("the process that owns the file stops")
        await self._server.wait_drained(_LEAVE_SECONDS_MAX)
        self._server.close()

    def cut(self) -> None:
        """As if the process had died."""
        self._listener.close()
        self._server.close()


@final
class EmbeddedConnection:
    """One user's hold on the engine of this process; see ``service.connection.Connection``."""

    def __init__(self, host: _Host) -> None:
        assert host.engine is not None, "a connection is made once the engine has started"
        self._host = host
        self._thread = host.thread
        self._clock = host.clock
        self._is_closed = False
        self.engine: Engine = host.engine
        self.service: Service = host.engine
        self.service_loop: asyncio.AbstractEventLoop = host.thread.loop
        self.limits: Limits = host.limits
        self.address: str = name_of(_address(host.key))

    @property
    def is_closed(self) -> bool:
        """Whether calls can no longer succeed: `close` was called, or the engine's thread has ended."""
        return self._is_closed or not self._thread.is_alive

    def call(self, method: Callable[[Any], Awaitable[T]], request: Any) -> asyncio.Future[T]:
        """Call one method of `service` from the running loop (any loop); the future belongs to that loop.

        Raises:
            RPCError: This connection is closed.
        """
        if self._is_closed:
            raise RPCError(_closed(self.address))
        return self._thread.call(method, request)

    def post(self, callback: Callable[[], None]) -> None:
        """Run `callback` on the service loop soon; from any thread; many posts make one wake-up."""
        self._thread.post(callback)

    def post_last(self, callback: Callable[[], None]) -> None:
        """`post`, by one that does nothing else afterwards: what comes of it may be done before this returns."""
        self._thread.post_last(callback)

    def now_ns(self) -> int:
        """The engine's time, nanoseconds since the epoch."""
        return to_ns(self._clock.now())

    async def close(self) -> None:
        """Let go of the engine; the last one of the process stops it after what was accepted is durable."""
        if self._is_closed:
            return
        self._is_closed = True
        host = self._host
        host.release()
        if host.users_count == 0 and self._thread.is_alive:
            await _wait_ended(host)


async def _wait_ended(host: _Host) -> None:
    await asyncio.wrap_future(host.stopped)
    host.thread.join(_EXIT_SECONDS_MAX)  # it has nothing left to do but to return


_STORE_CODES: Final[dict[type[ports.StoreError], RejectionCode]] = {
    ports.StoreUnavailable: RejectionCode.UNAVAILABLE,
    ports.StoreInUse: RejectionCode.UNAVAILABLE,
    ports.StoreFull: RejectionCode.STORE_FULL,
    ports.StoreReadOnly: RejectionCode.STORE_READ_ONLY,
    ports.StoreCorrupt: RejectionCode.STORE_CORRUPT,
    ports.StoreIncompatible: RejectionCode.INVALID_ARGUMENT,
}


def _to_rpc_error(error: BaseException, key: str) -> BaseException:
    if isinstance(error, RPCError) or not isinstance(error, Exception):
        return error
    code = _STORE_CODES.get(type(error), RejectionCode.INTERNAL) if isinstance(error, ports.StoreError) else None
    message = str(error)
    if code is None:
        message = f"The engine for {key} did not start: {type(error).__name__}: {message}."
    details = {"store": key, "reason": type(error).__name__}
    wrapped = RPCError(Rejection(code=code or RejectionCode.INTERNAL, message=message, details=details))
    wrapped.__cause__ = error
    return wrapped


def _closed(address: str) -> Rejection:
    return Rejection(
        code=RejectionCode.UNAVAILABLE,
        message=f"This client's connection to {address} is closed. Call Client.connect again.",
    )


def _stop_all_at_exit() -> None:
    with _hosts_lock:
        hosts = list(_hosts.values())
    for host in hosts:
        if host.thread.is_alive:
            host.thread.post(host._want_release)
    for host in hosts:
        host.thread.join(_EXIT_SECONDS_MAX)


def _forget_all_after_fork() -> None:
    global _hosts_lock
    _hosts_lock = threading.Lock()  # type: ignore[misc]
    _hosts.clear()


# Runs before the interpreter forbids new work to thread pools (whose own hook is registered earlier, when they are
# imported), because the store needs them to end in good order; `atexit` would be too late.
importlib.import_module("concurrent.futures.thread")
_register_exit: Callable[[Callable[[], None]], object] = getattr(threading, "_register_atexit", atexit.register)
_register_exit(_stop_all_at_exit)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_all_after_fork)
