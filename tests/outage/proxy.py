"""A proxy between the store and the server that loses what it is told to lose.

Owns: `Proxy`. Never: understands the protocol; what it acts on is found by bytes that the test puts into the data.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
from typing import Final, final
from urllib.parse import urlsplit, urlunsplit

_CHUNK: Final = 1 << 16


class Action(enum.Enum):
    """What happens to a connection when a marked request passes."""

    LOSE_ANSWER = "the server gets the request; its answer is lost, and the connection with it"
    LOSE_REQUEST = "the connection is lost before the server gets the request"
    SILENCE = "the server gets the request; its answers are held back, and nobody is told"


@final
class Proxy:
    """Forwards connections to the server of `dsn`; `dsn` of the proxy leads through it."""

    def __init__(self, dsn: str) -> None:
        parts = urlsplit(dsn)
        self._host, self._port = parts.hostname or "127.0.0.1", parts.port or 5432
        self._parts = parts
        self._marks: dict[bytes, Action] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self.hits: asyncio.Queue[Action] = asyncio.Queue()
        """What was done to marked requests."""
        self.is_open = True
        """Whether new connections are taken."""
        self._writers: set[asyncio.StreamWriter] = set()

    @property
    def dsn(self) -> str:
        """The connection string that leads through the proxy."""
        assert self._server is not None
        port = self._server.sockets[0].getsockname()[1]
        user = f"{self._parts.username}@" if self._parts.username else ""
        return urlunsplit((self._parts.scheme, f"{user}127.0.0.1:{port}", self._parts.path, self._parts.query, ""))

    def act(self, mark: bytes, action: Action) -> None:
        """Do `action` to the connection on which a request with `mark` passes next."""
        self._marks[mark] = action

    async def __aenter__(self) -> Proxy:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        self.cut_all()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def cut_all(self) -> None:
        """Cut every connection."""
        for writer in list(self._writers):
            writer.transport.abort()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._writers.add(writer)
        try:
            if not self.is_open:
                return
            try:
                to_server = await asyncio.open_connection(self._host, self._port)
            except OSError:
                return
            self._writers.add(to_server[1])
            await self._forward(reader, writer, *to_server)
        except asyncio.CancelledError:
            return  # the proxy ends; whoever started this task does not look at how it ended
        finally:
            self._tasks.discard(task)
            writer.transport.abort()
            self._writers.discard(writer)

    async def _forward(
        self,
        client_reader: asyncio.StreamReader,
        client_writer: asyncio.StreamWriter,
        server_reader: asyncio.StreamReader,
        server_writer: asyncio.StreamWriter,
    ) -> None:
        is_lossy = asyncio.Event()
        is_silent = asyncio.Event()

        async def requests() -> None:
            while data := await client_reader.read(_CHUNK):
                action = self._action_for(data)
                if action is Action.LOSE_REQUEST:
                    self.hits.put_nowait(action)
                    return
                if action is Action.LOSE_ANSWER:
                    is_lossy.set()
                elif action is Action.SILENCE:
                    is_silent.set()
                    self.hits.put_nowait(action)
                server_writer.write(data)
                await server_writer.drain()

        async def answers() -> None:
            while data := await server_reader.read(_CHUNK):
                if is_lossy.is_set():
                    self.hits.put_nowait(Action.LOSE_ANSWER)
                    return
                if is_silent.is_set():
                    continue
                client_writer.write(data)
                await client_writer.drain()

        sides = [asyncio.ensure_future(requests()), asyncio.ensure_future(answers())]
        try:
            await asyncio.wait(sides, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for side in sides:
                side.cancel()
            with contextlib.suppress(OSError):
                await asyncio.gather(*sides, return_exceptions=True)
            server_writer.transport.abort()
            self._writers.discard(server_writer)

    def _action_for(self, data: bytes) -> Action | None:
        for mark in self._marks:
            if mark in data:
                return self._marks.pop(mark)
        return None
