"""Namespaces, task queues and callback tokens through the contract."""

from __future__ import annotations

from datetime import timedelta

import pytest

from clew.model.commands import ScheduleActivityTask
from clew.model.inputs import ActivityTarget
from clew.model.rejection import RejectionCode
from clew.service import operations as o
from clew.service import requests as r
from clew.service.errors import RPCError
from tests.conformance.service.scripted import Shop, payloads, soon


async def test_a_namespace_is_made_once_and_used_at_once(shop: Shop) -> None:
    engine = shop.engine
    made = await soon(
        engine.create_namespace(
            o.CreateNamespaceRequest(name="claims", retention=timedelta(days=3), limits={"signals_per_run_max": 7})
        )
    )
    assert made == o.NamespaceInfo(name="claims", retention=timedelta(days=3), limits={"signals_per_run_max": 7})
    assert await soon(engine.describe_namespace(o.DescribeNamespaceRequest(namespace="claims"))) == made
    listed = await soon(engine.list_namespaces(o.ListNamespacesRequest()))
    assert [one.name for one in listed.namespaces] == ["claims", "default"]
    await shop.start(namespace="claims")
    with pytest.raises(RPCError) as refused:
        await soon(engine.create_namespace(o.CreateNamespaceRequest(name="claims")))
    assert refused.value.code is RejectionCode.NAMESPACE_ALREADY_EXISTS
    assert await soon(engine.describe_namespace(o.DescribeNamespaceRequest(namespace="claims"))) == made


@pytest.mark.parametrize(
    "request_",
    [
        o.CreateNamespaceRequest(name=""),
        o.CreateNamespaceRequest(name="-x"),
        o.CreateNamespaceRequest(name="a b"),
        o.CreateNamespaceRequest(name="x" * 64),
        o.CreateNamespaceRequest(name="x", retention=timedelta(seconds=-1)),
        o.CreateNamespaceRequest(name="x", retention=timedelta(days=50_000)),
        o.CreateNamespaceRequest(name="x", limits={"no_such_limit": 1}),
        o.CreateNamespaceRequest(name="x", limits={"signals_per_run_max": 0}),
    ],
    ids=str,
)
async def test_a_namespace_that_cannot_be_is_refused(shop: Shop, request_: o.CreateNamespaceRequest) -> None:
    with pytest.raises(RPCError) as refused:
        await soon(shop.engine.create_namespace(request_))
    assert refused.value.code is RejectionCode.INVALID_ARGUMENT
    assert len((await soon(shop.engine.list_namespaces(o.ListNamespacesRequest()))).namespaces) == 1


async def test_a_queue_tells_what_waits_since_when_and_who_polls(shop: Shop) -> None:
    engine = shop.engine
    empty = await soon(engine.describe_task_queue(o.DescribeTaskQueueRequest(namespace="default", task_queue="none")))
    assert empty == o.TaskQueueInfo(namespace="default", task_queue="none")
    begun = shop.clock.now()
    await shop.start("w1")
    shop.advance(5)
    await shop.start("w2")
    await shop.worker(task_queue="other", identity="someone", takes_workflow_tasks=False)
    listed = (await soon(engine.list_task_queues(o.ListTaskQueuesRequest(namespace="default")))).task_queues
    assert [one.task_queue for one in listed] == ["other", "q"]
    other, waiting = listed
    assert [(p.identity, p.takes_workflow_tasks, p.activity_credits) for p in other.pollers] == [("someone", False, 10)]
    assert (waiting.workflow_backlog, waiting.activity_backlog, waiting.pollers) == (2, 0, ())
    assert waiting.workflow_oldest_at is not None
    assert begun <= waiting.workflow_oldest_at < begun + timedelta(seconds=5)
    assert waiting == await soon(
        engine.describe_task_queue(o.DescribeTaskQueueRequest(namespace="default", task_queue="q"))
    )


async def _pending_activity(shop: Shop) -> r.ActivityTask:
    worker = await shop.worker()
    await shop.start()
    command = ScheduleActivityTask(
        activity_id="approve", activity_type="approve", start_to_close_timeout=timedelta(days=30)
    )
    await worker.complete(await worker.workflow_task(), command)
    task = await worker.activity_task()
    await soon(shop.engine.detach_activity(task.token))
    return task


@pytest.mark.parametrize("by", ["ids", "token"])
async def test_a_callback_ends_the_activity_it_is_for(shop: Shop, by: str) -> None:
    task = await _pending_activity(shop)
    ids = ActivityTarget(namespace="default", workflow_id="w1", activity_id="approve")
    issued = await soon(shop.engine.issue_callback(o.IssueCallbackRequest(target=ids if by == "ids" else task.token)))
    assert issued.token.replace(".", "").replace("-", "").replace("_", "").isalnum()
    assert issued.expires_at - shop.clock.now() > timedelta(days=6)
    opened = await soon(shop.engine.open_callback(o.OpenCallbackRequest(token=issued.token)))
    assert opened.target.run_id == task.token.run_id
    await soon(shop.engine.complete_activity(r.CompleteActivityRequest(token=opened.target, result=payloads("yes"))))
    assert "ActivityTaskCompleted" in await shop.event_types()


async def test_a_callback_that_is_too_old_or_not_genuine_is_refused(shop: Shop) -> None:
    await _pending_activity(shop)
    target = ActivityTarget(namespace="default", workflow_id="w1", activity_id="approve")
    issued = await soon(
        shop.engine.issue_callback(o.IssueCallbackRequest(target=target, expires_in=timedelta(seconds=60)))
    )
    token = issued.token
    head, body, signature = token.split(".")
    bad = ["", ".", "..", "a.b.c", token[:-1], f"{token}A", f"{head}.{body}.", f"{head}.{body[:-2]}AA.{signature}",
           f"x{token}", "é.é.é", "A" * 100_000]  # fmt: skip
    for wrong in bad:
        with pytest.raises(RPCError) as refused:
            await soon(shop.engine.open_callback(o.OpenCallbackRequest(token=wrong)))
        assert refused.value.code is RejectionCode.CALLBACK_REFUSED, wrong
        assert refused.value.rejection.details["reason"] == "not_genuine", wrong
    await soon(shop.engine.open_callback(o.OpenCallbackRequest(token=token)))
    shop.advance(61)
    with pytest.raises(RPCError) as refused:
        await soon(shop.engine.open_callback(o.OpenCallbackRequest(token=token)))
    assert refused.value.rejection.details["reason"] == "expired"


async def test_no_callback_is_issued_for_what_is_not_pending(shop: Shop) -> None:
    await _pending_activity(shop)

    async def refusal(expires_in: timedelta = timedelta(), **target: str) -> RejectionCode:
        ids = {"namespace": "default", "workflow_id": "w1", "activity_id": "approve", **target}
        request = o.IssueCallbackRequest(target=ActivityTarget(**ids), expires_in=expires_in)
        with pytest.raises(RPCError) as refused:
            await soon(shop.engine.issue_callback(request))
        return refused.value.code

    assert await refusal(activity_id="other") is RejectionCode.ACTIVITY_NOT_FOUND
    assert await refusal(workflow_id="other") is RejectionCode.WORKFLOW_NOT_FOUND
    assert await refusal(namespace="other") is RejectionCode.NAMESPACE_NOT_FOUND
    assert await refusal(expires_in=timedelta(seconds=-5)) is RejectionCode.INVALID_ARGUMENT
