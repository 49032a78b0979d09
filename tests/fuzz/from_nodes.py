"""What a node says to clients and workers, as a broken or hostile one might say it.

Owns: the readers at that end of a link. Never: what comes to a node (``targets``).

How it works: a client is let in and has a worker attached and a call under way; then the node says something. It may be
cut for that, and then is connected to again; but never may the client fail by a bug, nor the worker be brought down.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import msgspec

from clew import activity, workflow
from clew.link import frames as f
from clew.link.calls import METHODS, decode_activity_task, decode_rejection, decode_workflow_task
from clew.link.client import ClientOptions, LinkClient
from clew.link.codes import CutCode
from clew.link.plain_frames import PlainFrames
from clew.link.unix import StreamWire
from clew.link.wire import WireUser
from clew.model.rejection import Rejection
from clew.service.errors import RPCError
from clew.service.requests import StartWorkflowRequest, WorkerHello
from clew.worker import Worker
from tests.fuzz.target import Target
from tests.unit.worker.fakes import FakeClient, FakeConnection, until

HISTORY = Path(__file__).with_name("history.json")
"""Of a run of `Waits`."""

# --- a client ---------------------------------------------------------------------------------------------------------

_WELCOME = f.encode(f.Welcome(version=f.VERSIONS[0], session="s", node="n", now_ns=1))
_START = StartWorkflowRequest(namespace="default", workflow_id="w", workflow_type="W", task_queue="q", request_id="1")
_HELLO = WorkerHello(namespace="default", task_queue="q", identity="w", instance_id="1")


class _Wire:
    """The client's end of a connection of which the test is the other end."""

    def __init__(self, user: WireUser) -> None:
        self.user = user
        self.sent: list[bytes] = []
        self.closed_with: tuple[CutCode, str] | None = None

    def send(self, frame: bytes) -> None:
        self.sent.append(frame)

    def allow(self, frame_bytes_max: int) -> None: ...

    def close(self, code: CutCode, reason: str = "") -> None:
        if self.closed_with is None:
            self.closed_with = (code, reason)
            self.user.wire_lost(int(code), reason)

    def abort(self) -> None:
        self.close(CutCode.LOST)


class _Dial:
    """Gives wires; the first greeting is answered as the test says, later ones well."""

    def __init__(self, greeting: bytes = _WELCOME) -> None:
        self.wires: list[_Wire] = []
        self._greeting = greeting

    async def __call__(self, user: WireUser) -> _Wire:
        wire = _Wire(user)
        self.wires.append(wire)
        greeting = self._greeting if len(self.wires) == 1 else _WELCOME
        asyncio.get_running_loop().call_soon(user.frame_received, greeting)
        return wire

    def avoid_last(self) -> None: ...


class _Sink:
    """A worker that takes whatever it is given."""

    def offer_workflow_task(self, task: Any) -> None: ...
    def offer_activity_task(self, task: Any) -> None: ...
    def cancel_activity(self, token: Any, reason: Any) -> None: ...
    def evict_workflow(self, namespace: str, run_id: str) -> None: ...
    def offer_early_workflow_task(self, task: Any) -> bool:
        return True

    def confirm_workflow_task(self, task: Any) -> None: ...


