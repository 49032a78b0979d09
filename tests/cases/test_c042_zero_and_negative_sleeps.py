"""C042: zero, negative and tiny sleeps follow one rule, live and on replay."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

from clew import workflow
from clew.model import events as e
from tests.cases.harness import QUEUE, engine, events, replay_check, replay_outcomes, settled, worker


@workflow.defn
class Sleeps:
    """Answers whether time stood still where it should, and how many of the sleeps were not over before they began."""

    @workflow.run
    async def run(self, offsets: list[float]) -> tuple[list[bool], int]:
        began = workflow.now()
        constant = []
        ahead = 0
        for offset in offsets:
            due = began + timedelta(seconds=offset)
            before = workflow.now()
            constant.append(before == workflow.now())
            ahead += due > workflow.now()
            await workflow.sleep(due - workflow.now())
        await workflow.sleep(0)
        await workflow.sleep(-1)
        await workflow.sleep(1e-7)
        await asyncio.sleep(0)
        await asyncio.sleep(-1)
        never: asyncio.Future[None] = asyncio.Future()
        try:
            await asyncio.wait_for(never, 0)
        except TimeoutError:
            constant.append(True)
        return constant, ahead


@workflow.defn(name="Changed")
class Zero:
    @workflow.run
    async def run(self) -> None:
        await workflow.sleep(0)


@workflow.defn(name="Changed")
class Five:
    @workflow.run
    async def run(self) -> None:
        await workflow.sleep(5)


async def test_the_rule_holds_live_and_on_replay() -> None:
    others = []
    async with engine() as client:
        for cache in (100, 0):
            async with worker(client, [Sleeps], cache=cache):
                handle = await client.start_workflow(
                    Sleeps.run, [-5.0, 0.0, 0.05, -1.0, 0.1], id=f"sleeps-{cache}", task_queue=QUEUE
                )
                constant, ahead = await settled(handle)
                assert all(constant)
                await replay_check(handle, Sleeps)
            found: list[Any] = await events(handle, e.TimerStarted)
            # On a slow machine the moment to wait for may have passed when its turn comes.
            others.append(len(found) - ahead)
        assert others[0] == others[1]


async def test_a_changed_duration_is_named_when_it_adds_an_event() -> None:
    async with engine() as client:
        async with worker(client, [Zero]):
            handle = await client.start_workflow("Changed", id="changed", task_queue=QUEUE)
            assert await settled(handle) is None
        has_timer = bool(await events(handle, e.TimerStarted))
        (outcome,) = await asyncio.to_thread(replay_outcomes, [(await handle.fetch_history(), [Five])])
        if has_timer:
            assert outcome == "ok"
        else:
            assert outcome.startswith("NondeterminismError")
            assert "timer was added" in outcome
