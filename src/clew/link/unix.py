"""A link over a Unix socket, for processes of one machine and one user.

Owns: the framing of a byte stream, listening and dialling on a socket file. Never: who owns the store beside it.

How it works: each frame is preceded by its length, four bytes with the most significant first; with the first bit set,
what follows is the code and the reason of a close. A file that the system lets only its owner open needs neither TLS
nor credentials. There is no network in between: when the connection ends, so has the process, or it wanted to.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import stat
from collections.abc import Callable, Generator
from typing import Final, cast, final

from clew.link.codes import CutCode
from clew.link.frames import MIB
from clew.link.inheritance import forget, keep_from_children
from clew.link.server import LinkServer
from clew.link.wire import Peer, WireUser

_LENGTH_BYTES: Final = 4
_CLOSE: Final = 1 << 31
_REASON_BYTES_MAX: Final = 1_000

SOCKET_PATH_BYTES_MAX: Final = 100
"""A socket's path has 104 bytes on some systems, 108 on Linux, with a zero at the end."""

_DESCRIPTORS: Final = "/proc/self/fd"

_FIRST_FRAME_BYTES_MAX: Final = 64 * 1024
"""Before anybody is let in: room for a greeting."""


@final
class StreamWire(asyncio.Protocol):
    """One end of such a connection; an asyncio protocol and a ``wire.Wire``."""

    def __init__(self, make_user: Callable[[StreamWire], WireUser], frame_bytes_max: int) -> None:
        self._make_user = make_user
        self._frame_bytes_max = frame_bytes_max
        self._user: WireUser | None = None
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()
        self._is_closing = False
        self._close_code: int = CutCode.LOST
        self._close_reason = ""
        self._descriptor = -1

    # --- Wire -------------------------------------------------------------------------------------------------------

    def send(self, frame: bytes) -> None:
        """Send one frame soon."""
        if self._transport is not None and not self._is_closing:
            self._transport.write(len(frame).to_bytes(_LENGTH_BYTES, "big") + frame)

    def allow(self, frame_bytes_max: int) -> None:
        """Take frames of this length from now on."""
        self._frame_bytes_max = frame_bytes_max

    def close(self, code: CutCode, reason: str = "") -> None:
        """Send what is on its way, then close."""
        if self._transport is None or self._is_closing:
            return
        text = reason.encode()[:_REASON_BYTES_MAX]
        body = int(code).to_bytes(2, "big") + text
        self._transport.write((_CLOSE | len(body)).to_bytes(_LENGTH_BYTES, "big") + body)
        self._is_closing = True
        self._transport.close()

    def abort(self) -> None:
        """Close at once."""
        if self._transport is not None:
            self._transport.abort()

    # --- asyncio.Protocol -------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self._transport = cast("asyncio.Transport", transport)
        self._descriptor = transport.get_extra_info("socket").fileno()
        keep_from_children(self._descriptor)
        self._user = self._make_user(self)

    def data_received(self, data: bytes) -> None:
        """Pass on every frame that is whole."""
        buffer = self._buffer
        buffer += data
        start = 0
        while len(buffer) - start >= _LENGTH_BYTES and not self._is_closing:
            length = int.from_bytes(buffer[start : start + _LENGTH_BYTES], "big")
            is_close, length = length & _CLOSE, length & ~_CLOSE
            limit = _REASON_BYTES_MAX + 2 if is_close else self._frame_bytes_max
            if length > limit:
                self.close(CutCode.TOO_LARGE, f"a frame of {length} bytes; at most {limit} are taken here")
                break
            end = start + _LENGTH_BYTES + length
            if len(buffer) < end:
                break
            body = bytes(buffer[start + _LENGTH_BYTES : end])
            start = end
            if is_close:
                self._closed_by_other(body)
                break
            assert self._user is not None, "a connection is made before anything comes"
            self._user.frame_received(body)
        del buffer[:start]

    def connection_lost(self, exc: Exception | None) -> None:
        """It is over."""
        forget(self._descriptor)
        self._transport = None
        self._is_closing = True
        self._buffer.clear()
        if self._user is not None:
            user, self._user = self._user, None
            user.wire_lost(self._close_code, self._close_reason or (str(exc) if exc is not None else ""))

    def _closed_by_other(self, body: bytes) -> None:
        self._close_code = int.from_bytes(body[:2], "big")
        self._close_reason = body[2:].decode(errors="replace")
        self._is_closing = True
        if self._transport is not None:
            self._transport.close()


