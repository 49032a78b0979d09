"""Attention: runs that left memory are read again only when something is due."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from clew.core.pending import PendingTimer
from clew.engine.attention import Attention
from clew.engine.peers import Peers
from clew.engine.runs import RunCache, RunEntry
from clew.ports.store import RunRow
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
    """Holds one run, and counts how often it is read."""

    def __init__(self) -> None:
        self.row: RunRow | None = None
        self.loads_count = 0

    def load_run(self, shard: int, run_key: int) -> Awaitable[RunRow | None]:
        self.loads_count += 1
        return answered(self.row)

    def find_due_runs(self, shards: object, until: datetime, limit: int) -> Awaitable[list[Any]]:
        return answered([])


async def answered(value: Any) -> Any:
    return value


class Bench:
    def __init__(self) -> None:
        self.clock = FakeClock()
        self.store: Any = FakeStore()
        self.woken: list[RunEntry] = []
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

    def wake(self, entry: RunEntry) -> None:
        self.woken.append(entry)
        entry.state.timers.clear()

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
