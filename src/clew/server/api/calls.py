"""One operation of the API, and one call of it.

Owns: `Operation` (a row of the table that routes, checks and documents), `Call`, and how the plain ones reach the
contract. Never: which operations there are (``table``).

How it works: most operations are one call of the contract. Its request is put together from the path, the parameters of
the query and the body, all of them fields of the request under their own names; what the contract answers is the body
of the response. The few that are more than that have a function of their own.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, final

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from clew.adapters import new_request_id
from clew.model.rejection import RejectionCode
from clew.server.api.answers import encode
from clew.server.gate import Admission
from clew.server.problems import bad_request
from clew.server.streams import Streams
from clew.service.contract import Service

IDENTITY_DEFAULT: Final = "http-api"
IDEMPOTENCY_KEY: Final = "idempotency-key"
IDEMPOTENCY_KEY_CHARS_MAX: Final = 255


class NoParameters(msgspec.Struct, frozen=True):
    """For operations that take none."""


@final
@dataclass(frozen=True)
class Call:
    """One request, read and checked.

    Args:
        admission: What the caller may use.
        path: Texts from the path.
        query: The struct of the parameters.
        body: The struct of the body; None when the operation takes none.
        request: As it came.
        streams: Gives out the places for long answers.
    """

    admission: Admission
    path: Mapping[str, str]
    query: Any
    body: Any
    request: Request
    streams: Streams

    @property
    def service(self) -> Service:
        """The contract, as this caller may use it."""
        return self.admission.service

    @property
    def identity(self) -> str:
        """Who calls, for histories."""
        return self.admission.identity or IDENTITY_DEFAULT

    def given(self) -> dict[str, Any]:
        """All that the caller gave, by name; what was left out is not there."""
        fields: dict[str, Any] = dict(self.path)
        for part in (self.query, self.body):
            if part is not None:
                fields.update(_given(part))
        return fields

    def request_of(self, kind: Any, **more: Any) -> Any:
        """A request of the contract, from what the caller gave."""
        fields = {**self.given(), **more}
        names = kind.__struct_fields__
        if "request_id" in names:
            fields["request_id"] = self.request_id(fields.get("request_id", ""))
        if "identity" in names and not fields.get("identity"):
            fields["identity"] = self.identity
        return kind(**{name: value for name, value in fields.items() if name in names})

    def request_id(self, in_body: str = "") -> str:
        """By what a repeat of this very request is recognised: what the caller says, or something new."""
        key = self.request.headers.get(IDEMPOTENCY_KEY, "")
        if not key:
            return in_body or new_request_id()
        if len(key) > IDEMPOTENCY_KEY_CHARS_MAX:
            raise bad_request(
                f"The header Idempotency-Key has {len(key)} characters; {IDEMPOTENCY_KEY_CHARS_MAX} are allowed."
            )
        if in_body and in_body != key:
            raise bad_request(
                f"The header Idempotency-Key is {key!r}, but request_id is {in_body!r}. Give one of them, or the same."
            )
        return key


def _given(part: Any) -> dict[str, Any]:
    return {
        field.name: value
        for field in msgspec.structs.fields(part)
        if (value := getattr(part, field.name)) is not None or field.default is not None
    }


Act = Callable[[Call], Awaitable[Response]]


@final
@dataclass(frozen=True, kw_only=True)
class Operation:
    """One row of the table.

    Args:
        name: Unique; ``operationId`` of the document.
        tag: What it is about.
        method: Of HTTP.
        path: Below ``/api/v1``, with ``{names}``.
        summary: One line.
        act: Does it.
        query: Struct of the parameters.
        body: Struct of the body; None when it takes none.
        response: Struct of the answer; None for an empty one.
        status: When it is done.
        codes: Refusals that belong to it, beside those that every operation may meet.
        is_stream: It answers with server-sent events, each of which has `response` as its data.
        is_public: Whoever has the path may do it: the path holds a secret of its own.
        is_idempotent: Whether the header ``Idempotency-Key`` has a meaning.
    """

    name: str
    tag: str
    method: str
    path: str
    summary: str
    act: Act
    query: Any = NoParameters
    body: Any = None
    response: Any = None
    status: int = 200
    codes: tuple[RejectionCode, ...] = ()
    is_stream: bool = False
    is_public: bool = False
    is_idempotent: bool = False
    segments: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "segments", tuple(self.path.strip("/").split("/")))


def contract_call(method: str, request: Any, *, status: int = 200) -> Act:
    """An operation that is one call of the contract."""

    async def act(call: Call) -> Response:
        answer = await getattr(call.service, method)(call.request_of(request))
        return json_response(answer, status=204 if answer is None else status)

    return act


def json_response(value: Any, *, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """A value as the body of an answer."""
    if value is None:
        return Response(status_code=204, headers=dict(headers or {}))
    return Response(encode(value), status, dict(headers or {}), "application/json")
