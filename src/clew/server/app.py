"""The server's ASGI application: every front end on one port.

Owns: which front end answers which path. Never: what one answers.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.types import Scope

from clew.server.api.app import PREFIX, ApiApp
from clew.server.gate import Gate, OpenGate
from clew.server.metrics.metrics import Metrics
from clew.server.metrics.registry import CONTENT_TYPE
from clew.server.problems import HTTPProblem, problem_response
from clew.server.requests import RequestMiddleware, request_id_of
from clew.server.settings import ServerSettings
from clew.server.streams import Streams
from clew.server.tracing import tracing_middleware
from clew.server.web.app import PREFIX as WEB_PREFIX
from clew.server.web.app import WebApp
from clew.service.contract import Service
from clew.service.errors import RPCError

IsReady = Callable[[], Awaitable[str]]
"""Whether calls can succeed: an empty text, or why not."""


def create_app(
    service: Service,
    *,
    settings: ServerSettings | None = None,
    gate: Gate | None = None,
    streams: Streams | None = None,
    is_ready: IsReady | None = None,
    metrics: Metrics | None = None,
    routes: Sequence[BaseRoute] = (),
    middleware: Sequence[Middleware] = (),
) -> Starlette:
    """The application; everything of it belongs to the loop of the engine.

    Args:
        service: The engine, or what stands for it.
        settings: Bounds; the defaults when not given.
        gate: Who may come in; everybody when not given.
        streams: Places for long answers; its `stop` ends them.
        is_ready: What `/readyz` asks.
        metrics: Where requests are counted, and what `/metrics` tells.
        routes: Further front ends, such as the link of workers.
        middleware: Around everything but the log, outermost first: checks of hosts, origins, rates.
    """
    settings = settings if settings is not None else ServerSettings()
    gate = gate if gate is not None else OpenGate(service)
    streams = streams if streams is not None else Streams(settings.streams_max)
    metrics = metrics if metrics is not None else Metrics()

    async def tell_metrics(request: Request) -> Response:
        try:
            admission = await gate.admit(request)
        except RPCError as error:
            return problem_response(error, request_id_of(request.scope))
        if not admission.may_see_metrics:
            problem = HTTPProblem(403, "permission_denied", "This caller may not see the metrics of the server.")
            return problem_response(problem, request_id_of(request.scope))
        return Response(await metrics.text(service), media_type=CONTENT_TYPE)

    def observe(scope: Scope, status: int, seconds: float) -> None:
        operation: str = scope.get("clew.operation", "other")
        metrics.http_requests.add(operation, str(status))
        metrics.http_seconds.observe(seconds, operation)

    api = ApiApp(service, gate, streams, body_bytes_max=settings.body_bytes_max)
    web = WebApp(gate)

    async def ready(request: Request) -> Response:
        why_not = "stopping" if streams.is_stopping else await is_ready() if is_ready is not None else ""
        return PlainTextResponse(f"{why_not or 'ready'}\n", 503 if why_not else 200)

    app = Starlette(
        routes=[
            Route("/healthz", _healthy),
            Route("/readyz", ready),
            *([Route("/metrics", tell_metrics)] if settings.metrics else []),
            Mount(PREFIX, api),
            *([Route("/", _home), Route(WEB_PREFIX, web), Mount(WEB_PREFIX, web)] if settings.web else []),
            *routes,
        ],
        middleware=[
            Middleware(RequestMiddleware, observe=observe),
            *tracing_middleware(),
            *middleware,
        ],
        exception_handlers={HTTPException: _nothing_here},
    )
    # It would redirect to an address of its own making, which is not the one that a proxy is known by.
    app.router.redirect_slashes = False
    return app


async def _home(request: Request) -> Response:
    return RedirectResponse(WEB_PREFIX, 303)


async def _healthy(request: Request) -> Response:
    """The process lives and its loop turns."""
    return PlainTextResponse("ok\n")


async def _nothing_here(request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    headers = error.headers if isinstance(error, HTTPException) else None
    code = "method_not_allowed" if status == 405 else "route_not_found"
    problem = HTTPProblem(status, code, f"There is nothing at this path; the API is below {PREFIX}.", headers)
    return problem_response(problem, request_id_of(request.scope))
