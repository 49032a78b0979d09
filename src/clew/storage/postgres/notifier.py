"""Hints between nodes by LISTEN and NOTIFY.

Owns: `PostgresNotifier` with a connection of its own, and its being made again. Never: what a message means.

How it works: one connection listens, another sends. Notifying serialises the commits of a database for the moment that
it takes, so it is never part of the engine's transactions: messages gather while a send is under way and go out
together, without waiting for the disk, as a lost hint is no harm. A connection can be half dead without anybody being
told, so the listening one is asked for a sign of life when nothing has come for a while. After it was lost, the gap is
told once all channels are listened to again. Behind a proxy in transaction mode nobody can listen; then the slow looks
at the store are all there is.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import zlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from clew.ports.notifier import Notifier
from clew.storage.postgres.address import Address
from clew.storage.postgres.connections import close_quietly, connect

if TYPE_CHECKING:
    from clew.storage.postgres.connections import Connection

SILENCE_SECONDS: Final = 15.0
"""After this long without a message the listening connection is asked for a sign of life."""

_ANSWER_SECONDS: Final = 5.0
_BACKOFF_FIRST: Final = 0.05
_BACKOFF_MAX: Final = 2.0
_WAITING_MAX: Final = 1_000
"""Messages that wait to be sent; more are dropped, oldest first, while the server does not take them."""

_log = logging.getLogger("clew.store")


class PostgresNotifier:
    """See the module docstring. All methods belong to the loop it was made on.

    Args:
        address: Of the store; channels of two schemas do not meet.
        silence_seconds: See `SILENCE_SECONDS`.
    """

    def __init__(self, address: Address, *, silence_seconds: float = SILENCE_SECONDS) -> None:
        self._address = address
        self._silence_seconds = silence_seconds
        self._prefix = f"clew_{zlib.crc32(address.schema.encode()):08x}_"
        self._loop = asyncio.get_running_loop()
        self._channels: tuple[str, ...] = ()
        self._others: dict[str, Callable[[], None]] = {}
        self._on_message: Callable[[str], None] = _ignore
        self._on_gap: Callable[[], None] = _ignore_gap
        self._listener: asyncio.Task[None] | None = None
        self._listening: Connection | None = None
        self._is_lost = asyncio.Event()
        self._is_subscribed = asyncio.Event()
        self._heard_at = 0.0
        self._waiting: list[tuple[str, str]] = []
        self._sender: asyncio.Task[None] | None = None
        self._sending: Connection | None = None
        self._is_closed = False

    @property
    def is_connected(self) -> bool:
        """Whether messages are expected to arrive at present."""
        return self._listening is not None

    async def subscribe(
        self, channels: Sequence[str], on_message: Callable[[str], None], on_gap: Callable[[], None]
    ) -> None:
        """Listen on these channels and no others from now on."""
        self._on_message, self._on_gap = on_message, on_gap
        self._channels = tuple(self._prefix + channel for channel in channels)
        if self._address.is_pooled:
            return
        self._is_subscribed.clear()
        self._is_lost.set()  # what listens now listens to other channels: begin anew
        if self._listener is None:
            self._listener = self._loop.create_task(self._listen(), name="clew-listen")
        await self._is_subscribed.wait()

    def also_listen(self, channel: str, on_notified: Callable[[], None]) -> None:
        """Call back on each notification of another's channel, and after gaps; to be said before `subscribe`."""
        self._others[channel] = on_notified

    def publish(self, channel: str, message: str) -> None:
        """Send soon; dropped when it cannot be sent."""
        if self._is_closed or self._address.is_pooled:
            return
        self._waiting.append((self._prefix + channel, message))
        del self._waiting[:-_WAITING_MAX]
        if self._sender is None:
            self._sender = self._loop.create_task(self._send(), name="clew-notify")

    async def close(self) -> None:
        """Send what waits, as far as that works at once, and listen no more."""
        self._is_closed = True
        sender = self._sender
        if sender is not None:
            await asyncio.wait([sender], timeout=_ANSWER_SECONDS)
            sender.cancel()
            await asyncio.wait([sender])
        if self._listener is not None:
            self._listener.cancel()
            await asyncio.wait([self._listener])
        if self._sending is not None:
            await close_quietly(self._sending)

    # --- sending ----------------------------------------------------------------------------------------------------

    async def _send(self) -> None:
        try:
            while self._waiting:
                some, self._waiting = self._waiting, []
                try:
                    await self._send_some(some)
                except Exception as error:  # noqa: BLE001 - hints may get lost; slow looks stand behind them
                    _log.info("notifier.send_failed store=%s count=%d error=%r", self._address.name, len(some), error)
                    if self._sending is not None:
                        self._sending.terminate()
                        self._sending = None
        finally:
            self._sender = None

    async def _send_some(self, messages: list[tuple[str, str]]) -> None:
        async with asyncio.timeout(_ANSWER_SECONDS):
            if self._sending is None or self._sending.is_closed():
                self._sending = await connect(self._address, timeout=_ANSWER_SECONDS)
                await self._sending.execute("SET synchronous_commit = off")
            await self._sending.execute(
                "SELECT pg_notify(d.channel, d.message) FROM unnest($1::text[], $2::text[]) AS d (channel, message)",
                [channel for channel, _ in messages],
                [message for _, message in messages],
            )

    # --- listening --------------------------------------------------------------------------------------------------

    async def _listen(self) -> None:
        """Keep one connection that listens, for as long as this lives."""
        failures = 0
        is_first = True
        while True:
            connection: Connection | None = None
            try:
                # A new one each time: the end of the last connection sets the old one.
                self._is_lost = asyncio.Event()
                connection = await self._connect_listening(self._is_lost)
                failures = 0
                if self._is_lost.is_set():
                    continue  # other channels were asked for meanwhile
                self._listening = connection
                self._is_subscribed.set()
                if not is_first:
                    self._on_gap()
                    for on_notified in self._others.values():
                        on_notified()
                is_first = False
                await self._watch(connection)
            except Exception as error:  # noqa: BLE001 - whatever it was, listening begins anew
                failures += 1
                if failures == 1:
                    _log.warning("notifier.lost store=%s error=%r", self._address.name, error)
                await asyncio.sleep(min(_BACKOFF_MAX, _BACKOFF_FIRST * 2 ** min(failures, 10)))
            finally:
                self._listening = None
                if connection is not None:
                    connection.terminate()

    async def _connect_listening(self, is_lost: asyncio.Event) -> Connection:
        connection = await connect(self._address, timeout=_ANSWER_SECONDS)
        try:
            connection.add_termination_listener(lambda _: is_lost.set())
            async with asyncio.timeout(_ANSWER_SECONDS):
                for channel in (*self._channels, *self._others):
                    await connection.add_listener(channel, self._receive)
            return connection
        except BaseException:
            connection.terminate()
            raise

    async def _watch(self, connection: Connection) -> None:
        """Return when the connection is lost; raise when it gives no sign of life."""
        self._heard_at = self._loop.time()
        while True:
            pause = self._heard_at + self._silence_seconds - self._loop.time()
            if pause > 0:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(pause):
                        await self._is_lost.wait()
            if self._is_lost.is_set():
                return
            if self._loop.time() - self._heard_at >= self._silence_seconds:
                async with asyncio.timeout(_ANSWER_SECONDS):
                    await connection.execute("SELECT 1")
                self._heard_at = self._loop.time()

    def _receive(self, _connection: Any, _pid: int, channel: str, message: object) -> None:
        self._heard_at = self._loop.time()
        if channel in self._others:
            self._others[channel]()
        if channel in self._channels and isinstance(message, str):
            self._on_message(message)


def _ignore(_: str) -> None:
    pass


def _ignore_gap() -> None:
    pass


if TYPE_CHECKING:
    _fits_the_port: type[Notifier] = PostgresNotifier
