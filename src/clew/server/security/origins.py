"""Hosts and origins: no page on another site drives this server from a browser.

Owns: `HostAndOriginMiddleware`. Never: credentials.

How it works: a browser sends whatever any page asks it to, to any address it can reach, also to a loopback one. So:

* The ``Host`` must be a name that this server is known by. A page that had its own name resolve to this machine (DNS
  rebinding) comes with that name, and is refused.
* An ``Origin``, which browsers send with what another site started, must be this very host, or one of those allowed.
  WebSocket handshakes carry one too. ``Sec-Fetch-Site: cross-site`` is refused for whatever is not a plain visit.
* A POST without an ``Origin`` must have a body type that a page cannot send to another site without being asked first
  (JSON, not a form or plain text), or a bearer token, which no browser adds by itself. The other methods that change
  something always make a browser ask first.

There are no CORS headers, and a browser that asks first (a preflight) is told no.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any, Final, NamedTuple, final
from urllib.parse import urlsplit

from clew.server.problems import HTTPProblem, problem_response
from clew.server.requests import request_id_of

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

_VISITS: Final = frozenset({"GET", "HEAD"})
_OPEN_PATHS: Final = frozenset({"/healthz", "/readyz"})
"""They tell nothing, and are asked by whatever address a balancer or an orchestrator knows."""

_LOOPBACK_NAMES: Final = ("localhost", "127.0.0.1", "[::1]")
_SIMPLE_TYPES: Final = frozenset({b"", b"text/plain", b"application/x-www-form-urlencoded", b"multipart/form-data"})
"""What a form or a script can send to another site without a preflight (Fetch standard, CORS-safelisted)."""

_DEFAULT_PORTS: Final = {"http": 80, "https": 443}
_CLOSE_POLICY: Final = 1008
"""RFC 6455 §7.4.1."""


class Refusal(NamedTuple):
    """The answer to a request that is not passed on."""

    status: int
    code: str
    message: str


@final
class HostAndOriginMiddleware:
    """See the module docstring; ASGI.

    Args:
        app: What is protected.
        hosts: Names by which the server is known, without port (`hosts_for`); ``*`` for any, where a proxy in front
            checks them.
        origins: Further origins that may call, as ``https://name[:port]``.
    """

    def __init__(self, app: App, *, hosts: Iterable[str], origins: Iterable[str] = ()) -> None:
        self._app = app
        self._hosts = frozenset(host.lower() for host in hosts)
        self._origins = frozenset(origin.lower().rstrip("/") for origin in origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on, or refuse."""
        refusal = self.refusal(scope) if scope["type"] in ("http", "websocket") else None
        if refusal is None:
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await _refuse_websocket(scope, receive, send, refusal)
        else:
            await _refuse_http(scope, receive, send, refusal)

    def refusal(self, scope: Scope) -> Refusal | None:
        """Why a request or handshake is refused; None when it is not."""
        if scope.get("path") in _OPEN_PATHS and scope.get("method") in _VISITS:
            return None
        headers: dict[bytes, bytes] = {}
        for name, value in scope["headers"]:
            if name in (b"host", b"origin") and name in headers:
                return Refusal(400, "invalid_argument", f"there are two {name.decode()} headers; expected one")
            headers.setdefault(name, value)
        host = headers.get(b"host", b"").decode("latin-1").lower()
        name = _without_port(host)
        if "*" not in self._hosts and name not in self._hosts:
            return Refusal(
                421,
                "unknown_host",
                f"this server is not known as {name[:200]!r}; call it by one of its names, or add this one to the "
                "setting allowed_hosts",
            )
        origin = headers.get(b"origin")
        if origin is not None:
            return self._origin_refusal(origin.decode("latin-1").lower(), host, scope)
        return _unasked_refusal(scope, headers)

    def _origin_refusal(self, origin: str, host: str, scope: Scope) -> Refusal | None:
        is_encrypted = scope.get("scheme") in ("https", "wss")
        if origin not in self._origins and not _is_same_place(origin, host, is_encrypted=is_encrypted):
            return Refusal(
                403,
                "foreign_origin",
                f"a page of {origin[:200]!r} may not call this server; add it to the setting allowed_origins if it "
                "should",
            )
        return None


