"""What reads bytes from outside, one function each: it takes anything, and either reads it or says no in its own words.

Owns: the list. Sessions of the link, and requests that fit the API's document, have fuzz tests of their own, beside
their other tests.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import click
import msgspec

from clew.cli import _app
from clew.cli._durations import Duration
from clew.common import Payload
from clew.converter import DefaultPayloadConverter
from clew.core.api_keys import read_key
from clew.core.cron import check_cron, next_cron_time
from clew.engine.callbacks import open_callback
from clew.engine.reading import _page_position
from clew.engine.visibility import parse_filter
from clew.exceptions import ClewError
from clew.link import frames
from clew.link.calls import METHODS, decode_worker_hello
from clew.link.codes import LinkViolation
from clew.model.access import parse_grant
from clew.model.compact import compact_history
from clew.model.events import decode_events, encode_events
from clew.model.history import WorkflowHistory
from clew.model.payload import from_stored, to_stored
from clew.server.requests import _given_id
from clew.server.security.certificates import certificate_of_der
from clew.server.security.doors import bearer_of
from clew.server.security.jwks import Jwks
from clew.server.security.origins import HostAndOriginMiddleware, hosts_for
from clew.server.security.principal import Credentials
from clew.server.security.proxies import TrustedProxies
from clew.server.security.seals import TokenSeals
from clew.server.security.tokens import TokenAuthenticator, TokenSettings
from clew.server.tracing import link_tracer
from clew.service.errors import RPCError
from clew.service.tokens import decode_task_token
from clew.testing import ManualClock
from clew.worker import Replayer
from tests.fuzz import http
from tests.fuzz.from_files import FROM_FILES
from tests.fuzz.from_nodes import FROM_NODES, HISTORY, Waits
from tests.fuzz.from_stores import FROM_STORES
from tests.fuzz.target import Target, latin, text
from tests.fuzz.web import FROM_BROWSERS

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def _events(data: bytes) -> None:
    events = decode_events(data)
    assert decode_events(encode_events(events)) == events, "what was read is written and read again"


def _history(data: bytes) -> None:
    history = WorkflowHistory.from_json("w", data)
    if history.events:
        with contextlib.suppress(ValueError):
            history.to_json()
    compact_history(history.events)


_replayer = Replayer(workflows=[Waits])
_NOT_REPLAYED = (ClewError, ValueError, RuntimeError)
"""How a replay says that a history is not one of this code; a bug (a KeyError, an AssertionError) is none of it."""


def _replay(data: bytes) -> None:
    """A history that was imported, replayed against the code that its run had."""
    result = asyncio.run(
        _replayer.replay_workflow(WorkflowHistory.from_json(None, data), raise_on_replay_failure=False)
    )
    if result.replay_failure is not None:
        raise result.replay_failure


def _forwarded(data: bytes) -> None:
    """Address of the other end, what proxies say before it, and the trace and id that a request claims to have."""
    address, _, rest = data.decode("latin-1").partition("\n")
    forwarded, _, trace = rest.partition("\n")
    assert len(TrustedProxies(("127.0.0.1", "10.0.0.0/8", "::1")).caller(address, forwarded)) <= len(data)
    if (tracer := link_tracer()) is not None:
        tracer("describe_workflow", trace)(None)
    _given_id({"headers": [(b"x-request-id", trace.encode("latin-1"))]})


def _stored(data: bytes) -> None:
    raw = msgspec.json.decode(data, type=msgspec.Raw)
    payload = from_stored(raw)
    assert from_stored(to_stored(payload)) == payload, "what was read is written and read again"


_converter = DefaultPayloadConverter()
_ENCODINGS = (b"json/plain", b"binary/plain", b"binary/null", b"json/protobuf", b"binary/protobuf", b"pickle", b"")
_HINTS: tuple[Any, ...] = (None, int, str, bytes, list[int], dict[str, datetime], timedelta, set[str])


def _convert(data: bytes) -> None:
    kind = data[0] if data else 0
    payload = Payload({"encoding": _ENCODINGS[kind % len(_ENCODINGS)]}, data[1:])
    _converter.from_payloads([payload], [_HINTS[kind // 7 % len(_HINTS)]])


def _cron(data: bytes) -> None:
    text = data.decode("utf-8", "replace")
    if not check_cron(text):
        with contextlib.suppress(ValueError):  # a date that never comes
            assert next_cron_time(text, NOW, NOW) > NOW


_seals = TokenSeals(lambda namespace: b"secret of " + namespace.encode())


def _sealed(data: bytes) -> None:
    _seals.open(decode_task_token(data))


def _namespace_secret(name: str) -> bytes:
    if name != "default":
        raise ValueError(name)
    return bytes(32)


class _Issuer:
    """Answers with whatever bytes it is given."""

    def __init__(self, body: bytes) -> None:
        self._body = body

    async def fetch(self, url: str) -> bytes:
        return self._body


_ISSUER = "https://id.example"


def _identity_token(data: bytes) -> None:
    async def read() -> None:
        clock = ManualClock().attach(asyncio.get_running_loop())
        settings = TokenSettings(issuer=_ISSUER, audience=("clew",), jwks_url=f"{_ISSUER}/keys")
        authenticator = TokenAuthenticator(settings, clock, fetch=_Issuer(b'{"keys": []}').fetch)
        assert await authenticator.authenticate(Credentials(bearer=data.decode("latin-1"))) is None

    asyncio.run(read())


def _key_set(data: bytes) -> None:
    async def read() -> None:
        clock = ManualClock().attach(asyncio.get_running_loop())
        await Jwks(f"{_ISSUER}/keys", _ISSUER, clock, fetch=_Issuer(data).fetch).find("k1")

    asyncio.run(read())


async def _nowhere(*_: Any) -> None: ...


_guard = HostAndOriginMiddleware(_nowhere, hosts=hosts_for("127.0.0.1"), origins=("https://ops.example",))


def _headers(data: bytes) -> None:
    host, _, rest = data.partition(b"\n")
    origin, _, kind = rest.partition(b"\n")
    headers = [(b"host", host), (b"content-type", kind)] + ([(b"origin", origin)] if origin else [])
    refusal = _guard.refusal({"type": "http", "method": "POST", "scheme": "http", "headers": headers})
    assert refusal is None or (400 <= refusal.status < 500 and len(refusal.message) < 1_000)


def _request(data: bytes) -> None:
    names = sorted(METHODS)
    method = METHODS[names[(data[0] if data else 0) % len(names)]]
    method.decode_request(data[1:])


_ARGS_NEVER = {"dev", "server", "worker", "debug", "deploy", "replay", "lint", "db"}
"""They run programs, or read files named by the caller."""


def _arguments(data: bytes) -> None:
    args = [arg for arg in data.decode("utf-8", "surrogateescape").split("\n") if "\0" not in arg]
    if not args or args[0] in _ARGS_NEVER or any("file" in arg or "postgres" in arg or ":" in arg for arg in args):
        return
    out, err = io.TextIOWrapper(io.BytesIO(), "utf-8", "backslashreplace"), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = _app.run([*args[:20]])
    assert code in (0, 2, 4), f"clew {args}: exit code {code}: {err.getvalue()}"


def _duration(data: bytes) -> None:
    Duration().convert(data.decode("utf-8", "replace"), None, None)


def _frame(data: bytes) -> None:
    """The first byte says which reader: of either end's frames, of messages that came in parts, of greetings."""
    readers = (
        frames.FROM_CLIENT.frame, frames.FROM_SERVER.frame, frames.FROM_CLIENT.message, frames.FROM_SERVER.message,
        frames.decode_hello, frames.decode_greeting,
    )  # fmt: skip
    read = readers[(data[0] if data else 0) % len(readers)]
    found = read(data[1:])
    assert read(frames.encode(found)) == found, "what was read is written and read again"


