"""Clients and workers over a real WebSocket."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys
import time
from datetime import timedelta

import pytest

from clew import activity, workflow
from clew.client import Client
from clew.link.websocket import SUBPROTOCOL, UNACKNOWLEDGED_SECONDS_MAX, ServerWire, WebSocketDial, WebSocketWire
from clew.link.websocket import Node as LinkNode
from clew.linked import connect_over
from clew.service.errors import RPCError
from clew.worker import Worker
from tests.link.node import Node
from tests.link.service import FakeService, make_server

QUEUE = "link"
SECONDS_MAX = 20.0


@activity.defn
async def double(value: int) -> int:
    return value * 2


@workflow.defn
class Doubles:
    @workflow.run
    async def run(self, value: int) -> int:
        return await workflow.execute_activity(double, value, start_to_close_timeout=timedelta(seconds=10))


async def test_a_workflow_runs_over_the_link() -> None:
    async with Node() as node, await Client.connect(node.address) as client:
        async with Worker(client, task_queue=QUEUE, workflows=[Doubles], activities=[double]):
            results = await asyncio.wait_for(
                asyncio.gather(
                    *(client.execute_workflow(Doubles.run, n, id=f"w{n}", task_queue=QUEUE) for n in range(50))
                ),
                SECONDS_MAX,
            )
        assert results == [n * 2 for n in range(50)]


async def test_nobody_there() -> None:
    async with Node() as node:
        pass
    from clew.linked import connect_server

    with pytest.raises(RPCError, match="No node can be reached"):
        await connect_server([("127.0.0.1", node.port)], patience_seconds=0.2)


@pytest.mark.skipif(sys.platform != "linux", reason="other systems refuse when the queue is full")
async def test_a_node_that_is_silent_does_not_keep_a_client_from_the_others() -> None:
    """Its machine is gone, so nobody refuses the connection. Found by partitions: the client gave up in front of it."""
    with socket.socket() as deaf, contextlib.ExitStack() as waiting:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen(0)
        for _ in range(4):  # fill its queue: from then on it answers nobody
            caller = waiting.enter_context(socket.socket())
            caller.setblocking(False)
            caller.connect_ex(deaf.getsockname())
        async with Node() as node:
            nodes = [LinkNode(*deaf.getsockname()), LinkNode("127.0.0.1", node.port)]
            dial = WebSocketDial(nodes, chance=lambda: 0.0)
            connection = await connect_over(dial, name="a,b", address="a,b")
            await connection.close()


async def test_a_close_that_is_not_waited_for_ends_all_the_same() -> None:
    async with Node() as node:
        connection = await connect_over(
            WebSocketDial([LinkNode("127.0.0.1", node.port)], chance=lambda: 0.0), name="a", address="a"
        )
        close = asyncio.ensure_future(connection.close())
        await asyncio.sleep(0)
        close.cancel()
        with pytest.raises(asyncio.CancelledError):
            await close
        until = time.monotonic() + SECONDS_MAX
        while not connection.service_loop.is_closed():
            assert time.monotonic() < until, "its thread is left behind"
            await asyncio.sleep(0.01)


@pytest.mark.skipif(sys.platform != "linux", reason="the socket option is Linux's")
async def test_both_ends_notice_that_the_other_machine_acknowledges_nothing() -> None:
    async with Node() as node:
        wires: list[WebSocketWire] = []

        class Nobody:
            def frame_received(self, frame: bytes) -> None:
                """Nothing comes."""

            def wire_lost(self, code: int, reason: str) -> None:
                """At the end."""

        dial = WebSocketDial([LinkNode("127.0.0.1", node.port)], chance=lambda: 0.0)
        wires.append(await dial(Nobody()))

        async def look() -> None:
            wires.extend(connection.wire for connection in node.server._connections)

        await node.on_loop(look)
        assert len(wires) == 2
        for wire in wires:
            assert wire._transport is not None
            milliseconds = wire._transport.get_extra_info("socket").getsockopt(
                socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT
            )
            assert milliseconds == UNACKNOWLEDGED_SECONDS_MAX * 1000
        wires[0].abort()


HANDSHAKE = (
    b"GET /link HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
    b"Sec-WebSocket-Protocol: " + SUBPROTOCOL.encode() + b"\r\n\r\n"
)


class Pipe(asyncio.Transport):
    """Keeps what is written."""

    def __init__(self, of: socket.socket) -> None:
        super().__init__()
        self.of = of
        self.written: list[bytes] = []

    def get_extra_info(self, name: str, default: object = None) -> object:
        return self.of if name == "socket" else default

    def write(self, data: object) -> None:
        self.written.append(bytes(data))  # type: ignore[call-overload]

    def is_closing(self) -> bool:
        return False

    def can_write_eof(self) -> bool:
        return False

    def close(self) -> None:
        """Later."""

    def abort(self) -> None:
        """Later."""


@pytest.mark.parametrize("end", ["eof", "close"])
async def test_a_frame_after_the_other_end_is_gone_is_left_to_the_next_connection(end: str) -> None:
    """A killed process closes its sockets; `connection_lost` comes a turn later, and frames may be sent till then.

    Found by the crash sweep: the library raised InvalidState out of callbacks of the loop.
    """
    with socket.socket() as of:
        pipe = Pipe(of)
        wire = ServerWire(make_server(FakeService()))
        wire.connection_made(pipe)
        wire.data_received(HANDSHAKE)
        wire.send(b"before")
        assert b"before" in pipe.written[-1]
        if end == "eof":
            wire.eof_received()
        else:
            wire.data_received(bytes([0x88, 0x80, 0, 0, 0, 0]))
        wire.send(b"after")
        assert not any(b"after" in data for data in pipe.written)
        wire.connection_lost(None)
        wire.send(b"after")
