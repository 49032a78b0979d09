"""A link within one event loop, for tests: frames go by the loop's queue, and the connection can be cut."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from clew.link import CutCode, LinkServer, Peer, WireUser


class MemoryWire:
    """One end of a connection."""

    def __init__(self) -> None:
        self.user: WireUser | None = None
        self.other: MemoryWire | None = None
        self.is_open = True
        self.frames_count = 0
        self.on_frame: Callable[[bytes], bytes | None] = lambda frame: frame
        """What becomes of a frame that is sent here: another, or None to lose it (and all that follow)."""
        self._loop = asyncio.get_running_loop()

    def send(self, frame: bytes) -> None:
        """Send one frame soon."""
        if not self.is_open:
            return
        self.frames_count += 1
        passed = self.on_frame(frame)
        if passed is not None:
            self._loop.call_soon(self._arrive, passed)

    def _arrive(self, frame: bytes) -> None:
        other = self.other
        if other is not None and other.is_open and other.user is not None:
            other.user.frame_received(frame)

    def allow(self, frame_bytes_max: int) -> None:
        """Frames of any length are taken."""

    def close(self, code: CutCode, reason: str = "") -> None:
        """Close, after what was sent."""
        if self.is_open:
            self.is_open = False
            self._loop.call_soon(self._lost, int(code), reason)
            if self.other is not None:
                self._loop.call_soon(self.other._closed_by_other, int(code), reason)

    def abort(self) -> None:
        """Close at once."""
        self.close(CutCode.LOST)

    def _closed_by_other(self, code: int, reason: str) -> None:
        if self.is_open:
            self.is_open = False
            self._lost(code, reason)

    def _lost(self, code: int, reason: str) -> None:
        if self.user is not None:
            self.user.wire_lost(code, reason)


class MemoryDial:
    """Connects to servers of this loop (implements ``link.Dial``)."""

    def __init__(self, *servers: LinkServer) -> None:
        self.servers = list(servers)
        self.wires: list[MemoryWire] = []
        """The client's end of every connection."""
        self.is_down = False
        self._next = 0

    async def __call__(self, user: WireUser) -> MemoryWire:
        """Connect to the next."""
        if self.is_down or not self.servers:
            raise ConnectionRefusedError("nobody listens")
        mine, theirs = MemoryWire(), MemoryWire()
        mine.other, theirs.other = theirs, mine
        mine.user = user
        server = self.servers[self._next % len(self.servers)]
        theirs.user = server.accept(theirs, Peer("memory"))
        self.wires.append(mine)
        return mine

    def avoid_last(self) -> None:
        """Try another next."""
        self._next += 1

    def cut(self) -> None:
        """Break the present connection; both ends notice."""
        self.wires[-1].abort()
