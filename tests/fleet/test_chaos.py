"""Seeded trouble on a fleet: nodes are killed, paused and added, hints get lost, and no law is broken.

Every run gets numbered signals, each through any node and again until it is acknowledged. For each signal its code runs
an activity; it also waits for a timer. The worker replays nothing: it reads the events that it is given, as a worker
that has the run cached does.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
from collections import Counter
from datetime import timedelta
from typing import Any

import pytest

from clew.model.commands import Command, CompleteWorkflowExecution, ScheduleActivityTask, StartTimer
from clew.model.events import Event, WorkflowTaskFailedCause
from clew.model.policies import WorkflowExecutionStatus
from clew.service import requests as r
from clew.service.errors import RPCError
from tests.conformance.service.scripted import ScriptedWorker, payloads
from tests.fleet.notifiers import Exchange
from tests.fleet.shop import LEASE, FleetShop, Node

RUNS = 12
SIGNALS = 5
MINUTE = timedelta(minutes=1)


class Coder(ScriptedWorker):
    """A worker that runs the one workflow of this test by itself, until its node is killed."""

    def __init__(self, node: Node, faults: random.Random) -> None:
        super().__init__(node.engine)
        self.node = node
        self.faults = faults
        self.known: dict[str, list[Event]] = {}
        self.loops = [asyncio.ensure_future(self._flows()), asyncio.ensure_future(self._hands())]

    async def _flows(self) -> None:
        while True:
            task = await self.workflow_tasks.get()
            first = task.previous_started_event_id + 1 if task.is_partial else 1
            ids = [event.event_id for event in task.events]
            assert ids == list(range(first, task.started_event_id + 1)), f"a task from {first} on has events {ids}"
            known = self.known.get(task.token.run_id, [])
            events = self.known[task.token.run_id] = [*known[: first - 1], *task.events]
            # What it knew is another's past when the answer to an earlier task never came back.
            is_whole = [event.event_id for event in events] == list(range(1, len(events) + 1))
            with contextlib.suppress(RPCError):
                if is_whole:
                    await self.service.complete_workflow_task(
                        r.CompleteWorkflowTaskRequest(token=task.token, commands=commands_of(events), is_sticky=True)
                    )
                else:
                    await self.service.fail_workflow_task(
                        r.FailWorkflowTaskRequest(
                            token=task.token, cause=WorkflowTaskFailedCause.RESET_STICKY_TASK_QUEUE
                        )
                    )
            assert self.session is not None
            self.session.grant(workflow_tasks=1)

    async def _hands(self) -> None:
        while True:
            attempt = await self.activity_tasks.get()
            if self.faults.random() < 0.1:
                self.loops.append(asyncio.ensure_future(self._finish(attempt, late=True)))
            else:
                await self._finish(attempt)

    async def _finish(self, attempt: r.ActivityTask, *, late: bool = False) -> None:
        if late:
            await asyncio.sleep(0.1)
        with contextlib.suppress(RPCError):
            await self.service.complete_activity(
                r.CompleteActivityRequest(token=attempt.token, result=payloads(attempt.activity_id))
            )
        assert self.session is not None
        self.session.grant(activity_tasks=1)

    def end(self) -> None:
        """Do no more; tells what went wrong in what was done."""
        for loop in self.loops:
            if loop.done() and not loop.cancelled():
                loop.result()
            loop.cancel()


def commands_of(events: list[Event]) -> tuple[Command, ...]:
    """What the code wants after these events."""
    count = Counter(type(event).__name__ for event in events)
    commands: list[Command] = []
    if not count["TimerStarted"]:
        commands.append(StartTimer(timer_id="1", start_to_fire_timeout=timedelta(seconds=7)))
    for number in range(count["ActivityTaskScheduled"], count["WorkflowExecutionSignaled"]):
        commands.append(
            ScheduleActivityTask(activity_id=f"a-{number}", activity_type="a", start_to_close_timeout=MINUTE)
        )
    if count["ActivityTaskCompleted"] == SIGNALS and count["TimerFired"]:
        commands.append(CompleteWorkflowExecution())
    return tuple(commands)


async def insist(shop: FleetShop, call: Any, chance: random.Random) -> None:
    """Make the call through one node after the other, until one acknowledges it."""
    while True:
        node = chance.choice(shop.up())
        try:
            await asyncio.wait_for(call(node), 1.0)
        except TimeoutError:
            continue
        except RPCError as error:
            if not error.is_retryable:
                raise
        else:
            return


async def one_run(shop: FleetShop, number: int, chance: random.Random) -> None:
    workflow_id = f"w{number}"
    start = r.StartWorkflowRequest(
        namespace="default", workflow_id=workflow_id, workflow_type="W", task_queue="q", request_id=workflow_id
    )
    await insist(shop, lambda node: node.engine.start_workflow(start), chance)
    for position in range(SIGNALS):
        await asyncio.sleep(chance.random() * 0.2)
        signal = r.SignalWorkflowRequest(
            namespace="default", workflow_id=workflow_id, signal_name=f"s{position}", request_id=f"{number}-{position}"
        )
        await insist(shop, lambda node, signal=signal: node.engine.signal_workflow(signal), chance)


async def trouble(shop: FleetShop, coders: list[Coder], chance: random.Random) -> None:
    """Something goes wrong every now and then."""
    for _ in range(6):
        await asyncio.sleep(0.15)
        shop.exchange.is_lossy = chance.random() < 0.4
        victim = chance.choice(shop.up())
        if chance.random() < 0.5:
            victim.pause()
            paused_until = shop.clock.now() + LEASE * chance.choice([0.5, 2.5])
            await shop.until(lambda until=paused_until: shop.clock.now() > until, seconds=60)  # type: ignore[misc]
            victim.go_on()
        else:
            newcomer = await shop.add_node()
            coders.append(await coder_at(newcomer, chance))
            victim.kill()
            for coder in coders:
                if coder.node is victim:
                    coder.end()
    shop.exchange.is_lossy = False


async def coder_at(node: Node, chance: random.Random) -> Coder:
    coder = Coder(node, chance)
    await coder.attach()
    return coder


async def tick(shop: FleetShop) -> None:
    while True:
        shop.advance(0.1)
        await asyncio.sleep(0.004)


@pytest.mark.parametrize("seed", range(int(os.environ.get("CLEW_FLEET_SEEDS", "3"))))
async def test_no_law_is_broken_when_nodes_come_and_go(seed: int) -> None:
    chance = random.Random(seed)
    shop = FleetShop(exchange=Exchange())
    await shop.open()
    coders = [await coder_at(node, chance) for node in shop.nodes]
    ticking = asyncio.ensure_future(tick(shop))
    try:
        bad_luck = asyncio.ensure_future(trouble(shop, coders, chance))
        await asyncio.gather(*[one_run(shop, number, chance) for number in range(RUNS)])
        await bad_luck
        for number in range(RUNS):
            workflow_id = f"w{number}"

            async def closed(workflow_id: str = workflow_id) -> None:
                while (await shop.describe(workflow_id)).info.status is WorkflowExecutionStatus.RUNNING:
                    await asyncio.sleep(0.02)

            await asyncio.wait_for(closed(), 60)
            history = await shop.history(workflow_id)
            assert [event.event_id for event in history] == list(range(1, len(history) + 1))
            signals = [event.signal_name for event in history if type(event).__name__ == "WorkflowExecutionSignaled"]
            assert sorted(signals) == [f"s{position}" for position in range(SIGNALS)], f"seed {seed}"
            count = Counter(type(event).__name__ for event in history)
            assert count["ActivityTaskCompleted"] == count["ActivityTaskScheduled"] == SIGNALS
            assert (count["TimerFired"], count["WorkflowExecutionCompleted"]) == (1, 1)
            fired = next(event for event in history if type(event).__name__ == "TimerFired")
            started = next(event for event in history if type(event).__name__ == "TimerStarted")
            assert fired.event_time - started.event_time >= timedelta(seconds=7)
    finally:
        ticking.cancel()
        for coder in coders:
            coder.end()
        await shop.close()
