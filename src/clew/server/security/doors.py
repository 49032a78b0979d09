"""What the front doors take credentials from: an HTTP request, a WebSocket handshake, a greeting of the link.

Owns: reading headers and certificates into `Credentials`, and the link's question who may come in. Never: judging them
(``authenticator``).

How it works: an API key or token comes as ``Authorization: Bearer …``; or, so that a browser can ask a person for it,
as the password of ``Authorization: Basic …``. The link has a field of its own for it. A socket that only the owner of
the server's files can open needs none. A certificate is that of the TLS connection itself: a header that claims one is
never believed.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from functools import partial
from typing import Any, Final

from clew.link.admission import Admission, Admit
from clew.link.codes import CutCode
from clew.link.frames import Hello
from clew.link.wire import Peer
from clew.server.security.authenticator import Security
from clew.server.security.certificates import certificate_of_der
from clew.server.security.principal import LOCAL, Credentials, PeerCertificate, Principal
from clew.server.security.proxies import TrustedProxies
from clew.service.errors import RPCError

TLS_EXTENSION: Final = "clew.tls"
"""Where in an ASGI scope's extensions the connection's certificate is (`peer`)."""

CHALLENGES: Final = ('Bearer realm="clew"', 'Basic realm="clew", charset="UTF-8"')
"""For ``WWW-Authenticate`` of an answer 401; the second only to what a browser shows to a person."""

Cut = Callable[[Callable[[str], bool], CutCode, str], int]
"""`LinkServer.cut_sessions`."""


def bearer_of(header: str) -> str:
    """The API key or token in an ``Authorization`` header; empty when there is none."""
    scheme, _, value = header.partition(" ")
    if scheme.lower() == "bearer":
        return value.strip()
    if scheme.lower() != "basic":
        return ""
    try:
        decoded = base64.b64decode(value.strip(), validate=True).decode()
    except ValueError:  # not base64, not UTF-8, or not even ASCII
        return ""
    return decoded.partition(":")[2]


def credentials_of_scope(scope: Mapping[str, Any]) -> Credentials:
    """The credentials of an HTTP request or WebSocket handshake (an ASGI scope)."""
    headers: Iterable[tuple[bytes, bytes]] = scope["headers"]
    authorizations = [value for name, value in headers if name == b"authorization"]
    client = scope.get("client")
    extensions: dict[str, Any] = scope.get("extensions") or {}
    certificate: PeerCertificate | None = extensions.get(TLS_EXTENSION, {}).get("certificate")
    return Credentials(
        # With two of them, nobody knows which one a proxy on the way has looked at.
        bearer=bearer_of(authorizations[0].decode("latin-1")) if len(authorizations) == 1 else "",
        certificate=certificate,
        source=str(client[0]) if client else "",
    )


def credentials_of_link(hello: Hello, peer: Peer, source: str) -> Credentials:
    """The credentials of a client of the link."""
    return Credentials(
        bearer=hello.token or bearer_of(peer.headers.get("authorization", "")),
        certificate=certificate_of_der(peer.certificate),
        source=source,
    )


def link_admission(security: Security, cut: Cut, proxies: TrustedProxies) -> Admit:
    """What the link asks about each client.

    Args:
        security: Judges.
        cut: Ends the sessions of a client whose credential has ended.
        proxies: Those that are believed to say who calls through them.
    """

    async def admit(hello: Hello, peer: Peer) -> Admission:
        source = proxies.caller(peer.address, peer.headers.get("x-forwarded-for", ""))
        principal = LOCAL if peer.is_local else await security.authenticate(credentials_of_link(hello, peer, source))
        name = _session_owner(principal)

        def end(error: RPCError) -> None:
            cut(name.__eq__, CutCode.UNAUTHENTICATED, error.message)

        service = security.service_for(principal, source=source, on_end=end)
        return Admission(service, name, partial(security.forget, service))

    return admit


def _session_owner(principal: Principal) -> str:
    """Who may go on with a session: the same caller by the same credential, or its end would come at a wrong time."""
    ends = principal.expires_at
    return principal.principal_id if ends is None else f"{principal.principal_id} until {ends.isoformat()}"


def retry_after(error: RPCError) -> str:
    """For the header ``Retry-After`` of an answer 429 (whole seconds, RFC 9110 §10.2.3); empty when none is known."""
    seconds = error.rejection.details.get("retry_after_seconds")
    if seconds is None:
        return ""
    whole = timedelta(seconds=float(seconds))
    return str(max(1, -(-whole // timedelta(seconds=1))))
