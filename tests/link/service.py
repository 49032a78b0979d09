"""A service in the test's hand, and a link to it within one event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from clew.link import ClientOptions, LinkClient, LinkOptions, LinkServer, Peer
from clew.link import frames as f
from clew.link.codes import CutCode
from clew.service import requests as r
from clew.service.contract import TaskSink
from tests.link.memory import MemoryDial, MemoryWire

SECONDS_MAX = 30.0


class FakeSession:
    """A worker's session that notes what is asked of it."""

    def __init__(self, hello: r.WorkerHello, sink: TaskSink, number: int) -> None:
        self.session_id = f"s{number}"
        self.hello = hello
        self.sink = sink
        self.workflow_credits = 0
        self.activity_credits = 0
        self.said: list[str] = []

    def grant(self, *, workflow_tasks: int = 0, activity_tasks: int = 0) -> None:
        self.workflow_credits += workflow_tasks
        self.activity_credits += activity_tasks

    def stop_polling(self) -> None:
        self.said.append("stop_polling")

    def note_unanswered(self, token: r.TaskToken) -> None:
        self.said.append("note_unanswered")

    def suspend(self) -> None:
        self.said.append("suspend")

    def resume(self) -> None:
        self.said.append("resume")

    def detach(self) -> None:
        self.said.append("detach")


class FakeService:
    """Counts its calls; each waits for `gate`."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.gate.set()
        self.calls: list[Any] = []
        self.cancelled: list[Any] = []
        self.sessions: list[FakeSession] = []
        self.answer: Callable[[Any], Any] = lambda request: None

    async def attach_worker(self, hello: r.WorkerHello, sink: TaskSink) -> FakeSession:
        session = FakeSession(hello, sink, len(self.sessions) + 1)
        self.sessions.append(session)
        return session

    def __getattr__(self, name: str) -> Callable[[Any], Awaitable[Any]]:
        async def call(request: Any) -> Any:
            self.calls.append(request)
            try:
                await self.gate.wait()
            except asyncio.CancelledError:
                self.cancelled.append(request)
                raise
            answer = self.answer(request)
            if isinstance(answer, Exception):
                raise answer
            return answer

        return call


def make_server(service: Any, *, admit: Any = None, node: str = "n", tracer: Any = None, **options: Any) -> LinkServer:
    """A server of this loop."""
    tokens = iter(range(1_000_000))
    return LinkServer(
        service,
        node=node,
        new_token=lambda: f"{node}-{next(tokens)}",
        now_ns=lambda: 1,
        options=LinkOptions(**options),
        admit=admit,
        tracer=tracer,
    )


@asynccontextmanager
async def linked(*servers: LinkServer, **options: Any) -> AsyncIterator[tuple[LinkClient, MemoryDial]]:
    """A client of the first server; the others are there too."""
    dial = MemoryDial(*servers)
    client = LinkClient(dial, chance=lambda: 0.0, options=ClientOptions(**options))
    await asyncio.wait_for(client.start(), SECONDS_MAX)
    try:
        yield client, dial
    finally:
        await asyncio.wait_for(client.close(), SECONDS_MAX)
        for server in servers:
            server.close()


async def until(condition: Callable[[], Any], what: str = "") -> None:
    """Let the loop turn until the condition holds."""
    deadline = asyncio.get_running_loop().time() + SECONDS_MAX
    while not condition():
        assert asyncio.get_running_loop().time() < deadline, f"not within {SECONDS_MAX} s: {what}"
        await asyncio.sleep(0.001)


class Raw:
    """A client that says whatever the test wants."""

    def __init__(self, server: LinkServer) -> None:
        self.frames: list[bytes] = []
        self.lost: tuple[int, str] | None = None
        self.wire, theirs = MemoryWire(), MemoryWire()
        self.wire.other, theirs.other = theirs, self.wire
        self.wire.user = self
        theirs.user = server.accept(theirs, Peer("raw"))

    def frame_received(self, frame: bytes) -> None:
        self.frames.append(frame)

    def wire_lost(self, code: int, reason: str) -> None:
        self.lost = (code, reason)

    async def hello(self, **fields: Any) -> f.Welcome | f.Refused:
        """Greet, and give the answer."""
        self.wire.send(f.encode(f.Hello(**{"versions": (1,), **fields})))
        await until(lambda: self.frames, "the greeting is answered")
        return f.decode_greeting(self.frames.pop(0))

    def say(self, *messages: Any, first: int = 1, ack: int = 0) -> None:
        """Send a frame of messages."""
        self.wire.send(f.encode_data(first, ack, [f.encode(message) for message in messages]))

    async def cut(self) -> CutCode:
        """The code with which the other end cuts."""
        await until(lambda: self.lost is not None, "the other end cuts")
        assert self.lost is not None
        return CutCode(self.lost[0])
