"""Questions to workflow code, and updates: what they may be answered with, and when.

Owns: the tests of them that ``regressions`` names. Never: anything that needs a seed.
"""

from __future__ import annotations

import asyncio
import dataclasses
from datetime import timedelta

import msgspec

from clew.model import commands as c
from clew.model import events as e
from clew.model.policies import QueryRejectCondition, WorkflowIDConflictPolicy
from clew.service import requests as r
from clew.testing.faults import Hold
from tests.conformance.service.scripted import ScriptedWorker, payloads, soon
from tests.conformance.service.test_update_with_start import answer as answer_update
from tests.conformance.service.test_update_with_start import call as update_call
from tests.conformance.service.test_update_with_start import send as send_update
from tests.fleet.shop import FleetShop
from tests.simulation.faulty_shop import FaultyShop, until

USE = WorkflowIDConflictPolicy.USE_EXISTING
QUESTION = r.QueryWorkflowRequest(namespace="default", workflow_id="w1", query_type="q")


async def _answer(shop: FaultyShop, worker: ScriptedWorker, task: r.WorkflowTask, value: object) -> None:
    assert task.query is not None, "a question comes as a task of its own"
    result = r.QueryResult(query_id=task.query.query_id, result=payloads(value))
    await soon(shop.service.answer_query(r.AnswerQueryRequest(token=task.token, result=result)))
    worker.grant()


async def a_question_is_asked_twice(shop: FaultyShop) -> None:
    """Each is answered by the worker, and by what it says now."""
    worker = await shop.worker()
    await shop.start()
    await worker.complete(await worker.workflow_task())
    for number in (1, 2):
        asked = asyncio.ensure_future(shop.service.query_workflow(QUESTION))
        await _answer(shop, worker, await worker.workflow_task(), number)
        assert (await soon(asked)).result == payloads(number)


async def a_question_is_asked_while_an_answer_is_on_its_way(shop: FaultyShop) -> None:
    """Code that has answered its task was asked at once, and told what was not durable yet, and might be lost."""
    worker = await shop.worker()
    await shop.start()
    timer = c.StartTimer(timer_id="t", start_to_fire_timeout=timedelta(hours=1))
    task = await worker.workflow_task()
    held = shop.faults.hold("commit_if_current", times=1)
    answering = asyncio.ensure_future(worker.complete(task, timer, sticky=True))
    await until(lambda: held.held_count == 1)
    asked = asyncio.ensure_future(shop.service.query_workflow(QUESTION))
    for _ in range(50):
        await asyncio.sleep(0)
    is_asked = not worker.workflow_tasks.empty()
    held.release()
    await soon(answering)
    await _answer(shop, worker, await worker.workflow_task(), 1)
    assert (await soon(asked)).result == payloads(1)
    assert not is_asked


async def a_question_is_refused_for_a_close_that_is_not_durable_yet(shop: FaultyShop) -> None:
    """Whoever asks open runs only was told at once that this one has closed, which was then lost."""
    worker = await shop.worker()
    await shop.start()
    task = await worker.workflow_task()
    held = shop.faults.hold("commit_if_current", times=1)
    answering = asyncio.ensure_future(worker.complete(task, c.CompleteWorkflowExecution(result=payloads(1))))
    await until(lambda: held.held_count == 1)
    request = r.QueryWorkflowRequest(
        namespace="default", workflow_id="w1", query_type="q", reject_condition=QueryRejectCondition.NOT_OPEN
    )
    asked = asyncio.ensure_future(shop.service.query_workflow(request))
    for _ in range(50):
        await asyncio.sleep(0)
    is_told = asked.done()
    held.release()
    await soon(answering)
    assert (await soon(asked)).rejected_status is not None
    assert not is_told


@dataclasses.dataclass(kw_only=True)
class _Accepting:
    """An update that was accepted, but for the commit."""

    run: r.StartWorkflowResponse
    update_id: str
    calling: asyncio.Future[r.UpdateResponse]
    answering: asyncio.Future[None]
    held: Hold


async def _accept(shop: FaultyShop) -> _Accepting:
    worker = await shop.worker()
    run = await shop.start()
    await worker.complete(await worker.workflow_task())
    stage, of = r.UpdateStage.ACCEPTED, update_call().update.request
    update = r.UpdateWorkflowRequest(namespace="default", workflow_id="w1", wait_stage=stage, request=of)
    calling = asyncio.ensure_future(shop.service.update_workflow(update))
    task = await worker.workflow_task()
    [message] = task.messages
    acceptance = r.UpdateAcceptance(
        message_id="a", update_id=of.update_id, sequencing_event_id=message.sequencing_event_id, request=message.request
    )
    held = shop.faults.hold("commit_if_current", times=1)
    answering = asyncio.ensure_future(worker.complete(task, acceptances=(acceptance,)))
    await until(lambda: held.held_count == 1)
    return _Accepting(run=run, update_id=of.update_id, calling=calling, answering=answering, held=held)


