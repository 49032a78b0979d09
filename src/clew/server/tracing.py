"""Traces of requests over HTTP, for OpenTelemetry.

Owns: one span a request, in the trace of its caller. Never: an exporter; whoever runs the server chooses SDK and
exporter (``opentelemetry-instrument clew server start …``, or the variables of the SDK).

How it works: with the API alone, which does nothing, a span costs microseconds; without it there is no middleware. Of
the path a span has only which operation it was, since ids and tokens in it may be secrets.
"""

from __future__ import annotations

import importlib.util
from typing import Any, final

from starlette.middleware import Middleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from clew.server.requests import request_id_of

_QUIET = ("/healthz", "/readyz", "/metrics")
"""What machines ask again and again tells nothing in a trace."""


def tracing_middleware() -> list[Middleware]:
    """The middleware, where the API of OpenTelemetry is installed."""
    return [Middleware(TracingMiddleware)] if importlib.util.find_spec("opentelemetry") is not None else []


@final
class TracingMiddleware:
    """See the module docstring."""

    def __init__(self, app: ASGIApp) -> None:
        from opentelemetry import propagate, trace

        self._app = app
        self._extract = propagate.extract
        self._tracer = trace.get_tracer("clew.server")
        self._server_kind = trace.SpanKind.SERVER
        self._error = trace.Status(trace.StatusCode.ERROR)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass one request on, within a span."""
        if scope["type"] != "http" or scope["path"] in _QUIET:
            await self._app(scope, receive, send)
            return
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        attributes: dict[str, Any] = {
            "http.request.method": scope["method"],
            "clew.request_id": request_id_of(scope),
        }
        with self._tracer.start_as_current_span(
            scope["method"], context=self._extract(headers), kind=self._server_kind, attributes=attributes
        ) as span:

            async def sending(message: Message) -> None:
                if message["type"] == "http.response.start":
                    span.set_attribute("http.response.status_code", message["status"])
                    if message["status"] >= 500:
                        span.set_status(self._error)
                await send(message)

            await self._app(scope, receive, sending)
            operation: str = scope.get("clew.operation", "other")
            span.update_name(f"{scope['method']} {operation}")
            span.set_attribute("clew.operation", operation)