def hosts_for(listen_host: str, *, public_url: str = "", extra: Iterable[str] = ()) -> set[str]:
    """The names by which a server is known; any port is right, since one may be forwarded from another.

    Args:
        listen_host: The address it listens on.
        public_url: How others reach it, if that is set.
        extra: Further names from the settings.
    """
    hosts = {*_LOOPBACK_NAMES, *(name.lower() for name in extra)}
    if listen_host and listen_host not in ("0.0.0.0", "::"):
        is_bare = ":" in listen_host and not listen_host.startswith("[")
        hosts.add(f"[{listen_host}]" if is_bare else listen_host.lower())
    if public_url:
        hosts.add(_without_port(urlsplit(public_url).netloc.rpartition("@")[2].lower()))
    return hosts


def _unasked_refusal(scope: Scope, headers: dict[bytes, bytes]) -> Refusal | None:
    """What a page of another site could have sent without a word of where it comes from."""
    method = scope.get("method", "GET")
    is_visit = method in _VISITS and headers.get(b"sec-fetch-mode") == b"navigate"
    if headers.get(b"sec-fetch-site") == b"cross-site" and not is_visit:
        return Refusal(403, "foreign_origin", "a page of another site may not call this server")
    if method != "POST" or headers.get(b"authorization", b"")[:7].lower() == b"bearer ":
        return None
    kind = headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
    if kind not in _SIMPLE_TYPES:
        return None
    return Refusal(
        415,
        "unsupported_media_type",
        f"a POST with the content type {kind.decode('latin-1') or '(none)'!r} is refused, since any page could send "
        "it; send JSON with `Content-Type: application/json` (also without a body), or a bearer token",
    )


def _without_port(host: str) -> str:
    if host.startswith("["):
        name, bracket, port = host.partition("]")
        return name + bracket if not port or port.startswith(":") else host
    return host.rpartition(":")[0] if host.count(":") == 1 else host


def _is_same_place(origin: str, host: str, *, is_encrypted: bool) -> bool:
    """Whether an origin is the host that was asked; https when a proxy has ended TLS before us, too."""
    try:
        parts = urlsplit(origin)
        port = parts.port
    except ValueError:
        return False
    if parts.scheme not in _DEFAULT_PORTS or not parts.hostname or parts.path or parts.query or "@" in parts.netloc:
        return False
    if is_encrypted and parts.scheme != "https":
        return False
    asked = _without_port(host)
    shown = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    default = str(_DEFAULT_PORTS[parts.scheme])
    return (shown, str(port) if port is not None else default) == (asked, host[len(asked) + 1 :] or default)


async def _refuse_http(scope: Scope, receive: Receive, send: Send, refusal: Refusal) -> None:
    message = f"{refusal.message[:1].upper()}{refusal.message[1:]}."
    problem = HTTPProblem(refusal.status, refusal.code, message, {"cache-control": "no-store"})
    await problem_response(problem, request_id_of(scope))(scope, receive, send)


async def _refuse_websocket(scope: Scope, receive: Receive, send: Send, refusal: Refusal) -> None:
    """Answer the handshake itself where the server can; else close, which it answers with 403."""
    await receive()
    if "websocket.http.response" not in (scope.get("extensions") or {}):
        await send({"type": "websocket.close", "code": _CLOSE_POLICY, "reason": refusal.code})
        return
    body = f"{refusal.message}\n".encode()
    headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", str(len(body)).encode())]
    await send({"type": "websocket.http.response.start", "status": refusal.status, "headers": headers})
    await send({"type": "websocket.http.response.body", "body": body})
