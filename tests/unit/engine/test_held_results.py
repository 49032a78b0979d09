"""Results of activities wait for room in their run's buffer, but not for long."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from clew.core.pending import PendingActivity, PendingWorkflowTask
from clew.engine import held_results
from clew.engine.held_results import EVENTS_MAX, HeldResults
from clew.model.events import ActivityTaskStarted
from clew.model.inputs import TaskToken

NOW = datetime(2030, 1, 1, tzinfo=UTC)
LONG = timedelta(minutes=5)
SHORT = timedelta(seconds=1)
TOKEN = TaskToken(
    namespace="default", workflow_id="w", run_id="r", shard=0, run_key=7, scheduled_event_id=5, attempt=1, lease_id=9
)


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

    if not held.hold(run, TOKEN, NOW, go_on):
        go_on()


def started() -> ActivityTaskStarted:
    return ActivityTaskStarted(event_id=0, event_time=NOW, scheduled_event_id=5)


async def test_a_run_hears_of_as_many_as_it_has_room_for_in_their_order() -> None:
    held, run, told = HeldResults(), entry(0), list[int]()
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
    held, told = HeldResults(), list[int]()
    report(held, run, told, 1)
    assert told == [1]


@pytest.mark.parametrize("change", ["is_discarded", "is_closed"])
async def test_all_go_on_when_the_run_leaves_memory_or_ends(change: str) -> None:
    held, run, told = HeldResults(), entry(EVENTS_MAX), list[int]()
    for number in range(3):
        report(held, run, told, number)
    assert told == []
    if change == "is_discarded":
        run.is_discarded = True
    else:
        run.state.is_open = False
    held.note_changed(run)
    assert (told, held.held_count) == ([0, 1, 2], 0)


async def test_all_go_on_in_any_case_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held_results, "HELD_SECONDS_MAX", 0.0)
    held, run, told = HeldResults(), entry(EVENTS_MAX), list[int]()
    for number in range(3):
        report(held, run, told, number)
    async with asyncio.timeout(30):
        while not told:
            await asyncio.sleep(0)
    assert (told, held.held_count) == ([0, 1, 2], 0)
    assert not held._waiting


async def test_all_go_on_when_the_engine_stops() -> None:
    held, run, told = HeldResults(), entry(EVENTS_MAX), list[int]()
    report(held, run, told, 1)
    held.close()
    assert told == [1]
    assert not held._timers
