"""Faults around a port."""

from __future__ import annotations

import asyncio

import pytest

from clew.testing import Faults


class Port:
    shard_count = 7

    def __init__(self) -> None:
        self.done: list[int] = []

    async def put(self, value: int) -> int:
        self.done.append(value)
        return value


BROKEN = RuntimeError("broken")


async def test_passes_through_when_nothing_is_armed() -> None:
    faults = Faults()
    port = faults.wrap(Port())
    assert await port.put(1) == 1
    assert port.shard_count == 7
    assert faults.calls == {"put": 1}


async def test_fails_the_calls_it_was_told_to_and_does_nothing_of_them() -> None:
    faults, port = Faults(), Port()
    faults.fail("put", BROKEN, times=2, after=1)
    wrapped = faults.wrap(port)
    outcomes = await asyncio.gather(*(wrapped.put(n) for n in range(4)), return_exceptions=True)
    assert outcomes == [0, BROKEN, BROKEN, 3]
    assert port.done == [0, 3]


async def test_a_lost_answer_was_done() -> None:
    faults, port = Faults(), Port()
    faults.lose_answer("put", BROKEN)
    with pytest.raises(RuntimeError):
        await faults.wrap(port).put(1)
    assert port.done == [1]


async def test_a_hold_keeps_calls_until_released() -> None:
    faults, port = Faults(), Port()
    hold = faults.hold("put")
    call = asyncio.ensure_future(faults.wrap(port).put(1))
    while hold.held_count == 0:
        await asyncio.sleep(0)
    assert port.done == []
    hold.release()
    assert await asyncio.wait_for(call, 5) == 1
    assert await faults.wrap(port).put(2) == 2


async def test_clear_releases_and_disarms() -> None:
    faults, port = Faults(), Port()
    faults.hold("put", times=1)
    faults.fail("put", BROKEN, times=None)
    call = asyncio.ensure_future(faults.wrap(port).put(1))
    await asyncio.sleep(0)
    faults.clear()
    assert await asyncio.wait_for(call, 5) == 1
    assert await faults.wrap(port).put(2) == 2


async def test_runs_an_action_after_the_call_and_before_its_answer() -> None:
    faults, port = Faults(), Port()
    seen: list[list[int]] = []
    faults.run_after("put", lambda: seen.append(list(port.done)))
    assert await faults.wrap(port).put(1) == 1
    assert seen == [[1]]