@final
class SocketPath:
    """Where a socket is, however long its path: the system takes only short ones.

    On Linux a long path is named by an open descriptor of its folder.
    """

    def __init__(self, path: str) -> None:
        self.path = path

    @staticmethod
    def beside(store_path: str) -> SocketPath | None:
        """The socket of a store file, ``<file>.sock``; None where there cannot be one."""
        if not hasattr(socket, "AF_UNIX"):
            return None
        path = os.path.abspath(store_path) + ".sock"
        if _is_short(path):
            return SocketPath(path)
        name = os.path.basename(path)
        return SocketPath(path) if os.path.isdir(_DESCRIPTORS) and _is_short(f"{_DESCRIPTORS}/0000/{name}") else None

    @contextlib.contextmanager
    def reachable(self) -> Generator[str, None, None]:
        """A path that the system takes, good until the end of the block."""
        if _is_short(self.path):
            yield self.path
            return
        folder, name = os.path.split(self.path)
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            yield f"{_DESCRIPTORS}/{descriptor}/{name}"
        finally:
            os.close(descriptor)


def _is_short(path: str) -> bool:
    return len(os.fsencode(path)) <= SOCKET_PATH_BYTES_MAX


@final
class UnixListener:
    """Listens on a socket file for a `LinkServer`."""

    def __init__(self, path: str, server: asyncio.Server) -> None:
        self.path = path
        self._server = server
        self._descriptors = [listening.fileno() for listening in server.sockets]
        for descriptor in self._descriptors:
            keep_from_children(descriptor)
        self._file = _identity(path)

    @staticmethod
    async def open(where: SocketPath, server: LinkServer) -> UnixListener:
        """Listen, with the rights of this user only; a file that a dead process left there is replaced.

        Raises:
            OSError: The socket cannot be made there.
        """
        loop = asyncio.get_running_loop()
        path = where.path
        with where.reachable() as reachable:
            listening = _bind(reachable)
        try:
            listener = await loop.create_unix_server(
                lambda: StreamWire(
                    lambda wire: server.accept(wire, Peer(f"unix:{path}", is_local=True)), _FIRST_FRAME_BYTES_MAX
                ),
                sock=listening,
                backlog=1024,
            )
        except BaseException:
            listening.close()
            raise
        return UnixListener(path, listener)

    def close(self) -> None:
        """Listen no more, and remove the file if it is still the one made here."""
        for descriptor in self._descriptors:
            forget(descriptor)
        self._server.close()
        if _identity(self.path) == self._file:
            with contextlib.suppress(OSError):
                os.unlink(self.path)


def _bind(path: str) -> socket.socket:
    """A socket bound to `path`, readable for nobody else at any instant: made under another name, then moved there."""
    if (identity := _identity(path)) is not None and not stat.S_ISSOCK(identity[2]):
        raise FileExistsError(f"{path} exists and is no socket")
    temporary = f"{path}.{os.getpid() % 10_000}"
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        mask = os.umask(0o177)
        try:
            listening.bind(temporary)
        finally:
            os.umask(mask)
        os.chmod(temporary, 0o600)
        os.replace(temporary, path)
    except BaseException:
        listening.close()
        raise
    return listening


def _identity(path: str) -> tuple[int, int, int] | None:
    try:
        status = os.lstat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_mode


async def dial_unix(where: SocketPath, user: WireUser) -> StreamWire:
    """Connect to a socket file.

    Raises:
        OSError: Nobody listens there, or somebody else than this user, root, or the owner of the folder.
    """
    loop = asyncio.get_running_loop()
    status, folder = os.lstat(where.path), os.stat(os.path.dirname(where.path))
    if status.st_uid not in (os.getuid(), folder.st_uid, 0):
        raise PermissionError(
            f"the socket {where.path} belongs to user {status.st_uid}, who owns neither this process nor its folder"
        )
    with where.reachable() as path:
        _, protocol = await loop.create_unix_connection(lambda: StreamWire(lambda _: user, 2 * MIB), path)
    return protocol
