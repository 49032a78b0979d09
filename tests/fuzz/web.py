"""The web view as a reader of bytes: a path and a query, and what a service says about runs.

How it works: the application is called by itself, with a service that has one run, of which it tells what it is asked
for; so whatever is answered with an internal error was not read, or not shown, as it should.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any, cast
from urllib.parse import unquote

import msgspec

from clew.model.events import decode_events
from clew.server.gate import OpenGate
from clew.server.web.app import PREFIX, WebApp
from clew.service import operations as o
from clew.service import requests as r
from clew.service.contract import Service
from tests.fuzz.from_nodes import HISTORY
from tests.fuzz.target import Target

_INFO = r.WorkflowExecutionInfo(
    namespace="default", workflow_id="w", run_id="r", workflow_type="W", task_queue="q",
    status=r.WorkflowExecutionStatus.RUNNING, start_time=msgspec.convert("2026-01-01T00:00:00Z", r.datetime),
)  # fmt: skip
_EVENTS = tuple(decode_events(json.dumps(json.loads(HISTORY.read_bytes())["events"]).encode()))


class _OneRun:
    """A service that has one run."""

    def __init__(self, stack: tuple[bytes, ...] = (b'"somewhere"',), events: Any = _EVENTS) -> None:
        self._stack = stack
        self._events = events

    async def list_namespaces(self, request: Any) -> Any:
        return o.ListNamespacesResponse()

    async def list_workflows(self, request: r.ListWorkflowsRequest) -> Any:
        return r.ListWorkflowsResponse(executions=(_INFO,), next_page_token="1")

    async def count_workflows(self, request: Any) -> Any:
        return r.CountWorkflowsResponse(count=1, groups={"Running": 1})

    async def describe_workflow(self, request: r.DescribeWorkflowRequest) -> Any:
        return r.WorkflowDescription(info=_INFO)

    async def get_history(self, request: r.GetHistoryRequest) -> Any:
        return r.GetHistoryResponse(run_id="r", events=self._events, next_event_id=26)

    async def query_workflow(self, request: Any) -> Any:
        return r.QueryWorkflowResponse(result=tuple(msgspec.Raw(one) for one in self._stack))


def _page(service: Any, path: bytes, query: bytes) -> bytes:
    """What is shown; an internal error is a finding."""
    gate = OpenGate(cast("Service", service))
    scope = {
        "type": "http", "method": "GET", "path": PREFIX + unquote(path.decode("latin-1")),
        "raw_path": PREFIX.encode() + path, "root_path": "", "query_string": query, "headers": [], "scheme": "http",
        "server": ("127.0.0.1", 7233), "client": ("127.0.0.1", 40000),
    }  # fmt: skip
    statuses: list[int] = []
    shown: list[bytes] = []

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])
        else:
            shown.append(message.get("body", b""))

    async def receive() -> Any:
        return {"type": "http.disconnect"}

    asyncio.run(WebApp(gate)(scope, receive, send))
    assert len(statuses) == 1
    assert statuses[0] < 500, f"{path[:100]!r} {query[:200]!r} is answered with {statuses}"
    return b"".join(shown)


def _web(data: bytes) -> None:
    """A path and a query, as the parser of HTTP lets them through."""
    target = bytes(byte for byte in data if 0x20 < byte < 0x7F)
    path, _, query = target.partition(b"?")
    shown = _page(_OneRun(), path if path.startswith(b"/") else b"/" + path, query)
    assert b"<script" not in shown.lower()


def _stack(data: bytes) -> None:
    """What a worker answers to the question where its code stands."""
    shown = _page(_OneRun(stack=(data,)), b"/default/workflows/w/r", b"stack=1")
    assert b"<script" not in shown.lower()


def _run_page(data: bytes) -> None:
    """Events of a run, as they are shown."""
    events = tuple(decode_events(data))
    for query in (b"", b"history=full"):
        shown = _page(_OneRun(events=events), b"/default/workflows/w/r", query)
        assert b"<script" not in shown.lower()


_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)

FROM_BROWSERS: dict[str, Target] = {
    "web": Target(
        _web,
        (),
        (
            b"/default/workflows?status=Running&type=W&id=w&since=2026-01-01T00:00:00&until=2027-01-01T00:00:00%2B01:00&live=1",
            b"/default/workflows?query=WorkflowType%3D%27W%27&page_token=1",
            b"/default/workflows/w/r?history=full&from_event_id=5&stack=1",
            b"/",
        ),
        (
            b"%ff",
            b"%ed%a0%80",
            b"%00",
            b"&since=",
            b"0001-01-01T00:00%2B23:59",
            b"from_event_id=",
            b"9" * 30,
            b"%3Cscript%3E",
            b"'",
            b"/-/",
        ),
    ),
    "web_stack": Target(
        _stack,
        (),
        (b'"File a.py, line 1"', b'{"$payload":{"data":"AAE="}}'),
        (b"[" * 900 + b"]" * 900, b"<script"),
    ),
    "web_events": Target(
        _run_page,
        _UNREADABLE,
        (json.dumps(json.loads(HISTORY.read_bytes())["events"], separators=(",", ":")).encode(),),
        (b"<script", b'"event_id":', b'"details":{'),
    ),
}
