"""The store's time as a node reads it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from clew.engine.node_clock import NodeClock

T0 = datetime(2026, 5, 1, tzinfo=UTC)
SECOND = timedelta(seconds=1)


class OwnClock:
    """Stands where the test puts it."""

    def __init__(self) -> None:
        self.at = T0
        self.alarms: list[tuple[datetime, Callable[[], None]]] = []

    def now(self) -> datetime:
        return self.at

    def call_at(self, when: datetime, callback: Callable[[], None]) -> OwnClock:
        self.alarms.append((when, callback))
        return self

    def cancel(self) -> None:
        self.alarms.clear()

    def ring(self) -> None:
        due, self.alarms = self.alarms, []
        for when, callback in due:
            if when <= self.at:
                callback()
            else:
                self.alarms.append((when, callback))


def test_the_difference_is_measured_to_half_the_time_of_the_call() -> None:
    own = OwnClock()
    clock = NodeClock(own)
    asked_at = clock.own_now()
    own.at += SECOND
    clock.learn(asked_at, T0 + 7 * SECOND)
    assert clock.offset == 6.5 * SECOND
    assert clock.now() == own.at + 6.5 * SECOND


def test_a_difference_within_what_can_be_measured_changes_nothing() -> None:
    own = OwnClock()
    clock = NodeClock(own)
    asked_at = clock.own_now()
    own.at += SECOND
    clock.learn(asked_at, T0 + 0.9 * SECOND)
    assert clock.offset == timedelta(0)


def test_time_never_goes_back() -> None:
    own = OwnClock()
    clock = NodeClock(own)
    clock.learn(own.at, T0 + 10 * SECOND)
    before = clock.now()
    clock.learn(own.at, T0)
    assert clock.now() == before
    own.at += 11 * SECOND
    assert clock.now() == T0 + 11 * SECOND


def test_an_alarm_rings_by_the_stores_time_and_never_early() -> None:
    own = OwnClock()
    clock = NodeClock(own)
    clock.learn(own.at, T0 + 10 * SECOND)
    rung: list[datetime] = []
    clock.call_at(T0 + 12 * SECOND, lambda: rung.append(clock.now()))
    clock.learn(own.at, T0 + 9 * SECOND)
    own.at += 2 * SECOND
    own.ring()
    assert rung == [], "by now the store's clock is known to be behind what it was"
    own.at += SECOND
    own.ring()
    assert rung == [T0 + 12 * SECOND]


def test_an_alarm_that_is_taken_back_does_not_ring() -> None:
    own = OwnClock()
    rung: list[int] = []
    alarm = NodeClock(own).call_at(T0 + SECOND, lambda: rung.append(1))
    alarm.cancel()
    own.at += 2 * SECOND
    own.ring()
    assert rung == []
