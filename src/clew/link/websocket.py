"""A link over WebSocket (RFC 6455), between machines.

Owns: the two ends of such a connection, on the sans-I/O core of the library ``websockets``; dialling the nodes of a
list. Never: what is in a frame, or who may connect.

How it works: a frame of the link is one binary message. The library reads and writes the protocol, and this module
moves its bytes between it and an asyncio transport: no task, queue or lock stands between a socket and its session.
While nothing but whole messages comes, which is all that two ends of ours say, they pass by the library
(`plain_frames`).
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import socket
import ssl
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast, final

from clew.link.codes import CutCode
from clew.link.frames import KIB, MIB
from clew.link.inheritance import forget, keep_from_children
from clew.link.plain_frames import PlainFrames
from clew.link.server import LinkServer
from clew.link.wire import Peer, WireUser

if TYPE_CHECKING:
    from websockets.client import ClientProtocol
    from websockets.http11 import Request
    from websockets.server import ServerProtocol

PATH: Final = "/link"
"""Where a node's link is, beside its HTTP API."""

SUBPROTOCOL: Final = "clew.link"

DEFAULT_PORT: Final = 7233

CLOSE_SECONDS_MAX: Final = 2.0
"""How long the other end may take to answer a close."""

_FRAME_BYTES_MAX: Final = 2 * MIB
_HANDSHAKE_BYTES_MAX: Final = 96 * KIB
"""Before anybody is let in: room for the HTTP request and a greeting."""

CONNECT_SECONDS_MAX: Final = 3.0
"""For one address, while there are others to ask: long enough for a lost packet, well below a caller's patience."""

UNACKNOWLEDGED_SECONDS_MAX: Final = 10.0
"""How long the other machine may acknowledge nothing of what was sent: after that the connection counts as broken. A
machine that vanished, or a cut that nobody tells of, is noticed so as soon as something is sent."""

_READ_BYTES: Final = 256 * KIB
"""At a time. A buffer of this size that is made for each read costs a map of memory and its end, each a system call."""

_HEAD_END: Final = b"\r\n\r\n"

_REASON_BYTES_MAX: Final = 120
"""A close frame has room for 123 bytes of reason."""


def _load() -> None:
    """Load the library.

    Raises:
        ImportError: It is not installed; names the extra.
    """
    try:
        importlib.import_module("websockets")
    except ImportError as error:
        raise ImportError(
            "Connecting to a server needs the library 'websockets', which is not installed. Install Clew with the "
            "extra 'link' (on workers and clients) or 'server' (on nodes): pip install 'clew[link]'."
        ) from error


_buffers: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, memoryview] = weakref.WeakKeyDictionary()
"""What a loop's connections read into, one after another: of each read the bytes are taken before the next begins."""


