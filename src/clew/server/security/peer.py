"""The client's certificate of a TLS connection, for ASGI applications on uvicorn.

Owns: the protocol classes that put it into the scope. Never: verification (the TLS library's), or what it means.

How it works: ASGI has no agreed place that uvicorn fills, so its protocol classes are extended: when a connection is
made, the application that this connection's requests go to is wrapped in one that adds the certificate to each scope.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from typing import Any, cast

from clew.server.security.certificates import certificate_of
from clew.server.security.doors import TLS_EXTENSION
from clew.server.security.origins import App, Receive, Scope, Send


def with_certificates(protocol: type[Any]) -> type[Any]:
    """A uvicorn protocol class (HTTP or WebSocket) whose requests carry the client's certificate in their scope."""

    made: Callable[[Any, asyncio.BaseTransport], None] = protocol.connection_made

    def connection_made(self: Any, transport: asyncio.BaseTransport) -> None:
        tls = cast("ssl.SSLObject | None", transport.get_extra_info("ssl_object"))
        certificate = certificate_of(tls.getpeercert()) if tls is not None else None
        if certificate is not None:
            self.app = _adding(self.app, {"certificate": certificate})
        made(self, transport)

    return type(protocol.__name__, (protocol,), {"connection_made": connection_made})


def _adding(app: App, extension: dict[str, Any]) -> App:
    async def add(scope: Scope, receive: Receive, send: Send) -> None:
        extensions: dict[str, Any] = {**(scope.get("extensions") or {}), TLS_EXTENSION: extension}
        await app({**scope, "extensions": extensions}, receive, send)

    return add
