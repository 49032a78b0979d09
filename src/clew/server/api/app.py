"""The HTTP API as an ASGI application.

Owns: finding the operation of a request, reading its body within bounds, and answering with its result or a problem.
Never: which operations there are (``table``) or who may do them (the gate).

How it works: paths are matched segment by segment before they are decoded, so that an id may hold any character, a
slash included, when it is percent-encoded. Whatever goes wrong, the answer is a problem document with a stable code; an
error that nobody expected is told in the log only.
"""

from __future__ import annotations

import functools
import hashlib
import logging
from collections.abc import Mapping, Sequence
from typing import Final, final

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from clew.server.api.calls import Call, Operation
from clew.server.api.table import OPERATIONS
from clew.server.api.values import read_body, read_parameters, too_large
from clew.server.gate import Admission, Gate
from clew.server.paths import path_segments
from clew.server.problems import HTTPProblem, bad_request, internal_problem, problem_response
from clew.server.requests import request_id_of
from clew.server.streams import Streams
from clew.service.contract import Service
from clew.service.errors import RPCError

PREFIX: Final = "/api/v1"
DOCUMENT_PATH: Final = "/openapi.json"

_JSON_TYPES: Final = ("application/json",)
_LENGTH_DIGITS_MAX: Final = 18
"""Of a Content-Length; Python refuses to read very long numbers in words of its own."""

_log: Final = logging.getLogger("clew.server")


@final
class ApiApp:
    """Answers everything below `PREFIX`.

    Args:
        service: The engine, for operations whose path is their permission.
        gate: Asked before every other operation.
        streams: Places for long answers.
        body_bytes_max: Larger bodies are refused.
    """

    def __init__(self, service: Service, gate: Gate, streams: Streams, *, body_bytes_max: int) -> None:
        self._public = Admission(service, "callback")
        self._gate = gate
        self._streams = streams
        self._body_bytes_max = body_bytes_max

    @functools.cached_property
    def _document(self) -> bytes:
        """Made when it is first asked for: it takes as long as half of the rest of a node's start."""
        from clew.server.api.openapi import openapi_document

        return msgspec.json.encode(openapi_document(OPERATIONS))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        request = Request(scope, receive)
        try:
            response = await self._answer(request)
        except (RPCError, HTTPProblem) as error:
            response = problem_response(error, request_id_of(scope))
        except ClientDisconnect:
            return
        except Exception:  # noqa: BLE001 - the boundary: whatever it is, the caller gets a problem and we the log
            _log.exception("api.request_failed request_id=%s", request_id_of(scope))
            response = internal_problem(request_id_of(scope))
        await response(scope, receive, send)

    async def _answer(self, request: Request) -> Response:
        segments = path_segments(request.scope, PREFIX)
        if segments == [DOCUMENT_PATH.strip("/")] and request.method in ("GET", "HEAD"):
            return _conditional(request, Response(self._document, media_type="application/json"))
        operation, path = _find(segments, "GET" if request.method == "HEAD" else request.method)
        request.scope["clew.operation"] = operation.name
        admission = self._public if operation.is_public else await self._gate.admit(request)
        call = Call(
            admission=admission,
            path=path,
            query=read_parameters(_parameters(request), operation.query),
            body=None if operation.body is None else read_body(await self._body(request), operation.body),
            request=request,
            streams=self._streams,
        )
        response = await operation.act(call)
        return _conditional(request, response) if operation.method == "GET" else response

    async def _body(self, request: Request) -> bytes:
        """The body, if it is JSON and not too large.

        A browser asks before it sends JSON across origins, but not before it sends a form: so nothing else is taken.
        """
        declared = request.headers.get("content-length", "0")
        if not (declared.isascii() and declared.isdigit() and len(declared) <= _LENGTH_DIGITS_MAX):
            raise bad_request(f"The header Content-Length is {declared[:40]!r}, not a number.")
        if int(declared) > self._body_bytes_max:
            raise too_large(self._body_bytes_max)
        parts: list[bytes] = []
        size = 0
        async for part in request.stream():
            size += len(part)
            if size > self._body_bytes_max:
                raise too_large(self._body_bytes_max)
            parts.append(part)
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind not in _JSON_TYPES and (size or kind):
            raise HTTPProblem(
                415, "unsupported_media_type", f"The body is {kind or 'of no declared type'}; send application/json."
            )
        return b"".join(parts)


def _parameters(request: Request) -> dict[str, str]:
    parameters: dict[str, str] = {}
    for name, value in request.query_params.multi_items():
        if name in parameters:
            raise bad_request(f"The parameter {name!r} is given twice.")
        parameters[name] = value
    return parameters


def _find(segments: Sequence[str], method: str) -> tuple[Operation, Mapping[str, str]]:
    allowed: list[str] = []
    for operation in _BY_LENGTH.get(len(segments), ()):
        path = _match(operation.segments, segments)
        if path is None:
            continue
        if operation.method == method:
            return operation, path
        allowed.append(operation.method)
    if not allowed:
        raise HTTPProblem(
            404, "route_not_found", f"There is nothing at this path; {PREFIX}{DOCUMENT_PATH} lists what there is."
        )
    allow = ", ".join(sorted({*allowed, *(["HEAD"] if "GET" in allowed else [])}))
    raise HTTPProblem(
        405, "method_not_allowed", f"{method} is not possible at this path; {allow} is.", {"allow": allow}
    )


def _match(pattern: Sequence[str], segments: Sequence[str]) -> dict[str, str] | None:
    path: dict[str, str] = {}
    for expected, given in zip(pattern, segments, strict=True):
        if expected.startswith("{"):
            if not given:
                return None
            path[expected[1:-1]] = given
        elif expected != given:
            return None
    return path


def _conditional(request: Request, response: Response) -> Response:
    """The answer with a tag of its content; an empty one when the caller has that content already."""
    if isinstance(response, StreamingResponse) or response.status_code != 200:
        return response
    tag = f'"{hashlib.blake2b(response.body, digest_size=12).hexdigest()}"'
    wanted = [part.strip().removeprefix("W/") for part in request.headers.get("if-none-match", "").split(",")]
    headers = {"etag": tag, "cache-control": response.headers.get("cache-control", "private, no-cache")}
    if tag in wanted:
        return Response(status_code=304, headers=headers)
    response.headers.update(headers)
    return response


def _by_length() -> dict[int, list[Operation]]:
    found: dict[int, list[Operation]] = {}
    for operation in OPERATIONS:
        found.setdefault(len(operation.segments), []).append(operation)
    return found


_BY_LENGTH: Final[dict[int, list[Operation]]] = _by_length()
