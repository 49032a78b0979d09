"""The web view as an ASGI application.

Owns: its paths, and what it asks of the service for each. Never: changes anything: a page that only reads cannot be
tricked into acting for whoever looks at it.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Final, final
from urllib.parse import quote

import msgspec
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.types import Receive, Scope, Send

from clew.server.api.values import read_parameters
from clew.server.gate import Gate
from clew.server.paths import path_segments
from clew.server.problems import HTTPProblem
from clew.server.requests import request_id_of
from clew.server.web.html import CONTENT_SECURITY_POLICY, page, table, tag
from clew.server.web.run import EVENTS_MAX, RunView, run_page
from clew.server.web.runs import PAGE_ROWS, Filter, runs_page
from clew.server.web.style import STYLE
from clew.service import operations as o
from clew.service import requests as r
from clew.service.contract import Service
from clew.service.errors import CODE_TABLE, RPCError

PREFIX: Final = "/ui"
STACK_QUERY: Final = "__stack_trace"
STACK_SECONDS_MAX: Final = 5.0

_CURRENT_RUN: Final = "-"
"""Stands for the current run in a path, where it is not known."""

_log: Final = logging.getLogger("clew.server")


@final
class WebApp:
    """Answers everything below `PREFIX`."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        request = Request(scope, receive)
        scope["clew.operation"] = "web"
        try:
            response = await self._answer(request)
        except RPCError as error:
            entry = CODE_TABLE[error.code]
            headers = {"www-authenticate": 'Basic realm="clew", charset="UTF-8"'} if entry.http_status == 401 else {}
            response = _trouble(error.message, entry.http_status, headers)
        except HTTPProblem as error:
            response = _trouble(error.detail, error.status, error.headers)
        except Exception:  # noqa: BLE001 - the boundary: whatever it is, a person gets a page and we the log
            _log.exception("web.request_failed request_id=%s", request_id_of(scope))
            response = _trouble(f"This page failed. The log of the server tells why: {request_id_of(scope)}.", 500, {})
        response.headers["content-security-policy"] = CONTENT_SECURITY_POLICY
        response.headers.setdefault("cache-control", "no-store")
        await response(scope, receive, send)

    async def _answer(self, request: Request) -> Response:
        if request.method not in ("GET", "HEAD"):
            raise HTTPProblem(405, "method_not_allowed", "These pages can only be looked at.", {"allow": "GET, HEAD"})
        segments = path_segments(request.scope, PREFIX)
        if segments == ["style.css"]:
            headers = {"cache-control": "public, max-age=31536000, immutable"}
            return Response(STYLE.text, media_type="text/css", headers=headers)
        service = (await self._gate.admit(request)).service
        match segments:
            case [""]:
                return await _namespaces(service)
            case [namespace, "workflows"] if namespace:
                return await _runs(service, request, namespace)
            case [namespace, "workflows", workflow_id, run_id] if namespace and workflow_id and run_id:
                return await _run(service, request, namespace, workflow_id, run_id)
            case _:
                raise HTTPProblem(404, "route_not_found", "There is no such page.")


async def _namespaces(service: Service) -> Response:
    found = (await service.list_namespaces(o.ListNamespacesRequest())).namespaces
    if len(found) == 1:
        return RedirectResponse(f"{PREFIX}/{quote(found[0].name, safe='')}/workflows", 303)
    rows = [(tag("a", one.name, href=Filter().link(one.name)), f"{one.retention.days} days") for one in found]
    return HTMLResponse(page("Namespaces", table(("Namespace", "Retention"), rows, empty="None."), namespace=""))


async def _runs(service: Service, request: Request, namespace: str) -> Response:
    wanted: Filter = read_parameters(request.query_params, Filter)
    try:
        query = wanted.to_query()
        found = await service.list_workflows(
            r.ListWorkflowsRequest(namespace=namespace, query=query, page_size=PAGE_ROWS, page_token=wanted.page_token)
        )
        counts = await service.count_workflows(r.CountWorkflowsRequest(namespace=namespace, query=query))
    except ValueError as error:
        return _filter_trouble(namespace, wanted, str(error))
    except RPCError as error:
        if CODE_TABLE[error.code].http_status != 400:
            raise
        return _filter_trouble(namespace, wanted, error.message)
    return HTMLResponse(runs_page(namespace, wanted, found, counts.groups, ""))


def _filter_trouble(namespace: str, wanted: Filter, problem: str) -> Response:
    return HTMLResponse(runs_page(namespace, wanted, r.ListWorkflowsResponse(), {}, problem), 400)


async def _run(service: Service, request: Request, namespace: str, workflow_id: str, run_id: str) -> Response:
    view: RunView = read_parameters(request.query_params, RunView)
    ids: dict[str, Any] = {"namespace": namespace, "workflow_id": workflow_id}
    described = await service.describe_workflow(
        r.DescribeWorkflowRequest(**ids, run_id="" if run_id == _CURRENT_RUN else run_id)
    )
    ids["run_id"] = described.info.run_id
    history = await service.get_history(
        r.GetHistoryRequest(**ids, from_event_id=max(1, view.from_event_id), events_max=EVENTS_MAX)
    )
    stack = await _stack(service, ids) if view.stack else ""
    return HTMLResponse(run_page(described, history.events, history.next_event_id, view, stack))


async def _stack(service: Service, ids: dict[str, Any]) -> str:
    """Where the code stands, as a worker tells; or why it cannot be told."""
    try:
        answer = await asyncio.wait_for(
            service.query_workflow(r.QueryWorkflowRequest(**ids, query_type=STACK_QUERY)), STACK_SECONDS_MAX
        )
    except TimeoutError:
        return f"No worker answered within {STACK_SECONDS_MAX:g} s."
    except RPCError as error:
        return f"It cannot be told: {error.message}"
    try:
        found = [msgspec.json.decode(payload) for payload in answer.result]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return f"A worker answered what cannot be shown: {error}."
    return "\n".join(text if isinstance(text, str) else repr(text) for text in found) or "Nothing waits."


def _trouble(text: str, status: int, headers: dict[str, str]) -> Response:
    return HTMLResponse(page("This did not work", tag("p", text, class_="error"), namespace=""), status, headers)
