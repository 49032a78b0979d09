"""Traces of requests over HTTP and of calls over the link, for OpenTelemetry.

Owns: one span a request or call, in the trace of its caller. Never: an exporter; whoever runs the server chooses SDK
and exporter (``opentelemetry-instrument clew server start …``, or the variables of the SDK).

How it works: with the API alone, which does nothing, a span costs microseconds; without it there is no middleware. Of
the path a span has only which operation it was, since ids and tokens in it may be secrets. Over the link, clients say
with each call which trace it belongs to. What workers report on tasks is traced only if it belongs to one: there are
thousands a second, and what they are about is in the histories.
"""

from __future__ import annotations

import asyncio
import importlib.util
from typing import Any, Final, final

from starlette.middleware import Middleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from clew.link.spans import CallTracer, EndSpan
from clew.server.requests import request_id_of
from clew.service.errors import CODE_TABLE, RPCError

_QUIET = ("/healthz", "/readyz", "/metrics")
"""What machines ask again and again tells nothing in a trace."""

_CODES: Final[dict[type[BaseException], str]] = {
    asyncio.CancelledError: "cancelled",
    TimeoutError: "deadline_exceeded",
}


def tracing_middleware() -> list[Middleware]:
    """The middleware, where the API of OpenTelemetry is installed."""
    return [Middleware(TracingMiddleware)] if importlib.util.find_spec("opentelemetry") is not None else []


def link_tracer() -> CallTracer | None:
    """What makes spans of the link's calls, where the API of OpenTelemetry is installed."""
    if importlib.util.find_spec("opentelemetry") is None:
        return None
    from opentelemetry import trace
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    tracer = trace.get_tracer("clew.server")
    extract = TraceContextTextMapPropagator().extract
    failed = trace.Status(trace.StatusCode.ERROR)

    def begin(method: str, traceparent: str) -> EndSpan:
        span = tracer.start_span(
            f"LINK {method}",
            context=extract({"traceparent": traceparent}) if traceparent else None,
            kind=trace.SpanKind.SERVER,
            attributes={"rpc.system": "clew", "rpc.method": method},
        )

        def end(error: BaseException | None) -> None:
            if isinstance(error, RPCError):
                span.set_attribute("clew.code", error.code.value)
                if CODE_TABLE[error.code].http_status >= 500:
                    span.set_status(failed)
            elif error is not None:
                span.set_attribute("clew.code", _CODES.get(type(error), "internal"))
                if type(error) not in _CODES:
                    span.set_status(failed)
            span.end()

        return end

    return begin


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
