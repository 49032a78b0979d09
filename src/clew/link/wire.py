"""What a link needs of a connection, whatever carries it: whole frames in both directions.

Owns: the Protocols between a link and its transport. Never: a transport (`unix`, `websocket`, `channel`).

How it works: a transport makes a `Wire`, hands it to whoever uses it and tells that `WireUser` each frame that comes
and the end of the connection, once. Everything happens on one event loop, and nothing blocks. A wire may buffer without
bound: what is sent and not taken is bounded by the window of the session (`lane`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from clew.link.codes import CutCode


class Wire(Protocol):
    """One connection, as its user sees it."""

    def send(self, frame: bytes) -> None:
        """Send one frame soon; nothing happens when the connection is closed."""
        ...

    def allow(self, frame_bytes_max: int) -> None:
        """Take frames of this length from now on; before, only what a greeting needs."""
        ...

    def close(self, code: CutCode, reason: str = "") -> None:
        """Send what is on its way, then close; `WireUser.wire_lost` follows."""
        ...

    def abort(self) -> None:
        """Close at once; `WireUser.wire_lost` follows."""
        ...


class WireUser(Protocol):
    """What is told of a connection."""

    def frame_received(self, frame: bytes) -> None:
        """One whole frame came. Never raises."""
        ...

    def wire_lost(self, code: int, reason: str) -> None:
        """The connection is over; told once."""
        ...


@dataclass(frozen=True)
class Peer:
    """Who is at the other end, as far as the transport knows.

    Args:
        address: For people and logs.
        is_local: Whether it is a process of this machine, over a Unix socket that only this user may open.
        headers: Of the HTTP request that opened the connection, names in lower case.
        certificate: The client's certificate in DER form, when it showed one.
        carrier: What the transport wants to hand through to whoever judges the credentials.
    """

    address: str
    is_local: bool = False
    headers: dict[str, str] = field(default_factory=dict[str, str])
    certificate: bytes | None = None
    carrier: object = None
