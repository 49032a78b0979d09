"""What every request has: an id, a line in the log, and headers that keep browsers careful.

Owns: the middleware around all front ends. Never: what a request does.

How it works: a caller may give a request its id (``X-Request-Id``), if that is short and plain; else it gets one. The
id is answered, stands in the log and in problem documents, and is known to everything that runs for the request.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, Final, final

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from clew.adapters import new_request_id

REQUEST_ID: Final[ContextVar[str]] = ContextVar("clew_request_id", default="")
"""The request that runs here; structured logs show it."""

_HEADER: Final = "x-request-id"
_PLAIN: Final = re.compile(r"[A-Za-z0-9._:/=+-]{1,128}")

_SECURITY_HEADERS: Final = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "x-frame-options": "DENY",
}

_log: Final = logging.getLogger("clew.server.access")

Observe = Callable[[Scope, int, float], None]
"""Told of each finished request: its scope, status and seconds."""


def request_id_of(scope: Scope) -> str:
    """The id of the request."""
    found: str = scope.get("clew.request_id", "")
    return found


@final
class RequestMiddleware:
    """See the module docstring.

    Args:
        app: What answers.
        observe: Told of each finished request.
    """

    def __init__(self, app: ASGIApp, observe: Observe) -> None:
        self._app = app
        self._observe = observe

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass one request on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = scope["clew.request_id"] = _given_id(scope) or new_request_id()
        token = REQUEST_ID.set(request_id)
        loop = asyncio.get_running_loop()
        began = loop.time()
        status = 0

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                headers[_HEADER] = request_id
                for name, value in _SECURITY_HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        try:
            await self._app(scope, receive, sending)
        finally:
            seconds = loop.time() - began
            self._observe(scope, status, seconds)
            _log.info("http.request %s", _line(scope, status, seconds), extra=_fields(scope, status, seconds))
            REQUEST_ID.reset(token)


def _given_id(scope: Scope) -> str:
    for name, value in scope["headers"]:
        if name == _HEADER.encode():
            text = value.decode("latin-1")
            return text if _PLAIN.fullmatch(text) else ""
    return ""


def _fields(scope: Scope, status: int, seconds: float) -> dict[str, Any]:
    """Of the path only which operation it was: ids and tokens in it may be secrets."""
    return {
        "method": scope["method"],
        "operation": scope.get("clew.operation", ""),
        "status": status,
        "duration_ms": round(seconds * 1_000, 3),
        "request_id": request_id_of(scope),
    }


def _line(scope: Scope, status: int, seconds: float) -> str:
    return " ".join(f"{name}={value}" for name, value in _fields(scope, status, seconds).items())
