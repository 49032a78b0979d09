"""What lies in databases, buckets and histories, which others can write there too.

Owns: the readers of it. Never: rows that nodes alone write (``readers`` says why those are left out).
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import http.client
import io
import sqlite3
import zlib
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from datetime import timedelta
from typing import Any, cast

import msgspec

from clew.contrib.compression import CompressionCodec
from clew.contrib.context_propagation import HEADER_PREFIX, _Carrier
from clew.contrib.encryption import CIPHER, CIPHER_NAME, KEY_ID, EncryptionCodec
from clew.contrib.idempotency import IdempotencyMiddleware, SqliteIdempotencyStore
from clew.contrib.idempotency._store import Begun, Stored
from clew.contrib.opentelemetry._carrier import HEADER, SpanMaker, from_headers
from clew.contrib.payload_store import PayloadStoreCodec
from clew.contrib.s3 import Credentials, PayloadStoreError, S3PayloadStore
from clew.converter import DataConverter, Payload, decode_typed_search_attributes
from clew.engine.hints import Hint, Hints
from clew.exceptions import ClewError
from clew.inbox import InboxDrain
from clew.model.events import SearchAttributes
from clew.model.failure import Failure
from clew.model.payload import to_stored
from clew.storage.postgres.inbox import Request
from clew.storage.values import to_index_rows
from tests.fuzz.target import Target, text

# --- databases --------------------------------------------------------------------------------------------------------


class _Rows:
    """An inbox with some requests, as others put them there."""

    def __init__(self, *requests: Request) -> None:
        self.left = {request.inbox_id: request for request in requests}
        self.refused: dict[int, str] = {}
        self.is_looked_at_again = asyncio.Event()

    async def take(self) -> list[Request]:
        return list(self.left.values())

    async def done(self, inbox_ids: list[int]) -> None:
        for inbox_id in inbox_ids:
            del self.left[inbox_id]

    async def failed(self, inbox_id: int, why: str) -> None:
        self.refused[inbox_id] = why
        del self.left[inbox_id]

    async def wait(self) -> None:
        self.is_looked_at_again.set()
        await asyncio.sleep(60)


class _TakesAll:
    """A service that does whatever it is asked."""

    def __init__(self) -> None:
        self.asked: list[Any] = []

    async def start_workflow(self, request: Any) -> None:
        self.asked.append(request)

    signal_workflow = start_workflow


def _inbox(data: bytes) -> None:
    """The first byte says which kind of request. Whatever it is, the one behind it is done."""
    kind, body = ("start", "signal")[(data[0] if data else 0) % 2], data[1:].decode("utf-8", "replace")

    async def run() -> None:
        rows, service = _Rows(Request(1, kind, body), Request(2, "start", _START.decode())), _TakesAll()
        drain = InboxDrain(cast(Any, rows), cast(Any, service))
        try:
            await asyncio.wait_for(rows.is_looked_at_again.wait(), 30)
        finally:
            await drain.close()
        assert not rows.left, "whatever it is, it is done or refused"
        assert len(rows.refused) + len(service.asked) == 2
        assert 2 not in rows.refused

    asyncio.run(run())


class _Notifier:
    """Brings what the test says."""

    is_connected = True
    receive: Callable[[str], None]

    async def subscribe(self, channels: Any, on_message: Callable[[str], None], on_gap: Any) -> None:
        self.receive = on_message


def _hint(message: str) -> None:
    """A notification; anybody who may connect to the database can send one."""

    async def run() -> None:
        notifier, got = _Notifier(), list[tuple[str, Hint]]()
        hints = Hints(cast(Any, notifier), on_hint=lambda *hint: got.append(hint), on_gap=lambda: None)
        await hints.listen("me")
        notifier.receive(message)

    asyncio.run(run())


_KINDS = (b"Keyword", b"Text", b"Int", b"Double", b"Bool", b"Datetime", b"KeywordList", b"?")


def _search_attributes(data: bytes) -> None:
    """The first byte says which type the attribute has.

    They are indexed by the very commit that has the run in it, beside others: so that must not fail.
    """
    kind = _KINDS[(data[0] if data else 0) % len(_KINDS)]
    payload = Payload({"encoding": b"json/plain", "type": kind}, data[1:])
    attributes: SearchAttributes = {"A": to_stored(payload)}
    rows = list(to_index_rows(attributes))
    assert all(name == "A" and isinstance(value, (str, int, float)) for name, _, _, value in rows)
    database = sqlite3.connect(":memory:")
    with contextlib.closing(database):
        database.execute("CREATE TABLE rows (name TEXT, ordinal INTEGER, kind TEXT, value)")
        database.executemany("INSERT INTO rows VALUES (?, ?, ?, ?)", rows)
    decode_typed_search_attributes(attributes)


# --- idempotency ------------------------------------------------------------------------------------------------------


async def _application(scope: Any, receive: Any, send: Any) -> None:
    await receive()
    await send({"type": "http.response.start", "status": 201, "headers": [(b"a", b"b")]})
    await send({"type": "http.response.body", "body": b"done"})


def _ask(app: Callable[..., Awaitable[None]], headers: list[tuple[bytes, bytes]], body: bytes) -> Awaitable[list[Any]]:
    async def ask() -> list[Any]:
        scope = {
            "type": "http", "method": "POST", "path": "/", "raw_path": b"/", "query_string": b"", "headers": headers,
        }  # fmt: skip
        messages = iter([
            {"type": "http.request", "body": body[:10], "more_body": True},
            {"type": "http.request", "body": body[10:], "more_body": False},
        ])  # fmt: skip
        sent: list[Any] = []

        async def receive() -> Any:
            return next(messages, {"type": "http.disconnect"})

        async def send(message: Any) -> None:
            sent.append(message)

        await app(scope, receive, send)
        return sent

    return ask()


def _keyed_request(data: bytes) -> None:
    """Lines with keys, an empty line, a body: asked twice, it is carried out once, or refused twice."""
    head, _, body = data.partition(b"\n\n")
    headers = [(b"idempotency-key", line) for line in head.split(b"\n")[:4]]
    calls: list[int] = []

    async def counted(scope: Any, receive: Any, send: Any) -> None:
        calls.append(1)
        await _application(scope, receive, send)

    async def run() -> None:
        store = SqliteIdempotencyStore(":memory:")
        app = IdempotencyMiddleware(counted, store=store, body_bytes_max=1_000)
        try:
            first, second = await _ask(app, headers, body), await _ask(app, headers, body)
        finally:
            store.close()
        statuses = [first[0]["status"], second[0]["status"]]
        assert statuses[0] == statuses[1]
        assert statuses[0] in (201, 400, 413)
        assert len(calls) == (statuses[0] == 201)

    asyncio.run(run())


def _stored_response(data: bytes) -> None:
    """A row of the store as it was not written by it: status, headers and body with empty lines between.

    The request was carried out, so it must not be again.
    """
    status, _, rest = data.partition(b"\n\n")
    headers, _, body = rest.partition(b"\n\n")

    async def run() -> None:
        store = SqliteIdempotencyStore(":memory:")
        try:
            begun = await store.begin("k", "f", owner="o", lease=timedelta(seconds=30))
            assert isinstance(begun, Begun)
            value = int(status) if status.isdigit() and len(status) < 10 else status.decode("utf-8", "replace")
            await store._step(
                lambda db, now: db.execute(
                    "UPDATE clew_idempotency_keys SET owner = NULL, expires_at = ?, status = ?, headers = ?, body = ?",
                    (now + 10**12, value, headers, body),
                )
            )
            app = IdempotencyMiddleware(_application, store=_One(store))
            sent = await _ask(app, [(b"idempotency-key", b"k")], b"")
        finally:
            store.close()
        assert type(sent[0]["status"]) is int
        assert sent[0]["status"] in (value, 409)
        assert all(isinstance(one, bytes) for pair in sent[0]["headers"] for one in pair)

    asyncio.run(run())


class _One:
    """A store in which every request has the key `k`."""

    def __init__(self, store: SqliteIdempotencyStore) -> None:
        self._store = store

    async def begin(self, key: str, fingerprint: str, **rest: Any) -> Any:
        found = await self._store.begin("k", "f", **rest)
        assert isinstance(found, Stored)
        return found

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


# --- payloads ---------------------------------------------------------------------------------------------------------

_KEY = bytes(32)


class _Kept:
    """A payload store in which there is one thing."""

    def __init__(self, key: str, data: bytes) -> None:
        self._key = key
        self._data = data

    async def put(self, key: str, data: bytes) -> None: ...

    async def get(self, key: str) -> bytes:
        if key != self._key:
            raise KeyError(key)
        return self._data


def _claim_check(data: bytes) -> None:
    """What comes out of a history in the place of a payload that is kept elsewhere."""
    codec = PayloadStoreCodec(_Kept(_CHECK_KEY, _INNER))
    asyncio.run(codec.decode([Payload({"encoding": b"json/claim-check"}, data)]))


def _kept_payload(data: bytes) -> None:
    """What a payload store gives; the hash in the claim check is its own."""
    key = hashlib.sha256(data).hexdigest()
    check = b'{"key":"' + key.encode() + b'","size":1}'
    asyncio.run(PayloadStoreCodec(_Kept(key, data)).decode([Payload({"encoding": b"json/claim-check"}, check)]))


def _compressed(data: bytes) -> None:
    """The first byte says whether the bytes are those in the history, or what they become."""
    inner = zlib.compress(data[1:], 1) if data and data[0] % 2 else data[1:]
    codec = CompressionCodec(decoded_bytes_max=3_000_000)
    asyncio.run(codec.decode([Payload({"encoding": b"binary/zlib"}, inner)]))


def _encrypted(data: bytes) -> None:
    """Name of a key, an empty line, and what is said to be encrypted with it."""
    key_id, _, sealed = data.partition(b"\n\n")
    metadata = {"encoding": b"binary/encrypted", CIPHER: CIPHER_NAME, KEY_ID: key_id}
    codec = EncryptionCodec({"k": _KEY}, current_key_id="k")
    asyncio.run(codec.decode([Payload(metadata, sealed)]))


class _Canned(http.client.HTTPConnection):
    """A connection to a service that answers with what it is given, and closes."""

    def __init__(self, data: bytes) -> None:
        super().__init__("s3.example")
        self._data = data

    def connect(self) -> None:
        self.sock = cast(Any, self)

    def sendall(self, data: Any, flags: int = 0) -> None: ...

    def makefile(self, *_: Any, **__: Any) -> Any:
        return io.BytesIO(self._data)


def _bucket_answer(data: bytes) -> None:
    """What an object store answers over HTTP."""
    store = S3PayloadStore("b", region="r", endpoint="http://s3.example", credentials=lambda: Credentials("a", "b"))
    cast(Any, store)._connect = lambda: _Canned(data)

    async def run() -> None:
        # As `get` does, without the tries in between.
        try:
            answer = store._exchange("GET", "0" * 64, b"")
        except (OSError, http.client.HTTPException):
            return
        if answer.status != 200:
            raise store._refused("GET", "0" * 64, answer)

    asyncio.run(run())


# --- histories --------------------------------------------------------------------------------------------------------

_variable: ContextVar[Any] = ContextVar("fuzzed")
_carrier = _Carrier({"v": _variable}, {"v": dict[str, int]})


def _span_maker() -> SpanMaker:
    from opentelemetry.trace import get_tracer
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    return SpanMaker(get_tracer("fuzz"), TraceContextTextMapPropagator())


_maker = _span_maker()


def _trace_header(data: bytes) -> None:
    """A header with a trace, which is read by whoever is called; tracing must not stop what it traces."""
    for encoding in (b"json/plain", b"binary/plain", b"?"):
        _maker.extract(from_headers({HEADER: Payload({"encoding": encoding}, data)}))


def _propagated(data: bytes) -> None:
    """A header with a variable of the caller."""
    with _carrier.context({HEADER_PREFIX + "v": Payload({"encoding": b"json/plain"}, data)}):
        assert isinstance(_variable.get(), dict)


def _failure(data: bytes) -> None:
    """A failure of a run, as it was stored, becomes an exception, whatever is in it."""
    failure = msgspec.json.decode(data, type=Failure)
    error = asyncio.run(DataConverter.default.decode_failure(failure))
    assert isinstance(error, BaseException)
    str(error)


_START = b'{"namespace":"default","workflow_id":"w","workflow_type":"W","task_queue":"q","request_id":"1","input":[1]}'
_SIGNAL = b'{"namespace":"default","workflow_id":"w","signal_name":"s","request_id":"2","input":["x"]}'
_INNER = msgspec.msgpack.encode(Payload({"encoding": b"json/plain"}, b"1"))
_CHECK_KEY = hashlib.sha256(_INNER).hexdigest()
_SEALED = asyncio.run(
    EncryptionCodec({"k": _KEY}, current_key_id="k").encode([Payload({"encoding": b"json/plain"}, b"1")])
)[0].data
_FAILURE = (
    b'{"message":"no","stack_trace":"at","info":{"kind":"Activity","scheduled_event_id":5,"activity_type":"a","activity_id":"a-1"},"cause":'
    b'{"message":"broken","info":{"kind":"Application","type":"Broken","details":[1]}}}'
)
_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)

FROM_STORES: dict[str, Target] = {
    "inbox": Target(
        _inbox,
        (),
        (b"\x00" + _START, b"\x01" + _SIGNAL),
        (b'{"namespace":"', b'"input":[', b'"retry_policy":{', b'"x":', b"[" * 300),
    ),
    "hint": Target(
        text(_hint),
        (),
        (b'["you",[["QueueHasTasks","default","q"],["RunChanged",1,2],["FleetChanged"]]]', b'["me",[["MailWaits"]]]'),
        (b'["RowToShare",[', b'["SettingsChanged",1]', b"[" * 300),
    ),
    "search_attributes": Target(
        _search_attributes,
        (ClewError,),
        (
            b'\x00"a"',
            b'\x01"many words in it"',
            b"\x027",
            b"\x031.5",
            b"\x04true",
            b'\x05"2026-01-01T00:00:00Z"',
            b'\x06["a","b"]',
        ),
        (b"9" * 19, b"1e400", b'"\\ud800"', b'"0001-01-01T00:00:00+23:59"', b"[" * 500, b'"\\u0000"'),
    ),
    "keyed_request": Target(
        _keyed_request,
        (),
        (b"a-key\n\nbody", b'"a-key"\n\n' + b"x" * 1_001),
        (b'"', b"\n\n", b"x" * 300, b"\x00", b" "),
    ),
    "stored_response": Target(
        _stored_response,
        (),
        (b"201\n\n" + msgspec.msgpack.encode([(b"a", b"b")]) + b"\n\ndone",),
        (b"\n\n", b"\x91\x92\xc4\x01a\xc4\x01b", b"\xdd\xff\xff\xff\xff", b"\x91", b"99999"),
    ),
    "claim_check": Target(
        _claim_check,
        (ClewError,),
        (b'{"key":"' + _CHECK_KEY.encode() + b'","size":1,"store":"payloads"}',),
        (b'{"key":"', b"../" * 21 + b"x", b'"x":[[[', b'"size":', b"0" * 64),
    ),
    "kept_payload": Target(
        _kept_payload, (ClewError,), (_INNER,), (b"\x82", b"\xa8metadata", b"\xa4data", b"\x91" * 300)
    ),
    "compressed_payload": Target(
        _compressed, (ClewError,), (b"\x01" + _INNER, b"\x00" + zlib.compress(_INNER)), (b"\x78\x9c", b"\x82", b"\x91")
    ),
    "encrypted_payload": Target(_encrypted, (ClewError,), (b"k\n\n" + _SEALED,), (b"\n\n", b"k")),
    "bucket_answer": Target(
        _bucket_answer,
        (PayloadStoreError,),
        (
            b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\ndata",
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n\r\n",
        ),
        (
            b"HTTP/1.1 ",
            b"\r\n",
            b"Content-Length: ",
            b"Transfer-Encoding: chunked",
            b"-1",
            b"0x",
            b"100 Continue\r\n\r\n",
        ),
    ),
    "trace_header": Target(
        _trace_header,
        (),
        (b'{"traceparent":"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01","tracestate":"a=b"}',),
        (b'"traceparent":"', b"-", b"00", b"ff", b'"tracestate":"', b"=", b","),
    ),
    "propagated_context": Target(_propagated, (ClewError,), (b'{"a":1}',), (b'{"', b":", b"[" * 300)),
    "failure": Target(
        _failure,
        _UNREADABLE,
        (_FAILURE,),
        (
            b'{"message":"',
            b'"cause":{',
            b'"info":{"kind":"Timeout"',
            b'"encoded_attributes":',
            b'"details":[{"$payload":',
        ),
    ),
}
