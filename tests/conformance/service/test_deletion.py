"""Deleting closed runs through the contract: what goes, what is refused, and which run is the latest then."""

from __future__ import annotations

import pytest

from clew.model.commands import CompleteWorkflowExecution, StartChildWorkflowExecution
from clew.model.policies import WorkflowIDReusePolicy
from clew.model.rejection import RejectionCode
from clew.service import operations as o
from clew.service import requests as r
from clew.service.errors import RPCError
from tests.conformance.service.scripted import Shop, payloads, soon


async def delete(shop: Shop, workflow_id: str = "w1", run_id: str = "", namespace: str = "default") -> str:
    request = o.DeleteWorkflowRequest(namespace=namespace, workflow_id=workflow_id, run_id=run_id)
    response: o.DeleteWorkflowResponse = await soon(shop.service.delete_workflow(request))
    return response.run_id


async def refusal(shop: Shop, workflow_id: str = "w1", run_id: str = "", namespace: str = "default") -> RejectionCode:
    with pytest.raises(RPCError) as caught:
        await delete(shop, workflow_id, run_id, namespace)
    return caught.value.code


async def ended(shop: Shop, workflow_id: str = "w1") -> str:
    """A run that was terminated."""
    run_id = (await shop.start(workflow_id)).run_id
    request = r.TerminateWorkflowRequest(namespace="default", workflow_id=workflow_id)
    await soon(shop.service.terminate_workflow(request))
    return run_id


async def test_a_closed_run_goes_for_good(file_shop: Shop) -> None:
    shop = file_shop
    worker = await shop.worker()
    run_id = (await shop.start()).run_id
    await worker.complete(await worker.workflow_task(), CompleteWorkflowExecution(result=payloads("done")))
    await shop.until_described(lambda d: not d.info.status.is_open)
    assert await delete(shop) == run_id
    assert await refusal(shop) is RejectionCode.WORKFLOW_NOT_FOUND
    for asked in (
        shop.service.describe_workflow(r.DescribeWorkflowRequest(namespace="default", workflow_id="w1")),
        shop.service.get_history(r.GetHistoryRequest(namespace="default", workflow_id="w1", run_id=run_id)),
    ):
        with pytest.raises(RPCError) as caught:
            await soon(asked)
        assert caught.value.code is RejectionCode.WORKFLOW_NOT_FOUND
    counted = await soon(shop.service.count_workflows(r.CountWorkflowsRequest(namespace="default")))
    assert counted.count == 0
    await shop.close()
    await shop.open()
    assert await refusal(shop, run_id=run_id) is RejectionCode.WORKFLOW_NOT_FOUND


async def test_an_open_run_stays_and_says_so(shop: Shop) -> None:
    run_id = (await shop.start()).run_id
    assert await refusal(shop) is RejectionCode.WORKFLOW_NOT_CLOSED
    assert await refusal(shop, run_id=run_id) is RejectionCode.WORKFLOW_NOT_CLOSED
    assert (await shop.describe()).info.run_id == run_id
    assert await refusal(shop, workflow_id="nobody") is RejectionCode.WORKFLOW_NOT_FOUND
    assert await refusal(shop, namespace="elsewhere") is RejectionCode.NAMESPACE_NOT_FOUND


async def test_the_latest_of_those_that_are_left_goes_next(shop: Shop) -> None:
    first, second, third = [await ended(shop) for _ in range(3)]
    assert await delete(shop, run_id=second) == second
    assert (await shop.describe()).info.run_id == third
    assert await delete(shop) == third
    assert (await shop.describe()).info.run_id == first
    fourth = (await shop.start()).run_id
    assert (await shop.describe()).info.run_id == fourth
    assert await delete(shop, run_id=first) == first
    assert await refusal(shop) is RejectionCode.WORKFLOW_NOT_CLOSED


async def test_an_id_that_was_refused_is_free_once_its_run_is_gone(shop: Shop) -> None:
    await ended(shop)
    with pytest.raises(RPCError) as caught:
        await shop.start(id_reuse_policy=WorkflowIDReusePolicy.REJECT_DUPLICATE)
    assert caught.value.code is RejectionCode.WORKFLOW_ALREADY_STARTED
    await delete(shop)
    assert (await shop.start(id_reuse_policy=WorkflowIDReusePolicy.REJECT_DUPLICATE)).started


async def test_a_child_goes_and_its_parent_has_its_result(shop: Shop) -> None:
    worker = await shop.worker(workflow_types=None)
    await shop.start("parent")
    kid = StartChildWorkflowExecution(workflow_id="kid", workflow_type="W")
    await worker.complete(await worker.workflow_task(), kid)
    answered = 0
    while "ChildWorkflowExecutionCompleted" not in await shop.event_types("parent"):
        task = await worker.workflow_task()
        is_kid = task.token.workflow_id == "kid"
        await worker.complete(task, *([CompleteWorkflowExecution(result=payloads("kid"))] if is_kid else []))
        answered += 1
        assert answered < 10
    await delete(shop, "kid")
    assert await refusal(shop, "kid") is RejectionCode.WORKFLOW_NOT_FOUND
    assert await refusal(shop, "parent") is RejectionCode.WORKFLOW_NOT_CLOSED
