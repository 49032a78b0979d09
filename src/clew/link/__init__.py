"""The service contract over one connection: WebSocket between machines, a Unix socket on one.

A node makes a `LinkServer` and has a transport call `LinkServer.accept` for each connection (or awaits `serve_channel`
for one that an ASGI server has accepted); a program makes a `LinkClient`, whose `service` is the contract.
See docs/explanation/link.md.
"""

from __future__ import annotations

from clew.link.admission import Admission, Admit
from clew.link.client import ClientOptions, Dial, LinkClient
from clew.link.codes import CutCode, LinkViolation
from clew.link.frames import Hello, LinkOptions
from clew.link.server import LinkServer
from clew.link.wire import Peer, Wire, WireUser

__all__ = [
    "Admission",
    "Admit",
    "ClientOptions",
    "CutCode",
    "Dial",
    "Hello",
    "LinkClient",
    "LinkOptions",
    "LinkServer",
    "LinkViolation",
    "Peer",
    "Wire",
    "WireUser",
]
