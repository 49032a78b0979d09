"""Results of activities wait for room in their run's buffer, but not for long."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from clew.core.pending import PendingActivity, PendingWorkflowTask
from clew.engine import held_results
from clew.engine.held_results import EVENTS_MAX, HeldResults
from clew.model.events import ActivityTaskStarted
from clew.model.inputs import TaskToken
from clew.ports.clock import Cancellable, Clock

NOW = datetime(2030, 1, 1, tzinfo=UTC)
LONG = timedelta(minutes=5)
SHORT = timedelta(seconds=1)
TOKEN = TaskToken(
    namespace="default", workflow_id="w", run_id="r", shard=0, run_key=7, scheduled_event_id=5, attempt=1, lease_id=9
)


class FixedClock(Clock):
    """Stands still until it is told."""

    def __init__(self) -> None:
        self.time = NOW

    def now(self) -> datetime:
        return self.time

    def call_at(self, when: datetime, callback: Callable[[], None]) -> Cancellable:
        raise AssertionError("not used here")


def entry(buffered_count: int, *, is_held: bool = True, **activity: Any) -> Any:
    task = PendingWorkflowTask(
        scheduled_event_id=2,
        attempt=1,
        scheduled_time=NOW,
        start_to_close_timeout=timedelta(seconds=10),
        started_event_id=3 if is_held else 0,
    )
    fields: dict[str, Any] = {"start_to_close_timeout": LONG, "started_time": NOW, "lease_id": 9, **activity}
    pending = PendingActivity(
        scheduled_event_id=5, activity_id="a", activity_type="a", task_queue="q", scheduled_time=NOW, **fields
    )
    state = SimpleNamespace(
        buffered_events=["news"] * buffered_count, buffered_bytes=0, workflow_task=task, activities={5: pending},
        is_open=True,
    )  # fmt: skip
    return SimpleNamespace(state=state, run_key=7, is_discarded=False)


def report(held: HeldResults, run: Any, told: list[int], number: int) -> None:
    def go_on() -> None:
        told.append(number)
        run.state.buffered_events += [started(), "outcome"]

    if not held.hold(run, TOKEN, go_on):
        go_on()


def started() -> ActivityTaskStarted:
    return ActivityTaskStarted(event_id=0, event_time=NOW, scheduled_event_id=5)


async def test_a_run_hears_of_as_many_as_it_has_room_for_in_their_order() -> None:
    held, run, told = HeldResults(FixedClock()), entry(0), list[int]()
    for number in range(3 * EVENTS_MAX):
        report(held, run, told, number)
    for times in (1, 2, 3):
        assert told == list(range(times * EVENTS_MAX))
        assert held.held_count == (3 - times) * EVENTS_MAX
        run.state.buffered_events.clear()
        held.note_changed(run)
    assert not held._waiting
    assert not held._timers


@pytest.mark.parametrize(
    "run",
    [
        entry(EVENTS_MAX - 1),
        entry(EVENTS_MAX, is_held=False),
        entry(EVENTS_MAX, start_to_close_timeout=SHORT),
        entry(EVENTS_MAX, schedule_to_close_timeout=SHORT),
        entry(EVENTS_MAX, heartbeat_timeout=SHORT),
        entry(EVENTS_MAX, lease_id=8),
        entry(EVENTS_MAX, started_time=None),
    ],
    ids=["room", "no task is held", "start-to-close", "schedule-to-close", "heartbeat", "another attempt", "not begun"],
)
async def test_nothing_waits_that_need_not_or_must_not(run: Any) -> None:
    held, told = HeldResults(FixedClock()), list[int]()
    report(held, run, told, 1)
    assert told == [1]


@pytest.mark.parametrize("change", ["is_discarded", "is_closed"])
async def test_all_go_on_when_the_run_leaves_memory_or_ends(change: str) -> None:
    held, run, told = HeldResults(FixedClock()), entry(EVENTS_MAX), list[int]()
    for number in range(3):
        report(held, run, told, number)
    assert told == []
    if change == "is_discarded":
        run.is_discarded = True
    else:
        run.state.is_open = False
    held.note_changed(run)
    assert (told, held.held_count) == ([0, 1, 2], 0)


async def test_one_goes_on_at_each_tick_and_those_that_may_wait_no_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held_results, "TICK_SECONDS", 3_600.0)
    clock = FixedClock()
    held, run, told = HeldResults(clock), entry(EVENTS_MAX), list[int]()
    for number in range(6):
        report(held, run, told, number)
    held._tick(7)
    assert told == [0]
    clock.time += held_results.HELD_MAX_TIME / 2
    report(held, run, told, 6)
    held._tick(7)
    assert told == [0, 1]
    clock.time += held_results.HELD_MAX_TIME / 2
    held._tick(7)
    assert (told, held.held_count) == ([0, 1, 2, 3, 4, 5], 1)
    held._tick(7)
    assert (told, held.held_count) == ([0, 1, 2, 3, 4, 5, 6], 0)
    assert not held._timers
    assert not held._waiting


async def test_it_ticks_while_something_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held_results, "TICK_SECONDS", 0.0)
    held, run, told = HeldResults(FixedClock()), entry(EVENTS_MAX), list[int]()
    for number in range(3):
        report(held, run, told, number)
    async with asyncio.timeout(30):
        while len(told) < 3:
            await asyncio.sleep(0)
    assert (told, held.held_count) == ([0, 1, 2], 0)
    assert not held._timers


async def test_all_go_on_when_the_engine_stops() -> None:
    held, run, told = HeldResults(FixedClock()), entry(EVENTS_MAX), list[int]()
    report(held, run, told, 1)
    held.close()
    assert told == [1]
    assert not held._timers
