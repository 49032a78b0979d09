"""The service contract over one connection: WebSocket between machines, a Unix socket on one.

A node makes a `LinkServer` and has a transport call `LinkServer.accept` for each connection (or awaits `serve_channel`
for one that an ASGI server has accepted); a program makes a `LinkClient`, whose `service` is the contract.
See docs/explanation/link.md.

A name is loaded when it is first used: a node has no use for the client's end, nor a client for the node's.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
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

_HOMES: Final = {
    "admission": ("Admission", "Admit"),
    "client": ("ClientOptions", "Dial", "LinkClient"),
    "codes": ("CutCode", "LinkViolation"),
    "frames": ("Hello", "LinkOptions"),
    "server": ("LinkServer",),
    "wire": ("Peer", "Wire", "WireUser"),
}
_HOME_OF: Final = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{home}"), name)
