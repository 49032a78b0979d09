"""News of children wait for room in their parent's buffer."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from clew.core.pending import PendingWorkflowTask
from clew.engine import room as room_module
from clew.engine.room import EVENTS_MAX, Room

NOW = datetime(2030, 1, 1, tzinfo=UTC)


def entry(buffered_count: int, *, is_held: bool = True) -> Any:
    task = PendingWorkflowTask(
        scheduled_event_id=2,
        attempt=1,
        scheduled_time=NOW,
        start_to_close_timeout=timedelta(seconds=10),
        started_event_id=3 if is_held else 0,
    )
    state = SimpleNamespace(buffered_events=[None] * buffered_count, buffered_bytes=0, workflow_task=task)
    return SimpleNamespace(state=state, run_key=7, is_discarded=False)


class Crowd:
    """Waits for room many times over, and tells the run something as soon as there is."""

    def __init__(self, room: Room, run: Any, count: int) -> None:
        self.told_count = 0
        self.tasks = [asyncio.ensure_future(self._tell(room, run)) for _ in range(count)]

    async def _tell(self, room: Room, run: Any) -> None:
        await room.wait(run, lambda: None)
        run.state.buffered_events.append(None)
        self.told_count += 1


async def turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_a_run_is_told_as_much_as_it_has_room_for_task_by_task() -> None:
    room, run = Room(), entry(0)
    crowd = Crowd(room, run, 3 * EVENTS_MAX)
    for number in (1, 2, 3):
        await turns()
        assert crowd.told_count == number * EVENTS_MAX
        assert room.waiting_count == (3 - number) * EVENTS_MAX
        run.state.buffered_events.clear()
        room.note_changed(run)
    await asyncio.gather(*crowd.tasks)
    assert not room._queues


@pytest.mark.parametrize("run", [entry(EVENTS_MAX - 1), entry(EVENTS_MAX, is_held=False)])
async def test_nobody_waits_while_there_is_room_or_nothing_is_buffered(run: Any) -> None:
    room, waited = Room(), list[int]()
    await room.wait(run, lambda: waited.append(1))
    assert not waited


async def test_all_go_on_when_the_run_leaves_memory() -> None:
    room, run = Room(), entry(EVENTS_MAX)
    crowd = Crowd(room, run, 3)
    await turns()
    assert crowd.told_count == 0
    run.is_discarded = True
    room.note_changed(run)
    await asyncio.gather(*crowd.tasks)
    assert (crowd.told_count, room.waiting_count) == (3, 0)


async def test_one_at_a_time_finds_out_about_a_run_that_nobody_hears_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room_module, "PROBE_SECONDS", 0.01)
    room, run = Room(), entry(EVENTS_MAX)
    crowd = Crowd(room, run, 3)
    async with asyncio.timeout(30):
        await asyncio.gather(*crowd.tasks)
    assert not room._queues


async def test_who_gives_up_waiting_takes_nobodys_place() -> None:
    room, run = Room(), entry(EVENTS_MAX)
    crowd = Crowd(room, run, 2)
    await turns()
    crowd.tasks[0].cancel()
    await turns()
    run.state.buffered_events.pop()
    room.note_changed(run)
    async with asyncio.timeout(30):
        await crowd.tasks[1]
    assert crowd.told_count == 1
