"""Resets of chains that other resets have changed: nothing acknowledged stays behind, nothing comes twice, and a child
finds the run that waits for it whichever of them started it."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path

import pytest

from clew.engine import resets
from clew.model import events as e
from clew.model.commands import (
    Command,
    CompleteWorkflowExecution,
    ContinueAsNewWorkflowExecution,
    FailWorkflowExecution,
    StartTimer,
)
from clew.model.failure import ApplicationInfo, Failure
from clew.model.policies import RetryPolicy, WorkflowExecutionStatus
from clew.model.rejection import RejectionCode
from clew.service import requests as r
from clew.service.errors import RPCError
from tests.conformance.service.scripted import ScriptedWorker, Shop, payloads, soon
from tests.conformance.service.test_resets import FIRST, LAST, MINUTE, answer, child, only, reset, two

TIMER = StartTimer(timer_id="t", start_to_fire_timeout=MINUTE)
FAR = timedelta(days=100 * 365)


async def current(shop: Shop, worker: ScriptedWorker, *commands: Command) -> r.WorkflowTask:
    """Complete the next task of the latest run; tasks of runs before it are of no use any more."""
    run_id = (await shop.describe()).info.run_id
    while True:
        task = await worker.workflow_task()
        if task.token.run_id == run_id:
            await worker.complete(task, *commands)
            return task


async def delete_closed(shop: Shop) -> None:
    """Delete what is closed, once its messages are delivered."""
    while not await shop.engine._store.delete_closed_runs("default", shop.clock.now() + FAR, 10):
        await asyncio.sleep(0.01)


async def signals(shop: Shop, run_id: str) -> list[str]:
    """The names of the signals in the history of this run."""
    return [event.signal_name for event in only(await shop.history(run_id=run_id), e.WorkflowExecutionSignaled)]


async def test_signals_come_along_past_a_reset_and_a_continue_as_new(shop: Shop) -> None:
    worker = await shop.worker()
    base = (await shop.start()).run_id
    await current(shop, worker, TIMER)
    await shop.signal("one")
    await current(shop, worker)
    await reset(shop, reset_type=FIRST)
    shop.advance(2)
    await current(shop, worker)
    await shop.signal("two")
    await current(shop, worker, ContinueAsNewWorkflowExecution())
    await shop.signal("three")
    made = await reset(shop, run_id=base, reset_type=FIRST)
    assert await signals(shop, made) == ["one", "two", "three"]


async def test_signals_come_along_past_a_continue_as_new_and_a_reset(shop: Shop) -> None:
    worker = await shop.worker()
    base = (await shop.start()).run_id
    await current(shop, worker, TIMER)
    await shop.signal("one")
    shop.advance(2)
    await current(shop, worker, ContinueAsNewWorkflowExecution())
    await shop.settle()
    await current(shop, worker)
    await shop.signal("two")
    await reset(shop, reset_type=FIRST)
    await current(shop, worker)
    await shop.signal("three")
    made = await reset(shop, run_id=base, reset_type=FIRST)
    assert await signals(shop, made) == ["one", "two", "three"]


async def test_signals_of_a_run_that_went_back_further_come_along_but_not_what_was_before(shop: Shop) -> None:
    worker = await shop.worker()
    first = (await shop.start()).run_id
    await current(shop, worker, TIMER)
    await shop.signal("one")
    shop.advance(2)
    await current(shop, worker, ContinueAsNewWorkflowExecution())
    await shop.settle()
    second = (await shop.describe()).info.run_id
    await current(shop, worker)
    await shop.signal("two")
    shop.advance(2)
    await current(shop, worker, ContinueAsNewWorkflowExecution())
    await shop.settle()
    await current(shop, worker)
    await shop.signal("three")
    further = await reset(shop, run_id=first, reset_type=FIRST)
    assert await signals(shop, further) == ["one", "two", "three"]
    await shop.signal("four")
    made = await reset(shop, run_id=second, reset_type=FIRST)
    assert await signals(shop, made) == ["two", "three", "four"]


async def test_a_chain_too_long_to_read_is_refused(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resets, "FOLLOWED_MAX", 2)
    worker = await shop.worker()
    first = (await shop.start()).run_id
    for _ in range(4):
        shop.advance(2)
        await current(shop, worker, ContinueAsNewWorkflowExecution())
        await shop.settle()
    shop.advance(2)
    await current(shop, worker, TIMER)
    await shop.signal("of the latest run")
    with pytest.raises(RPCError, match="exclude signals and updates") as refused:
        await reset(shop, run_id=first, reset_type=FIRST)
    assert refused.value.code is RejectionCode.LIMIT_EXCEEDED
    everything = tuple(r.ResetReapplyExcludeType)
    made = await reset(shop, run_id=first, reset_type=FIRST, reapply_exclude=everything)
    assert await signals(shop, made) == []


@pytest.mark.parametrize("how", ["retry", "cron"])
async def test_the_run_after_a_reset_has_the_deadline_of_the_reset(shop: Shop, how: str) -> None:
    worker = await shop.worker()
    policy = RetryPolicy(initial_interval=timedelta(seconds=1)) if how == "retry" else None
    await shop.start(
        workflow_execution_timeout=timedelta(minutes=10),
        retry_policy=policy,
        cron_schedule="* * * * *" if how == "cron" else "",
    )
    shop.advance(60 if how == "cron" else 0)
    await answer(worker, StartTimer(timer_id="t", start_to_fire_timeout=timedelta(hours=1)))
    shop.advance(20 * 60)
    await shop.until_described(lambda found: found.info.status is WorkflowExecutionStatus.TIMED_OUT)
    made = await reset(shop, reset_type=LAST)
    failing = FailWorkflowExecution(failure=Failure(message="x", info=ApplicationInfo()))
    await answer(worker, failing if how == "retry" else CompleteWorkflowExecution())
    found = await shop.until_described(lambda found: found.info.run_id != made)
    shop.advance(60)
    await answer(worker, StartTimer(timer_id="t", start_to_fire_timeout=timedelta(hours=1)))
    assert found.info.status is WorkflowExecutionStatus.RUNNING
    assert (await shop.describe()).info.status is WorkflowExecutionStatus.RUNNING


async def test_a_child_finds_the_new_run_when_its_parent_has_been_deleted(shop: Shop) -> None:
    worker = await shop.worker()
    await shop.start()
    await answer(worker, child())
    kid, parent = await two(worker)
    await worker.complete(parent)
    await shop.signal("go")
    await answer(worker)
    await reset(shop, reset_type=LAST)
    await answer(worker)
    await soon(delete_closed(shop))
    await worker.complete(kid, CompleteWorkflowExecution(result=payloads("from the kid")))
    told = await worker.workflow_task()
    assert only(list(told.events), e.ChildWorkflowExecutionCompleted)


async def test_a_child_that_a_run_made_by_a_reset_started_finds_the_run_of_the_next_reset(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = await shop.worker()
    base = (await shop.start()).run_id
    with monkeypatch.context() as patched:  # The run itself does not come to start its child.
        patched.setattr(shop.engine._outbox, "deliver", lambda rows: None)
        await worker.complete(await worker.workflow_task(), child(), force_create_new_workflow_task=True)
        await answer(worker)
    await reset(shop, reset_type=LAST)
    kid, parent = await two(worker)
    await worker.complete(parent)
    made = await reset(shop, run_id=base, reset_type=LAST)
    await worker.complete(kid, CompleteWorkflowExecution(result=payloads("from the kid")))
    outcomes: list[e.ChildWorkflowExecutionCompleted] = []
    while not outcomes:
        task = await current(shop, worker)
        assert task.token.run_id == made
        outcomes = only(list(task.events), e.ChildWorkflowExecutionCompleted)


def update(update_id: str = "u1") -> r.UpdateWorkflowRequest:
    return r.UpdateWorkflowRequest(
        namespace="default", workflow_id="w1", request=e.UpdateRequest(update_id=update_id, name="set", input=())
    )


def accepted(message: r.UpdateMessage, update_id: str = "u1") -> r.UpdateAcceptance:
    return r.UpdateAcceptance(
        message_id=f"{update_id}/accept", update_id=update_id, sequencing_event_id=message.sequencing_event_id
    )


async def test_an_update_that_ended_before_the_point_does_not_come_again(shop: Shop) -> None:
    worker = await shop.worker()
    base = (await shop.start()).run_id
    await answer(worker, TIMER)
    first = asyncio.ensure_future(shop.service.update_workflow(update()))
    task = await worker.workflow_task()
    outcome = e.UpdateOutcome(result=payloads("done"))
    done = r.UpdateCompletion(message_id="u1/done", update_id="u1", outcome=outcome)
    await worker.complete(task, acceptances=(accepted(task.messages[0]),), completions=(done,))
    assert (await soon(first)).outcome == outcome
    await shop.signal("go")
    await answer(worker)
    # The update is admitted in this run again, and waits for its first workflow task while another reset comes.
    await reset(shop, reset_type=FIRST)
    again = asyncio.ensure_future(shop.service.update_workflow(update()))
    await shop.settle()
    made = await reset(shop, run_id=base, reset_type=LAST)
    assert (await soon(again)).outcome == outcome
    task = await worker.workflow_task()
    while task.token.run_id != made:
        task = await worker.workflow_task()
    assert task.messages == ()
    assert (await shop.describe()).pending_updates == ()
    assert (await soon(shop.service.update_workflow(update()))).outcome == outcome


async def test_who_asks_for_an_update_while_it_is_rejected_hears_so(tmp_path: Path) -> None:
    """The run does not know it any more when the answer would be given, and is not durable as it is then."""
    shop = Shop(f"sqlite:{tmp_path / 'shop.db'}")
    await shop.open()
    worker = await shop.worker()
    await shop.start()
    sent = asyncio.ensure_future(shop.service.update_workflow(update()))
    task = await worker.workflow_task()
    no = r.UpdateRejection(message_id="u1/no", update_id="u1", failure=Failure(message="no", info=ApplicationInfo()))
    poll = r.PollUpdateRequest(namespace="default", workflow_id="w1", run_id="", update_id="u1")
    polled = asyncio.ensure_future(shop.service.poll_update(poll))
    _, _, answered = await soon(asyncio.gather(shop.signal("go"), worker.complete(task, rejections=(no,)), polled))
    assert answered.outcome is not None
    assert answered.outcome == (await soon(sent)).outcome
    with pytest.raises(RPCError) as caught:
        await soon(shop.service.poll_update(poll))
    assert caught.value.rejection.code is RejectionCode.UPDATE_NOT_FOUND
    await shop.close()


async def test_an_update_that_was_rejected_does_not_come_again(shop: Shop) -> None:
    worker = await shop.worker()
    await shop.start()
    await answer(worker, TIMER)
    waiting = asyncio.ensure_future(shop.service.update_workflow(update()))
    task = await worker.workflow_task()
    await worker.complete(task, acceptances=(accepted(task.messages[0]),))
    await reset(shop, event_id=4)
    task = await worker.workflow_task()
    assert [one.request.update_id for one in task.messages] == ["u1"]
    no = r.UpdateRejection(
        message_id="u1/no", update_id="u1", failure=Failure(message="not any more", info=ApplicationInfo())
    )
    await worker.complete(task, rejections=(no,))
    answered = (await soon(waiting)).outcome
    assert answered is not None
    assert answered.failure is not None
    await shop.signal("go")
    await answer(worker)
    await reset(shop, reset_type=LAST)
    task = await worker.workflow_task()
    assert task.messages == ()
    assert (await shop.describe()).pending_updates == ()


async def test_a_question_to_a_run_that_a_reset_ends_before_its_first_task_is_refused(shop: Shop) -> None:
    worker = await shop.worker(credits=1)
    base = (await shop.start()).run_id
    await shop.worker(task_queue="q", instance_id="w-2", credits=0)
    task = await worker.workflow_task()
    await soon(
        shop.service.complete_workflow_task(
            r.CompleteWorkflowTaskRequest(token=task.token, commands=(TIMER,), identity="w")
        )
    )
    made = await reset(shop, reset_type=FIRST)
    question = r.QueryWorkflowRequest(namespace="default", workflow_id="w1", run_id=made, query_type="how")
    asked = asyncio.ensure_future(shop.service.query_workflow(question))
    await shop.settle()
    await reset(shop, run_id=base, reset_type=FIRST)
    with pytest.raises(RPCError, match="before its code ever ran") as refused:
        await soon(asked)
    assert refused.value.code is RejectionCode.WORKFLOW_NOT_READY