async def a_caller_looks_again_while_an_acceptance_is_on_its_way(shop: FaultyShop) -> None:
    """It looked at the run in memory, and told what was not durable yet and might be lost."""
    accepting = await _accept(shop)
    entry = await soon(shop.engine._locator.find("default", "w1", accepting.run.run_id))
    shop.engine._updates.look_again(entry)
    for _ in range(50):
        await asyncio.sleep(0)
    is_told = accepting.calling.done()
    accepting.held.release()
    await soon(accepting.answering)
    assert (await soon(accepting.calling)).stage is r.UpdateStage.ACCEPTED
    assert not is_told


async def a_poll_asks_for_an_acceptance_that_is_not_durable_yet(shop: FaultyShop) -> None:
    """It is told when that is durable, not when it is decided."""
    accepting = await _accept(shop)
    stage, calling = r.UpdateStage.ACCEPTED, accepting.calling
    poll = r.PollUpdateRequest(
        namespace="default",
        workflow_id="w1",
        run_id=accepting.run.run_id,
        update_id=accepting.update_id,
        wait_stage=stage,
    )
    polling = asyncio.ensure_future(shop.service.poll_update(poll))
    for _ in range(50):
        await asyncio.sleep(0)
    is_told = polling.done() or calling.done()
    accepting.held.release()
    await soon(accepting.answering)
    assert not is_told
    assert (await soon(polling)).stage is (await soon(calling)).stage is stage


async def a_run_closes_with_an_update_that_a_caller_knows_as_accepted(shop: FaultyShop) -> None:
    """What the caller knew was older than the close: it was told that the update is abandoned."""
    worker = await shop.worker()
    calling = send_update(shop, update_call())
    await answer_update(worker, "sum", c.CompleteWorkflowExecution(result=payloads(1)))
    told = (await calling).update
    entry = await soon(shop.engine._locator.find("default", told.workflow_id, told.run_id))
    assert (await soon(shop.engine._updates._after_close(entry, told.update_id))).outcome == told.outcome


async def a_result_is_asked_for_of_a_run_whose_start_is_lost(shop: FaultyShop) -> None:
    """Of two starts at once one is lost: who asked then waited at it, was told its id, and that no such run exists."""
    runs = {(await shop.start(request_id="before")).run_id}
    end = r.TerminateWorkflowRequest(namespace="default", workflow_id="w1")
    await soon(shop.service.terminate_workflow(end))
    ask = r.GetHistoryRequest(namespace="default", workflow_id="w1", wait_new_event=True, close_event_only=True)
    starting = [asyncio.ensure_future(shop.start(request_id="one", id_conflict_policy=USE)) for _ in range(2)]
    waiting: list[asyncio.Future[r.GetHistoryResponse]] = []
    for _ in range(30):
        waiting.append(asyncio.ensure_future(shop.service.get_history(ask)))
        await asyncio.sleep(0)
    runs |= {started.run_id for started in await soon(asyncio.gather(*starting))}
    await soon(shop.service.terminate_workflow(end))
    for told in await soon(asyncio.gather(*waiting)):
        assert told.run_id in runs
        assert [type(event) for event in told.events] == [e.WorkflowExecutionTerminated]


async def a_node_updates_a_run_that_another_node_has_replaced() -> None:
    """It refused the update for the run in its memory, which was over, though the caller had named none."""
    shop = FleetShop(nodes=2)
    await shop.open()
    try:
        first, second = (node.engine for node in shop.nodes)
        start = r.StartWorkflowRequest(
            namespace="default", workflow_id="w1", workflow_type="W", task_queue="q", request_id="one"
        )
        await soon(first.start_workflow(start))
        shop.exchange.is_lossy = True
        again = msgspec.structs.replace(
            start, request_id="two", id_conflict_policy=WorkflowIDConflictPolicy.TERMINATE_EXISTING
        )
        run_id = (await soon(second.start_workflow(again))).run_id
        update = r.UpdateWorkflowRequest(namespace="default", workflow_id="w1", request=update_call().update.request)
        updating = asyncio.ensure_future(first.update_workflow(update))

        def is_admitted() -> bool:
            entry = first._cache.get_open("default", "w1")
            return entry is not None and entry.state.run_id == run_id and bool(entry.state.updates)

        await until(lambda: updating.done() or is_admitted())
        assert not updating.done(), updating.exception()
        updating.cancel()
    finally:
        await shop.close()
