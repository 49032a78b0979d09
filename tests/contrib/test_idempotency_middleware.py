"""The receiver's side: a keyed request is carried out once, whatever its repeats do."""

from __future__ import annotations

import asyncio
import multiprocessing
import threading
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from clew.contrib.idempotency import IdempotencyMiddleware, SqliteIdempotencyStore
from clew.contrib.idempotency._middleware import Message, Receive, Scope, Send
from clew.contrib.idempotency._store import Begun, InFlight, Mismatch, Stored, StoredResponse

LEASE = timedelta(seconds=30)
START = datetime(2026, 1, 1, tzinfo=UTC)


class Application:
    """Counts what it carries out; waits, fails and answers as told."""

    def __init__(self) -> None:
        self.runs: list[bytes] = []
        self.began = asyncio.Event()
        self.gate = asyncio.Event()
        self.gate.set()
        self.status = 201
        self.error: BaseException | None = None
        self.chunks: list[bytes] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = b""
        while True:
            message = await receive()
            body += message["body"]
            if not message.get("more_body", False):
                break
        self.runs.append(body)
        self.began.set()
        await self.gate.wait()
        if self.error is not None:
            raise self.error
        headers = [(b"content-type", b"text/plain"), (b"x-run", str(len(self.runs)).encode()), (b"date", b"today")]
        await send({"type": "http.response.start", "status": self.status, "headers": headers})
        chunks = self.chunks or [b"run %d" % len(self.runs)]
        for chunk in chunks[:-1]:
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": chunks[-1]})


class Clock:
    def __init__(self) -> None:
        self.now = START

    def __call__(self) -> datetime:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def application() -> Application:
    return Application()


@pytest.fixture
async def store(tmp_path: Path, clock: Clock) -> AsyncIterator[SqliteIdempotencyStore]:
    made = SqliteIdempotencyStore(tmp_path / "keys.db", now=clock)
    yield made
    made.close()


Connect = Callable[..., httpx.AsyncClient]


@pytest.fixture
async def connect(application: Application, store: SqliteIdempotencyStore) -> AsyncIterator[Connect]:
    clients: list[httpx.AsyncClient] = []

    def make(**options: Any) -> httpx.AsyncClient:
        app = IdempotencyMiddleware(application, store=store, **options)
        client = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://pay")
        clients.append(client)
        return client

    yield make
    for client in clients:
        await client.aclose()


def keyed(key: str = "k1", **more: str) -> dict[str, str]:
    return {"Idempotency-Key": key, **more}


async def test_a_repeat_gets_the_first_response(connect: Connect, application: Application) -> None:
    client = connect()
    first = await client.post("/pay", content=b"100", headers=keyed())
    again = await client.post("/pay", content=b"100", headers=keyed())
    assert (first.status_code, first.text, first.headers["x-run"]) == (201, "run 1", "1")
    assert (again.status_code, again.text, again.headers["x-run"]) == (201, "run 1", "1")
    assert again.headers["idempotency-replayed"] == "true"
    assert "idempotency-replayed" not in first.headers
    assert "date" not in again.headers
    assert application.runs == [b"100"]


async def test_another_key_is_another_request(connect: Connect, application: Application) -> None:
    client = connect()
    texts = [(await client.post("/pay", content=b"100", headers=keyed(key))).text for key in ("a", "b")]
    assert texts == ["run 1", "run 2"]


@pytest.mark.parametrize(("header", "same"), [('"k1"', True), (" k1 ", True), ("k2", False)])
async def test_a_key_may_be_in_quotes(connect: Connect, header: str, same: bool) -> None:
    client = connect()
    await client.post("/pay", headers=keyed())
    assert ("idempotency-replayed" in (await client.post("/pay", headers=keyed(header))).headers) is same


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [("POST", "/pay", b"101"), ("PUT", "/pay", b"100"), ("POST", "/refund", b"100"), ("POST", "/pay?x=1", b"100")],
)
async def test_the_same_key_with_another_request_is_refused(
    connect: Connect, application: Application, method: str, path: str, body: bytes
) -> None:
    client = connect()
    await client.post("/pay", content=b"100", headers=keyed())
    answer = await client.request(method, path, content=body, headers=keyed())
    assert answer.status_code == 422
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["code"] == "idempotency_key_reused"
    assert len(application.runs) == 1


