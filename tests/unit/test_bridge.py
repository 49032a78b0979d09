"""The bridge between callers' loops and the service thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator

import pytest

from clew.bridge import ServiceThread
from clew.model.rejection import Rejection, RejectionCode
from clew.service.errors import RPCError
from clew.service.requests import GetHistoryRequest

DEADLINE = 10.0
REFUSED = RPCError(Rejection(code=RejectionCode.WORKFLOW_NOT_FOUND, message="no such run"))


@pytest.fixture
async def thread() -> AsyncIterator[ServiceThread]:
    thread = ServiceThread("test-service")
    yield thread
    thread.stop()
    thread.join(DEADLINE)
    assert thread.loop.is_closed()


async def double(request: int) -> int:
    await asyncio.sleep(0)
    return request * 2


async def test_answers_each_call_with_its_own_result(thread: ServiceThread) -> None:
    results = await asyncio.gather(*(thread.call(double, n) for n in range(500)))
    assert results == [n * 2 for n in range(500)]


async def test_runs_the_method_on_the_service_loop_and_the_future_on_the_callers(thread: ServiceThread) -> None:
    async def where(_: None) -> asyncio.AbstractEventLoop:
        return asyncio.get_running_loop()

    future = thread.call(where, None)
    assert future.get_loop() is asyncio.get_running_loop()
    assert await future is thread.loop


async def test_takes_methods_that_give_ready_futures(thread: ServiceThread) -> None:
    def ready(request: int) -> asyncio.Future[int]:
        future = thread.loop.create_future()
        future.set_result(request + 1)
        return future

    assert await thread.call(ready, 1) == 2


async def test_a_refusal_crosses_as_the_same_object(thread: ServiceThread) -> None:
    def refuse(_: None) -> asyncio.Future[None]:
        raise REFUSED

    with pytest.raises(RPCError) as caught:
        await thread.call(refuse, None)
    assert caught.value is REFUSED


async def test_a_bug_in_the_service_is_named_as_ours(thread: ServiceThread) -> None:
    async def broken(_: None) -> None:
        raise KeyError("oops")

    with pytest.raises(RPCError, match="bug in Clew") as caught:
        await thread.call(broken, None)
    assert caught.value.code is RejectionCode.INTERNAL
    assert isinstance(caught.value.__cause__, KeyError)


async def test_a_caller_that_stops_waiting_harms_nobody(thread: ServiceThread) -> None:
    gate = asyncio.Event()

    async def slow(request: int) -> int:
        await gate.wait()
        return request

    dropped = thread.call(slow, 1)
    kept = thread.call(slow, 2)
    dropped.cancel()
    thread.post(gate.set)
    assert await asyncio.wait_for(kept, DEADLINE) == 2
    assert dropped.cancelled()


async def test_an_abandoned_long_poll_is_taken_back(thread: ServiceThread) -> None:
    entered, left = threading.Event(), threading.Event()

    async def poll(_: GetHistoryRequest) -> None:
        entered.set()
        try:
            await asyncio.Event().wait()
        finally:
            left.set()

    future = thread.call(poll, GetHistoryRequest(namespace="default", workflow_id="w"))
    assert await asyncio.to_thread(entered.wait, DEADLINE)
    future.cancel()
    assert await asyncio.to_thread(left.wait, DEADLINE)


async def test_a_loop_that_died_while_waiting_is_forgotten(thread: ServiceThread) -> None:
    gate = asyncio.Event()

    async def wait_for_gate(_: None) -> None:
        await gate.wait()

    def die_waiting() -> None:
        async def call_and_leave() -> None:
            thread.call(wait_for_gate, None)

        asyncio.run(call_and_leave())

    await asyncio.to_thread(die_waiting)
    thread.post(gate.set)
    assert await asyncio.wait_for(thread.call(double, 4), DEADLINE) == 8


async def test_posts_run_in_order_and_a_failing_one_stops_nothing(thread: ServiceThread) -> None:
    seen: list[int] = []

    def fail() -> None:
        raise ValueError("on purpose")

    for n in range(100):
        thread.post(lambda n=n: seen.append(n))  # type: ignore[misc]
        thread.post(fail)
    await asyncio.wait_for(thread.call(double, 0), DEADLINE)
    assert seen == list(range(100))


async def test_callers_on_several_loops_at_once(thread: ServiceThread) -> None:
    def run_many(base: int) -> list[int]:
        async def many() -> list[int]:
            return list(await asyncio.gather(*(thread.call(double, base + n) for n in range(200))))

        return asyncio.run(many())

    answers = await asyncio.gather(*(asyncio.to_thread(run_many, base) for base in (0, 1_000, 2_000)))
    for base, answer in zip((0, 1_000, 2_000), answers, strict=True):
        assert answer == [(base + n) * 2 for n in range(200)]


async def test_calls_after_the_end_are_refused_and_those_in_flight_answered() -> None:
    thread = ServiceThread("test-ending")

    async def forever(_: None) -> None:
        await asyncio.Event().wait()

    in_flight = thread.call(forever, None)
    await thread.call(double, 1)
    thread.stop()
    with pytest.raises(RPCError, match="stopped while forever was under way"):
        await asyncio.wait_for(in_flight, DEADLINE)
    await asyncio.to_thread(thread.join, DEADLINE)
    with pytest.raises(RPCError, match="closed"):
        thread.call(double, 1)
