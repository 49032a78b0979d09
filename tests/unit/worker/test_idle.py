"""Which cached runs a worker lets go of: sleepers that are quickly replayed, and those nothing has come for."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from clew.model.commands import CancelTimer, Command, StartTimer
from clew.worker._idle import (
    CROWD,
    DROPPED_AT_ONCE_MAX,
    IDLE_SECONDS,
    LATEST_KEPT,
    LOOK_SECONDS,
    SECONDS_PER_EVENT,
    SLEEPER_EVENTS_MAX,
    IdleRuns,
    falls_asleep,
)
from clew.worker._turns import CachedRun

LONG = StartTimer(timer_id="1", start_to_fire_timeout=timedelta(hours=1))
SHORT = StartTimer(timer_id="2", start_to_fire_timeout=timedelta(seconds=59))


@pytest.mark.parametrize(
    ("commands", "position", "expected"),
    [
        ((LONG,), 3, True),
        ((LONG, LONG), SLEEPER_EVENTS_MAX, True),
        ((LONG,), SLEEPER_EVENTS_MAX + 1, False),
        ((LONG, SHORT), 3, False),
        ((CancelTimer(timer_id="1"), LONG), 3, False),
        ((), 3, False),
    ],
)
def test_a_sleeper_asks_for_long_timers_alone(commands: tuple[Command, ...], position: int, expected: bool) -> None:
    assert falls_asleep(commands, position) is expected


class FakeLoop:
    """Time that its test moves, and the one timer there is."""

    def __init__(self) -> None:
        self.now = 1_000.0
        self.due: tuple[float, Callable[[], None]] | None = None

    def time(self) -> float:
        return self.now

    def call_later(self, delay: float, callback: Callable[[], None]) -> FakeLoop:
        assert self.due is None, "one timer at a time"
        self.due = self.now + delay, callback
        return self

    def cancel(self) -> None:
        self.due = None

    def go_on(self) -> None:
        assert self.due is not None, "no timer is armed"
        (self.now, callback), self.due = self.due, None
        callback()


class Bench:
    def __init__(self) -> None:
        self.loop: Any = FakeLoop()
        self.runs: dict[str, CachedRun] = {}
        self.busy: set[str] = set()
        self.idle = IdleRuns(
            self.loop,
            self.runs,
            may_drop=lambda run: run.run_id not in self.busy,
            drop=lambda run: self.runs.pop(run.run_id),
        )

    def add(self, count: int, *, events: int = 3) -> None:
        for _ in range(count):
            run = CachedRun(f"r{len(self.runs)}", "Some")
            run.began_at, run.position = self.loop.now, events
            self.runs[run.run_id] = run
        self.idle.watch()


def test_sleepers_stay_cached_until_there_is_a_crowd_of_runs() -> None:
    bench = Bench()
    bench.add(CROWD)
    assert bench.idle.is_worth_caching((LONG,), 3)
    bench.add(1)
    assert not bench.idle.is_worth_caching((LONG,), 3)
    assert bench.idle.is_worth_caching((SHORT,), 3)


def test_the_latest_few_stay_and_no_timer_runs() -> None:
    bench = Bench()
    bench.add(LATEST_KEPT)
    assert bench.loop.due is None


def test_runs_that_nothing_has_come_for_are_let_go_the_oldest_first() -> None:
    bench = Bench()
    bench.add(LATEST_KEPT + 3)
    bench.busy.add("r1")
    bench.loop.go_on()
    assert len(bench.runs) == LATEST_KEPT + 3, "too soon"
    while bench.loop.due and bench.loop.now < 1_000 + 3 * IDLE_SECONDS:
        bench.loop.go_on()
    assert "r0" not in bench.runs
    assert "r2" not in bench.runs
    assert "r1" in bench.runs, "something of it is under way"
    assert len(bench.runs) == LATEST_KEPT + 1


def test_a_long_history_keeps_its_run_as_long_as_its_replay_is_dear() -> None:
    bench = Bench()
    bench.add(1, events=2_000)
    bench.add(LATEST_KEPT)
    while bench.loop.due:
        assert "r0" in bench.runs
        bench.loop.go_on()
    assert "r0" not in bench.runs
    idle = bench.loop.now - 1_000
    assert 0 <= idle - (IDLE_SECONDS + 2_000 * SECONDS_PER_EVENT) <= LOOK_SECONDS
    assert bench.loop.due is None, "nothing is left to look for"


def test_a_crowd_is_let_go_a_part_at_a_time() -> None:
    bench = Bench()
    bench.add(LATEST_KEPT + 2 * DROPPED_AT_ONCE_MAX)
    seen: list[int] = []
    while bench.loop.due:
        bench.loop.go_on()
        seen.append(len(bench.runs))
    assert LATEST_KEPT + DROPPED_AT_ONCE_MAX in seen
    assert seen[-1] == LATEST_KEPT


def test_nothing_is_looked_for_after_the_end() -> None:
    bench = Bench()
    bench.add(LATEST_KEPT + 1)
    bench.idle.close()
    assert bench.loop.due is None
    bench.idle.watch()
    assert bench.loop.due is None
