"""The composition root of a SQLite file that several processes use: the first owns it, the others join it.

Owns: who runs the engine of a file, and what the others do when it goes. Never: the engine, or the link.

How it works: whoever gets the lock of the file runs its engine, and answers on a Unix socket beside it. Whoever does
not get it connects to that socket, as to a server. When the owner dies or stops, the links of the others break, and
each dials again: one of them gets the lock and opens the engine in its own process, and all of them, that one too, go
on over its socket. Clients and workers notice nothing but the time that takes.
"""

from __future__ import annotations

import asyncio
import os
from typing import Final, final

from clew.embedded import MEMORY, EmbeddedConnection, connect_embedded
from clew.link.unix import SocketPath, dial_unix
from clew.link.wire import Wire, WireUser
from clew.linked import LinkedConnection, connect_over
from clew.service.connection import Connection
from clew.service.errors import RPCError

JOIN_SECONDS_MAX: Final = 10.0
"""How long an owner that holds the lock may take until its socket answers: it may be starting, or stopping."""


async def connect_sqlite(path: str, *, identity: str = "") -> Connection:
    """Open the engine of a SQLite file in this process, or join the process that has it open.

    Args:
        path: The file, made when missing; or ``:memory:``.
        identity: Who this is, for people.

    Raises:
        RPCError: The file cannot be used: it is not a Clew store, no room, no permission, or another process owns it
            that does not answer.
    """
    try:
        return await connect_embedded(path, is_joinable=True)
    except RPCError as error:
        if not is_in_use(error) or path == MEMORY:
            raise
        in_use = error
    dial = JoiningDial(path)
    if dial.socket is None:
        raise in_use
    name = os.path.basename(path)
    try:
        connection = await connect_over(
            dial, name=name, address=f"sqlite:{path}", identity=identity, connect_seconds=JOIN_SECONDS_MAX
        )
    except RPCError as error:
        await dial.close()
        raise in_use if dial.is_in_use else error from error
    except BaseException:
        await dial.close()
        raise
    return JoinedConnection(connection, dial)


def is_in_use(error: RPCError) -> bool:
    """Whether a file could not be opened because another process owns it."""
    return error.rejection.details.get("reason") == "StoreInUse"


@final
class JoiningDial:
    """Connects to the owner of a file, and makes this process the owner when there is none (a ``link.Dial``)."""

    def __init__(self, path: str) -> None:
        self._path = os.path.realpath(path)
        self.socket = SocketPath.beside(self._path)
        self._own: EmbeddedConnection | None = None
        self.is_in_use = False
        """Whether, at the last try, another process had the file and did not answer."""

    async def __call__(self, user: WireUser) -> Wire:
        """Connect.

        Raises:
            OSError: The owner does not answer, or this process became it and cannot be reached.
            RPCError: There is no owner, and the file cannot be opened.
        """
        assert self.socket is not None, "only a file with a socket is joined"
        try:
            return await dial_unix(self.socket, user)
        except OSError:
            await self._take_over()
        return await dial_unix(self.socket, user)

    def avoid_last(self) -> None:
        """There is one owner only; by the time of the next dial it is gone."""

    async def close(self) -> None:
        """Let go of the engine, if it came to run here."""
        own, self._own = self._own, None
        if own is not None:
            await own.close()

    async def _take_over(self) -> None:
        self.is_in_use = False
        former, self._own = self._own, None
        if former is not None:
            await former.close()
        try:
            self._own = await connect_embedded(self._path, is_joinable=True)
        except RPCError as error:
            if not is_in_use(error):
                raise
            self.is_in_use = True
            raise ConnectionError(f"the owner of {self._path} does not answer on its socket") from error


@final
class JoinedConnection:
    """A link to the owner of a file, whichever process that is; see ``service.connection.Connection``."""

    def __init__(self, link: LinkedConnection, dial: JoiningDial) -> None:
        self._link = link
        self._dial = dial
        self.service = link.service
        self.service_loop: asyncio.AbstractEventLoop = link.service_loop
        self.limits = link.limits
        self.address: str = link.address
        self.call = link.call
        self.post, self.post_last = link.post, link.post_last
        self.now_ns = link.now_ns

    @property
    def is_closed(self) -> bool:
        """As `LinkedConnection.is_closed`."""
        return self._link.is_closed

    async def close(self) -> None:
        """Let go of the link, and of the engine if it came to run here."""
        if self._link.is_closed:
            return
        await self._link.close()
        await self._dial.close()