async def test_of_many_at_once_one_runs_and_the_others_are_told_to_wait(
    connect: Connect, application: Application
) -> None:
    client = connect()
    application.gate.clear()
    running = asyncio.create_task(client.post("/pay", content=b"1", headers=keyed()))
    await asyncio.wait_for(application.began.wait(), 10)
    others = await asyncio.gather(*(client.post("/pay", content=b"1", headers=keyed()) for _ in range(20)))
    assert {answer.status_code for answer in others} == {409}
    assert {answer.json()["code"] for answer in others} == {"idempotency_key_in_flight"}
    assert all(1 <= int(answer.headers["retry-after"]) <= 5 for answer in others)
    wrong = await client.post("/pay", content=b"2", headers=keyed())
    assert wrong.status_code == 422
    application.gate.set()
    assert (await running).text == "run 1"
    assert (await client.post("/pay", content=b"1", headers=keyed())).text == "run 1"
    assert len(application.runs) == 1


async def test_a_race_of_first_requests_has_one_winner(connect: Connect, application: Application) -> None:
    client = connect()
    answers = await asyncio.gather(*(client.post("/pay", content=b"1", headers=keyed()) for _ in range(30)))
    assert len(application.runs) == 1
    assert {answer.status_code for answer in answers} <= {201, 409}
    assert {answer.text for answer in answers if answer.status_code == 201} == {"run 1"}


async def test_an_error_gives_the_key_back(connect: Connect, application: Application) -> None:
    client = connect()
    application.error = LookupError("no such account")
    with pytest.raises(LookupError):
        await client.post("/pay", headers=keyed())
    application.error = None
    assert (await client.post("/pay", headers=keyed())).text == "run 2"


async def test_a_request_that_is_cancelled_gives_the_key_back(connect: Connect, application: Application) -> None:
    client = connect()
    application.gate.clear()
    running = asyncio.create_task(client.post("/pay", headers=keyed()))
    await asyncio.wait_for(application.began.wait(), 10)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    application.gate.set()
    assert (await client.post("/pay", headers=keyed())).text == "run 2"


@pytest.mark.parametrize(
    ("status", "is_kept"),
    [(200, True), (302, True), (400, True), (404, True), (422, True)]
    + [(status, False) for status in (401, 403, 408, 409, 425, 429, 500, 502, 503)],
)
async def test_which_responses_are_kept(connect: Connect, application: Application, status: int, is_kept: bool) -> None:
    client = connect()
    application.status = status
    assert (await client.post("/pay", headers=keyed())).status_code == status
    application.status = 201
    again = await client.post("/pay", headers=keyed())
    assert again.status_code == (status if is_kept else 201)
    assert len(application.runs) == (1 if is_kept else 2)


async def test_other_methods_and_requests_without_a_key_pass(connect: Connect, application: Application) -> None:
    client = connect()
    for _ in range(2):
        await client.post("/pay")
        await client.get("/pay", headers=keyed())
    assert len(application.runs) == 4


async def test_a_key_can_be_required(connect: Connect, application: Application) -> None:
    answer = await connect(is_required=True).post("/pay")
    assert (answer.status_code, answer.json()["code"]) == (400, "idempotency_key_invalid")
    assert "needs an Idempotency-Key" in answer.json()["detail"]
    assert application.runs == []


@pytest.mark.parametrize("key", ["", '""', "x" * 256, "a\tb", "é"])
async def test_an_unusable_key_is_refused(connect: Connect, application: Application, key: str) -> None:
    answer = await connect().post("/pay", headers={b"Idempotency-Key": key.encode()})
    assert answer.status_code == 400
    assert "1 to 255 printable" in answer.json()["detail"]
    assert application.runs == []


