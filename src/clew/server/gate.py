"""Who may come in, and with what: the seam between the front ends and whoever checks credentials.

Owns: the Protocol `Gate`, and the gate that lets everybody in. Never: checks credentials (``clew.server.security``).

How it works: before a front end does anything for a caller it asks the gate, which answers with the service as that
caller may use it: the engine itself, or a wrapper that refuses what the caller may not do. So no front end knows what a
role is, and every call of every front end is checked in one place.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import NamedTuple, Protocol, final

from starlette.requests import HTTPConnection

from clew.service.contract import Service


class Admission(NamedTuple):
    """A caller who was let in.

    Args:
        service: The service as this caller may use it.
        identity: Who it is, for histories and logs; empty for somebody unknown.
        may_see_metrics: Whether `/metrics` is for this caller.
    """

    service: Service
    identity: str = ""
    may_see_metrics: bool = True


class Gate(Protocol):
    """Checks the credentials of a request or of a WebSocket's handshake."""

    def admit(self, connection: HTTPConnection) -> Awaitable[Admission]:
        """Give what this caller may use.

        Raises:
            RPCError: The caller is not let in; the code says why.
        """
        ...


@final
class OpenGate:
    """Lets everybody do everything: for a loopback address, and for tests."""

    def __init__(self, service: Service) -> None:
        self._admission = Admission(service)

    async def admit(self, connection: HTTPConnection) -> Admission:
        """Give the service as it is."""
        return self._admission
