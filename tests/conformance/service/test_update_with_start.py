"""Update-with-start through the contract: atomic, deduplicated, refused whole."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from clew.adapters import SystemEntropy
from clew.model.commands import CompleteWorkflowExecution
from clew.model.events import UpdateOutcome, UpdateRequest
from clew.model.failure import Failure
from clew.model.policies import WorkflowIDConflictPolicy, WorkflowIDReusePolicy
from clew.model.rejection import RejectionCode
from clew.service import requests as r
from clew.service.errors import RPCError
from tests.conformance.service.scripted import ScriptedWorker, Shop, payloads, soon

FAIL = WorkflowIDConflictPolicy.FAIL
USE_EXISTING = WorkflowIDConflictPolicy.USE_EXISTING


def call(
    workflow_id: str = "w1",
    update_id: str = "u1",
    policy: WorkflowIDConflictPolicy = FAIL,
    *,
    stage: r.UpdateStage = r.UpdateStage.COMPLETED,
    update: dict[str, Any] | None = None,
    **start: Any,
) -> r.UpdateWithStartRequest:
    return r.UpdateWithStartRequest(
        start=r.StartWorkflowRequest(
            **{
                "namespace": "default",
                "workflow_id": workflow_id,
                "workflow_type": "W",
                "task_queue": "q",
                "request_id": SystemEntropy().uuid7(),
                "id_conflict_policy": policy,
                **start,
            }
        ),
        update=r.UpdateWorkflowRequest(
            **{
                "namespace": "default",
                "workflow_id": workflow_id,
                "wait_stage": stage,
                "request": UpdateRequest(update_id=update_id, name="add", input=payloads(1)),
                **(update or {}),
            }
        ),
    )


def send(shop: Shop, request: r.UpdateWithStartRequest) -> asyncio.Future[r.UpdateWithStartResponse]:
    return asyncio.ensure_future(soon(shop.service.update_with_start(request)))


async def answer(worker: ScriptedWorker, result: Any = "done", *commands: Any) -> r.WorkflowTask:
    """Accept and complete the one update of the next workflow task."""
    task = await worker.workflow_task()
    (message,) = task.messages
    update_id = message.request.update_id
    await worker.complete(
        task,
        *commands,
        acceptances=(
            r.UpdateAcceptance(
                message_id="a", update_id=update_id, sequencing_event_id=message.sequencing_event_id, request=None
            ),
        ),
        completions=(
            r.UpdateCompletion(message_id="c", update_id=update_id, outcome=UpdateOutcome(result=payloads(result))),
        ),
    )
    return task


async def refusal(shop: Shop, request: r.UpdateWithStartRequest) -> RPCError:
    with pytest.raises(RPCError) as caught:
        await send(shop, request)
    return caught.value


async def test_the_first_task_of_the_new_run_carries_the_update(shop: Shop) -> None:
    worker = await shop.worker()
    calling = send(shop, call())
    task = await answer(worker, "sum")
    response = await calling
    assert (task.started_event_id, response.start.started) == (3, True)
    assert response.update.outcome == UpdateOutcome(result=payloads("sum"))
    assert await shop.event_types() == [
        "WorkflowExecutionStarted",
        "WorkflowTaskScheduled",
        "WorkflowTaskStarted",
        "WorkflowTaskCompleted",
        "WorkflowExecutionUpdateAccepted",
        "WorkflowExecutionUpdateCompleted",
    ]


async def test_it_waits_for_a_worker_to_come(shop: Shop) -> None:
    calling = send(shop, call(stage=r.UpdateStage.ACCEPTED))
    await shop.until_started()
    worker = await shop.worker()
    task = await worker.workflow_task()
    await worker.complete(
        task,
        acceptances=(
            r.UpdateAcceptance(message_id="a", update_id="u1", sequencing_event_id=2, request=task.messages[0].request),
        ),
    )
    assert (await calling).update.stage is r.UpdateStage.ACCEPTED


async def test_an_open_run_is_updated_when_the_policy_says_so(shop: Shop) -> None:
    worker = await shop.worker()
    first = await shop.start()
    await worker.complete(await worker.workflow_task())
    calling = send(shop, call(policy=USE_EXISTING))
    await answer(worker)
    response = await calling
    assert (response.start.run_id, response.start.started) == (first.run_id, False)
    assert response.update.run_id == first.run_id


async def test_an_open_run_is_left_alone_when_the_policy_says_fail(shop: Shop) -> None:
    worker = await shop.worker()
    await shop.start()
    await worker.complete(await worker.workflow_task())
    error = await refusal(shop, call())
    assert error.code is RejectionCode.WORKFLOW_ALREADY_STARTED
    assert (await shop.describe()).pending_updates == ()


@pytest.mark.parametrize("policy", [FAIL, USE_EXISTING])
async def test_a_repeat_is_answered_with_what_the_first_call_brought(
    shop: Shop, policy: WorkflowIDConflictPolicy
) -> None:
    worker = await shop.worker()
    calling = send(shop, call())
    await answer(worker, "once")
    first = await calling
    again = await send(shop, call(policy=policy))
    assert again.update == first.update
    assert (again.start.run_id, again.start.started) == (first.start.run_id, False)


async def test_a_completed_update_is_answered_by_the_closed_run(shop: Shop) -> None:
    worker = await shop.worker()
    calling = send(shop, call())
    await answer(worker, "last words", CompleteWorkflowExecution())
    first = await calling
    again = await send(shop, call())
    assert again.update == first.update
    assert again.start.run_id == first.start.run_id


async def test_a_closed_run_that_does_not_know_the_update_is_followed_by_a_new_one(shop: Shop) -> None:
    worker = await shop.worker()
    first = await shop.start()
    await worker.complete(await worker.workflow_task(), CompleteWorkflowExecution())
    shop.advance(2)
    calling = send(shop, call())
    await answer(worker)
    response = await calling
    assert response.start.started
    assert response.start.run_id != first.run_id
    error = await refusal(shop, call("w1", "u2", id_reuse_policy=WorkflowIDReusePolicy.REJECT_DUPLICATE))
    assert error.code is RejectionCode.WORKFLOW_ALREADY_STARTED


async def test_a_rejected_update_leaves_the_started_run(shop: Shop) -> None:
    worker = await shop.worker()
    calling = send(shop, call())
    task = await worker.workflow_task()
    await worker.complete(
        task, rejections=(r.UpdateRejection(message_id="x", update_id="u1", failure=Failure(message="no")),)
    )
    response = await calling
    assert response.update.outcome is not None
    assert response.update.outcome.failure == Failure(message="no")
    assert (await shop.event_types())[-1] == "WorkflowTaskCompleted"


async def test_of_many_calls_one_starts_and_all_hear_the_same(shop: Shop) -> None:
    worker = await shop.worker()
    calls = [send(shop, call(policy=USE_EXISTING)) for _ in range(10)]
    await answer(worker, "one")
    responses = await asyncio.gather(*calls)
    assert sum(response.start.started for response in responses) == 1
    assert all(response.update.outcome == UpdateOutcome(result=payloads("one")) for response in responses)
    assert (await shop.event_types()).count("WorkflowExecutionUpdateCompleted") == 1


async def test_a_repeat_after_a_crash_of_the_engine_brings_the_update_to_the_started_run(file_shop: Shop) -> None:
    shop = file_shop
    request = call()
    first = send(shop, request)
    started = await shop.until_started()
    first.cancel()
    await shop.restart()
    worker = await shop.worker()
    again = send(shop, request)
    await answer(worker, "after all")
    response = await again
    assert (response.start.run_id, response.start.started) == (started.info.run_id, False)
    assert response.update.outcome == UpdateOutcome(result=payloads("after all"))


async def test_a_refused_update_starts_nothing(shop: Shop) -> None:
    error = await refusal(shop, call(update_id="x" * 1001))
    assert error.code is RejectionCode.INVALID_ARGUMENT
    with pytest.raises(RPCError) as caught:
        await shop.describe()
    assert caught.value.code is RejectionCode.WORKFLOW_NOT_FOUND


@pytest.mark.parametrize(
    ("request_", "says"),
    [
        (call(policy=WorkflowIDConflictPolicy.UNSPECIFIED), "needs Fail .* or UseExisting"),
        (call(policy=WorkflowIDConflictPolicy.TERMINATE_EXISTING), "needs Fail .* or UseExisting"),
        (call(id_reuse_policy=WorkflowIDReusePolicy.TERMINATE_IF_RUNNING), "does not go with"),
        (call(update={"workflow_id": "other"}), "both must name the same workflow"),
        (call(update={"run_id": "r"}), "the start says which run"),
    ],
)
async def test_what_does_not_fit_together_is_refused(shop: Shop, request_: r.UpdateWithStartRequest, says: str) -> None:
    with pytest.raises(RPCError, match=says) as caught:
        await send(shop, request_)
    assert caught.value.code is RejectionCode.INVALID_ARGUMENT
