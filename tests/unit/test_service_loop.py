"""The loop that an embedded engine lives on: waking, timers, and turns that are lent to it."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from clew.bridge import ServiceThread
from clew.service_loop import ServiceLoop

DEADLINE = 20.0


@pytest.fixture
def thread() -> Iterator[ServiceThread]:
    thread = ServiceThread("test-loop")
    yield thread
    thread.stop()
    thread.join(DEADLINE)
    assert thread.loop.is_closed()


def on_loop(thread: ServiceThread, work: Any) -> Any:
    """Call a function on the loop and give its result."""
    done = threading.Event()
    results: list[Any] = []

    def call() -> None:
        try:
            results.append(work())
        finally:
            done.set()

    thread.post(call)
    assert done.wait(DEADLINE), "the loop does not answer"
    return results[0]


class Owner:
    """Lends turns, and notes what becomes of them."""

    def __init__(self) -> None:
        self.notes: list[tuple[str, Any, str]] = []
        self.changed = threading.Condition()

    def note(self, what: str, turn: Any) -> None:
        with self.changed:
            self.notes.append((what, turn, threading.current_thread().name))
            self.changed.notify_all()

    def wait(self, what: str, count: int = 1) -> list[tuple[str, Any, str]]:
        """The notes of one kind, once there are so many."""
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.of(what)) >= count, DEADLINE), self.notes
            return self.of(what)

    def of(self, what: str) -> list[tuple[str, Any, str]]:
        return [note for note in self.notes if note[0] == what]

    def turn(self, name: str, work: Callable[[], object] = lambda: None) -> Turn:
        return Turn(self, name, work)

    def lent_failed(self, turn: Any, error: BaseException) -> None:
        self.note(repr(error), turn)

    def lent_done(self, turn: Any) -> None:
        self.note("done", turn)

    def lent_moved(self, turn: Any, thread: threading.Thread) -> None:
        self.note(f"moved from {thread.name}", turn)

    def lent_late(self, turn: Any) -> None:
        self.note("late", turn)

    def lent_back(self, turn: Any) -> None:
        self.note("back", turn)


class Turn:
    """Notes that it is run."""

    def __init__(self, owner: Owner, name: str, work: Callable[[], object]) -> None:
        self.owner, self.name, self.work = owner, name, work

    def run(self) -> None:
        self.owner.note("run", self)
        self.work()

    def __eq__(self, other: object) -> bool:
        return other == self.name or other is self

    def __hash__(self) -> int:
        return id(self)


# --- waking -------------------------------------------------------------------------------------------------


def test_every_call_from_every_thread_is_run_in_the_order_of_its_thread(thread: ServiceThread) -> None:
    seen: list[tuple[int, int]] = []
    count, producers = 2_000, 4

    def produce(producer: int) -> None:
        for number in range(count):
            thread.loop.call_soon_threadsafe(seen.append, (producer, number))
            if number % 97 == 0:
                time.sleep(0)

    threads = [threading.Thread(target=produce, args=(n,)) for n in range(producers)]
    for one in threads:
        one.start()
    for one in threads:
        one.join(DEADLINE)
    on_loop(thread, lambda: None)
    for producer in range(producers):
        assert [number for who, number in seen if who == producer] == list(range(count))


def test_a_sleeping_loop_is_woken_again_and_again(thread: ServiceThread) -> None:
    for number in range(500):
        assert on_loop(thread, lambda number=number: number) == number


def test_timers_go_off_in_order_and_never_early(thread: ServiceThread) -> None:
    loop, gone_off, done = thread.loop, [], threading.Event()

    def begin() -> None:
        start = loop.time()
        for delay in (0.03, 0.01, 0.02, 0.0):
            loop.call_later(delay, lambda delay=delay: gone_off.append((delay, loop.time() - start)))
        loop.call_later(0.005, gone_off.append, "cancelled").cancel()
        loop.call_later(0.04, done.set)

    on_loop(thread, begin)
    assert done.wait(DEADLINE)
    assert [delay for delay, _ in gone_off] == [0.0, 0.01, 0.02, 0.03]
    assert all(passed >= delay for delay, passed in gone_off)


def test_cancelled_timers_are_thrown_out(thread: ServiceThread) -> None:
    loop = thread.loop

    def many() -> int:
        for _ in range(5_000):
            loop.call_later(3_600, print).cancel()
        return len(loop._timers)

    assert on_loop(thread, many) < 500


def test_watched_descriptors_are_served_beside_calls_from_threads(thread: ServiceThread) -> None:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    got: list[bytes] = []
    readable = threading.Event()

    def read() -> None:
        got.append(ours.recv(100))
        readable.set()

    on_loop(thread, lambda: thread.loop.add_reader(ours.fileno(), read))
    # Many calls between two bytes, so that the descriptor is busy and quiet by turns.
    for number in range(200):
        if number % 25 < 5:
            readable.clear()
            theirs.send(b"x")
            assert readable.wait(DEADLINE)
        assert on_loop(thread, lambda number=number: number) == number
    assert thread.loop._poller is not None, "quiet descriptors are left to the poller"
    assert on_loop(thread, lambda: thread.loop.remove_reader(ours.fileno()))
    assert on_loop(thread, lambda: "still woken") == "still woken"
    assert b"".join(got) == b"x" * 40
    ours.close()
    theirs.close()


def test_a_descriptor_that_comes_while_others_are_left_to_the_poller_is_heard(thread: ServiceThread) -> None:
    pairs = [socket.socketpair() for _ in range(3)]
    heard: list[int] = []
    changed = threading.Event()

    def read(index: int) -> None:
        pairs[index][0].recv(100)
        heard.append(index)
        changed.set()

    for index, (ours, _) in enumerate(pairs):
        ours.setblocking(False)
        on_loop(thread, lambda index=index, ours=ours: thread.loop.add_reader(ours.fileno(), read, index))
        for number in range(40):
            assert on_loop(thread, lambda number=number: number) == number
        for later, (_, other) in reversed(list(enumerate(pairs[: index + 1]))):
            changed.clear()
            other.send(b"x")
            assert changed.wait(DEADLINE), f"descriptor {later} is not heard"
    assert heard == [0, 1, 0, 2, 1, 0]
    for ours, theirs in pairs:
        on_loop(thread, lambda ours=ours: thread.loop.remove_reader(ours.fileno()))
        ours.close()
        theirs.close()


def test_a_callback_that_raises_is_told_and_the_loop_goes_on(
    thread: ServiceThread, caplog: pytest.LogCaptureFixture
) -> None:
    thread.loop.call_soon_threadsafe(lambda: 1 / 0)
    assert on_loop(thread, lambda: 1) == 1
    assert "ZeroDivisionError" in caplog.text


def test_asyncio_works_on_it_in_any_thread() -> None:
    async def main() -> list[int]:
        async def one(number: int) -> int:
            await asyncio.sleep(0.001 * (number % 3))
            return await asyncio.to_thread(lambda: number)

        async with asyncio.timeout(DEADLINE):
            return list(await asyncio.gather(*(one(n) for n in range(20))))

    loop = ServiceLoop()
    try:
        assert loop.run_until_complete(main()) == list(range(20))
    finally:
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()
    with pytest.raises(RuntimeError):
        loop.call_soon_threadsafe(print)


# --- lent turns ---------------------------------------------------------------------------------------------


def test_a_lent_turn_runs_on_the_loops_thread_with_nothing_around_it(thread: ServiceThread) -> None:
    owner = Owner()
    assert on_loop(thread, lambda: thread.loop.lend(owner, owner.turn("turn")))
    owner.wait("done")
    assert owner.notes == [("run", "turn", "test-loop"), ("done", "turn", "test-loop")]


def test_the_loop_moves_away_from_a_turn_that_blocks(thread: ServiceThread) -> None:
    owner, release = Owner(), threading.Event()

    try:
        on_loop(thread, lambda: thread.loop.lend(owner, owner.turn("blocks", lambda: release.wait(DEADLINE))))
        owner.wait("moved from test-loop")
        # The turn still holds its thread; the loop answers, and takes turns, in another.
        assert on_loop(thread, lambda: threading.current_thread().name) == "test-loop-2"
        on_loop(thread, lambda: thread.loop.lend(owner, owner.turn("next")))
        assert owner.wait("done") == [("done", "next", "test-loop-2")]
        assert not owner.of("late")
    finally:
        release.set()
    assert owner.wait("late") == [("late", "blocks", "test-loop")]
    assert on_loop(thread, lambda: asyncio.get_running_loop()) is thread.loop


def test_a_late_turn_does_not_take_the_seat_of_the_one_that_runs_meanwhile(thread: ServiceThread) -> None:
    owner, release, next_began, late = Owner(), threading.Event(), threading.Event(), threading.Event()

    def run_beside() -> None:
        next_began.set()
        assert late.wait(DEADLINE)

    on_loop(thread, lambda: thread.loop.lend(owner, owner.turn("blocks", lambda: release.wait(DEADLINE))))
    owner.wait("moved from test-loop")
    on_loop(thread, lambda: thread.loop.lend(owner, owner.turn("next", run_beside)))
    assert next_began.wait(DEADLINE)
    try:
        release.set()
        assert owner.wait("late") == [("late", "blocks", "test-loop")]
    finally:
        late.set()
    # The loop is still there, on one thread only.
    assert on_loop(thread, lambda: asyncio.get_running_loop()) is thread.loop
    assert "blocks" not in [name for _, name, _ in owner.of("done")]


def test_one_turn_after_another_may_block_and_tasks_of_the_loop_go_on(thread: ServiceThread) -> None:
    owner, release, ticks = Owner(), threading.Event(), Owner()

    async def tick() -> None:
        while not release.is_set():
            ticks.note(threading.current_thread().name, None)
            await asyncio.sleep(0.001)

    task = asyncio.run_coroutine_threadsafe(tick(), thread.loop)
    try:
        for name in ("test-loop", "test-loop-2", "test-loop-3"):
            ticks.wait(name)
            on_loop(thread, lambda: thread.loop.lend(owner, owner.turn("blocks", lambda: release.wait(DEADLINE))))
            owner.wait(f"moved from {name}")
        ticks.wait("test-loop-4")
    finally:
        release.set()
    task.result(DEADLINE)
    owner.wait("late", 3)


def test_turns_that_wait_at_the_end_are_given_back() -> None:
    thread = ServiceThread("test-ending")
    owner = Owner()

    def lend_and_stop() -> None:
        thread.loop.lend(owner, owner.turn("never"))
        thread.loop.stop_lending()

    on_loop(thread, lend_and_stop)
    thread.stop()
    thread.join(DEADLINE)
    assert [what for what, _, _ in owner.notes] == ["back"]
    assert not thread.loop.lend(owner, owner.turn("too late"))


def test_a_loop_can_end_while_a_turn_still_holds_its_former_thread() -> None:
    thread = ServiceThread("test-left")
    owner, release = Owner(), threading.Event()
    on_loop(thread, lambda: thread.loop.lend(owner, owner.turn("blocks", lambda: release.wait(DEADLINE))))
    owner.wait("moved from test-left")
    thread.stop()
    thread.join(DEADLINE)
    assert thread.loop.is_closed()
    release.set()
    owner.wait("late")


def test_a_turn_that_raises_is_told_and_the_loop_goes_on(thread: ServiceThread) -> None:
    owner = Owner()
    on_loop(thread, lambda: thread.loop.lend(owner, owner.turn("broken", lambda: 1 / 0)))
    owner.wait("done")
    assert [what for what, _, _ in owner.notes] == ["run", "ZeroDivisionError('division by zero')", "done"]
    assert on_loop(thread, lambda: 1) == 1


# --- other loops -----------------------------------------------------------------------------------------------------


async def test_what_a_round_has_for_another_loop_goes_there_with_one_wake_up(
    thread: ServiceThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = asyncio.get_running_loop()
    wake_ups: list[object] = []
    seen: list[int] = []
    arrived = asyncio.Event()
    wake = here.call_soon_threadsafe

    def count(callback: Callable[..., object], *args: Any) -> object:
        wake_ups.append(callback)
        return wake(callback, *args)

    monkeypatch.setattr(here, "call_soon_threadsafe", count)

    def fail() -> None:
        raise ValueError("one of them")

    told: list[dict[str, Any]] = []
    here.set_exception_handler(lambda _, context: told.append(context))

    def work() -> None:
        for number in range(10):
            thread.loop.wake_other(here, lambda number=number: seen.append(number))  # type: ignore[misc]
            if number == 4:
                thread.loop.wake_other(here, fail)
        thread.loop.wake_other(here, arrived.set)

    await asyncio.to_thread(on_loop, thread, work)
    async with asyncio.timeout(DEADLINE):
        await arrived.wait()
    assert seen == list(range(10))
    assert len([callback for callback in wake_ups if "_run_each" in repr(callback)]) == 1
    assert [str(context["exception"]) for context in told] == ["one of them"]


async def test_other_loops_are_woken_at_once_from_elsewhere_and_when_the_turn_at_hand_moves_the_loop(
    thread: ServiceThread,
) -> None:
    here = asyncio.get_running_loop()
    arrived = asyncio.Event()
    thread.loop.wake_other(here, arrived.set)  # from a thread that is not the loop's
    async with asyncio.timeout(DEADLINE):
        await arrived.wait()
    arrived.clear()
    go_on = threading.Event()
    owner = Owner()

    def block() -> None:
        thread.loop.wake_other(here, arrived.set)
        assert go_on.wait(DEADLINE)

    await asyncio.to_thread(on_loop, thread, lambda: thread.loop.lend(owner, owner.turn("blocks", block)))
    async with asyncio.timeout(DEADLINE):
        await arrived.wait()  # though the turn still runs
    go_on.set()
    await asyncio.to_thread(owner.wait, "late")


def test_a_closed_loop_is_refused(thread: ServiceThread) -> None:
    closed = asyncio.new_event_loop()
    closed.close()

    def work() -> str:
        with pytest.raises(RuntimeError, match="closed"):
            thread.loop.wake_other(closed, lambda: None)
        return "refused"

    assert on_loop(thread, work) == "refused"