class _Bugs(logging.Handler):
    """Keeps what is logged when something is our fault."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.found.append(self.format(record))


@contextlib.contextmanager
def no_bugs(name: str) -> Any:
    """Fail if this logger is told of an error meanwhile."""
    logger, bugs = logging.getLogger(name), _Bugs()
    logger.addHandler(bugs)
    is_propagating, logger.propagate = logger.propagate, False
    try:
        yield
    finally:
        logger.removeHandler(bugs)
        logger.propagate = is_propagating
    assert not bugs.found, bugs.found[0][:3_000]


def _say(kind: int, body: bytes) -> bytes:
    """A frame in which a node says something of this kind; whole frames of any bytes too."""
    messages: tuple[Callable[[], Any], ...] = (
        lambda: f.Answer(2, body),
        lambda: f.Refusal(2, body),
        lambda: f.OfferWorkflowTask(1, body),
        lambda: f.OfferActivityTask(1, body),
        lambda: f.CancelActivity(1, body, "CancelRequested"),
        lambda: f.CancelActivity(1, _TOKEN, body.decode("utf-8", "replace")),
        lambda: f.Answer(3, body),
    )
    if kind % (len(messages) + 1) == len(messages):
        return body
    return f.encode_data(2, 0, [f.encode(messages[kind % (len(messages) + 1)]())])


def _node_session(data: bytes) -> None:
    """The first byte says what kind of thing the node says, the rest is what it says."""

    async def run() -> None:
        dial = _Dial()
        client = LinkClient(dial, chance=lambda: 0.0)
        await client.start()
        try:
            attached = asyncio.ensure_future(client.service.attach_worker(_HELLO, cast(Any, _Sink())))
            await asyncio.sleep(0)
            wire = dial.wires[0]
            wire.user.frame_received(f.encode_data(1, 0, [f.encode(f.Answer(1, b'"session"'))]))
            await attached
            calls = [client.service.start_workflow(_START), client.service.attach_worker(_HELLO, cast(Any, _Sink()))]
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            wire.user.frame_received(_say(data[0] if data else 0, data[1:]))
            for _ in range(4):
                await asyncio.sleep(0)
            assert wire.closed_with is None or wire.closed_with[0] != CutCode.INTERNAL, wire.closed_with
            await _is_connected_again(client, dial, wire)
        finally:
            await client.close()
        for call in calls:
            with contextlib.suppress(Exception):
                await call

    with no_bugs("clew.link"):
        asyncio.run(run())


async def _is_connected_again(client: LinkClient, dial: _Dial, wire: _Wire) -> None:
    """Who was cut is connected to again."""
    if wire.closed_with is not None:
        await until(lambda: client.connects_count > 1, "the next connection")


def _greeting(data: bytes) -> None:
    """What answers a greeting: the client is let in, or says why not."""

    async def run() -> None:
        client = LinkClient(_Dial(data), chance=lambda: 0.0, options=ClientOptions(connect_seconds=0))
        refusal = None
        try:
            await client.start()
        except RPCError as error:
            refusal = error
        else:
            for _ in range(20):
                await asyncio.sleep(0)
        await client.close()
        if refusal is not None:
            raise refusal

    with no_bugs("clew.link"):
        asyncio.run(run())


def _wire_bytes(data: bytes) -> None:
    """Bytes of the socket, before they are frames: of a WebSocket without the library, and of the socket of a file.

    The first byte says how they are cut.
    """
    step = (data[0] if data else 0) % 50 + 1
    pieces = [data[at : at + step] for at in range(0, min(len(data), 50 * step), step)] + [data[50 * step :]]
    for is_client in (True, False):
        frames, got = PlainFrames(is_client=is_client, bytes_max=1_000), list[bytes]()
        for piece in pieces:
            if frames.take(piece, got.append) is not None:
                break
        else:
            assert len(frames.rest()) <= len(data)
        assert sum(map(len, got)) <= len(data)
        assert all(len(message) <= 1_000 for message in got)
    unix = StreamWire(_Ear, 1_000)
    unix.connection_made(cast(Any, _Transport()))
    unix.allow(1_000)
    for piece in pieces:
        unix.data_received(piece)
    unix.connection_lost(None)


class _Ear:
    """What a wire brings its frames to."""

    def __init__(self, wire: StreamWire) -> None:
        self._wire = wire

    def frame_received(self, frame: bytes) -> None:
        assert len(frame) <= 1_000
        if not frame:
            self._wire.close(CutCode.MALFORMED, "no frame of this protocol is empty")

    def wire_lost(self, code: int, reason: str) -> None:
        assert len(reason) <= 1_000


class _Transport:
    """As much of one as the wire of a socket beside a file uses."""

    def get_extra_info(self, name: str) -> Any:
        return self

    def fileno(self) -> int:
        return -1

    def write(self, data: bytes) -> None: ...
    def close(self) -> None: ...
    def abort(self) -> None: ...


# --- a worker ---------------------------------------------------------------------------------------------------------


@workflow.defn(name="W")
class Waits:
    """Takes anything, does an activity, and waits."""

    def __init__(self) -> None:
        self.told: list[Any] = []

    @workflow.run
    async def run(self, what: Any = None) -> Any:
        await workflow.execute_activity("a", what, start_to_close_timeout=timedelta(seconds=10))
        await workflow.sleep(1)
        await workflow.wait_condition(lambda: len(self.told) > 1)
        return self.told

    @workflow.signal
    def tell(self, what: int) -> None:
        self.told.append(what)

    @workflow.query
    def all_told(self) -> list[Any]:
        return self.told

    @workflow.update
    async def put(self, what: Any = None) -> Any:
        self.told.append(what)
        return what


@activity.defn(name="a")
async def same(what: Any = None) -> Any:
    return what


def _worker_task(data: bytes) -> None:
    """A task as a node hands it out; a worker that is offered it goes on, and does the next."""
    is_workflow = not data or data[0] % 2 == 0
    offered = (decode_workflow_task if is_workflow else decode_activity_task)(data[1:])

    async def run() -> None:
        connection = FakeConnection()
        worker = Worker(
            cast(Any, FakeClient(connection)), task_queue="q", workflows=[Waits], activities=[same],
            graceful_shutdown_timeout=timedelta(0),
        )  # fmt: skip
        try:
            async with worker:
                good = decode_activity_task(_ACTIVITY_TASK.replace(b'"lease_id":1', b'"lease_id":77'))

                def offer() -> None:
                    for session in connection.service.sessions:
                        if is_workflow and session.hello.takes_workflow_tasks:
                            session.sink.offer_workflow_task(offered)
                        if not is_workflow and session.hello.takes_activity_tasks:
                            session.sink.offer_activity_task(offered)
                        if session.hello.takes_activity_tasks:
                            session.sink.offer_activity_task(good)

                await connection.on_service_loop(offer)
                await until(
                    lambda: any(
                        request.token.lease_id == 77
                        for name, request in list(connection.service.calls)
                        if name == "complete_activity"
                    ),
                    "the next task",
                )
        finally:
            connection.stop()

    asyncio.run(run())


_TOKEN = (
    b'{"namespace":"default","workflow_id":"w","run_id":"r","shard":0,"run_key":1,"scheduled_event_id":2,"attempt":1,'
    b'"lease_id":1,"activity_id":"a-1"}'
)
_EVENTS = json.dumps(json.loads(HISTORY.read_bytes())["events"][:21], separators=(",", ":")).encode()
"""Up to the start of the last workflow task."""

_WORKFLOW_TASK = (
    b'{"token":'
    + _TOKEN
    + b',"workflow_type":"W","task_queue":"q","previous_started_event_id":18,"started_event_id":21,"events":'
    + _EVENTS
    + b"}"
)
_ACTIVITY_TASK = (
    b'{"token":'
    + _TOKEN
    + b',"activity_id":"a-1","activity_type":"a","workflow_type":"W","task_queue":"q","attempt":1,'
    b'"idempotency_key":"k","input":[1],"start_to_close_timeout":"PT10S"}'
)
_REJECTION = b'{"code":"workflow_not_found","message":"no","details":{"a":"b"}}'
_ANSWER = b'{"run_id":"r","first_execution_run_id":"r","started":true}'


def _answer(data: bytes) -> None:
    """The first byte says which call is answered; the last kind are refusals."""
    names = [*sorted(METHODS), ""]
    name = names[(data[0] if data else 0) % len(names)]
    if name:
        METHODS[name].decode_response(data[1:])
    else:
        assert isinstance(decode_rejection(data[1:]), Rejection)


_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""How the plain decoders of tasks say no; the session makes a violation of it (`node_session`)."""

