"""The clocks of the testing kit."""

from __future__ import annotations

import asyncio
import threading
from datetime import UTC, datetime, timedelta

import pytest

from clew.testing._clocks import ManualClock, SkippingClock

START = datetime(2026, 1, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)


async def settle() -> None:
    """Let everything that was handed to the loop run."""
    for _ in range(3):
        await asyncio.sleep(0)


async def test_manual_clock_stands_still_until_told() -> None:
    clock = ManualClock(START)
    view = clock.attach(asyncio.get_running_loop())
    rung: list[str] = []
    view.call_at(START + HOUR, lambda: rung.append("hour"))
    await settle()
    assert view.now() == START
    assert rung == []
    assert clock.advance(HOUR - timedelta(microseconds=1)) < START + HOUR
    await settle()
    assert rung == []
    clock.advance(timedelta(microseconds=1))
    await settle()
    assert rung == ["hour"]


async def test_alarms_ring_in_order_of_their_instants_and_once() -> None:
    clock = ManualClock(START)
    view = clock.attach(asyncio.get_running_loop())
    rung: list[int] = []
    for hours in (3, 1, 2, 1):
        view.call_at(START + hours * HOUR, lambda hours=hours: rung.append(hours))  # type: ignore[misc]
    clock.advance(10 * HOUR)
    clock.advance(HOUR)
    await settle()
    assert rung == [1, 1, 2, 3]


async def test_an_alarm_of_the_past_rings_soon_but_not_inside_the_call() -> None:
    view = ManualClock(START).attach(asyncio.get_running_loop())
    rung: list[bool] = []
    view.call_at(START - HOUR, lambda: rung.append(True))
    assert rung == []
    await settle()
    assert rung == [True]


async def test_a_cancelled_alarm_is_silent() -> None:
    clock = ManualClock(START)
    alarm = clock.attach(asyncio.get_running_loop()).call_at(START + HOUR, lambda: pytest.fail("rang"))
    alarm.cancel()
    clock.advance(2 * HOUR)
    await settle()


async def test_advance_from_another_thread() -> None:
    clock = ManualClock(START)
    rung = asyncio.Event()
    clock.attach(asyncio.get_running_loop()).call_at(START + HOUR, rung.set)
    thread = threading.Thread(target=clock.advance, args=(HOUR,))
    thread.start()
    await asyncio.wait_for(rung.wait(), 5)
    thread.join()


def test_manual_clock_refuses_to_go_back_and_naive_starts() -> None:
    with pytest.raises(ValueError, match="never goes back"):
        ManualClock(START).advance(-HOUR)
    with pytest.raises(ValueError, match="aware"):
        ManualClock(datetime(2026, 1, 1))


async def test_skipping_clock_runs_and_jumps() -> None:
    clock = SkippingClock(START)
    view = clock.attach(asyncio.get_running_loop())
    soon, later = asyncio.Event(), asyncio.Event()
    view.call_at(view.now() + timedelta(milliseconds=10), soon.set)
    view.call_at(START + 365 * 24 * HOUR, later.set)
    await asyncio.wait_for(soon.wait(), 5)
    assert not later.is_set()
    assert view.now() < START + HOUR
    clock.skip_to(START + 365 * 24 * HOUR)
    await asyncio.wait_for(later.wait(), 5)
    before = view.now()
    clock.skip_to(START)
    assert view.now() >= before