class WebSocketWire(asyncio.BufferedProtocol):
    """What both ends have in common; an asyncio protocol and a ``wire.Wire``."""

    def __init__(self, protocol: ClientProtocol | ServerProtocol, bytes_max: int, *, is_client: bool) -> None:
        from websockets.frames import Opcode
        from websockets.protocol import State

        self._protocol: Any = protocol
        self._can_send = State.OPEN
        self._binary = Opcode.BINARY
        self._continuation = Opcode.CONT
        self._text = Opcode.TEXT
        self._loop = asyncio.get_running_loop()
        buffer = _buffers.get(self._loop)
        if buffer is None:
            buffer = _buffers[self._loop] = memoryview(bytearray(_READ_BYTES))
        self._buffer = buffer
        self._transport: asyncio.Transport | None = None
        self._user: WireUser | None = None
        self._fragments: list[bytes] | None = None
        self._is_open = False
        self._is_closing = False
        self._close_timer: asyncio.TimerHandle | None = None
        self._descriptor = -1
        self._bytes_max = bytes_max
        self._is_client = is_client
        self._plain: PlainFrames | None = None
        """While nothing but whole messages comes, the library is not asked."""

    # --- Wire -------------------------------------------------------------------------------------------------------

    def send(self, frame: bytes) -> None:
        """Send one frame soon; not when the other end has closed, though `connection_lost` is still to come."""
        if self._is_open and not self._is_closing and self._protocol.state is self._can_send:
            if self._plain is not None and self._transport is not None:
                self._transport.write(self._plain.frame(frame))
                return
            self._protocol.send_binary(frame)
            self._write()

    def allow(self, frame_bytes_max: int) -> None:
        """Take frames of this length from now on."""

    def close(self, code: CutCode, reason: str = "") -> None:
        """Send what is on its way, then close."""
        if self._is_closing or self._transport is None:
            return
        self._is_closing = True
        if self._is_open:
            with contextlib.suppress(Exception):
                self._protocol.send_close(int(code), _cut_to_fit(reason))
                self._write()
            self._close_timer = self._loop.call_later(CLOSE_SECONDS_MAX, self.abort)
        else:
            self._transport.close()

    def abort(self) -> None:
        """Close at once."""
        self._is_closing = True
        if self._transport is not None:
            self._transport.abort()

    # --- asyncio.Protocol -------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self._transport = cast("asyncio.Transport", transport)
        sock = transport.get_extra_info("socket")
        self._descriptor = sock.fileno()
        keep_from_children(self._descriptor)
        if hasattr(socket, "TCP_USER_TIMEOUT") and sock.family in (socket.AF_INET, socket.AF_INET6):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(UNACKNOWLEDGED_SECONDS_MAX * 1000))

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where to read to."""
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        """So much was read."""
        self.data_received(bytes(self._buffer[:nbytes]))

    def data_received(self, data: bytes) -> None:
        """Read what two of our own ends say, or let the library read, and pass on what was found."""
        if self._plain is not None:
            left = self._plain.take(data, self._message)
            if left is None:
                return
            self._plain, data = None, left
        was_open = self._is_open
        self._protocol.receive_data(data)
        self._handle_events()
        # Not when something came in one piece with the handshake: the library may have the half of a frame by now.
        if not was_open and self._is_open and data.find(_HEAD_END) == len(data) - len(_HEAD_END):
            self._plain = PlainFrames(is_client=self._is_client, bytes_max=self._bytes_max)

    def eof_received(self) -> bool:
        """The other end sends no more."""
        if self._plain is not None:
            rest, self._plain = self._plain.rest(), None
            self._protocol.receive_data(rest)
        self._protocol.receive_eof()
        self._handle_events()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """It is over."""
        forget(self._descriptor)
        self._transport = None
        if self._close_timer is not None:
            self._close_timer.cancel()
        self._is_closing = True
        self._ended(exc)
        if self._user is not None:
            user, self._user = self._user, None
            code = self._protocol.close_code
            reason = self._protocol.close_reason or (str(exc) if exc is not None else "")
            user.wire_lost(code if code is not None else int(CutCode.LOST), reason)

    def _ended(self, exc: Exception | None) -> None:
        """A hook for the end that has to know."""

    def _handshaken(self, event: Any) -> None:
        """A request or a response came."""
        raise NotImplementedError

    def _handle_events(self) -> None:
        for event in self._protocol.events_received():
            if not hasattr(event, "opcode"):
                self._handshaken(event)
            elif event.opcode in (self._binary, self._continuation, self._text):
                self._fragment(event)
        self._write()
        if self._protocol.close_expected() and self._close_timer is None:
            self._is_closing = True
            self._close_timer = self._loop.call_later(CLOSE_SECONDS_MAX, self.abort)

    def _message(self, message: bytes) -> None:
        if not self._is_closing and self._user is not None:
            self._user.frame_received(message)

    def _fragment(self, event: Any) -> None:
        if event.opcode is self._text:
            self.close(CutCode.MALFORMED, "a text message; a link has binary ones only")
        if self._is_closing or self._user is None:
            return
        if event.fin and self._fragments is None:
            self._user.frame_received(bytes(event.data))
            return
        if self._fragments is None:
            self._fragments = []
        self._fragments.append(bytes(event.data))
        if event.fin:
            frame, self._fragments = b"".join(self._fragments), None
            self._user.frame_received(frame)

    def _write(self) -> None:
        transport = self._transport
        for data in self._protocol.data_to_send():
            if transport is None or transport.is_closing():
                return
            if data:
                transport.write(data)
            elif transport.can_write_eof():
                transport.write_eof()
            else:
                transport.close()


@final
class ServerWire(WebSocketWire):
    """A node's end.

    Args:
        server: Takes the connection in, once its handshake is done.
        judge: Asked about the HTTP request; gives a reason to refuse it (such as a foreign origin), or None.
    """

    def __init__(self, server: LinkServer, judge: Callable[[Request], str | None] | None = None) -> None:
        from websockets.server import ServerProtocol

        limit = server.options.frame_bytes_max
        protocol = ServerProtocol(max_size=limit, subprotocols=[cast(Any, SUBPROTOCOL)])
        super().__init__(protocol, limit, is_client=False)
        self._server = server
        self._judge = judge
        self._early_bytes: int | None = 0
        self._hello_timer = self._loop.call_later(server.options.hello_seconds, self._too_slow)

    def allow(self, frame_bytes_max: int) -> None:
        """Somebody was let in."""
        self._early_bytes = None

    def data_received(self, data: bytes) -> None:
        """As above, with little patience before anybody was let in."""
        if self._early_bytes is not None:
            self._early_bytes += len(data)
            if self._early_bytes > _HANDSHAKE_BYTES_MAX:
                self.abort()
                return
        super().data_received(data)

    def _too_slow(self) -> None:
        if not self._is_open:
            self.abort()

    def _ended(self, exc: Exception | None) -> None:
        self._hello_timer.cancel()

    def _handshaken(self, event: Any) -> None:
        reason = self._reason_to_refuse(event)
        if reason is not None:
            self._protocol.send_response(self._protocol.reject(*reason))
            self._write()
            return
        response = self._protocol.accept(event)
        self._protocol.send_response(response)
        self._write()
        if response.status_code == 101:
            self._is_open = True
            self._user = self._server.accept(self, self._peer(event))

    def _reason_to_refuse(self, request: Request) -> tuple[int, str] | None:
        if request.path.partition("?")[0] != PATH:
            return 404, f"There is nothing here; a node's link is at {PATH}.\n"
        reason = self._judge(request) if self._judge is not None else None
        return (403, reason + "\n") if reason is not None else None

    def _peer(self, request: Request) -> Peer:
        assert self._transport is not None, "a request came over a connection"
        address = self._transport.get_extra_info("peername")
        tls = self._transport.get_extra_info("ssl_object")
        return Peer(
            address=f"{address[0]}:{address[1]}" if isinstance(address, tuple) else str(address),
            headers={name.lower(): value for name, value in request.headers.raw_items()},
            certificate=tls.getpeercert(binary_form=True) if tls is not None else None,
        )


@final
class ClientWire(WebSocketWire):
    """A client's end; `opened` is done when the handshake is."""

    def __init__(self, node: Node, user: WireUser, headers: dict[str, str]) -> None:
        from websockets.client import ClientProtocol
        from websockets.uri import parse_uri

        scheme = "wss" if node.tls is not None else "ws"
        uri = parse_uri(f"{scheme}://{node.host_in_uri}:{node.port}{PATH}")
        protocol = ClientProtocol(uri, max_size=_FRAME_BYTES_MAX, subprotocols=[cast(Any, SUBPROTOCOL)])
        super().__init__(protocol, _FRAME_BYTES_MAX, is_client=True)
        self._user = user
        self._headers = headers
        self.opened: asyncio.Future[None] = self._loop.create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Ask for a WebSocket."""
        super().connection_made(transport)
        request = self._protocol.connect()
        for name, value in self._headers.items():
            request.headers[name] = value
        self._protocol.send_request(request)
        self._write()

    def _handshaken(self, event: Any) -> None:
        if self._protocol.handshake_exc is None:
            self._is_open = True
            if not self.opened.done():
                self.opened.set_result(None)
        else:
            body = (event.body or b"").decode(errors="replace").strip()[:300]
            self._not_opened(
                f"it answered with HTTP {event.status_code}, not with a link"
                + (f": {body}" if body else "; is it a Clew server?")
            )
            self.abort()

    def _ended(self, exc: Exception | None) -> None:
        error = self._protocol.handshake_exc or exc
        self._not_opened(f"it closed the connection{f' ({error})' if error is not None else ''}; is it a Clew server?")

    def _not_opened(self, reason: str) -> None:
        if not self.opened.done():
            self.opened.set_exception(ConnectionError(reason))
            self.opened.exception()  # looked at also when nobody waits any more


async def listen(
    server: LinkServer,
    host: str | None,
    port: int,
    *,
    tls: ssl.SSLContext | None = None,
    judge: Callable[[Request], str | None] | None = None,
) -> asyncio.Server:
    """Take connections in on a port of their own, where no web server does it.

    Args:
        server: The node's links; this has to run on its loop.
        host: Where to listen.
        port: Where to listen; 0 for one that is free.
        tls: How to speak TLS.
        judge: See `ServerWire`.

    Raises:
        OSError: The port cannot be had.
        ImportError: The library is missing.
    """
    _load()
    loop = asyncio.get_running_loop()
    return await loop.create_server(lambda: ServerWire(server, judge), host, port, ssl=tls, backlog=1024)


class Node(NamedTuple):
    """One address of a list.

    Args:
        host: Name or address.
        port: Port.
        tls: How to speak TLS; None for plain TCP.
        domain: The name in the server's certificate; the host when not given.
    """

    host: str
    port: int
    tls: ssl.SSLContext | None = None
    domain: str | None = None

    @property
    def host_in_uri(self) -> str:
        """The host as a URI has it."""
        return f"[{self.host}]" if ":" in self.host else self.host

    def __str__(self) -> str:
        return f"{self.host_in_uri}:{self.port}"


@final
class WebSocketDial:
    """Connects to one of some nodes (implements ``client.Dial``).

    Each name of the list may stand for several nodes: all its addresses are asked, from a chance one on.

    Args:
        nodes: Where nodes are.
        chance: Gives a number from 0 up to 1.
        headers: Sent with the HTTP request.
    """

    def __init__(
        self, nodes: Sequence[Node], *, chance: Callable[[], float], headers: dict[str, str] | None = None
    ) -> None:
        _load()
        assert nodes, "a client is given at least one node"
        self._nodes = list(nodes)
        self._chance = chance
        self._headers = headers or {}
        self._queue: list[tuple[Node, str, int]] = []
        self._has_others = False
        """Whether there is more than one address."""
        self._last: tuple[str, int] | None = None
        self._avoided: tuple[str, int] | None = None

    async def __call__(self, user: WireUser) -> WebSocketWire:
        """Connect to the next address.

        Raises:
            OSError: It does not answer, or not as a node does.
        """
        if not self._queue:
            self._queue = await self._resolve()
            self._has_others = len(self._queue) > 1
        node, address, port = self._queue.pop(0)
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(CONNECT_SECONDS_MAX if self._has_others else None):
                _, wire = await loop.create_connection(
                    lambda: ClientWire(node, user, self._headers),
                    address,
                    port,
                    ssl=node.tls,
                    server_hostname=(node.domain or node.host) if node.tls is not None else None,
                )
        except TimeoutError as error:
            raise ConnectionError(f"{node}: no answer within {CONNECT_SECONDS_MAX:g} s") from error
        except OSError as error:
            raise ConnectionError(f"{node}: {error}") from error
        try:
            await wire.opened
        except ConnectionError as error:
            raise ConnectionError(f"{node}: {error}") from error
        except BaseException:
            wire.abort()
            raise
        self._last = (address, port)
        return wire

    def avoid_last(self) -> None:
        """The node connected to last is going away: try others first."""
        self._avoided = self._last
        self._queue = []

    async def _resolve(self) -> list[tuple[Node, str, int]]:
        loop = asyncio.get_running_loop()
        found: list[tuple[Node, str, int]] = []
        problem: OSError | None = None
        for node in self._nodes:
            try:
                infos = await loop.getaddrinfo(node.host, node.port, type=1)
            except OSError as error:
                problem = ConnectionError(f"{node}: {error}")
                continue
            for info in infos:
                entry = (node, str(info[4][0]), node.port)
                if entry not in found:
                    found.append(entry)
        if not found:
            raise problem or ConnectionError("no address of any node was found")
        start = int(self._chance() * len(found))
        found = found[start:] + found[:start]
        avoided, self._avoided = self._avoided, None
        return sorted(found, key=lambda entry: entry[1:] == avoided)


def _cut_to_fit(reason: str) -> str:
    return reason.encode()[:_REASON_BYTES_MAX].decode(errors="ignore")
