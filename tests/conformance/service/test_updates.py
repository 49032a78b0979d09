"""Updates of an open run through the contract: what their callers are told, and when.

On an engine in this process most calls need no coroutine of the engine (``engine.update_calls``); over a link, and on
nodes that have peers, they have one. What is told is the same.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from clew.model.commands import CompleteWorkflowExecution
from clew.model.events import UpdateOutcome, UpdateRequest
from clew.model.failure import ApplicationInfo, Failure
from clew.model.rejection import RejectionCode
from clew.service import requests as r
from clew.service.errors import RPCError
from tests.conformance.service.scripted import ScriptedWorker, Shop, payloads, soon

ACCEPTED, COMPLETED = r.UpdateStage.ACCEPTED, r.UpdateStage.COMPLETED


def send(shop: Shop, update_id: str = "u1", stage: r.UpdateStage = COMPLETED, **more: Any) -> asyncio.Future[Any]:
    request = r.UpdateWorkflowRequest(
        namespace="default",
        workflow_id="w1",
        wait_stage=stage,
        request=UpdateRequest(update_id=update_id, name="add", input=payloads(1)),
        **more,
    )
    return asyncio.ensure_future(soon(shop.service.update_workflow(request)))


def accept(message: r.UpdateMessage) -> r.UpdateAcceptance:
    update_id = message.request.update_id
    return r.UpdateAcceptance(
        message_id=f"a-{update_id}", update_id=update_id, sequencing_event_id=message.sequencing_event_id, request=None
    )


def complete(update_id: str, result: Any) -> r.UpdateCompletion:
    outcome = UpdateOutcome(result=payloads(result))
    return r.UpdateCompletion(message_id=f"c-{update_id}", update_id=update_id, outcome=outcome)


async def waiting_run(shop: Shop) -> ScriptedWorker:
    """A worker with a run that waits."""
    worker = await shop.worker()
    await shop.start()
    await worker.complete(await worker.workflow_task())
    return worker


async def answer(worker: ScriptedWorker, result: Any) -> None:
    """Accept and complete the one update of the next workflow task."""
    task = await worker.workflow_task()
    (message,) = task.messages
    await worker.complete(
        task, acceptances=(accept(message),), completions=(complete(message.request.update_id, result),)
    )


@pytest.mark.parametrize("stage", [ACCEPTED, COMPLETED], ids=["accepted", "completed"])
async def test_one_that_is_answered_at_once_is_told_its_outcome(shop: Shop, stage: r.UpdateStage) -> None:
    worker = await waiting_run(shop)
    calling = send(shop, stage=stage)
    await answer(worker, "sum")
    told = await calling
    assert (told.stage, told.outcome) == (COMPLETED, UpdateOutcome(result=payloads("sum")))
    assert (await shop.event_types())[-2:] == ["WorkflowExecutionUpdateAccepted", "WorkflowExecutionUpdateCompleted"]


async def test_one_that_takes_its_time_is_told_each_stage_to_whom_it_matters(shop: Shop) -> None:
    worker = await waiting_run(shop)
    to_end, to_accept = send(shop), send(shop, stage=ACCEPTED)
    task = await worker.workflow_task()
    await worker.complete(task, acceptances=(accept(task.messages[0]),))
    told = await to_accept
    assert (told.stage, told.outcome) == (ACCEPTED, None)
    await shop.settle()
    assert not to_end.done()
    await shop.signal("go")
    await worker.complete(await worker.workflow_task(), completions=(complete("u1", "sum"),))
    assert (await to_end).outcome == UpdateOutcome(result=payloads("sum"))


async def test_a_repeat_is_told_what_the_first_was(shop: Shop) -> None:
    worker = await waiting_run(shop)
    first, second = send(shop), send(shop)
    await answer(worker, "sum")
    assert (await first).outcome == (await second).outcome == UpdateOutcome(result=payloads("sum"))
    assert (await send(shop)).outcome == UpdateOutcome(result=payloads("sum"))
    assert (await shop.event_types()).count("WorkflowExecutionUpdateCompleted") == 1


async def test_one_that_is_rejected_is_told_why(shop: Shop) -> None:
    worker = await waiting_run(shop)
    calling = send(shop)
    task = await worker.workflow_task()
    rejection = r.UpdateRejection(message_id="r", update_id="u1", failure=Failure(message="too late"))
    await worker.complete(task, rejections=(rejection,))
    told = await calling
    assert told.outcome is not None
    assert told.outcome.failure is not None
    assert told.outcome.failure.message == "too late"
    assert len(await shop.history()) == 4, "nothing is left of it"


async def test_one_that_is_passed_over_is_told_so(shop: Shop) -> None:
    worker = await waiting_run(shop)
    calling = send(shop)
    await worker.complete(await worker.workflow_task(), CompleteWorkflowExecution(result=payloads(None)))
    told = await calling
    assert told.outcome is not None
    assert told.outcome.failure is not None
    assert isinstance(told.outcome.failure.info, ApplicationInfo)
    assert told.outcome.failure.info.type == "UnhandledUpdate"


async def test_a_run_that_is_ended_before_it_accepted_is_told(shop: Shop) -> None:
    worker = await waiting_run(shop)
    calling = send(shop)
    await worker.workflow_task()
    terminate = r.TerminateWorkflowRequest(namespace="default", workflow_id="w1", reason="enough")
    await soon(shop.service.terminate_workflow(terminate))
    with pytest.raises(RPCError) as caught:
        await calling
    assert caught.value.code is RejectionCode.WORKFLOW_ALREADY_COMPLETED


@pytest.mark.parametrize(
    ("more", "code"),
    [
        ({"run_id": "another"}, RejectionCode.WORKFLOW_NOT_FOUND),
        ({"first_execution_run_id": "another"}, RejectionCode.WORKFLOW_NOT_FOUND),
    ],
    ids=["run", "chain"],
)
async def test_one_for_another_run_is_refused(shop: Shop, more: dict[str, Any], code: RejectionCode) -> None:
    await waiting_run(shop)
    with pytest.raises(RPCError) as caught:
        await send(shop, **more)
    assert caught.value.code is code


async def test_an_update_that_is_not_valid_is_refused_and_nobody_waits(shop: Shop) -> None:
    await waiting_run(shop)
    with pytest.raises(RPCError) as caught:
        await send(shop, "u" * 10_000)
    assert caught.value.code is RejectionCode.INVALID_ARGUMENT
    entry = shop.engine._cache.get_open("default", "w1")
    assert entry is not None
    assert not entry.update_waiters
