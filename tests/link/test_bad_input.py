"""What a node does with clients that break the rules: each is cut with its code, and nobody else notices."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from clew.engine import Engine
from clew.link import LinkServer
from clew.link import frames as f
from clew.link.calls import METHODS, encode_body
from clew.link.codes import CutCode, LinkViolation
from clew.link.frames import LinkOptions
from clew.link.unix import SocketPath, UnixListener
from clew.link.websocket import listen
from clew.service import requests as r
from clew.service.errors import RPCError
from tests.conformance.service.scripted import Shop
from tests.link.service import FakeService, Raw, linked, make_server, until
from tests.link.test_sessions import HELLO, signal, soon

FUZZ_EXAMPLES = int(os.environ.get("CLEW_FUZZ_EXAMPLES", "150"))
"""A share that takes seconds; ``make fuzz-link`` sets more."""


def call(call_id: int = 1, method: str = "signal_workflow", request: Any = None) -> f.Call:
    return f.Call(call_id, method, 0, encode_body(request if request is not None else signal(1)))


async def greeted(server: LinkServer) -> Raw:
    raw = Raw(server)
    assert isinstance(await raw.hello(), f.Welcome)
    return raw


NOISE = random.Random(7)
"""The same noise in every process that collects these tests, since it is part of their names."""


@pytest.mark.parametrize(
    ("frame", "code"),
    [
        (b"", CutCode.MALFORMED),
        (b"\xc1", CutCode.MALFORMED),
        (NOISE.randbytes(50), CutCode.MALFORMED),
        (b"\x91" * 5_000, CutCode.MALFORMED),
        (f.encode({"type": "hello"}), CutCode.MALFORMED),
        (f.encode(f.Ping(0)), CutCode.MALFORMED),
        (f.encode(f.Hello(versions=(99,))), CutCode.UNSUPPORTED_VERSION),
        (f.encode(f.Hello(versions=())), CutCode.UNSUPPORTED_VERSION),
        (f.encode(f.Hello(versions=(1,), token="x" * 100_000)), CutCode.TOO_LARGE),
    ],
)
async def test_greetings_that_are_none(frame: bytes, code: CutCode) -> None:
    server = make_server(FakeService())
    raw = Raw(server)
    raw.wire.send(frame)
    assert await raw.cut() is code
    await until(lambda: server.connections_count == 0)
    assert server.sessions_count == 0


async def test_an_unknown_version_is_refused_by_name() -> None:
    raw = Raw(make_server(FakeService()))
    answer = await raw.hello(versions=(7, 8))
    assert isinstance(answer, f.Refused)
    assert answer.code == CutCode.UNSUPPORTED_VERSION
    assert "7, 8" in answer.reason


async def test_a_newer_greeting_is_understood_as_far_as_it_is_known() -> None:
    raw = Raw(make_server(FakeService()))
    raw.wire.send(msgspec.msgpack.encode({"type": "hello", "versions": [3, 2, 1], "colour": "blue"}))
    await until(lambda: raw.frames)
    assert isinstance(f.decode_greeting(raw.frames[0]), f.Welcome)


async def test_who_does_not_greet_is_cut() -> None:
    raw = Raw(make_server(FakeService(), hello_seconds=0.05))
    assert await raw.cut() is CutCode.TIMED_OUT


async def test_no_more_connections_than_may_be() -> None:
    server = make_server(FakeService(), connections_max=1)
    first, second = await greeted(server), Raw(server)
    assert await second.cut() is CutCode.OVERLOADED
    assert first.lost is None


@pytest.mark.parametrize(
    ("frame", "code"),
    [
        (b"", CutCode.MALFORMED),
        (b"\x94\x00", CutCode.MALFORMED),
        (NOISE.randbytes(30), CutCode.MALFORMED),
        (f.encode((0, 1, 0, [[99, 1]])), CutCode.MALFORMED),
        (f.encode((0, 1, 0, [[1, "one", 2, 3, 4]])), CutCode.MALFORMED),
        (f.encode((0, 2, 0, [])), CutCode.MALFORMED),
        (f.encode((0, 0, 0, [])), CutCode.MALFORMED),
        (f.encode((0, -5, 0, [])), CutCode.MALFORMED),
        (f.encode(f.Ack(5)), CutCode.MALFORMED),
        (f.encode(f.Hello(versions=(1,))), CutCode.MALFORMED),
        (b"\x00" * 1_100_000, CutCode.TOO_LARGE),
    ],
)
async def test_frames_that_are_none(frame: bytes, code: CutCode) -> None:
    server = make_server(FakeService())
    async with linked(server) as (client, _):
        raw = await greeted(server)
        raw.wire.send(frame)
        assert await raw.cut() is code
        assert await soon(client.service.signal_workflow(signal(1))) is None, "others go on"
        await until(lambda: server.sessions_count == 1)


@pytest.mark.parametrize(
    ("messages", "code"),
    [
        ([f.Grant(1, 5, 5)], CutCode.MALFORMED),
        ([f.Detach(1)], CutCode.MALFORMED),
        ([f.StopPolling(1)], CutCode.MALFORMED),
        ([f.Attach(1, 1, encode_body(HELLO)), f.Attach(2, 1, encode_body(HELLO))], CutCode.MALFORMED),
        ([f.Attach(1, 1, encode_body(HELLO)), f.Grant(1, 1, 1)], CutCode.MALFORMED),
        ([call(1), call(1)], CutCode.MALFORMED),
        ([call(n) for n in range(101)], CutCode.FLOODED),
        ([f.Attach(n, n, encode_body(HELLO)) for n in range(1, 12)], CutCode.FLOODED),
        ([f.Part(b"x" * 60_000, False), f.Part(b"x" * 60_000, False)], CutCode.TOO_LARGE),
        ([f.Part(b"\xc1", True)], CutCode.MALFORMED),
        ([f.Part(f.encode(f.Part(b"", False)), True)], CutCode.MALFORMED),
    ],
)
async def test_messages_against_the_rules(messages: list[Any], code: CutCode) -> None:
    service = FakeService()
    service.gate.clear()
    server = make_server(service, calls_max=100, attachments_max=10, message_bytes_max=100_000)
    raw = await greeted(server)
    raw.say(*messages)
    assert await raw.cut() is code
    await until(lambda: server.sessions_count == 0)


@pytest.mark.parametrize("credits", [(-1, 0), (0, -1), (100_001, 0), (0, 2**40)])
async def test_credits_out_of_bounds(credits: tuple[int, int]) -> None:
    service = FakeService()
    raw = await greeted(make_server(service))
    raw.say(f.Attach(1, 1, encode_body(HELLO)))
    await until(lambda: service.sessions)
    await until(lambda: raw.frames)
    raw.say(f.Grant(1, *credits), first=2)
    assert await raw.cut() is CutCode.FLOODED
    await until(lambda: service.sessions[0].said == ["detach"])
    assert service.sessions[0].workflow_credits == 0


async def test_unknown_calls_and_unreadable_requests_are_refused_alone() -> None:
    service = FakeService()
    raw = await greeted(make_server(service))
    raw.say(
        f.Call(1, "drop_everything", 0, b"{}"),
        f.Call(2, "__init__", 0, b"{}"),
        f.Call(3, "signal_workflow", 0, b'{"namespace":'),
        f.Call(4, "signal_workflow", 0, b"[]"),
        f.Call(5, "attach_worker", 0, encode_body(HELLO)),
        f.Attach(6, 1, b"{}"),
        call(7),
        f.Forget(99),
    )
    answers: dict[int, str] = {}

    def collect() -> int:
        for frame in raw.frames:
            for message in f.FROM_SERVER.frame(frame).messages:  # type: ignore[union-attr]
                answers[message.call_id] = (  # type: ignore[union-attr]
                    msgspec.json.decode(message.body)["code"] if isinstance(message, f.Refusal) else "answered"
                )
        return len(answers)

    await until(lambda: collect() == 7)
    assert answers == {
        1: "unsupported",
        2: "unsupported",
        3: "invalid_argument",
        4: "invalid_argument",
        5: "unsupported",
        6: "invalid_argument",
        7: "answered",
    }
    assert service.calls == [signal(1)]
    assert raw.lost is None


async def test_replayed_frames_have_no_effect() -> None:
    service = FakeService()
    raw = await greeted(make_server(service))
    frame = f.encode_data(1, 0, [f.encode(call(n)) for n in (1, 2)])
    for _ in range(5):
        raw.wire.send(frame)
    raw.say(call(2), call(3), first=2)
    await until(lambda: len(service.calls) == 3)
    await asyncio.sleep(0.02)
    assert len(service.calls) == 3
    assert raw.lost is None


async def test_a_session_is_gone_on_with_by_its_own_only() -> None:
    from clew.link import Admission, Hello, Peer

    service = FakeService()

    async def admit(hello: Hello, peer: Peer) -> Admission:
        return Admission(service, principal=hello.token)

    server = make_server(service, admit=admit)
    owner = Raw(server)
    welcome = await owner.hello(token="alice")
    assert isinstance(welcome, f.Welcome)
    thief = Raw(server)
    answer = await thief.hello(token="mallory", session=welcome.session)
    assert isinstance(answer, f.Welcome)
    assert not answer.is_resumed
    assert answer.session != welcome.session
    assert owner.lost is None
    again = Raw(server)
    answer = await again.hello(token="alice", session=welcome.session)
    assert isinstance(answer, f.Welcome)
    assert answer.is_resumed
    assert await owner.cut() is CutCode.SUPERSEDED


async def test_who_claims_what_was_never_sent_is_cut() -> None:
    server = make_server(FakeService())
    raw = await greeted(server)
    token = next(iter(server._sessions))
    raw.wire.abort()
    liar = Raw(server)
    liar.wire.send(f.encode(f.Hello(versions=(1,), session=token, received=10**12)))
    assert await liar.cut() is CutCode.MALFORMED


async def test_a_reader_that_is_slow_holds_up_itself_only() -> None:
    """Its calls wait, unacknowledged; when it reads nothing at all, it is cut, and what was kept for it is freed."""
    service = FakeService()
    service.answer = lambda request: r.GetHistoryResponse(run_id="x" * 50_000)
    server = make_server(service, window_bytes=200_000, slow_seconds=1.5)
    raw = await greeted(server)
    request = r.GetHistoryRequest(namespace="n", workflow_id="w")
    [slow] = server._sessions.values()
    for n in range(10):
        raw.say(call(n, "get_history", request), first=n + 1)
    await until(lambda: slow.lane.queued_bytes > 10 * 50_000)
    for n in range(10, 100):
        raw.say(call(n, "get_history", request), first=n + 1)
    async with linked(server) as (client, _):
        assert (await soon(client.service.get_history(request))).run_id == "x" * 50_000
        assert len(service.calls) == 11, "what cannot be answered is not asked"
        assert await raw.cut() is CutCode.SLOW_READER
        await until(lambda: server.sessions_count == 1)
        assert (await soon(client.service.get_history(request))).run_id == "x" * 50_000


async def test_a_sender_that_ignores_the_window_is_cut() -> None:
    service = FakeService()
    service.answer = lambda request: r.GetHistoryResponse(run_id="x" * 100_000)
    server = make_server(service, window_bytes=50_000)
    raw = await greeted(server)
    for n in range(60):
        raw.say(call(n, "get_history", r.GetHistoryRequest(namespace="n", workflow_id="w" * 5_000)), first=n + 1)
        await asyncio.sleep(0)
    assert await raw.cut() is CutCode.FLOODED


async def test_foreign_tokens_change_nothing() -> None:
    """A worker that answers tasks it was never given: refused, each alone, and the one who has the task goes on."""
    shop = Shop(":memory:", is_linked=True)
    await shop.open()
    try:
        worker = await shop.worker()
        await shop.start()
        task = await worker.workflow_task()
        for change in (
            {"lease_id": 99},
            {"run_id": "other"},
            {"attempt": 5},
            {"run_key": 10**9},
            {"namespace": "other"},
        ):
            token = msgspec.structs.replace(task.token, **change)
            with pytest.raises(RPCError):
                await soon(shop.service.complete_workflow_task(r.CompleteWorkflowTaskRequest(token=token)))
        assert await shop.event_types() == [
            "WorkflowExecutionStarted", "WorkflowTaskScheduled", "WorkflowTaskStarted",
        ]  # fmt: skip
        await worker.complete(task)
    finally:
        await shop.close()


# --- sockets ---------------------------------------------------------------------------------------------------------


async def test_junk_on_the_unix_socket(tmp_path: Any) -> None:
    server = make_server(FakeService())
    where = SocketPath.beside(str(tmp_path / "x.db"))
    assert where is not None
    listener = await UnixListener.open(where, server)
    try:
        for junk in (b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 100, b"\x00\x00\x00\x05hello", b"\x7f\xff\xff\xff", b"\x00"):
            reader, writer = await asyncio.open_unix_connection(where.path)
            writer.write(junk)
            writer.write_eof()
            await soon(reader.read())
            writer.close()
        await until(lambda: server.connections_count == 0)
    finally:
        listener.close()
        server.close()


async def test_junk_on_the_websocket_port() -> None:
    server = make_server(FakeService(), hello_seconds=0.5)
    listener = await listen(server, "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    upgrade = (
        "GET {} HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
    )
    try:
        for junk, says in (
            (b"\x16\x03\x01\x02\x00" + NOISE.randbytes(200), b""),
            (b"GET /link HTTP/1.1\r\nHost: x\r\n\r\n", b"426"),
            (upgrade.format("/other").encode(), b"404"),
            (upgrade.format("/link").encode() + b"\x82\x05hello", b""),
            (upgrade.format("/link").encode() + b"\x82\xff" + b"\xff" * 8, b""),
            (upgrade.format("/link").encode() + b"\x82\xfe\xff\xff" + NOISE.randbytes(70_000), b""),
            (b"GET /link HTTP/1.1\r\n" + b"X: y\r\n" * 50_000, b""),
        ):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            try:
                writer.write(junk)
                answer = await soon(reader.read())
            except ConnectionError:
                answer = b""
            finally:
                writer.close()
            assert says in answer, junk[:30]
        await until(lambda: server.connections_count == 0)
        assert server.sessions_count == 0
    finally:
        listener.close()
        server.close()


# --- fuzz ------------------------------------------------------------------------------------------------------------

_numbers = st.one_of(st.integers(0, 5), st.integers(-(2**63), 2**64 - 1))
_bodies = st.one_of(
    st.binary(max_size=40),
    st.sampled_from([encode_body(signal(1)), encode_body(HELLO), b"{}", b"null", b'{"namespace":"n"}']),
)
_messages = st.one_of(
    st.builds(f.Call, _numbers, st.sampled_from([*METHODS, "", "x" * 300]), _numbers, _bodies),
    st.builds(f.Forget, _numbers),
    st.builds(f.Attach, _numbers, _numbers, _bodies),
    st.builds(f.Grant, _numbers, _numbers, _numbers),
    st.builds(f.StopPolling, _numbers),
    st.builds(f.Detach, _numbers),
    st.builds(f.Part, st.binary(max_size=40), st.booleans()),
)


def _data(first: int, ack: int, messages: list[Any]) -> bytes:
    return f.encode_data(first, ack, [f.encode(message) for message in messages])


_frames = st.one_of(
    st.binary(max_size=60),
    st.builds(_data, st.integers(0, 9), st.integers(0, 3), st.lists(_messages, max_size=5)),
    st.builds(lambda number: f.encode(f.Ack(number)), _numbers),
    st.builds(lambda number: f.encode(f.Ping(number)), _numbers),
    st.builds(lambda number: f.encode(f.Bye(number)), _numbers),
)  # fmt: skip


def _mutated(frame: bytes, position: int, byte: int) -> bytes:
    if not frame:
        return frame
    at = position % len(frame)
    return frame[:at] + bytes((byte,)) + frame[at + 1 :]


@settings(max_examples=FUZZ_EXAMPLES, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(
    st.lists(st.one_of(_frames, st.builds(_mutated, _frames, st.integers(0, 100), st.integers(0, 255))), max_size=12),
    st.booleans(),
)
def test_no_frame_does_harm(frames: list[bytes], is_greeted: bool) -> None:
    async def run() -> None:
        service = FakeService()
        server = make_server(service, calls_max=50)
        raw = await greeted(server) if is_greeted else Raw(server)
        for frame in frames:
            raw.wire.send(frame)
            await asyncio.sleep(0)
        for _ in range(5):
            await asyncio.sleep(0)
        if raw.lost is not None:
            assert CutCode(raw.lost[0]) not in (CutCode.INTERNAL, CutCode.LOST)
        async with linked(server) as (client, _):
            assert await soon(client.service.signal_workflow(signal(1))) is None

    asyncio.run(run())


@settings(max_examples=FUZZ_EXAMPLES, deadline=None, derandomize=True)
@given(st.binary(max_size=200))
def test_no_bytes_but_a_greeting_are_one(data: bytes) -> None:
    for decode in (f.decode_hello, f.decode_greeting, f.FROM_CLIENT.frame, f.FROM_SERVER.frame, f.FROM_CLIENT.message):
        # Any other error fails the test.
        with contextlib.suppress(LinkViolation):
            decode(data)


async def test_the_same_frames_do_no_harm_to_a_real_engine() -> None:
    """Every call of the contract with bodies of every kind, against an engine: refused or answered, never a bug."""
    shop = Shop(":memory:")
    await shop.open()
    try:
        assert isinstance(shop.engine, Engine)
        server = LinkServer(
            shop.engine, node="n", new_token=lambda: "t", now_ns=lambda: 1, options=LinkOptions(call_seconds=0.2)
        )
        raw = await greeted(server)
        bodies = [
            b"{}",
            b"null",
            b"[]",
            b'{"namespace":"default"}',
            b'{"namespace":"default","workflow_id":"w"}',
            b"\xff",
        ]
        count = 0
        for name in METHODS:
            for body in bodies:
                count += 1
                raw.say(f.Call(count, name, 100, body), first=count)
        answered: dict[int, str] = {}

        def collect() -> bool:
            while raw.frames:
                frame = f.FROM_SERVER.frame(raw.frames.pop(0))
                for message in getattr(frame, "messages", ()):
                    code = msgspec.json.decode(message.body)["code"] if isinstance(message, f.Refusal) else ""
                    answered[message.call_id] = code
            return len(answered) == count

        await until(collect)
        assert "internal" not in answered.values()
        server.close()
    finally:
        await shop.close()