async def test_two_keys_are_refused(connect: Connect) -> None:
    answer = await connect().post("/pay", headers=[("Idempotency-Key", "a"), ("Idempotency-Key", "b")])
    assert answer.status_code == 400


async def chunks_of(*chunks: bytes) -> AsyncIterator[bytes]:
    for chunk in chunks:
        yield chunk


async def test_streamed_bodies_are_read_within_the_bound(connect: Connect, application: Application) -> None:
    client = connect(body_bytes_max=10)
    fits = await client.post("/pay", content=chunks_of(b"12345", b"67890"), headers=keyed("a"))
    assert fits.status_code == 201
    assert application.runs == [b"1234567890"]
    too_large = await client.post("/pay", content=chunks_of(b"12345", b"67890", b"1"), headers=keyed("b"))
    assert (too_large.status_code, too_large.json()["code"]) == (413, "idempotent_request_too_large")
    assert len(application.runs) == 1


async def test_an_endless_body_is_given_up_at_the_bound(
    application: Application, store: SqliteIdempotencyStore
) -> None:
    sent: list[Message] = []
    asked_count = 0

    async def endless() -> Message:
        nonlocal asked_count
        asked_count += 1
        return {"type": "http.request", "body": b"x" * 1000, "more_body": True}

    async def send(message: Message) -> None:
        sent.append(message)

    app = IdempotencyMiddleware(application, store=store, body_bytes_max=5000)
    await app(scope(), endless, send)
    assert sent[0]["status"] == 413
    assert asked_count == 6


async def test_a_sender_that_leaves_amid_its_body_takes_no_key(
    application: Application, store: SqliteIdempotencyStore
) -> None:
    async def gone() -> Message:
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        raise AssertionError("nobody is there to answer")

    await IdempotencyMiddleware(application, store=store)(scope(), gone, send)
    assert application.runs == []


def scope() -> Scope:
    return {
        "type": "http",
        "method": "POST",
        "path": "/pay",
        "query_string": b"",
        "headers": [(b"idempotency-key", b"k1")],
    }


async def test_streamed_responses_are_kept_whole(connect: Connect, application: Application) -> None:
    client = connect()
    application.chunks = [b"one ", b"two ", b"three"]
    texts = [(await client.post("/pay", headers=keyed())).text for _ in range(2)]
    assert texts == ["one two three"] * 2


async def test_a_response_too_large_to_keep_is_sent_and_its_repeat_told(
    connect: Connect, application: Application
) -> None:
    client = connect(response_bytes_max=10)
    application.chunks = [b"12345", b"67890", b"1", b"2"]
    first = await client.post("/pay", headers=keyed())
    assert (first.status_code, first.text) == (201, "123456789012")
    again = await client.post("/pay", headers=keyed())
    assert (again.status_code, again.json()["code"]) == (409, "idempotent_response_not_kept")
    assert "status 201" in again.json()["detail"]
    assert len(application.runs) == 1


async def test_an_application_that_does_not_answer_is_an_error(store: SqliteIdempotencyStore) -> None:
    async def silent(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})

    app = IdempotencyMiddleware(silent, store=store)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://pay") as client:
        with pytest.raises(RuntimeError, match="without a complete response"):
            await client.post("/pay", headers=keyed())
    assert isinstance(await store.begin("other", "f", owner="o", lease=LEASE), Begun)


async def test_callers_can_be_told_apart(connect: Connect, application: Application) -> None:
    def tenant(scope: Scope) -> str:
        return next(value.decode() for name, value in scope["headers"] if name == b"x-tenant")

    client = connect(caller_of=tenant)
    for _ in range(2):
        for name in ("a", "b"):
            await client.post("/pay", headers=keyed("k1", **{"X-Tenant": name}))
    assert len(application.runs) == 2


