"""Refusals as HTTP has them: problem documents (RFC 9457) with Clew's stable codes.

Owns: the problem document, and the few codes that only HTTP has. Never: the codes of the engine (``service.errors``).
"""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Final

import msgspec
from starlette.responses import Response

from clew.server.security.doors import retry_after
from clew.service.errors import CODE_TABLE, RPCError

PROBLEM_TYPE: Final = "application/problem+json"
_RETRY_AFTER_SECONDS: Final = "1"


class Problem(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Why a request was not done.

    Args:
        type: A name of the kind of problem, as a URI.
        title: The kind of problem, in words.
        status: The HTTP status.
        detail: What happened, what was expected, what to do.
        code: Stable; the codes are listed in the reference of errors.
        details: Named facts for programs.
        request_id: Finds the request in the log of the server.
    """

    type: str
    title: str
    status: int
    detail: str
    code: str
    details: dict[str, str] = msgspec.field(default_factory=dict[str, str])
    request_id: str = ""


class HTTPProblem(Exception):
    """A request that is wrong as HTTP, before any call of the service.

    Args:
        status: The HTTP status.
        code: Stable name.
        detail: What happened, what was expected, what to do.
        headers: To answer with.
    """

    def __init__(self, status: int, code: str, detail: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(detail)
        self.status = status
        self.code = code
        self.detail = detail
        self.headers = dict(headers or {})


def bad_request(detail: str) -> HTTPProblem:
    """The request cannot be read, or says what cannot be."""
    return HTTPProblem(400, "invalid_argument", detail)


def problem_response(error: RPCError | HTTPProblem, request_id: str) -> Response:
    """The answer that tells of a refusal."""
    if isinstance(error, HTTPProblem):
        return _response(error.status, error.code, error.detail, {}, request_id, error.headers)
    entry = CODE_TABLE[error.code]
    headers = {"retry-after": _RETRY_AFTER_SECONDS} if entry.is_retryable else {}
    if told := retry_after(error):
        headers["retry-after"] = told
    if entry.http_status == HTTPStatus.UNAUTHORIZED:
        headers["www-authenticate"] = 'Bearer realm="clew"'
    return _response(entry.http_status, error.code.value, error.message, error.rejection.details, request_id, headers)


def internal_problem(request_id: str) -> Response:
    """The answer to a request that met a bug: what went wrong is for the log alone."""
    detail = "The server failed at this request. This is a bug in Clew; please report it, with the log of this request."
    return _response(500, "internal", detail, {}, request_id, {})


def _response(
    status: int, code: str, detail: str, details: dict[str, str], request_id: str, headers: Mapping[str, str]
) -> Response:
    problem = Problem(
        type=f"urn:clew:problem:{code}",
        title=HTTPStatus(status).phrase,
        status=status,
        detail=detail,
        code=code,
        details=details,
        request_id=request_id,
    )
    return Response(msgspec.json.encode(problem), status, headers, PROBLEM_TYPE)
