"""A caller's thread that runs the service loop itself while that sleeps: ``ServiceLoop.borrow`` and who asks for it."""

from __future__ import annotations

import asyncio
import contextvars
import signal
import socket
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
import uvloop

from clew.bridge import ServiceThread
from clew.service.errors import RPCError

DEADLINE = 30.0


@pytest.fixture(autouse=True)
def quiet_ctrl_c() -> Iterator[None]:
    """As under `asyncio.run`: the first Ctrl-C raises nothing in the main thread."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
async def thread() -> AsyncIterator[ServiceThread]:
    thread = ServiceThread("test-service")
    yield thread
    thread.stop()
    thread.join(DEADLINE)
    assert thread.loop.is_closed()


async def asleep(thread: ServiceThread) -> None:
    until = time.monotonic() + DEADLINE
    while not thread.loop.is_asleep:
        assert time.monotonic() < until, "the service loop does not come to rest"
        await asyncio.sleep(0.001)


async def runner(_: object) -> str:
    return threading.current_thread().name


class Owner:
    """Lends turns, and notes what becomes of them and where."""

    def __init__(self, is_borrowable: bool = True) -> None:
        self.is_borrowable = is_borrowable
        self.notes: list[tuple[str, str]] = []

    def note(self, what: str) -> None:
        self.notes.append((what, threading.current_thread().name))

    def lent_failed(self, turn: Any, error: BaseException) -> None:
        self.note(repr(error))

    def lent_done(self, turn: Any) -> None:
        self.note("done")

    def lent_moved(self, turn: Any, thread: threading.Thread) -> None:
        self.note(f"moved from {thread.name}")

    def lent_late(self, turn: Any) -> None:
        self.note("late")

    def lent_back(self, turn: Any) -> None:
        self.note("back")


class Turn:
    def __init__(self, work: Callable[[], object]) -> None:
        self.work = work

    def run(self) -> None:
        self.work()


async def test_a_lone_call_is_served_by_the_thread_that_makes_it(thread: ServiceThread) -> None:
    await asleep(thread)
    outer = asyncio.get_running_loop()
    assert await thread.call(runner, None) == "MainThread"
    assert asyncio.get_running_loop() is outer
    # Its own thread has it again: a call from a thread without a loop is served there.
    seen: list[str] = []
    done = threading.Event()
    poster = threading.Thread(
        target=thread.post, args=(lambda: (seen.append(threading.current_thread().name), done.set()),)
    )
    poster.start()
    poster.join(DEADLINE)
    assert done.wait(DEADLINE)
    assert seen == ["test-service"]


def test_uvloop_may_borrow_it_too() -> None:
    thread = ServiceThread("test-service")

    async def use() -> None:
        outer = asyncio.get_running_loop()
        for _ in range(20):
            await asleep(thread)
            assert await thread.call(runner, None) == "MainThread"
            assert asyncio.get_running_loop() is outer

    uvloop.run(use())
    thread.stop()
    thread.join(DEADLINE)
    assert thread.loop.is_closed()


async def test_a_caller_whose_loop_has_more_to_do_does_that_first(thread: ServiceThread) -> None:
    await asleep(thread)
    seen: list[str] = []
    asyncio.get_running_loop().call_soon(lambda: seen.append("its own"))

    async def see(_: None) -> None:
        seen.append(threading.current_thread().name)

    await thread.call(see, None)
    assert seen == ["its own", "MainThread"]


async def test_a_borrower_hears_of_its_own_things_while_it_does_a_lot(thread: ServiceThread) -> None:
    await asleep(thread)
    count, seen = 60, list[object]()

    async def take_a_millisecond(number: int) -> None:
        until = time.perf_counter() + 1e-3
        while time.perf_counter() < until:
            pass
        seen.append(number)

    # The first of them is begun, with the others behind it, when this is heard of.
    asyncio.get_running_loop().call_later(1e-4, seen.append, "its own")
    await asyncio.gather(*(thread.call(take_a_millisecond, number) for number in range(count)))
    assert [number for number in seen if number != "its own"] == list(range(count))
    assert seen.index("its own") < count / 2


async def test_another_threads_call_does_not_wait_for_a_borrower_that_has_left_some_for_later(
    thread: ServiceThread,
) -> None:
    await asleep(thread)
    served = threading.Event()
    blocked: list[bool] = []

    def block() -> None:
        threading.Thread(target=thread.post, args=(served.set,)).start()
        blocked.append(served.wait(DEADLINE))

    async def take_long(_: int) -> None:
        time.sleep(0.01)

    calls = [thread.call(take_long, number) for number in range(3)]
    asyncio.get_running_loop().call_later(0.005, block)
    await asyncio.gather(*calls)
    while not blocked:
        await asyncio.sleep(0.001)
    assert blocked == [True]


async def test_a_thread_that_ctrl_c_would_interrupt_is_left_alone(thread: ServiceThread) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    await asleep(thread)
    assert await thread.call(runner, None) == "test-service"


async def served_here(thread: ServiceThread) -> None:
    """On a machine that stands still for a moment the service thread takes over what this one had promised to do."""
    until = time.monotonic() + DEADLINE
    await asleep(thread)
    while await thread.call(runner, None) != "MainThread":
        assert time.monotonic() < until, "this thread never serves its own calls"
        await asleep(thread)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGINT], ids=["term", "usr1", "int"])
async def test_a_thread_in_which_a_signals_handler_may_raise_is_left_alone(
    thread: ServiceThread, number: signal.Signals
) -> None:
    def leave(*_: object) -> None:
        raise SystemExit(0)

    await served_here(thread)
    before = signal.signal(number, leave)
    try:
        await asleep(thread)
        assert await thread.call(runner, None) == "test-service"
    finally:
        signal.signal(number, before)
    await served_here(thread)


async def test_a_handler_of_the_callers_loop_leaves_it_its_thread(thread: ServiceThread) -> None:
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, print)
    try:
        await served_here(thread)
    finally:
        loop.remove_signal_handler(signal.SIGTERM)


async def test_what_the_caller_has_in_its_context_is_not_the_services(thread: ServiceThread) -> None:
    mark: contextvars.ContextVar[str] = contextvars.ContextVar("mark", default="none")
    seen: list[tuple[str, str]] = []

    async def look(_: None) -> None:
        seen.append((threading.current_thread().name, mark.get()))

    mark.set("the caller's")
    until = time.monotonic() + DEADLINE
    while ("MainThread", "none") not in seen:
        assert time.monotonic() < until, f"never seen here without the caller's mark: {seen[-1:]}"
        await asleep(thread)
        await thread.call(look, None)
    assert {value for _, value in seen} == {"none"}
    assert mark.get() == "the caller's"


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="a thread knows there which task it is in")
async def test_what_a_task_posts_at_its_end_is_done_before_it_ends(thread: ServiceThread) -> None:
    mark: contextvars.ContextVar[str] = contextvars.ContextVar("mark", default="none")
    outer = asyncio.get_running_loop()
    seen: list[tuple[str, bool]] = []

    async def serve() -> None:
        own = asyncio.current_task()
        await asyncio.sleep(0)
        seen.append((mark.get(), asyncio.current_task() is own))

    async def end() -> bool:
        mark.set("the caller's")
        own, served = asyncio.current_task(), []
        thread.post_last(lambda: served.append(asyncio.ensure_future(serve())))
        assert asyncio.get_running_loop() is outer
        assert asyncio.current_task() is own
        return bool(served) and served[0].done()

    until = time.monotonic() + DEADLINE
    # Something may wake the service loop at any moment; then its own thread does it.
    while not await asyncio.create_task(end()):
        assert time.monotonic() < until, "never done before the task ends"
        await asleep(thread)
    assert set(seen) == {("none", True)}


async def test_ends_that_follow_from_one_another_are_not_each_inside_the_one_before(thread: ServiceThread) -> None:
    outer = asyncio.get_running_loop()
    ended: asyncio.Future[None] = outer.create_future()
    depths: list[int] = []
    depth = 0

    def serve() -> None:
        thread.loop.wake_other(outer, end)

    def end() -> None:
        nonlocal depth
        depth += 1
        depths.append(depth)
        if len(depths) < 200:
            thread.post_last(serve)
        elif not ended.done():
            ended.set_result(None)
        depth -= 1

    await asleep(thread)
    outer.call_soon(end)
    await asyncio.wait_for(ended, DEADLINE)
    assert max(depths) <= 2


async def test_what_a_task_posts_at_its_end_comes_after_what_its_loop_has_ready(thread: ServiceThread) -> None:
    ran_in: list[str] = []
    done = threading.Event()

    def serve() -> None:
        ran_in.append(threading.current_thread().name)
        done.set()

    async def end() -> None:
        asyncio.get_running_loop().call_soon(ran_in.append, "its own")
        thread.post_last(serve)
        assert "MainThread" not in ran_in

    await asleep(thread)
    await asyncio.create_task(end())
    assert await asyncio.to_thread(done.wait, DEADLINE)
    assert "its own" in ran_in


async def test_what_is_posted_before_the_caller_blocks_is_served_all_the_same(thread: ServiceThread) -> None:
    await asleep(thread)
    served = threading.Event()
    thread.post(served.set)
    assert served.wait(DEADLINE), "it waits for the very thread that waits for it"


def test_what_is_posted_before_the_callers_loop_ends_is_served_all_the_same() -> None:
    thread = ServiceThread("test-service")
    served = threading.Event()
    loop = asyncio.SelectorEventLoop()

    async def post() -> None:
        await asleep(thread)
        loop.call_soon(loop.stop)
        await asyncio.sleep(0)
        thread.post(served.set)

    task = loop.create_task(post())
    loop.run_forever()
    assert served.wait(DEADLINE)
    loop.run_until_complete(task)
    loop.close()
    thread.stop()
    thread.join(DEADLINE)


async def test_a_timer_set_meanwhile_wakes_the_loop_in_time(thread: ServiceThread) -> None:
    await asleep(thread)
    rung = asyncio.Event()
    outer = asyncio.get_running_loop()

    async def set_timer(_: None) -> str:
        thread.loop.call_later(0.05, outer.call_soon_threadsafe, rung.set)
        return threading.current_thread().name

    assert await thread.call(set_timer, None) == "MainThread"
    await asyncio.wait_for(rung.wait(), DEADLINE)


async def test_it_is_borrowed_while_it_waits_for_descriptors_too(thread: ServiceThread) -> None:
    near, far = socket.socketpair()
    heard: list[tuple[bytes, str]] = []

    async def watch(_: None) -> None:
        thread.loop.add_reader(near, lambda: heard.append((near.recv(10), threading.current_thread().name)))

    async def unwatch(_: None) -> str:
        thread.loop.remove_reader(near)
        return threading.current_thread().name

    with near, far:
        await thread.call(watch, None)
        for number in range(40):
            await asleep(thread)
            assert await thread.call(runner, None) == "MainThread"
            far.send(b"%d" % number)
            until = time.monotonic() + DEADLINE
            while len(heard) <= number:
                assert time.monotonic() < until, "the descriptor is not heard any more"
                await asyncio.sleep(0.001)
        assert heard == [(b"%d" % number, "test-service") for number in range(40)]
        await asleep(thread)
        far.send(b"too late")
        await thread.call(unwatch, None)
        await thread.call(runner, None)
    assert len(heard) <= 41


async def test_turns_that_may_wait_for_the_caller_are_left_to_the_loops_own_thread(thread: ServiceThread) -> None:
    await asleep(thread)
    owner, seen = Owner(is_borrowable=False), asyncio.Event()
    outer = asyncio.get_running_loop()

    def work() -> None:
        owner.note("run")
        outer.call_soon_threadsafe(seen.set)

    async def lend(_: None) -> str:
        assert thread.loop.lend(owner, Turn(work))
        return threading.current_thread().name

    assert await thread.call(lend, None) == "MainThread"
    await asyncio.wait_for(seen.wait(), DEADLINE)
    assert owner.notes[0] == ("run", "test-service")


async def test_a_turn_that_blocks_keeps_the_borrowed_thread_and_the_loop_goes_on_in_its_own(
    thread: ServiceThread,
) -> None:
    await asleep(thread)
    owner, answered = Owner(), threading.Event()
    outer = asyncio.get_running_loop()

    def work() -> None:
        owner.note("run")
        assert answered.wait(DEADLINE), "the loop did not go on"

    async def lend(_: None) -> None:
        thread.loop.lend(owner, Turn(work))
        # Comes to it once the loop has left the turn behind.
        thread.loop.call_later(0.01, answered.set)

    await thread.call(lend, None)
    assert asyncio.get_running_loop() is outer
    assert owner.notes == [("run", "MainThread"), ("moved from MainThread", "clew-watch"), ("late", "MainThread")]
    await asleep(thread)
    assert await thread.call(runner, None) == "MainThread"


async def test_callers_on_several_loops_and_threads_never_run_it_at_once(thread: ServiceThread) -> None:
    count, seen, inside = 1_500, dict[str, list[int]](), 0

    def enter(name: str, number: int) -> None:
        nonlocal inside
        inside += 1
        assert inside == 1
        seen.setdefault(name, []).append(number)
        if number % 50 == 0:
            time.sleep(0)
        inside -= 1

    async def one(request: tuple[str, int]) -> str:
        enter(*request)
        return threading.current_thread().name

    async def call(name: str) -> set[str]:
        return {await thread.call(one, (name, number)) for number in range(count)}

    def post(name: str) -> None:
        for number in range(count):
            thread.post(lambda number=number: enter(name, number))  # type: ignore[misc]

    threads = [
        threading.Thread(target=lambda: asyncio.run(call("second loop"))),
        threading.Thread(target=post, args=("plain thread",)),
    ]
    for other in threads:
        other.start()
    ran_in = await call("first loop")
    while any(other.is_alive() for other in threads):
        await asyncio.sleep(0.01)
    await thread.call(runner, None)
    assert {name: numbers == list(range(count)) for name, numbers in seen.items()} == {
        "first loop": True,
        "second loop": True,
        "plain thread": True,
    }
    assert "test-service" in ran_in or "MainThread" in ran_in


def test_an_interruption_ends_the_service_as_if_the_process_had_ended() -> None:
    thread = ServiceThread("test-service")

    async def interrupted(_: None) -> None:
        def interrupt() -> None:
            raise KeyboardInterrupt

        asyncio.get_running_loop().call_soon(interrupt)

    async def use() -> None:
        await asleep(thread)
        await thread.call(interrupted, None)
        await asyncio.sleep(DEADLINE)

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(use())
    thread.join(DEADLINE)
    assert thread.loop.is_closed()

    async def call_again() -> None:
        with pytest.raises(RPCError, match="closed"):
            await thread.call(runner, None)

    asyncio.run(call_again())
