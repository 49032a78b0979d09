"""Messages that pass by the WebSocket library: the same ones that the library would have found, whatever else comes."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from websockets.client import ClientProtocol
from websockets.frames import Frame, Opcode
from websockets.protocol import State
from websockets.server import ServerProtocol
from websockets.uri import parse_uri

from clew.client import Client
from clew.link.plain_frames import PlainFrames
from clew.link.websocket import WebSocketWire
from tests.link.node import Node

BYTES_MAX = 70_000
SIZES = [0, 1, 125, 126, 127, 65_535, 65_536, BYTES_MAX]


def library(*, is_client: bool) -> Any:
    """The library's end of an open connection, past its handshake."""
    if is_client:
        protocol: Any = ClientProtocol(parse_uri("ws://h/"), max_size=BYTES_MAX)
        protocol.state = State.OPEN
        protocol.parser = super(ClientProtocol, protocol).parse()
        next(protocol.parser)
        return protocol
    protocol = ServerProtocol(max_size=BYTES_MAX, state=State.OPEN)
    protocol.parser = super(ServerProtocol, protocol).parse()
    next(protocol.parser)
    return protocol


def read(chunks: list[bytes], *, is_client: bool, passes_by: bool) -> tuple[list[tuple[int, bytes, bool]], str]:
    """The data frames that are found, and how the connection ended."""
    protocol = library(is_client=is_client)
    plain: PlainFrames | None = PlainFrames(is_client=is_client, bytes_max=BYTES_MAX) if passes_by else None
    found: list[tuple[int, bytes, bool]] = []

    def on_message(message: bytes) -> None:
        found.append((int(Opcode.BINARY), message, True))

    for chunk in chunks:
        data = chunk
        if plain is not None:
            left = plain.take(data, on_message)
            if left is None:
                continue
            plain, data = None, left
        protocol.receive_data(data)
        found += [
            (int(event.opcode), bytes(event.data), event.fin)
            for event in protocol.events_received()
            if event.opcode in (Opcode.BINARY, Opcode.TEXT, Opcode.CONT)
        ]
    return found, type(protocol.parser_exc).__name__


def written(frames: list[tuple[int, bytes, bool]], *, is_client: bool) -> bytes:
    """These frames, as the other end of a client or of a server writes them."""
    parts = [Frame(Opcode(opcode), data, fin).serialize(mask=not is_client) for opcode, data, fin in frames]
    return b"".join(parts)


def cut(data: bytes, places: list[int]) -> list[bytes]:
    ends = sorted({place % (len(data) + 1) for place in places} | {0, len(data)})
    return [data[start:end] for start, end in itertools.pairwise(ends)]


_PLAIN = st.tuples(st.just(int(Opcode.BINARY)), st.binary(max_size=200), st.just(True))
_ANY = st.tuples(
    st.sampled_from([int(code) for code in (Opcode.BINARY, Opcode.TEXT, Opcode.CONT, Opcode.PING, Opcode.PONG)]),
    st.binary(max_size=100),
    st.booleans(),
).map(lambda frame: frame if frame[0] < Opcode.CLOSE else (frame[0], frame[1], True))


@pytest.mark.parametrize("is_client", [True, False])
@settings(deadline=None, max_examples=150)
@given(
    frames=st.lists(st.one_of(_PLAIN, _PLAIN, _PLAIN, _ANY), max_size=8),
    noise=st.binary(max_size=12),
    places=st.lists(st.integers(0, 5_000), max_size=8),
)
def test_what_passes_by_the_library_is_what_it_would_have_found(
    frames: list[tuple[int, bytes, bool]], noise: bytes, places: list[int], is_client: bool
) -> None:
    chunks = cut(written(frames, is_client=is_client) + noise, places)
    expected = read(chunks, is_client=is_client, passes_by=False)
    assert read(chunks, is_client=is_client, passes_by=True) == expected


@pytest.mark.parametrize("is_client", [True, False])
@pytest.mark.parametrize("size", SIZES)
def test_each_length_is_written_as_the_library_reads_it_and_read_byte_by_byte(size: int, is_client: bool) -> None:
    message = bytes(index % 251 for index in range(size))
    data = PlainFrames(is_client=is_client, bytes_max=BYTES_MAX).frame(message)
    reader = library(is_client=not is_client)
    reader.receive_data(data)
    (event,) = reader.events_received()
    assert (event.opcode, bytes(event.data), event.fin) == (Opcode.BINARY, message, True)
    found: list[bytes] = []
    other = PlainFrames(is_client=not is_client, bytes_max=BYTES_MAX)
    for chunk in [*(data[index : index + 1] for index in range(20)), data[20:]]:
        assert other.take(chunk, found.append) is None
    assert found == [message]
    assert other.rest() == b""


def test_what_is_too_long_is_left_to_the_library_before_it_has_come() -> None:
    data = PlainFrames(is_client=True, bytes_max=BYTES_MAX).frame(b"x" * (BYTES_MAX + 1))
    reader = PlainFrames(is_client=False, bytes_max=BYTES_MAX)
    assert reader.take(data[:20], lambda _: None) == data[:20]


@pytest.mark.parametrize("is_client", [True, False])
def test_a_frame_with_the_wrong_masking_is_left_to_the_library(is_client: bool) -> None:
    own = PlainFrames(is_client=is_client, bytes_max=BYTES_MAX)
    data = own.frame(b"hello")
    assert own.take(data, lambda _: None) == data


async def test_a_ping_of_a_proxy_is_answered_and_the_link_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    wires: list[WebSocketWire] = []
    before = WebSocketWire.connection_made

    def made(self: WebSocketWire, transport: asyncio.BaseTransport) -> None:
        wires.append(self)
        before(self, transport)

    monkeypatch.setattr(WebSocketWire, "connection_made", made)
    async with Node() as node, await Client.connect(node.address) as client:
        await client.count_workflows()
        mine, theirs = sorted(wires, key=lambda wire: wire._is_client, reverse=True)
        assert mine._plain is not None
        assert theirs._plain is not None

        async def ping() -> None:
            theirs._protocol.send_ping(b"are you there")
            theirs._write()

        await node.on_loop(ping)
        for _ in range(3):
            await client.count_workflows()
        assert mine._plain is None, "the library reads from the ping on"
        assert theirs._plain is None, "and at the other end from the answer on"
        await client.count_workflows()
