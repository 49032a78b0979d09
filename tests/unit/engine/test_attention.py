"""Attention: runs that left memory are read again only when something is due."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from clew.core.codec import encode_state
from clew.core.pending import PendingTimer
from clew.engine.attention import LOADED_TOGETHER, Attention
from clew.engine.peers import Peers
from clew.engine.runs import RunCache, RunEntry
from clew.ports.store import HistoryBatch, LoadedRun, RunRow, StoreCorrupt, StoreError, StoreUnavailable
from tests.unit.engine.test_runs import entry_of, open_row

NOW = datetime(2026, 1, 1, tzinfo=UTC)


class FakeClock:
    """Time that its test moves; what is due by then is called."""

    def __init__(self) -> None:
        self.at = NOW
        self.calls: dict[object, tuple[datetime, Callable[[], None]]] = {}

    def now(self) -> datetime:
        return self.at

    def call_at(self, when: datetime, callback: Callable[[], None]) -> Any:
        timer = FakeTimer(self)
        self.calls[timer] = when, callback
        return timer

    async def go_to(self, when: datetime) -> None:
        while due := min(((at, timer) for timer, (at, _) in self.calls.items() if at <= when), default=None, key=first):
            at, timer = due
            self.at = max(self.at, at)
            self.calls.pop(timer)[1]()
            for _ in range(10):
                await asyncio.sleep(0)
        self.at = when


def first(pair: tuple[datetime, object]) -> datetime:
    return pair[0]


class FakeTimer:
    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock

    def cancel(self) -> None:
        self.clock.calls.pop(self, None)


class FakeStore:
    """Holds one run, maybe with others, and counts how often runs are read."""

    def __init__(self) -> None:
        self.row: RunRow | None = None
        self.others: list[RunRow] = []
        self.error: StoreError | None = None
        self.unreadable: dict[int, StoreError] = {}
        self.history: tuple[HistoryBatch, ...] = ()
        self.before_answer: Callable[[], None] = lambda: None
        self.loads_count = 0

    def load_runs(self, runs: list[tuple[int, int]], history_bytes_max: int) -> Awaitable[list[LoadedRun]]:
        self.loads_count += 1
        self.before_answer()
        if self.error is not None:
            raise self.error
        for _, run_key in runs:
            if run_key in self.unreadable:
                raise self.unreadable[run_key]
        rows = [*self.others, *([] if self.row is None else [self.row])]
        keys = {run_key for _, run_key in runs}
        return answered([LoadedRun(row=row, history=self.history) for row in rows if row.run_key in keys])

    def find_due_runs(self, shards: object, until: datetime, limit: int) -> Awaitable[list[Any]]:
        return answered([])


async def answered(value: Any) -> Any:
    return value


class Bench:
    def __init__(self) -> None:
        self.clock = FakeClock()
        self.store: Any = FakeStore()
        self.woken: list[RunEntry] = []
        self.is_later = False
        self.cache = RunCache(self.store, on_unneeded=lambda entry: self.attention.release(entry))
        self.attention = Attention(
            self.store,
            self.clock,
            self.cache,
            peers=Peers(),
            rescan=None,
            wake=self.wake,
            on_stale=self.cache.discard,
        )

    def wake(self, entry: RunEntry) -> bool:
        self.woken.append(entry)
        if self.is_later:
            return False
        entry.state.timers.clear()
        return True

    def sleeper(self, seconds: float) -> RunEntry:
        """A run whose task has ended, with its deadline in ten seconds still armed, and a timer."""
        entry = entry_of(open_row())
        entry.state.workflow_task = None
        self.cache.add(entry)
        self.attention.arm_at(entry, NOW + timedelta(seconds=10))
        due = NOW + timedelta(seconds=seconds)
        entry.state.timers[5] = PendingTimer(timer_id="1", started_event_id=5, due_time=due)
        self.attention.arm(entry)
        return entry


async def test_a_parked_run_leaves_memory_at_the_deadline_of_its_last_task() -> None:
    bench = Bench()
    await bench.attention.start()
    entry = bench.sleeper(3600)
    await bench.clock.go_to(NOW + timedelta(seconds=9))
    assert bench.cache.get(entry.run_key) is entry
    await bench.clock.go_to(NOW + timedelta(seconds=10))
    assert bench.cache.get(entry.run_key) is None
    await bench.clock.go_to(NOW + timedelta(seconds=50))
    assert bench.store.loads_count == 0
    assert not bench.woken


@pytest.mark.parametrize("seconds", [3600.0, 40.0])
async def test_a_run_that_left_memory_is_read_when_something_is_due_and_not_before(seconds: float) -> None:
    bench = Bench()
    await bench.attention.start()
    entry = bench.sleeper(seconds)
    bench.cache.drop_unneeded(entry)
    bench.store.row = open_row()
    await bench.clock.go_to(NOW + timedelta(seconds=39))
    assert bench.store.loads_count == 0
    await bench.clock.go_to(NOW + timedelta(seconds=55))
    assert bench.store.loads_count == (1 if seconds < 60 else 0)


async def test_one_that_came_back_is_woken_at_its_own_deadline() -> None:
    bench = Bench()
    await bench.attention.start()
    bench.cache.drop_unneeded(bench.sleeper(3600))
    entry = bench.sleeper(10)
    await bench.clock.go_to(NOW + timedelta(seconds=10))
    assert bench.woken == [entry]


def sleeping(run_key: int, due: datetime) -> RunRow:
    """The row of a run with a timer."""
    entry = entry_of(open_row())
    entry.state.workflow_task = None
    entry.state.workflow_id = f"w-{run_key}"
    entry.state.timers[5] = PendingTimer(timer_id="1", started_event_id=5, due_time=due)
    return msgspec.structs.replace(open_row(), run_key=run_key, attention_at=due, state=encode_state(entry.state))


def herd(bench: Bench, count: int) -> None:
    """So many runs in the store alone, all due at once."""
    due = NOW + timedelta(seconds=10)
    bench.store.others = [sleeping(run_key, due) for run_key in range(100, 100 + count)]
    for row in bench.store.others:
        bench.attention._push(due, row.run_key, row.shard)


async def test_a_herd_is_read_by_few_calls() -> None:
    bench = Bench()
    await bench.attention.start()
    herd(bench, 3 * LOADED_TOGETHER)
    await bench.clock.go_to(NOW + timedelta(seconds=11))
    assert bench.store.loads_count == 3
    assert sorted(entry.run_key for entry in bench.woken) == [row.run_key for row in bench.store.others]


async def test_a_run_that_cannot_be_read_does_not_hold_up_those_read_with_it() -> None:
    bench = Bench()
    await bench.attention.start()
    herd(bench, 3)
    bench.store.others[1] = msgspec.structs.replace(bench.store.others[1], state=b"no state")
    await bench.clock.go_to(NOW + timedelta(seconds=11))
    assert [entry.run_key for entry in bench.woken] == [100, 102]


@pytest.mark.parametrize("error", [StoreCorrupt("damaged"), StoreError("a value that cannot be taken")])
async def test_a_run_over_which_the_store_fails_does_not_hold_up_those_read_with_it(error: StoreError) -> None:
    """The whole call failed because of one of them, again each second, and none was ever woken."""
    bench = Bench()
    await bench.attention.start()
    herd(bench, 3)
    bench.store.unreadable[101] = error
    await bench.clock.go_to(NOW + timedelta(seconds=10))
    assert [entry.run_key for entry in bench.woken] == [100, 102]


async def test_a_run_whose_history_cannot_be_read_is_woken_all_the_same() -> None:
    """What is due of it may need no history, as its end by a timeout."""
    bench = Bench()
    await bench.attention.start()
    herd(bench, 1)
    bench.store.history = (HistoryBatch(first_event_id=1, last_event_id=4, events=b"no events"),)
    await bench.clock.go_to(NOW + timedelta(seconds=10))
    assert [entry.run_key for entry in bench.woken] == [100]
    assert bench.woken[0].tail_from > 1


async def test_runs_are_read_again_when_the_store_failed() -> None:
    bench = Bench()
    await bench.attention.start()
    herd(bench, 3)
    bench.store.error = StoreUnavailable("away")
    await bench.clock.go_to(NOW + timedelta(seconds=10))
    assert not bench.woken
    bench.store.error = None
    await bench.clock.go_to(NOW + timedelta(seconds=12))
    assert [entry.run_key for entry in bench.woken] == [100, 101, 102]


async def test_a_run_that_left_memory_while_it_was_read_is_read_again() -> None:
    bench = Bench()
    await bench.attention.start()
    herd(bench, 2)
    left = [entry_of(bench.store.others[0])]

    def leave() -> None:
        if left:
            bench.cache.add(left[0])
            bench.cache.discard(left.pop())

    bench.store.before_answer = leave
    await bench.clock.go_to(NOW + timedelta(seconds=11))
    assert bench.store.loads_count == 2
    assert [entry.run_key for entry in bench.woken] == [101, 100]


async def test_what_is_due_soon_is_read_with_what_is_due_and_woken_in_its_time() -> None:
    bench = Bench()
    await bench.attention.start()
    dues = [NOW + timedelta(seconds=10), NOW + timedelta(seconds=10, milliseconds=15), NOW + timedelta(seconds=11)]
    bench.store.others = [sleeping(run_key, due) for run_key, due in enumerate(dues, 100)]
    for row, due in zip(bench.store.others, dues, strict=True):
        bench.attention._push(due, row.run_key, row.shard)
    await bench.clock.go_to(dues[0])
    assert [entry.run_key for entry in bench.woken] == [100]
    assert bench.cache.get(101) is not None
    assert bench.cache.get(102) is None
    await bench.clock.go_to(dues[1])
    assert [entry.run_key for entry in bench.woken] == [100, 101]
    assert bench.store.loads_count == 1
    await bench.clock.go_to(dues[2])
    assert [entry.run_key for entry in bench.woken] == [100, 101, 102]
    assert bench.store.loads_count == 2


async def test_runs_gather_while_others_are_read() -> None:
    bench = Bench()
    await bench.attention.start()
    is_answered = asyncio.Event()
    load_runs = bench.store.load_runs

    async def slowly(runs: Any, history_bytes_max: int) -> Any:
        found = await load_runs(runs, history_bytes_max)
        await is_answered.wait()
        return found

    bench.store.load_runs = slowly
    dues = [NOW + timedelta(seconds=10 + number) for number in range(4)]
    bench.store.others = [sleeping(run_key, due) for run_key, due in enumerate(dues, 100)]
    for row, due in zip(bench.store.others, dues, strict=True):
        bench.attention._push(due, row.run_key, row.shard)
    await bench.clock.go_to(dues[-1])
    assert bench.store.loads_count == 1
    is_answered.set()
    for _ in range(10):
        await asyncio.sleep(0)
    assert bench.store.loads_count == 2
    assert [entry.run_key for entry in bench.woken] == [100, 101, 102, 103]


async def test_a_run_whose_first_event_is_still_being_read_is_not_found_due_again_and_again() -> None:
    """Each turn of the loop found it due, and began another read, until the first was over."""
    bench = Bench()
    await bench.attention.start()
    bench.is_later = True
    entry = bench.sleeper(10)
    await bench.clock.go_to(NOW + timedelta(seconds=12))
    assert bench.woken == [entry]
    bench.is_later = False
    bench.attention.arm(entry)
    await bench.clock.go_to(NOW + timedelta(seconds=13))
    assert bench.woken == [entry, entry]


async def test_failed_wake_ups_of_a_run_do_not_pile_up(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()
    await bench.attention.start()
    herd(bench, 1)

    def wake_in_vain(entry: RunEntry) -> bool:
        """What a decision does whose commit the store refuses: it gave out a task with a deadline of its own."""
        bench.woken.append(entry)
        bench.attention.arm_at(entry, bench.clock.now() + timedelta(seconds=4.5))
        bench.cache.discard(entry)
        bench.attention.arm_again_later(entry.shard, entry.run_key)
        return False

    monkeypatch.setattr(bench.attention, "_wake", wake_in_vain)
    await bench.clock.go_to(NOW + timedelta(seconds=50))
    assert 30 < len(bench.woken) <= 42, "one try a second"
    assert len(bench.attention._heap) <= 7
    monkeypatch.setattr(bench.attention, "_wake", bench.wake)
    tries = len(bench.woken)
    await bench.clock.go_to(NOW + timedelta(seconds=55))
    assert len(bench.woken) > tries, "and when there is room, too"
