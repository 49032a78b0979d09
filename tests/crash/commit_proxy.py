"""A proxy between a node and PostgreSQL that kills the node at the n-th write that passes.

Owns: `CommitProxy`, and as much of PostgreSQL's protocol as tells a write from the rest. Never: changes a byte.

How it works: messages of the node are taken apart by their lengths; a write is a ``Bind`` of a statement that changes
one of the engine's tables, or a ``COMMIT``. It is over when ``ReadyForQuery`` has come. The node dies

- ``before``: the write is not passed on;
- ``sent``: it is passed on, and at once the node is killed, while PostgreSQL commits;
- ``done``: PostgreSQL has answered, and the answer is not passed on;
- ``soon``: up to three milliseconds after the answer was passed on.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Callable
from typing import Final, final
from urllib.parse import urlsplit, urlunsplit

WAYS: Final = ("before", "sent", "done", "soon")

_WRITE: Final = re.compile(
    rb"\b(?:INSERT\s+INTO|UPDATE|DELETE\s+FROM)\s+\w+\.(?:executions|history|tasks|outbox|pending_items)\b"
)
_CHUNK: Final = 1 << 16
_SOON_SECONDS_MAX: Final = 0.003


@final
class CommitProxy:
    """See the module docstring; `dsn` leads through it.

    Args:
        dsn: Of the database.
    """

    def __init__(self, dsn: str) -> None:
        self._parts = urlsplit(dsn)
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._life = 0
        self._count = 0
        self._at = 0
        self._how = ""
        self._kill: Callable[[], None] = lambda: None
        self._dead_life = -1

    @property
    def dsn(self) -> str:
        """The connection string that leads through the proxy."""
        assert self._server is not None, "it is entered"
        port = self._server.sockets[0].getsockname()[1]
        user = f"{self._parts.username}@" if self._parts.username else ""
        query = "&".join(filter(None, (self._parts.query, "sslmode=disable")))
        return urlunsplit((self._parts.scheme, f"{user}127.0.0.1:{port}", self._parts.path, query, ""))

    def arm(self, at: int, how: str, kill: Callable[[], None]) -> None:
        """The node's next life begins; it ends at its `at`-th write (0: it does not)."""
        self._life += 1
        self._count, self._at, self._how, self._kill = 0, at, how, kill

    async def __aenter__(self) -> CommitProxy:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # --- what the connections tell ----------------------------------------------------------------------------------

    def is_dead(self, life: int) -> bool:
        """Whether the node of this life was killed: nothing of it passes any more."""
        return life <= self._dead_life

    def is_point(self, life: int) -> bool:
        """Another write is about to pass; whether it is the one to die at."""
        if life != self._life or not self._at:
            return False
        self._count += 1
        return self._count == self._at

    def reached(self, life: int, stage: str) -> None:
        """The write to die at has come so far."""
        if stage != self._how or life != self._life or self.is_dead(life):
            return
        if stage == "soon":
            # Knuth's multiplicative hash spreads the moments, the same for the same number.
            share = self._at * 2654435761 % 4096 / 4096
            asyncio.get_running_loop().call_later(share * _SOON_SECONDS_MAX, self._die, life)
        else:
            self._die(life)

    def _die(self, life: int) -> None:
        self._dead_life = life
        self._kill()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        to_server: asyncio.StreamWriter | None = None
        try:
            from_server, to_server = await asyncio.open_connection(
                self._parts.hostname or "127.0.0.1", self._parts.port or 5432
            )
            connection = _Connection(self, self._life, to_server, writer)
            sides = [
                asyncio.ensure_future(connection.pass_requests(reader)),
                asyncio.ensure_future(connection.pass_answers(from_server)),
            ]
            try:
                await asyncio.wait(sides, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for side in sides:
                    side.cancel()
                await asyncio.gather(*sides, return_exceptions=True)
        except (OSError, asyncio.CancelledError):
            return  # the proxy ends, or PostgreSQL is gone; whoever started this task does not look at how it ended
        finally:
            self._tasks.discard(task)
            writer.transport.abort()
            if to_server is not None:
                to_server.transport.abort()


@final
class _Connection:
    """One connection of one life of a node."""

    def __init__(
        self, proxy: CommitProxy, life: int, to_server: asyncio.StreamWriter, to_node: asyncio.StreamWriter
    ) -> None:
        self._proxy = proxy
        self._life = life
        self._to_server = to_server
        self._to_node = to_node
        self._writes: set[bytes] = set()
        """Names of prepared statements that write."""
        self._is_point = False
        """The write to die at is passing."""
        self._is_sent = False
        """It is passed on as a whole."""

    async def pass_requests(self, reader: asyncio.StreamReader) -> None:
        """From the node to PostgreSQL, until one of them is gone."""
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            # The first message has no kind.
            head = await reader.readexactly(4)
            self._to_server.write(head + await reader.readexactly(int.from_bytes(head) - 4))
            while True:
                kind = await reader.readexactly(1)
                head = await reader.readexactly(4)
                body = await reader.readexactly(int.from_bytes(head) - 4)
                if not self._may_pass(kind, body):
                    return
                self._to_server.write(kind + head + body)
                await self._to_server.drain()
                if self._is_point and kind in (b"Q", b"S"):
                    self._is_sent = True
                    self._proxy.reached(self._life, "sent")

    def _may_pass(self, kind: bytes, body: bytes) -> bool:
        if self._is_write(kind, body) and self._proxy.is_point(self._life):
            self._is_point = True
            self._proxy.reached(self._life, "before")
        return not self._proxy.is_dead(self._life)

    def _is_write(self, kind: bytes, body: bytes) -> bool:
        if kind == b"P":
            name, text, _ = body.split(b"\0", 2)
            self._writes.discard(name)
            if _WRITE.search(text):
                self._writes.add(name)
            return False
        if kind == b"B":
            return body.split(b"\0", 2)[1] in self._writes
        return kind == b"Q" and (body.startswith(b"COMMIT") or _WRITE.search(body) is not None)

    async def pass_answers(self, reader: asyncio.StreamReader) -> None:
        """From PostgreSQL to the node, until one of them is gone."""
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = await reader.readexactly(5)
                body = await reader.readexactly(int.from_bytes(head[1:]) - 4)
                is_end = self._is_sent and head[:1] == b"Z"
                if is_end:
                    self._proxy.reached(self._life, "done")
                if self._proxy.is_dead(self._life):
                    return
                self._to_node.write(head + body)
                await self._to_node.drain()
                if is_end:
                    self._is_point = self._is_sent = False
                    self._proxy.reached(self._life, "soon")
