"""A link over a connection that somebody else has accepted, such as a WebSocket of an ASGI server.

Owns: `MessageChannel`, and its pumping into a `LinkServer`. Never: the framing of messages.
"""

from __future__ import annotations

import asyncio
from typing import Final, Protocol, final

from clew.link.codes import CutCode
from clew.link.server import LinkServer
from clew.link.wire import Peer

CLOSE_REASON_BYTES_MAX: Final = 120
"""A close frame of RFC 6455 has room for 123 bytes of reason."""


class MessageChannel(Protocol):
    """An accepted connection that carries whole binary messages."""

    async def send(self, data: bytes) -> None:
        """Send one message; waits while the other end does not read. Raises when the connection is closed."""
        ...

    async def receive(self) -> bytes | None:
        """The next message; None when the connection is closed."""
        ...

    async def close(self, code: int, reason: str) -> None:
        """Close with a code of RFC 6455."""
        ...


async def serve_channel(server: LinkServer, channel: MessageChannel, peer: Peer) -> None:
    """Serve one connection until it is over.

    Args:
        server: The node's links; this has to run on its loop.
        channel: The connection.
        peer: Who is at the other end.
    """
    wire = _ChannelWire(channel)
    connection = server.accept(wire, peer)
    sender = asyncio.get_running_loop().create_task(wire.pump(), name="clew-link-sender")
    try:
        while not wire.is_aborted:
            receiving = asyncio.ensure_future(channel.receive())
            await asyncio.wait((receiving, sender), return_when=asyncio.FIRST_COMPLETED)
            if not receiving.done():
                receiving.cancel()
                await asyncio.gather(receiving, return_exceptions=True)
                break
            frame = receiving.result()
            if frame is None:
                break
            connection.frame_received(frame)
    finally:
        sender.cancel()
        await asyncio.gather(sender, return_exceptions=True)
        connection.wire_lost(int(CutCode.LOST), "")


@final
class _ChannelWire:
    """The wire of such a connection."""

    def __init__(self, channel: MessageChannel) -> None:
        self._channel = channel
        self._frames: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._closing: tuple[CutCode, str] | None = None
        self.is_aborted = False

    def send(self, frame: bytes) -> None:
        """Send one frame soon."""
        if self._closing is None:
            self._frames.put_nowait(frame)

    def allow(self, frame_bytes_max: int) -> None:
        """Whoever accepted the connection sees to its limits."""

    def close(self, code: CutCode, reason: str = "") -> None:
        """Send what is on its way, then close."""
        if self._closing is None:
            self._closing = (code, reason)
            self._frames.put_nowait(None)

    def abort(self) -> None:
        """Close at once."""
        self.is_aborted = True
        self.close(CutCode.LOST)

    async def pump(self) -> None:
        """Send, until told to close."""
        while (frame := await self._frames.get()) is not None and not self.is_aborted:
            await self._channel.send(frame)
        code, reason = self._closing or (CutCode.LOST, "")
        if code is CutCode.LOST:
            code = CutCode.TIMED_OUT
        await self._channel.close(int(code), _cut_to_fit(reason))


def _cut_to_fit(reason: str) -> str:
    return reason.encode()[:CLOSE_REASON_BYTES_MAX].decode(errors="ignore")
