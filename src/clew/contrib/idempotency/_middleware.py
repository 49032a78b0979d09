"""The receiver's side: ASGI middleware that carries a keyed request out once and answers its repeats.

Owns: the order of steps around the application, and the refusals. Never: what the store remembers (``_store``).

How it works: the request is read whole, within a bound, and hashed with its method and path. Then the store says what
the key is to it: new (the application runs; its response is stored, then sent), in flight (409), answered (the stored
response), or used for another request (422). The statuses follow the IETF draft on the Idempotency-Key header. While
the application runs, the hold on the key is renewed; if it raises, or answers that the request may be repeated, the
key is given back. A process that dies in between leaves a hold that ends by itself, and the repeat runs the application
again: what must not happen twice even then belongs in one transaction with its key, see ``clew.contrib.sql``.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import math
from collections.abc import Awaitable, Callable, Collection, MutableMapping
from datetime import timedelta
from typing import Any, Final, TypeAlias, final

from clew.adapters import new_request_id
from clew.contrib.idempotency._headers import IDEMPOTENCY_KEY_HEADER
from clew.contrib.idempotency._store import Begun, IdempotencyStore, InFlight, Mismatch, Stored, StoredResponse

Scope: TypeAlias = MutableMapping[str, Any]
Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
ASGIApp: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]

KEY_CHARS_MAX: Final = 255
RETRY_AFTER_SECONDS_MAX: Final = 5
"""Most requests are over long before their hold would end."""

_NOT_KEPT_STATUSES: Final = frozenset({401, 403, 408, 409, 425, 429})
_HEADERS_OF_ONE_CONNECTION: Final = frozenset(
    {b"connection", b"keep-alive", b"transfer-encoding", b"upgrade", b"trailer", b"te", b"date", b"server"}
)

_log: Final = logging.getLogger("clew.contrib.idempotency")


def is_final(status: int) -> bool:
    """Say whether a response is kept as the answer to the request.

    Not kept are those that ask for another try or for other credentials: 401, 403, 408, 409, 425, 429, and from 500 on.
    """
    return status < 500 and status not in _NOT_KEPT_STATUSES


def one_caller(scope: Scope) -> str:
    """Take all requests as of one caller."""
    return ""


@final
class IdempotencyMiddleware:
    """Carries out requests with an ``Idempotency-Key`` once.

    Args:
        app: The application.
        store: Remembers keys and responses; one for all processes that serve the application.
        methods: Requests of other methods pass untouched.
        is_required: Refuse requests of these methods that have no key (400).
        body_bytes_max: Larger keyed requests are refused (413), since they are read whole before the application.
        response_bytes_max: Larger responses are sent but not kept; a repeat is then told so (409).
        lease: How long a key stays held after its process died. It is renewed while the application runs.
        kept_for: How long responses are kept; longer than any sender goes on trying.
        caller_of: Tells apart callers whose keys must not meet, as the tenant of a request. It must give the same for
            a repeat, so do not use a token that is renewed in between. Keys of Clew cannot be guessed and need none.
        is_final: Whether a response of this status is kept.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        store: IdempotencyStore,
        methods: Collection[str] = ("POST", "PUT", "PATCH", "DELETE"),
        is_required: bool = False,
        body_bytes_max: int = 2 * 1024 * 1024,
        response_bytes_max: int = 2 * 1024 * 1024,
        lease: timedelta = timedelta(seconds=30),
        kept_for: timedelta = timedelta(days=30),
        caller_of: Callable[[Scope], str] = one_caller,
        is_final: Callable[[int], bool] = is_final,
    ) -> None:
        if lease <= timedelta(0) or kept_for <= timedelta(0):
            raise ValueError(f"lease ({lease}) and kept_for ({kept_for}) must be positive.")
        self._app = app
        self._store = store
        self._methods = frozenset(method.upper() for method in methods)
        self._is_required = is_required
        self._body_bytes_max = body_bytes_max
        self._response_bytes_max = response_bytes_max
        self._lease = lease
        self._kept_for = kept_for
        self._caller_of = caller_of
        self._is_final = is_final

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection."""
        if scope["type"] != "http" or scope["method"] not in self._methods:
            await self._app(scope, receive, send)
            return
        found = [value for name, value in scope["headers"] if name == IDEMPOTENCY_KEY_HEADER.lower().encode()]
        if not found and not self._is_required:
            await self._app(scope, receive, send)
            return
        key = _read_key(found)
        if key is None:
            await _refuse(send, 400, "idempotency_key_invalid", _BAD_KEY if found else _NO_KEY)
            return
        body = await self._read_body(scope, receive, send)
        if body is not None:
            await self._serve(scope, receive, send, key, body)

    async def _read_body(self, scope: Scope, receive: Receive, send: Send) -> bytes | None:
        chunks: list[bytes] = []
        size = 0
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            chunk = message.get("body", b"")
            size += len(chunk)
            if size > self._body_bytes_max:
                await _refuse(
                    send,
                    413,
                    "idempotent_request_too_large",
                    f"A request with an {IDEMPOTENCY_KEY_HEADER} may have at most {self._body_bytes_max} bytes here. "
                    "Send large data in a request of its own, without a key, and refer to it.",
                )
                return None
            chunks.append(chunk)
            if not message.get("more_body", False):
                return b"".join(chunks)

    async def _serve(self, scope: Scope, receive: Receive, send: Send, key: str, body: bytes) -> None:
        name = hashlib.sha256(f"{self._caller_of(scope)}\0{key}".encode()).hexdigest()
        owner = new_request_id()
        match await self._store.begin(name, _fingerprint(scope, body), owner=owner, lease=self._lease):
            case Begun():
                await _Run(self, name, owner, send).run(scope, receive, body)
            case Stored(response=response):
                await _send_stored(send, response)
            case InFlight(retry_after=retry_after):
                seconds = min(max(math.ceil(retry_after.total_seconds()), 1), RETRY_AFTER_SECONDS_MAX)
                header = (b"retry-after", str(seconds).encode())
                await _refuse(send, 409, "idempotency_key_in_flight", _IN_FLIGHT, header)
            case Mismatch():
                await _refuse(send, 422, "idempotency_key_reused", _REUSED)


@final
class _Run:
    """One run of the application under a held key."""

    def __init__(self, settings: IdempotencyMiddleware, key: str, owner: str, send: Send) -> None:
        self._settings = settings
        self._store = settings._store
        self._key = key
        self._owner = owner
        self._send = send
        self._start: Message | None = None
        self._chunks: list[bytes] = []
        self._size = 0
        self._is_streaming = False
        self._is_complete = False

    async def run(self, scope: Scope, receive: Receive, body: bytes) -> None:
        renewal = asyncio.get_running_loop().create_task(self._renew())
        try:
            try:
                # Extensions are ways to answer that could not be stored, as "send this file".
                inner: Scope = {**scope, "extensions": dict[str, Any]()}
                await self._settings._app(inner, _replay(body, receive), self._take)
            finally:
                renewal.cancel()
            if not self._is_complete:
                raise RuntimeError("The application returned without a complete response.")
        except BaseException:
            await self._release()
            raise
        await self._finish()

    async def _renew(self) -> None:
        lease = self._settings._lease
        while True:
            await asyncio.sleep(lease.total_seconds() / 3)
            try:
                if not await self._store.renew(self._key, owner=self._owner, lease=lease):
                    _log.error("idempotency.hold_lost key=%s: the lease ended while the request was running", self._key)
                    return
            except Exception:  # noqa: BLE001 - a store may raise anything; the next try may succeed before the hold ends
                _log.exception("idempotency.renewal_failed key=%s", self._key)

    async def _take(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._start = message
            return
        if message["type"] != "http.response.body" or self._start is None:
            raise RuntimeError(f"An unexpected message {message['type']!r} from the application.")
        chunk = bytes(message.get("body", b""))
        self._size += len(chunk)
        self._is_complete = not message.get("more_body", False)
        if self._is_streaming:
            await self._send(message)
            return
        self._chunks.append(chunk)
        if self._size > self._settings._response_bytes_max:
            self._is_streaming = True
            await self._send(self._start)
            gathered = b"".join(self._chunks)
            self._chunks.clear()
            await self._send({"type": "http.response.body", "body": gathered, "more_body": not self._is_complete})

    async def _finish(self) -> None:
        assert self._start is not None, "a complete response has a start"
        body = b"".join(self._chunks)
        if self._settings._is_final(self._start["status"]):
            await self._keep(None if self._is_streaming else body)
        else:
            await self._release()
        if not self._is_streaming:
            await self._send(self._start)
            await self._send({"type": "http.response.body", "body": body})

    async def _keep(self, body: bytes | None) -> None:
        assert self._start is not None, "a complete response has a start"
        headers = tuple(
            (bytes(name), bytes(value))
            for name, value in self._start.get("headers", ())
            if bytes(name).lower() not in _HEADERS_OF_ONE_CONNECTION
        )
        response = StoredResponse(self._start["status"], headers, body)
        kept_for = self._settings._kept_for
        if not await self._store.complete(self._key, response, owner=self._owner, kept_for=kept_for):
            _log.error("idempotency.response_not_kept key=%s: another request took the key over", self._key)

    async def _release(self) -> None:
        try:
            await asyncio.shield(self._store.release(self._key, owner=self._owner))
        except Exception:  # noqa: BLE001 - the hold ends by itself, and the error that led here matters more
            _log.exception("idempotency.release_failed key=%s", self._key)


def _replay(body: bytes, receive: Receive) -> Receive:
    is_given = False

    async def replayed() -> Message:
        nonlocal is_given
        if is_given:
            return await receive()
        is_given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replayed


def _read_key(found: list[bytes]) -> str | None:
    """Give the one key; it may be in quotes, as structured headers are (RFC 8941). None if it is unusable."""
    if len(found) != 1:
        return None
    text = found[0].decode("latin-1").strip()
    if len(text) >= 2 and text[0] == text[-1] == '"':
        text = text[1:-1]
    is_usable = 0 < len(text) <= KEY_CHARS_MAX and text.isascii() and text.isprintable()
    return text if is_usable else None


def _fingerprint(scope: Scope, body: bytes) -> str:
    digest = hashlib.sha256()
    path = scope.get("raw_path") or scope["path"].encode()
    for part in (scope["method"].encode(), path, scope.get("query_string", b""), body):
        digest.update(len(part).to_bytes(8))
        digest.update(part)
    return digest.hexdigest()


async def _send_stored(send: Send, response: StoredResponse) -> None:
    if response.body is None:
        detail = (
            f"This request was carried out and answered with status {response.status}; the response was too large to "
            "be kept. Do not send it again; read the result from its resource."
        )
        await _refuse(send, 409, "idempotent_response_not_kept", detail)
        return
    headers = [*response.headers, (b"idempotency-replayed", b"true")]
    await send({"type": "http.response.start", "status": response.status, "headers": headers})
    await send({"type": "http.response.body", "body": response.body})


async def _refuse(send: Send, status: int, code: str, detail: str, *headers: tuple[bytes, bytes]) -> None:
    problem = json.dumps(
        {"type": "about:blank", "title": _TITLES[status], "status": status, "code": code, "detail": detail}
    )
    sent = [
        (b"content-type", b"application/problem+json"),
        (b"content-length", str(len(problem.encode())).encode()),
        *headers,
    ]
    await send({"type": "http.response.start", "status": status, "headers": sent})
    await send({"type": "http.response.body", "body": problem.encode()})


_TITLES: Final = {400: "Bad Request", 409: "Conflict", 413: "Content Too Large", 422: "Unprocessable Content"}
_NO_KEY: Final = (
    f"This request needs an {IDEMPOTENCY_KEY_HEADER}. Send one that is unique to what you want done, and the same in "
    "every repeat."
)
_BAD_KEY: Final = f"The {IDEMPOTENCY_KEY_HEADER} must be one value of 1 to {KEY_CHARS_MAX} printable ASCII characters."
_IN_FLIGHT: Final = (
    "A request with this key is being carried out. Repeat yours after the time in Retry-After to get its response."
)
_REUSED: Final = (
    "This key was used for a request with another method, path or body. Send the very request again, or choose a new "
    "key for a new intention."
)
