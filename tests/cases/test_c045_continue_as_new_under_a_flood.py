"""C045: continue-as-new under a flood of signals."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from clew import activity, workflow
from clew.client import Client, WorkflowHandle
from clew.model import events as e
from tests.cases.conftest import Recorded
from tests.cases.harness import ACTIVITY, QUEUE, engine, events, settled, within, worker

SIGNALS = 500
CLIENTS = 4
EACH_RUN = 10
SIGNALS_OF_A_RUN_MAX = 150
SECONDS_BETWEEN = 0.002
SECONDS_OF_WORK = 0.002
"""A tenth of the case's, so that the whole takes seconds; signals still come faster than they are worked off."""


@activity.defn
async def work(number: int) -> int:
    await asyncio.sleep(SECONDS_OF_WORK)
    return number


@workflow.defn
class Drains:
    @workflow.init
    def __init__(self, has_timer: bool, total: list[int], left: list[int]) -> None:
        self.left = left

    @workflow.run
    async def run(self, has_timer: bool, total: list[int], left: list[int]) -> list[int]:
        for _ in range(EACH_RUN):
            await workflow.wait_condition(lambda: bool(self.left))
            number = self.left.pop(0)
            if number == 0:
                return total
            total.append(await workflow.execute_activity(work, number, **ACTIVITY))
        if has_timer:
            await workflow.sleep(0)
            await asyncio.sleep(0.001)
        return workflow.continue_as_new(args=[has_timer, total, self.left])

    @workflow.signal
    def add(self, number: int) -> None:
        self.left.append(number)


async def _send(client: Client, numbers: range) -> None:
    handle: WorkflowHandle[Any, Any] = client.get_workflow_handle("flood")
    for number in numbers:
        await handle.signal(Drains.add, number)
        await asyncio.sleep(SECONDS_BETWEEN)


@pytest.mark.parametrize("has_timer", [False, True], ids=["plain", "with-a-timer-before"])
async def test_no_signal_is_lost_and_the_chain_moves_on(has_timer: bool, recorded: Recorded) -> None:
    async with engine() as client, worker(client, [Drains], [work]):
        handle = await client.start_workflow(Drains.run, args=[has_timer, [], []], id="flood", task_queue=QUEUE)
        # None of them is told "not found" while the chain lives.
        await within(
            asyncio.gather(*(_send(client, range(first, SIGNALS + 1, CLIENTS)) for first in range(1, CLIENTS + 1))), 60
        )
        await client.get_workflow_handle("flood").signal("add", 0)
        total = await settled(handle, 60)
        assert sorted(total) == list(range(1, SIGNALS + 1))
        runs = [run.run_id async for run in client.list_workflows("WorkflowId = 'flood'")]
        assert len(runs) >= SIGNALS // EACH_RUN
        for run_id in runs:
            one = client.get_workflow_handle("flood", run_id=run_id)
            assert len(await events(one, e.WorkflowExecutionSignaled)) <= SIGNALS_OF_A_RUN_MAX
        for run_id in runs[:: len(runs) // 5]:
            await recorded.add(client.get_workflow_handle("flood", run_id=run_id), Drains)