_KEY = b"clew_0123456789abcdef01_" + b"A" * 43
_HISTORY = (
    b'{"workflow_id":"w","events":[{"type":"WorkflowExecutionStarted","event_id":1,'
    b'"event_time":"2026-01-01T00:00:00Z","workflow_id":"w","workflow_type":"W","task_queue":"q","input":[1,'
    b'{"$payload":{"metadata":{"encoding":"YmluYXJ5L3BsYWlu"},"data":"AAE="}}]}]}'
)
_EVENTS = _HISTORY.partition(b'"events":')[2][:-1]
_START = (
    b'{"namespace":"default","workflow_id":"w","workflow_type":"W","task_queue":"q","request_id":"1","input":[1],'
    b'"retry_policy":{"initial_interval":"PT1S"},"id_reuse_policy":"AllowDuplicate"}'
)
_PAYLOAD = Payload({"encoding": b"json/plain"}, b"1").SerializeToString()
_TOKEN = msgspec.msgpack.encode({
    "type": "TaskToken", "namespace": "default", "workflow_id": "w", "run_id": "r", "shard": 0, "run_key": 1,
    "scheduled_event_id": 2, "attempt": 1, "lease_id": 1, "seal": b"0123456789abcdef",
})  # fmt: skip

TARGETS: dict[str, Target] = {
    "events": Target(_events, (msgspec.DecodeError, RecursionError), (_EVENTS,), (b'{"type":"', b'"event_id":', b"[")),
    "history_import": Target(_history, (ValueError,), (_HISTORY,), (b'{"events":[', b"[", b"{")),
    "history_replay": Target(
        _replay,
        _NOT_REPLAYED,
        (json.dumps(json.loads(HISTORY.read_bytes()), separators=(",", ":")).encode(),),
        (b'"event_id":', b'"scheduled_event_id":', b'"type":"Timer', b'"input":[', b'"result":['),
    ),
    "forwarded": Target(
        _forwarded,
        (),
        (b"127.0.0.1:4000\n1.2.3.4, 10.1.2.3\n00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",),
        (b"[::1]:5\n", b",", b"10.0.0.1", b"::", b"%", b"-"),
    ),
    "stored_payload": Target(
        _stored,
        (msgspec.DecodeError, RecursionError),
        (b'{"$payload":{"metadata":{"encoding":"YmluYXJ5"},"data":"AAE="}}', b"[1, 2.5, null]"),
        (b'{"$payload":', b'{"metadata":', b'"data":"'),
    ),
    "payload_bytes": Target(Payload.FromString, (ValueError,), (_PAYLOAD,)),
    "conversion": Target(
        _convert, (ClewError, ValueError, TypeError, RuntimeError), (b'\x00[1,"2026-01-01T00:00:00Z"]', b"\x07123")
    ),
    "task_token": Target(decode_task_token, (ValueError,), (_TOKEN,)),
    "sealed_token": Target(_sealed, (ValueError, RPCError), (_TOKEN,)),
    "callback_token": Target(
        latin(lambda text: open_callback(text, _namespace_secret, NOW)),
        (RPCError,),
        (b"ZGVmYXVsdA.AAAA.AAAA",),
        (b".",),
    ),
    "api_key": Target(latin(read_key), (), (_KEY,), (b"clew_",)),
    "grant": Target(text(parse_grant), (ValueError,), (b"payments/cards:worker", b"*:admin"), (b":", b"/", b"*")),
    "authorization_header": Target(latin(bearer_of), (), (b"Bearer " + _KEY, b"Basic YTpi"), (b"Basic ", b"Bearer ")),
    "identity_token": Target(
        _identity_token,
        (RPCError,),
        (b"eyJhbGciOiJSUzI1NiJ9.eyJpc3MiOiJodHRwczovL2lkLmV4YW1wbGUifQ.AAAA",),
        (b"eyJhbGciOiJSUzI1NiJ9.", b".", b"bnVsbA"),
    ),
    "key_set": Target(
        _key_set,
        (),
        (b'{"keys":[{"kty":"RSA","kid":"k1","n":"AQAB","e":"AQAB"},{"kty":"EC","crv":"P-256","x":"AA","y":"AA"}]}',),
        (b'{"kty":"', b'"OKP"', b'"crv":"Ed25519"'),
    ),
    "certificate": Target(certificate_of_der, (), (b"\x30\x82\x01\x0a\x30\x81\xb2",), (b"\x30\x82", b"\x06\x03")),
    "host_and_origin": Target(
        _headers,
        (),
        (b"localhost:7233\nhttp://localhost:7233\napplication/json",),
        (b"[", b"]", b"@", b"http://", b"\n"),
    ),
    "filter": Target(
        text(parse_filter),
        (RPCError,),
        (b"WorkflowType = 'W' AND (StartTime > '2026-01-01T00:00:00Z' OR ExecutionDuration < '1h30m')",),
        (b" AND ", b" OR ", b"(", b")", b"'", b" IN ", b" BETWEEN ", b"WorkflowId", b" STARTS_WITH ", b" IS NOT NULL"),
    ),
    "page_token": Target(text(_page_position), (RPCError,), (b"123",), ("²".encode(), b"9" * 30, "٣".encode())),
    "cron": Target(
        _cron, (), (b"*/5 8-17 * * MON-FRI", b"CRON_TZ=Europe/Berlin 0 0 L * ?", b"@every 90m"),
        (b"CRON_TZ=", b"@every ", b"*/", b"-", b",", b"L", b"#", b"W", b" * * * *", b"../../etc/passwd"),
    ),
    "call_body": Target(_request, (RPCError,), (b"\x14" + _START,), (b'{"namespace":"', b'"input":[')),
    "link_frame": Target(
        _frame,
        (LinkViolation,),
        (
            b"\x00" + frames.encode_data(1, 0, [frames.encode(frames.Call(1, "describe", 0, b"{}"))]),
            b"\x01" + frames.encode_data(1, 0, [frames.encode(frames.Answer(1, b"{}"))]),
            b"\x04" + frames.encode(frames.Hello(versions=(1,))),
        ),
        (b"\x94\x00", b"\x91", b"\xc0", b"\xdd\xff\xff\xff\xff"),
    ),
    "http": Target(http.answer_request, (), http.EXAMPLES, http.WORDS),
    "worker_hello": Target(
        decode_worker_hello,
        (RPCError,),
        (b'{"namespace":"default","task_queue":"q","identity":"w","instance_id":"1"}',),
    ),
    "duration": Target(_duration, (click.BadParameter,), (b"1d12h",), (b"d", b"h", b"9" * 12)),
    "arguments": Target(
        _arguments,
        (),
        (b"workflow\nlist\n--query\nWorkflowId = 'a'", b"key\ncreate\nx\n--expires-in\n1d"),
        (b"\n", b"workflow", b"key", b"create", b"start", b"--output", b"json", b"--help", b"-", b"--"),
    ),
    **FROM_NODES,
    **FROM_STORES,
    **FROM_FILES,
    **FROM_BROWSERS,
}  # fmt: skip