async def test_a_long_request_keeps_its_hold(
    connect: Connect, application: Application, store: SqliteIdempotencyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    renewed = asyncio.Event()
    renew = store.renew

    async def noted(key: str, *, owner: str, lease: timedelta) -> bool:
        is_held = await renew(key, owner=owner, lease=lease)
        assert is_held
        renewed.set()
        return is_held

    monkeypatch.setattr(store, "renew", noted)
    client = connect(lease=timedelta(milliseconds=30))
    application.gate.clear()
    running = asyncio.create_task(client.post("/pay", headers=keyed()))
    await asyncio.wait_for(renewed.wait(), 10)
    application.gate.set()
    assert (await running).status_code == 201


@pytest.mark.parametrize("options", [{"lease": timedelta(0)}, {"kept_for": timedelta(0)}])
def test_senseless_durations_are_refused(store: SqliteIdempotencyStore, options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="must be positive"):
        IdempotencyMiddleware(Application(), store=store, **options)


# --- the store -------------------------------------------------------------------------------------------------------

RESPONSE = StoredResponse(200, ((b"a", b"b"),), b"body")


async def test_a_dead_holder_is_followed_and_cannot_answer_any_more(
    store: SqliteIdempotencyStore, clock: Clock
) -> None:
    assert await store.begin("k", "f", owner="dead", lease=LEASE) == Begun()
    clock.now += timedelta(seconds=20)
    assert await store.begin("k", "f", owner="next", lease=LEASE) == InFlight(timedelta(seconds=10))
    clock.now += timedelta(seconds=10)
    assert await store.begin("k", "other", owner="next", lease=LEASE) == Mismatch()
    assert await store.begin("k", "f", owner="next", lease=LEASE) == Begun()
    assert not await store.renew("k", owner="dead", lease=LEASE)
    assert not await store.complete("k", RESPONSE, owner="dead", kept_for=LEASE)
    await store.release("k", owner="dead")
    assert isinstance(await store.begin("k", "f", owner="third", lease=LEASE), InFlight)
    assert await store.complete("k", RESPONSE, owner="next", kept_for=LEASE)
    assert await store.begin("k", "f", owner="third", lease=LEASE) == Stored(RESPONSE)
    assert await store.begin("k", "other", owner="third", lease=LEASE) == Mismatch()


async def test_keys_are_forgotten_after_their_time(store: SqliteIdempotencyStore, clock: Clock) -> None:
    await store.begin("answered", "f", owner="o", lease=LEASE)
    await store.complete("answered", RESPONSE, owner="o", kept_for=timedelta(days=1))
    await store.begin("unanswered", "f", owner="o", lease=LEASE)
    clock.now += timedelta(days=1)
    assert await store.begin("answered", "other", owner="p", lease=LEASE) == Begun()
    assert await store.begin("unanswered", "other", owner="p", lease=LEASE) == Mismatch()
    clock.now += timedelta(days=7)
    assert await store.begin("unanswered", "other", owner="p", lease=LEASE) == Begun()


async def test_answers_survive_a_new_process(tmp_path: Path, store: SqliteIdempotencyStore) -> None:
    await store.begin("k", "f", owner="o", lease=LEASE)
    await store.complete("k", RESPONSE, owner="o", kept_for=LEASE)
    other = SqliteIdempotencyStore(tmp_path / "keys.db", now=lambda: START)
    assert await other.begin("k", "f", owner="p", lease=LEASE) == Stored(RESPONSE)
    other.close()


def _begin_in_child(path: str, barrier: Any, results: Any) -> None:
    store = SqliteIdempotencyStore(path)
    barrier.wait(30)
    outcome = asyncio.run(store.begin("k", "f", owner=str(threading.get_native_id()), lease=LEASE))
    results.put(type(outcome).__name__)
    store.close()


def test_among_processes_one_gets_the_key(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    barrier, results = context.Barrier(3), context.Queue()
    path = str(tmp_path / "keys.db")
    children = [context.Process(target=_begin_in_child, args=(path, barrier, results)) for _ in range(3)]
    for child in children:
        child.start()
    outcomes = sorted(results.get(timeout=60) for _ in children)
    for child in children:
        child.join(30)
    assert outcomes == ["Begun", "InFlight", "InFlight"]
