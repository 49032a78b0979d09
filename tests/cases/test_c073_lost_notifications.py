"""C073: notifications that were lost, or whose connection is half dead.

A client at one node, the worker at another; the connections that wait for notifications are cut again and again, also
right between a start and its task. Nothing waits longer than the documented bound of a lost hint (docs/explanation/
fleet.md), and after the cuts notifications arrive again. A connection that stays open and says nothing is in
``tests/postgres/test_notifier.py``, a fleet without any notification in ``tests/fleet/test_nodes.py``.
"""

from __future__ import annotations

import asyncio
import time

from clew import workflow
from clew.client import Client
from tests.cases.harness import QUEUE, worker
from tests.cases.two_nodes import cut_listeners, two_nodes

RUNS = 8
DELAY_SECONDS_MAX = 15.0
"""The bound is 5 s; the rest is for a machine that has other things to do."""


@workflow.defn
class Waits:
    def __init__(self) -> None:
        self.word = ""

    @workflow.run
    async def run(self) -> str:
        await workflow.wait_condition(lambda: bool(self.word))
        return self.word

    @workflow.signal
    def say(self, word: str) -> None:
        self.word = word


async def test_no_delay_is_longer_than_the_bound() -> None:
    async with two_nodes() as (dsn, near, far), worker(far, [Waits]):
        cut = 0
        for n in range(RUNS):
            began = time.monotonic()
            cut += await cut_listeners(dsn)
            handle = await near.start_workflow(Waits.run, id=f"w{n}", task_queue=QUEUE)
            await cut_listeners(dsn)
            await handle.signal(Waits.say, "on")
            async with asyncio.timeout(2 * DELAY_SECONDS_MAX):
                assert await handle.result() == "on"
            assert time.monotonic() - began < DELAY_SECONDS_MAX
        assert cut, "there was something to cut"
        await _hear_again(near)


async def _hear_again(near: Client) -> None:
    """After the last cut hints arrive again: a run takes no look-behind."""
    for attempt in range(20):
        began = time.monotonic()
        handle = await near.start_workflow(Waits.run, id=f"after{attempt}", task_queue=QUEUE)
        await handle.signal(Waits.say, "on")
        async with asyncio.timeout(DELAY_SECONDS_MAX):
            assert await handle.result() == "on"
        if time.monotonic() - began < 1.0:
            return
    raise AssertionError("every run after the cuts had to wait to be looked for")
