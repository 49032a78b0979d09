"""The system's clock and entropy behind their ports."""

from __future__ import annotations

import asyncio
import os
import threading
import uuid
from datetime import UTC, datetime, timedelta

import pytest

from clew.adapters import SystemClock, SystemEntropy, new_request_id, to_ns

START = datetime(2024, 3, 1, 12, 0, tzinfo=UTC)


async def test_now_follows_a_wall_clock_that_goes_forward() -> None:
    wall = [START]
    clock = SystemClock(asyncio.get_running_loop(), wall=lambda: wall[0])
    wall[0] = START + timedelta(hours=1)
    assert clock.now() == START + timedelta(hours=1)


async def test_now_never_goes_back_but_goes_on() -> None:
    wall = [START]
    clock = SystemClock(asyncio.get_running_loop(), wall=lambda: wall[0])
    wall[0] = START - timedelta(hours=1)
    first = clock.now()
    assert first >= START
    await asyncio.sleep(0.02)
    later = clock.now()
    assert timedelta(0) < later - first < timedelta(seconds=1)
    wall[0] = START + timedelta(hours=1)
    assert clock.now() == wall[0]


async def test_an_alarm_goes_off_once_and_never_early() -> None:
    clock = SystemClock(asyncio.get_running_loop())
    due = clock.now() + timedelta(milliseconds=15)
    rang: asyncio.Future[datetime] = asyncio.get_running_loop().create_future()
    clock.call_at(due, lambda: rang.set_result(clock.now()))
    assert await asyncio.wait_for(rang, 10) >= due


async def test_a_cancelled_alarm_stays_silent() -> None:
    clock = SystemClock(asyncio.get_running_loop())
    rang: list[str] = []
    alarm = clock.call_at(clock.now() + timedelta(milliseconds=5), lambda: rang.append("cancelled"))
    alarm.cancel()
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    clock.call_at(clock.now() + timedelta(milliseconds=20), lambda: done.set_result(None))
    await asyncio.wait_for(done, 10)
    assert rang == []


def test_uuid7_is_well_formed_unique_and_grows() -> None:
    entropy = SystemEntropy()
    texts = [entropy.uuid7() for _ in range(20_000)]
    assert texts == sorted(set(texts))
    parsed = uuid.UUID(texts[0])
    assert parsed.version == 7
    assert parsed.variant == uuid.RFC_4122
    assert str(parsed) == texts[0]


def test_token_has_the_size_asked_for() -> None:
    assert len(SystemEntropy().token(32)) == 32


def test_to_ns_is_exact_to_the_microsecond() -> None:
    assert to_ns(datetime(1970, 1, 1, 0, 0, 1, 1, tzinfo=UTC)) == 1_000_001_000


def test_request_ids_are_random_uuids_and_differ() -> None:
    found = {new_request_id() for _ in range(1_000)}
    assert len(found) == 1_000
    assert all(uuid.UUID(one).version == 4 for one in found)


def test_threads_draw_different_ids() -> None:
    found: list[str] = []
    threads = [threading.Thread(target=lambda: found.extend(new_request_id() for _ in range(300))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(found)) == 1_200


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_draws_other_ids_than_its_parent() -> None:
    new_request_id()
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writer, new_request_id().encode())
        os._exit(0)
    os.waitpid(child, 0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        assert pipe.read() != new_request_id()
