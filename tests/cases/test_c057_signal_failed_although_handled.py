"""C057: a signal that was handled is not reported as failed when its delivery has to be repeated."""

from __future__ import annotations

import asyncio
from typing import Any

from clew import workflow
from clew.exceptions import ApplicationError
from clew.model import events as e
from clew.ports.store import StoreUnavailable
from clew.testing import Faults
from tests.cases.conftest import Recorded
from tests.cases.harness import QUEUE, engine, events, settled, within, worker

ROUNDS = 40
"""The case has 100."""
CONCURRENCY = 10


@workflow.defn
class Manager:
    def __init__(self) -> None:
        self.told = 0

    @workflow.run
    async def run(self) -> int:
        await workflow.wait_condition(lambda: self.told > 0)
        return self.told

    @workflow.signal
    def tell(self) -> None:
        self.told += 1


@workflow.defn
class Reports:
    @workflow.run
    async def run(self, manager_id: str) -> str:
        try:
            return "work done"
        finally:
            await workflow.get_external_workflow_handle_for(Manager.run, manager_id).signal(Manager.tell)


async def test_the_sender_sees_success_and_the_manager_one_signal(recorded: Recorded) -> None:
    faults = Faults()
    error = StoreUnavailable("the test lost the answer")
    async with engine(store_faults=faults) as client, worker(client, [Manager, Reports]):
        gate = asyncio.Semaphore(CONCURRENCY)

        async def one(number: int) -> tuple[Any, Any]:
            async with gate:
                manager = await client.start_workflow(Manager.run, id=f"manager-{number}", task_queue=QUEUE)
                # Somewhere among the commits of this round, and of its neighbours.
                faults.lose_answer("commit_if_current", error, after=number % 5)
                sender = await client.start_workflow(Reports.run, manager.id, id=f"sender-{number}", task_queue=QUEUE)
                assert await settled(sender, 30) == "work done"
                assert await settled(manager, 30) == 1
                return sender, manager

        pairs = await within(asyncio.gather(*(one(number) for number in range(ROUNDS))), 90)
        faults.clear()
        for sender, manager in pairs:
            assert len(await events(manager, e.WorkflowExecutionSignaled)) == 1
            assert len(await events(sender, e.ExternalWorkflowExecutionSignaled)) == 1
            assert not await events(sender, e.SignalExternalWorkflowExecutionFailed)
        for sender, _ in pairs[::10]:
            await recorded.add(sender, Reports)


@workflow.defn
class SignalsNobody:
    @workflow.run
    async def run(self, manager_id: str) -> str:
        try:
            await workflow.get_external_workflow_handle_for(Manager.run, manager_id).signal(Manager.tell)
        except ApplicationError as error:
            return f"{error.type}: {error.message}"
        return "delivered"


async def test_a_run_that_had_closed_before_gives_an_error_that_can_be_caught(recorded: Recorded) -> None:
    async with engine() as client, worker(client, [Manager, SignalsNobody]):
        manager = await client.start_workflow(Manager.run, id="manager", task_queue=QUEUE)
        await manager.signal(Manager.tell)
        await settled(manager)
        for number, target in enumerate(("manager", "never-was")):
            sender = await client.start_workflow(SignalsNobody.run, target, id=f"sender-{number}", task_queue=QUEUE)
            answer = await settled(sender)
            assert "NotFound" in answer
            await recorded.add(sender, SignalsNobody)
        assert len(await events(manager, e.WorkflowExecutionSignaled)) == 1
