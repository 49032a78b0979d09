"""The HTTP API as a reader of bytes: a request line, a content type and a body, as the HTTP parser hands them over.

How it works: the application is called by itself, with a service that refuses every call; so whatever is answered with
an internal error was not read as it should.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, NoReturn, cast
from urllib.parse import unquote

from clew.model.rejection import Rejection, RejectionCode
from clew.server.api.app import PREFIX, ApiApp
from clew.server.api.table import OPERATIONS
from clew.server.gate import OpenGate
from clew.server.streams import Streams
from clew.service.contract import Service
from clew.service.errors import RPCError

BODY_BYTES_MAX = 2_000_000
ANSWERS_FROM_FAULTS = (503, 504)


class _Nothing:
    """A service that has nothing of what is asked for."""

    def __getattr__(self, name: str) -> Callable[..., Awaitable[NoReturn]]:
        async def refuse(*_: Any) -> NoReturn:
            raise RPCError(Rejection(code=RejectionCode.WORKFLOW_NOT_FOUND, message="Nothing is here."))

        return refuse


def _app() -> ApiApp:
    service = cast("Service", _Nothing())
    return ApiApp(service, OpenGate(service), Streams(4), body_bytes_max=BODY_BYTES_MAX)


_APP = _app()


def answer_request(data: bytes) -> None:
    """Answer ``METHOD target``, a line with the content type, and a body; an internal error is a finding."""
    line, _, rest = data.partition(b"\n")
    kind, _, body = rest.partition(b"\n")
    method, _, target = line.partition(b" ")
    # The parser in front lets no other bytes through.
    target = bytes(byte for byte in target if 0x20 < byte < 0x7F)
    status = asyncio.run(_status(method.decode("latin-1").upper(), target, kind, body))
    assert status < 500 or status in ANSWERS_FROM_FAULTS, f"{data[:300]!r} is answered with {status}"


async def _status(method: str, target: bytes, kind: bytes, body: bytes) -> int:
    raw_path, _, query = target.partition(b"?")
    scope = {
        "type": "http",
        "method": method,
        "path": PREFIX + unquote(raw_path.decode("latin-1")),
        "raw_path": PREFIX.encode() + raw_path,
        "root_path": PREFIX,
        "query_string": query,
        "headers": [(b"content-type", kind), (b"if-none-match", kind), (b"last-event-id", kind)],
        "scheme": "http",
        "server": ("127.0.0.1", 7233),
        "client": ("127.0.0.1", 40000),
    }
    messages = iter([{"type": "http.request", "body": body, "more_body": False}])
    statuses: list[int] = []

    async def receive() -> Any:
        return next(messages, {"type": "http.disconnect"})

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    await _APP(scope, receive, send)
    assert len(statuses) == 1, f"{len(statuses)} answers"
    return statuses[0]


def _line(method: str, path: str) -> bytes:
    return f"{method} {path.replace('{', '').replace('}', '')}".encode()


_START = b'{"workflow_id":"w","workflow_type":"W","task_queue":"q","input":[1],"run_timeout":"PT5S"}'

EXAMPLES: tuple[bytes, ...] = (
    b"GET /openapi.json\n\n",
    b"GET /namespaces/default/workflows?query=WorkflowType%3D'W'&page_size=10\n\n",
    b"POST /namespaces/default/workflows\napplication/json\n" + _START,
    *(_line(operation.method, operation.path) + b"\napplication/json\n{}" for operation in OPERATIONS),
)
WORDS = (b"GET ", b"POST ", b"DELETE ", b"/namespaces/default/", b"workflows", b"%2F", b"?", b"&", b"=", b'{"', b"\n")
