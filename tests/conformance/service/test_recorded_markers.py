"""Markers recorded while their workflow task goes on, through the contract (semantics 0.5, ADR 16)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from clew.model.commands import CompleteWorkflowExecution, RecordMarker
from clew.model.events import MarkerRecorded
from clew.model.rejection import RejectionCode
from clew.service import requests as r
from clew.service.errors import RPCError
from tests.conformance.service.scripted import ScriptedWorker, Shop, payloads, soon


async def record(worker: ScriptedWorker, task: r.WorkflowTask, *values: Any, after: int = 0) -> r.RecordMarkersResponse:
    """Record a marker a value, after the task's start unless another event is named."""
    response: r.RecordMarkersResponse = await soon(
        worker.service.record_markers(
            r.RecordMarkersRequest(
                token=task.token,
                markers=tuple(RecordMarker(marker_name="step", details={"data": payloads(v)}) for v in values),
                after_event_id=after or task.started_event_id,
                identity="w",
            )
        )
    )
    return response


async def test_a_marker_is_in_history_when_the_call_is_answered_and_the_task_goes_on(shop: Shop) -> None:
    worker = await shop.worker()
    await shop.start()
    task = await worker.workflow_task()
    first = await record(worker, task, 1)
    assert first.last_event_id == 4
    assert not first.is_end_wanted
    shop.advance(1)
    second = await record(worker, task, 2, 3, after=4)
    assert second.last_event_id == 6
    assert (second.event_time - first.event_time).total_seconds() == 1
    assert (await shop.event_types())[3:] == ["MarkerRecorded"] * 3
    await worker.complete(task, CompleteWorkflowExecution())
    assert (await shop.event_types())[3:] == ["MarkerRecorded"] * 3 + [
        "WorkflowTaskCompleted",
        "WorkflowExecutionCompleted",
    ]


async def test_each_call_gives_the_task_its_time_anew(shop: Shop) -> None:
    worker = await shop.worker()
    await shop.start()
    task = await worker.workflow_task()
    after = task.started_event_id
    for _ in range(4):
        shop.advance(9)
        after = (await record(worker, task, 1, after=after)).last_event_id
    shop.advance(9)
    assert (await shop.event_types())[-1] == "MarkerRecorded"
    shop.advance(2)
    again = await worker.workflow_task()
    assert again.attempt == 2
    assert sum(isinstance(event, MarkerRecorded) for event in again.events) == 4
    with pytest.raises(RPCError) as refused:
        await record(worker, task, 1, after=after)
    assert refused.value.code is RejectionCode.WORKFLOW_TASK_NOT_FOUND


async def test_a_repeated_call_records_once(shop: Shop) -> None:
    worker = await shop.worker()
    await shop.start()
    task = await worker.workflow_task()
    assert await record(worker, task, 1, 2) == await record(worker, task, 1, 2)
    twice = await asyncio.gather(record(worker, task, 3, after=5), record(worker, task, 3, after=5))
    assert twice[0] == twice[1]
    with pytest.raises(RPCError) as refused:
        await record(worker, task, 9, after=4)
    assert refused.value.code is RejectionCode.INVALID_ARGUMENT
    assert [e.details["data"] for e in await shop.history() if isinstance(e, MarkerRecorded)] == [
        payloads(1),
        payloads(2),
        payloads(3),
    ]


async def test_signals_updates_and_queries_ask_for_the_end_of_the_task(shop: Shop) -> None:
    worker = await shop.worker()
    await shop.start()
    task = await worker.workflow_task()
    assert not (await record(worker, task, 1)).is_end_wanted
    await shop.signal("go")
    assert (await record(worker, task, 2, after=4)).is_end_wanted
    await worker.complete(task, sticky=True)
    task = await worker.workflow_task()
    assert not (await record(worker, task, 3)).is_end_wanted
    question = asyncio.ensure_future(
        shop.service.query_workflow(r.QueryWorkflowRequest(namespace="default", workflow_id="w1", query_type="how_far"))
    )
    for _ in range(20):
        await asyncio.sleep(0)
    response = await record(worker, task, 4, after=task.started_event_id + 1)
    assert response.is_end_wanted
    await worker.complete(task, sticky=True, force_create_new_workflow_task=True)
    task = await worker.workflow_task()
    [query] = task.queries
    result = r.QueryResult(query_id=query.query_id, result=payloads("far"))
    await worker.complete(task, CompleteWorkflowExecution(), query_results=(result,))
    assert (await soon(question)).result == payloads("far")


async def test_a_worker_that_leaves_its_task_leaves_what_it_recorded(shop: Shop) -> None:
    worker = await shop.worker()
    await shop.start()
    task = await worker.workflow_task()
    await record(worker, task, 1)
    assert worker.session is not None
    worker.session.detach()
    other = await shop.worker(instance_id="w-2")
    task = await other.workflow_task()
    assert [type(event).__name__ for event in task.events][3:] == [
        "MarkerRecorded",
        "WorkflowTaskTimedOut",
        "WorkflowTaskScheduled",
        "WorkflowTaskStarted",
    ]
    assert (await record(other, task, 2)).last_event_id == 8


async def test_what_was_recorded_survives_the_engine(file_shop: Shop) -> None:
    worker = await file_shop.worker()
    await file_shop.start()
    task = await worker.workflow_task()
    await record(worker, task, 1)
    await file_shop.restart()
    worker = await file_shop.worker()
    task = await worker.workflow_task()
    assert sum(isinstance(event, MarkerRecorded) for event in task.events) == 1
    await record(worker, task, 2)
    await worker.complete(task, CompleteWorkflowExecution())
    assert (await file_shop.event_types())[-4:] == [
        "WorkflowTaskStarted",
        "MarkerRecorded",
        "WorkflowTaskCompleted",
        "WorkflowExecutionCompleted",
    ]


async def test_a_closed_run_takes_no_more(shop: Shop) -> None:
    worker = await shop.worker()
    await shop.start()
    task = await worker.workflow_task()
    await record(worker, task, 1)
    await soon(shop.service.terminate_workflow(r.TerminateWorkflowRequest(namespace="default", workflow_id="w1")))
    with pytest.raises(RPCError) as refused:
        await record(worker, task, 2, after=4)
    assert refused.value.code is RejectionCode.WORKFLOW_TASK_NOT_FOUND
    assert (await shop.event_types())[3:] == [
        "MarkerRecorded",
        "WorkflowTaskFailed",
        "WorkflowExecutionTerminated",
    ]