FROM_NODES: dict[str, Target] = {
    "node_greeting": Target(
        _greeting,
        (RPCError,),
        (_WELCOME,),
        (
            f.encode(f.Refused(code=4001, reason="no", rejection=_REJECTION)),
            b"\x83",
            b"\xa7options",
            b"\xacping_seconds",
            b"\xcb\x7f\xf8\0\0\0\0\0\0",
            b"\xcb",
            b"\xa4type\xa7welcome",
        ),
    ),
    "node_session": Target(
        _node_session,
        (),
        (
            b"\x00" + _ANSWER,
            b"\x01" + _REJECTION,
            b"\x02" + _WORKFLOW_TASK,
            b"\x03" + _ACTIVITY_TASK,
            b"\x04" + _TOKEN,
            b"\x05NotFound",
            b'\x06"session"',
            b"\x07" + f.encode_data(2, 0, [f.encode(f.GoAway("bye"))]),
        ),
        (b'{"token":', b'"events":[', b"[", b'"early":7', b"\x94\x00\x02\x00", b"\xcb"),
    ),
    "node_answer": Target(
        _answer,
        (RPCError,),
        (bytes((sorted(METHODS).index("start_workflow"),)) + _ANSWER, bytes((len(METHODS),)) + _REJECTION),
    ),
    "wire_bytes": Target(
        _wire_bytes,
        (),
        (b"\x07\x82\x03abc\x82\x7e\x00\x02ab", b"\x02\x82\x83\x00\x00\x00\x00abc", b"\x03\x00\x00\x00\x03abc"),
        (b"\x82\x7e", b"\x82\x7f", b"\x82\xff", b"\x80\x00\x00\x02", b"\x00\x00\x00\x01"),
    ),
    "worker_task": Target(
        _worker_task,
        _UNREADABLE,
        (b"\x00" + _WORKFLOW_TASK, b"\x01" + _ACTIVITY_TASK),
        (
            b'"queries":{"1":{',
            b'"query":{"query_type":"all_told"}',
            b'"is_partial":true,',
            b'"retry_policy":{',
            b'"PT9"',
        ),
    ),
}
