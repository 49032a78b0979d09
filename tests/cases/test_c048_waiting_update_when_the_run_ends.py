"""C048: whoever waits for an update hears of the end of its run, and whether the update had been accepted."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from clew import workflow
from clew.client import Client, RPCError, WorkflowUpdateFailedError, WorkflowUpdateStage
from clew.exceptions import ApplicationError
from clew.model.rejection import RejectionCode
from tests.cases.conftest import Recorded
from tests.cases.harness import QUEUE, engine, eventually, parked, service_faults, settled, within, worker

SECONDS_MAX = 2.0
ENDINGS = ["completes", "fails", "is terminated", "times out", "continues as new"]


@workflow.defn
class Ends:
    @workflow.init
    def __init__(self, runs_before: int) -> None:
        self.runs_before = runs_before
        self.ending = ""

    @workflow.run
    async def run(self, runs_before: int) -> str:
        await workflow.wait_condition(lambda: self.ending != "")
        if self.ending == "fails":
            raise ApplicationError("as told")
        if self.ending == "continues as new":
            workflow.continue_as_new(runs_before + 1)
        return "done"

    @workflow.signal
    def end(self, how: str) -> None:
        self.ending = how

    @workflow.update(unfinished_policy=workflow.HandlerUnfinishedPolicy.ABANDON)
    async def waits(self) -> None:
        await workflow.wait_condition(lambda: False)

    @workflow.update
    def which(self) -> int:
        return self.runs_before


async def _start(client: Client, ending: str) -> Any:
    timeout = timedelta(seconds=1) if ending == "times out" else None
    return await client.start_workflow(Ends.run, 0, id="ends", task_queue=QUEUE, run_timeout=timeout)


async def _end(handle: Any, ending: str) -> None:
    if ending == "is terminated":
        await handle.terminate("as told")
    elif ending != "times out":
        await handle.signal(Ends.end, ending)


@pytest.mark.parametrize("ending", ENDINGS)
async def test_an_accepted_update_ends_with_its_run(ending: str, recorded: Recorded) -> None:
    async with engine() as client, worker(client, [Ends]):
        handle = await _start(client, ending)
        update = await within(handle.start_update(Ends.waits, wait_for_stage=WorkflowUpdateStage.ACCEPTED))
        waiter = asyncio.create_task(update.result())
        await _end(handle, ending)
        with pytest.raises(WorkflowUpdateFailedError) as caught:
            await within(waiter, SECONDS_MAX)
        assert isinstance(caught.value.cause, ApplicationError)
        assert caught.value.cause.type == "AcceptedUpdateCompletedWorkflow"
        assert "accepted" in str(caught.value.cause)
        # Asked again, it is the same answer.
        again = handle.get_update_handle(update.id, workflow_run_id=update.workflow_run_id)
        with pytest.raises(WorkflowUpdateFailedError):
            await within(again.result(), SECONDS_MAX)
        await recorded.add(client.get_workflow_handle("ends", run_id=handle.result_run_id), Ends)


@pytest.mark.parametrize("ending", ["completes", "fails", "continues as new"])
async def test_an_update_that_comes_while_the_run_is_ending(ending: str, recorded: Recorded) -> None:
    """It was sent and not accepted: the answer of the last workflow task was on its way."""
    async with engine() as client:
        faults = service_faults(client)
        async with worker(client, [Ends]):
            handle = await _start(client, ending)
            await parked(handle)
            hold = faults.hold("complete_workflow_task", times=1)
            await _end(handle, ending)
            await eventually(lambda: hold.held_count, "the run is about to end")
            waiter = asyncio.create_task(handle.execute_update(Ends.which))
            await eventually(lambda: _has_update(handle), "the update is admitted")
            hold.release()
            await _answer(waiter, ending)
        await recorded.add(client.get_workflow_handle("ends", run_id=handle.result_run_id), Ends)


@pytest.mark.parametrize("ending", ["is terminated", "times out"])
async def test_an_update_that_no_worker_has_seen(ending: str) -> None:
    async with engine() as client:
        handle = await _start(client, ending)
        waiter = asyncio.create_task(handle.execute_update(Ends.which))
        await eventually(lambda: _has_update(handle), "the update is admitted")
        await _end(handle, ending)
        await _answer(waiter, ending)


@pytest.mark.parametrize("ending", ENDINGS)
async def test_an_update_of_a_closed_run(ending: str) -> None:
    async with engine() as client, worker(client, [Ends]):
        handle = await _start(client, ending)
        await parked(handle)
        await _end(handle, ending)
        if ending == "continues as new":
            await eventually(lambda: _is_second_run(client), "the second run")
        else:
            await settled(handle)
        closed = client.get_workflow_handle_for(Ends.run, "ends", run_id=handle.result_run_id)
        with pytest.raises(RPCError, match="is closed") as caught:
            await within(closed.execute_update(Ends.which), SECONDS_MAX)
        assert caught.value.code is RejectionCode.WORKFLOW_ALREADY_COMPLETED


async def _answer(waiter: asyncio.Task[int], ending: str) -> None:
    if ending == "continues as new":
        assert await within(waiter, SECONDS_MAX) == 1, "it went to the new run"
        return
    with pytest.raises(RPCError, match="is closed") as caught:
        await within(waiter, SECONDS_MAX)
    assert caught.value.code is RejectionCode.WORKFLOW_ALREADY_COMPLETED
    assert "had not accepted" in caught.value.message


async def _has_update(handle: Any) -> bool:
    return any("update" in line for line in (await handle.describe()).waiting_for)


async def _is_second_run(client: Client) -> bool:
    return len([run async for run in client.list_workflows("WorkflowId = 'ends'")]) == 2
