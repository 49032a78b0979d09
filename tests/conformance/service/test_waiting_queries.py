"""Questions that wait while their run is ended: by a reset they go on with, or by a termination they outlive."""

from __future__ import annotations

import asyncio

from clew.model.commands import StartTimer
from clew.service import requests as r
from tests.conformance.service.scripted import ScriptedWorker, Shop, payloads, soon
from tests.conformance.service.test_resets import MINUTE, answer, reset


def ask(shop: Shop, run_id: str = "") -> asyncio.Future[r.QueryWorkflowResponse]:
    request = r.QueryWorkflowRequest(namespace="default", workflow_id="w1", run_id=run_id, query_type="state")
    return asyncio.ensure_future(shop.service.query_workflow(request))


def told(query: r.QueryTask, word: str) -> r.QueryResult:
    return r.QueryResult(query_id=query.query_id, result=payloads(word))


async def answer_directly(shop: Shop, worker: ScriptedWorker, word: str) -> r.WorkflowTask:
    """Answer the next task, which is nothing but a question."""
    task = await worker.workflow_task()
    assert task.query is not None
    await soon(shop.service.answer_query(r.AnswerQueryRequest(token=task.token, result=told(task.query, word))))
    return task


async def busy_run(shop: Shop, worker: ScriptedWorker) -> r.WorkflowTask:
    """A run with one completed task, and another one that its worker holds."""
    await shop.start()
    await answer(worker, StartTimer(timer_id="t1", start_to_fire_timeout=MINUTE))
    await shop.signal("go")
    return await worker.workflow_task()


async def riding(shop: Shop, worker: ScriptedWorker) -> tuple[asyncio.Future[r.QueryWorkflowResponse], r.WorkflowTask]:
    """A question that rides on a task which its worker holds."""
    task = await busy_run(shop, worker)
    asking = ask(shop)
    await shop.settle()
    await shop.signal("go on")
    await worker.complete(task)
    task = await worker.workflow_task()
    assert task.queries
    return asking, task


async def answer_on(shop: Shop, worker: ScriptedWorker, run_id: str, word: str) -> None:
    """Answer the question on the first task of a run, or behind that if it was still on its way."""
    task = await worker.workflow_task()
    assert task.token.run_id == run_id
    if task.queries:
        await worker.complete(task, query_results=(told(task.queries[0], word),))
        return
    await worker.complete(task)
    assert (await answer_directly(shop, worker, word)).token.run_id == run_id


async def test_a_waiting_question_goes_on_with_the_run_that_a_reset_makes(shop: Shop) -> None:
    worker = await shop.worker()
    await busy_run(shop, worker)
    asking = ask(shop)
    await shop.settle()
    await answer_on(shop, worker, await reset(shop, event_id=4), "mended")
    assert (await soon(asking)).result == payloads("mended")


async def test_a_question_that_rides_on_a_task_goes_on_too(shop: Shop) -> None:
    worker = await shop.worker()
    asking, _ = await riding(shop, worker)
    await answer_on(shop, worker, await reset(shop, event_id=4), "mended")
    assert (await soon(asking)).result == payloads("mended")


async def test_a_question_to_one_run_stays_with_it(shop: Shop) -> None:
    worker = await shop.worker()
    task = await busy_run(shop, worker)
    asking = ask(shop, task.token.run_id)
    await shop.settle()
    await reset(shop, event_id=4)
    for _ in range(2):  # The new run's first task, and the question to the old one.
        task = await worker.workflow_task()
        if task.query is not None:
            assert task.token.run_id == worker.taken[0].token.run_id
            answer = r.AnswerQueryRequest(token=task.token, result=told(task.query, "old"))
            await soon(shop.service.answer_query(answer))
    assert (await soon(asking)).result == payloads("old")


async def test_a_question_outlives_the_task_that_carried_it_and_its_run(shop: Shop) -> None:
    worker = await shop.worker()
    asking, task = await riding(shop, worker)
    request = r.TerminateWorkflowRequest(namespace="default", workflow_id="w1", reason="enough")
    await soon(shop.service.terminate_workflow(request))
    assert (await answer_directly(shop, worker, "last words")).token.run_id == task.token.run_id
    assert (await soon(asking)).result == payloads("last words")
