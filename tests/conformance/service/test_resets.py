"""Resets through the contract: both runs in one commit, the same keys, signals and updates once, children kept."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from clew.adapters import SystemEntropy
from clew.engine import pipeline
from clew.model import events as e
from clew.model.commands import (
    Command,
    CompleteWorkflowExecution,
    ContinueAsNewWorkflowExecution,
    ScheduleActivityTask,
    SignalExternalWorkflowExecution,
    StartChildWorkflowExecution,
    StartTimer,
)
from clew.model.events import Event, ExecutionRef, UpdateRequest
from clew.model.policies import WorkflowExecutionStatus, WorkflowIDConflictPolicy
from clew.model.rejection import RejectionCode
from clew.service import requests as r
from clew.service.errors import RPCError
from tests.conformance.service.scripted import ScriptedWorker, Shop, payloads, soon

MINUTE = timedelta(minutes=1)
TIMERS = 200
"""More events than one row of history holds, once that is made small."""

FIRST, LAST = r.ResetType.FIRST_WORKFLOW_TASK, r.ResetType.LAST_WORKFLOW_TASK


def activity(number: int = 1) -> ScheduleActivityTask:
    return ScheduleActivityTask(
        activity_id=f"a-{number}", activity_type="a", start_to_close_timeout=MINUTE, input=payloads(number)
    )


def child(workflow_id: str = "kid") -> StartChildWorkflowExecution:
    return StartChildWorkflowExecution(workflow_id=workflow_id, workflow_type="Kid")


async def reset(shop: Shop, **fields: Any) -> str:
    """Reset, and answer the new run's id."""
    values = {"workflow_id": "w1", "reason": "mend", "request_id": SystemEntropy().uuid7(), **fields}
    response = await soon(shop.service.reset_workflow(r.ResetWorkflowRequest(namespace="default", **values)))
    run_id: str = response.run_id
    return run_id


async def answer(worker: ScriptedWorker, *commands: Command, **more: Any) -> r.WorkflowTask:
    """Complete the next workflow task with these commands."""
    task = await worker.workflow_task()
    await worker.complete(task, *commands, **more)
    return task


def copied(of: list[Event], new: list[Event]) -> int:
    """How many events the new history has from the old one, unchanged."""
    seam = next(event for event in new if getattr(event, "new_run_id", ""))
    count: int = seam.event_id - 1
    assert new[:count] == of[:count]
    return count


def only(events: list[Event], kind: Any) -> list[Any]:
    return [event for event in events if isinstance(event, kind)]


async def test_an_open_run_goes_on_from_an_earlier_point(shop: Shop) -> None:
    worker = await shop.worker()
    old = (await shop.start()).run_id
    await answer(worker, activity(1))
    first = await worker.activity_task()
    await worker.complete_activity(first)
    await answer(worker, activity(2))
    second = await worker.activity_task()
    await shop.signal("later")
    await answer(worker)
    new = await reset(shop, reset_type=LAST, reason="a bad deploy")
    assert new != old
    before = await shop.history(run_id=old)
    assert isinstance(before[-1], e.WorkflowExecutionTerminated)
    assert before[-1].reason == "a bad deploy"
    task = await worker.workflow_task()
    assert (task.token.run_id, task.is_partial, task.events[0].event_id) == (new, False, 1)
    history = await shop.history()
    assert copied(before, history) == before[-2].event_id - 1
    assert [event.signal_name for event in only(history, e.WorkflowExecutionSignaled)] == ["later"]
    again = await worker.activity_task()
    assert (again.activity_id, again.attempt, again.input) == ("a-2", 1, payloads(2))
    assert again.idempotency_key == second.idempotency_key
    with pytest.raises(RPCError) as refused:
        await worker.complete_activity(second)
    assert refused.value.code is RejectionCode.ACTIVITY_NOT_FOUND
    await worker.complete(task)
    await worker.complete_activity(again)
    await answer(worker, CompleteWorkflowExecution(result=payloads("done")))
    assert (await shop.describe()).info.status is WorkflowExecutionStatus.COMPLETED


async def test_a_closed_run_goes_on_and_survives_a_restart(file_shop: Shop) -> None:
    shop = file_shop
    worker = await shop.worker()
    old = (await shop.start()).run_id
    await answer(worker, activity(1))
    first = await worker.activity_task()
    await worker.complete_activity(first)
    await answer(worker, CompleteWorkflowExecution())
    new = await reset(shop, reset_type=FIRST)
    await shop.restart()
    worker = await shop.worker()
    task = await worker.workflow_task()
    assert task.token.run_id == new
    await worker.complete(task, activity(1))
    again = await worker.activity_task()
    assert again.idempotency_key == first.idempotency_key
    before = await shop.history(run_id=old)
    assert isinstance(before[-1], e.WorkflowExecutionCompleted)
    described = await shop.describe()
    assert (described.info.run_id, described.info.first_execution_run_id) == (new, old)
    listed = await soon(shop.service.list_workflows(r.ListWorkflowsRequest(namespace="default")))
    assert [info.run_id for info in listed.executions] == [new, old]


async def test_the_same_request_resets_once(shop: Shop) -> None:
    worker = await shop.worker()
    await shop.start()
    await answer(worker, StartTimer(timer_id="t", start_to_fire_timeout=MINUTE))
    new = await reset(shop, reset_type=LAST, request_id="once")
    assert await reset(shop, reset_type=LAST, request_id="once") == new
    await answer(worker)
    shop.advance(2)
    await shop.signal("go")
    await answer(worker, ContinueAsNewWorkflowExecution())
    assert await reset(shop, reset_type=LAST, request_id="once") == new
    assert await reset(shop, run_id=new, reset_type=LAST, request_id="twice") != new


async def test_two_resets_at_once_follow_one_another(shop: Shop) -> None:
    worker = await shop.worker()
    old = (await shop.start()).run_id
    await answer(worker, activity(1))
    made = await asyncio.gather(*(reset(shop, reset_type=FIRST) for _ in range(2)))
    assert len({old, *made}) == 3
    latest = (await shop.describe()).info
    assert latest.status is WorkflowExecutionStatus.RUNNING
    assert latest.run_id in made
    [other] = {*made} - {latest.run_id}
    for run_id in (old, other):
        assert isinstance((await shop.history(run_id=run_id))[-1], e.WorkflowExecutionTerminated)


async def test_two_starts_at_once_that_replace_what_runs_follow_one_another(shop: Shop) -> None:
    policy = WorkflowIDConflictPolicy.TERMINATE_EXISTING
    old = (await shop.start()).run_id
    made = [one.run_id for one in await asyncio.gather(*(shop.start(id_conflict_policy=policy) for _ in range(3)))]
    assert len({old, *made}) == 4
    latest = (await shop.describe()).info
    assert latest.status is WorkflowExecutionStatus.RUNNING
    for run_id in {old, *made} - {latest.run_id}:
        assert isinstance((await shop.history(run_id=run_id))[-1], e.WorkflowExecutionTerminated)


async def test_resets_that_cannot_be_are_refused(shop: Shop) -> None:
    run_id = (await shop.start()).run_id
    with pytest.raises(RPCError, match="completed no workflow task"):
        await reset(shop, reset_type=FIRST)
    worker = await shop.worker()
    await answer(worker, StartTimer(timer_id="t", start_to_fire_timeout=MINUTE))
    before = await shop.history()
    for fields, code in (
        ({"event_id": 5}, RejectionCode.INVALID_ARGUMENT),
        ({"event_id": 1}, RejectionCode.INVALID_ARGUMENT),
        ({"event_id": 99}, RejectionCode.INVALID_ARGUMENT),
        ({"event_id": -4}, RejectionCode.INVALID_ARGUMENT),
        ({}, RejectionCode.INVALID_ARGUMENT),
        ({"event_id": 4, "reset_type": LAST}, RejectionCode.INVALID_ARGUMENT),
        ({"event_id": 4, "reason": ""}, RejectionCode.INVALID_ARGUMENT),
        ({"event_id": 4, "request_id": ""}, RejectionCode.INVALID_ARGUMENT),
        ({"build_id": "nobody's"}, RejectionCode.INVALID_ARGUMENT),
        ({"event_id": 4, "workflow_id": "w2"}, RejectionCode.WORKFLOW_NOT_FOUND),
        ({"event_id": 4, "run_id": "no-run"}, RejectionCode.WORKFLOW_NOT_FOUND),
    ):
        with pytest.raises(RPCError) as refused:
            await reset(shop, **fields)
        assert refused.value.code is code, fields
    with pytest.raises(RPCError) as refused:
        await soon(
            shop.service.reset_workflow(
                r.ResetWorkflowRequest(namespace="nowhere", workflow_id="w1", reason="x", request_id="x", event_id=4)
            )
        )
    assert refused.value.code is RejectionCode.NAMESPACE_NOT_FOUND
    assert await shop.history() == before
    assert (await shop.describe()).info.run_id == run_id


async def test_a_point_of_an_earlier_run_brings_the_signals_of_the_later_ones(shop: Shop) -> None:
    worker = await shop.worker()
    first = (await shop.start()).run_id
    shop.advance(2)
    # Each signal comes while a task is under way, however late a worker behind a link has taken that.
    task = await worker.workflow_task()
    await shop.signal("one")
    await worker.complete(task)
    await answer(worker, ContinueAsNewWorkflowExecution())
    task = await worker.workflow_task()
    await shop.signal("two")
    await worker.complete(task)
    await answer(worker, CompleteWorkflowExecution())
    await shop.start()
    await shop.signal("of another chain")
    another = (await shop.describe()).info.run_id
    new = await reset(shop, run_id=first, reset_type=FIRST)
    names = [event.signal_name for event in only(await shop.history(run_id=new), e.WorkflowExecutionSignaled)]
    assert names == ["one", "two"]
    assert (await shop.event_types(run_id=another))[-1] == "WorkflowExecutionTerminated"
    assert (await shop.describe()).info.run_id == new
    await shop.signal("three")
    last = await reset(shop, run_id=first, reset_type=FIRST)
    names = [event.signal_name for event in only(await shop.history(run_id=last), e.WorkflowExecutionSignaled)]
    assert names == ["one", "two", "three"]


async def test_a_reset_copies_a_long_history(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, "BATCH_EVENTS_MAX", 60)
    worker = await shop.worker()
    old = (await shop.start()).run_id
    timers = [StartTimer(timer_id=str(number), start_to_fire_timeout=MINUTE) for number in range(TIMERS)]
    await answer(worker, *timers)
    await shop.signal("go")
    await answer(worker)
    new = await reset(shop, reset_type=LAST)
    task = await worker.workflow_task()
    assert [event.event_id for event in task.events] == list(range(1, task.started_event_id + 1))
    before, after = await shop.history(run_id=old), await shop.history(run_id=new)
    assert copied(before, after) > TIMERS
    await worker.complete(task)
    shop.advance(61)
    fired = await worker.workflow_task()
    assert len(only(list(fired.events), e.TimerFired)) == TIMERS


async def test_a_child_that_runs_reports_to_the_new_run(shop: Shop) -> None:
    worker = await shop.worker()
    await shop.start()
    await answer(worker, child())
    kid, parent = await two(worker)
    await worker.complete(parent)
    await shop.signal("go")
    await answer(worker)
    new = await reset(shop, reset_type=LAST)
    task = await worker.workflow_task()
    assert task.token.run_id == new
    await worker.complete(task)
    await worker.complete(kid, CompleteWorkflowExecution(result=payloads("from the kid")))
    told = await worker.workflow_task()
    [closed] = only(list(told.events), e.ChildWorkflowExecutionCompleted)
    assert (told.token.run_id, closed.result) == (new, payloads("from the kid"))


async def test_a_child_that_ended_while_nobody_waited_is_reported(shop: Shop) -> None:
    worker = await shop.worker()
    old = (await shop.start()).run_id
    await answer(worker, child())
    kid, parent = await two(worker)
    await worker.complete(parent)
    await shop.signal("go")
    await answer(worker, CompleteWorkflowExecution())
    # The close policy of the old run terminates the child.
    await shop.until_described(lambda found: found.info.status is WorkflowExecutionStatus.TERMINATED, "kid")
    new = await reset(shop, run_id=old, reset_type=LAST)
    await shop.settle()
    history = await shop.history(run_id=new)
    if not only(history, e.ChildWorkflowExecutionTerminated):
        await answer(worker)
        told = await worker.workflow_task()
        assert only(list(told.events), e.ChildWorkflowExecutionTerminated)
    with pytest.raises(RPCError):
        await worker.complete(kid, CompleteWorkflowExecution())


async def test_a_child_not_yet_started_is_started_once(shop: Shop) -> None:
    worker = await shop.worker(credits=1)
    await shop.start()
    task = await worker.workflow_task()
    await soon(
        shop.service.complete_workflow_task(
            r.CompleteWorkflowTaskRequest(
                token=task.token, commands=(child(),), identity="w", force_create_new_workflow_task=True
            )
        )
    )
    await shop.until_started("kid")
    history = await shop.history()
    # Behind the task that was asked for in the same answer: before the child's start was known.
    point = only(history, e.WorkflowTaskScheduled)[1].event_id + 1
    kid_run = (await shop.describe("kid")).info.run_id
    new = await reset(shop, event_id=point)
    worker.grant()
    worker.grant()
    await shop.settle()
    started = only(await shop.history(run_id=new), e.ChildWorkflowExecutionStarted)
    assert [event.workflow_execution.run_id for event in started] == [kid_run]
    assert (await shop.describe("kid")).info.status is WorkflowExecutionStatus.RUNNING


async def test_a_signal_sent_to_another_run_is_felt_once(shop: Shop) -> None:
    worker = await shop.worker()
    await shop.start("other", task_queue="elsewhere")
    old = (await shop.start()).run_id
    poke = SignalExternalWorkflowExecution(workflow_execution=ExecutionRef("other"), signal_name="poke")
    task = await worker.workflow_task()
    await worker.complete(task, poke, force_create_new_workflow_task=True)

    def has_arrived(events: list[Event]) -> bool:
        return bool(only(events, e.ExternalWorkflowExecutionSignaled))

    while not has_arrived(await shop.history(run_id=old)):
        if not worker.workflow_tasks.empty():
            await answer(worker)
        await shop.settle()
    point = only(await shop.history(run_id=old), e.WorkflowTaskScheduled)[1].event_id + 1
    new = await reset(shop, event_id=point)
    await shop.settle()
    assert has_arrived(await shop.history(run_id=new))
    assert len(only(await shop.history("other"), e.WorkflowExecutionSignaled)) == 1


async def test_an_update_goes_on_in_the_new_run(shop: Shop) -> None:
    worker = await shop.worker()
    old = (await shop.start()).run_id
    await answer(worker, StartTimer(timer_id="t", start_to_fire_timeout=MINUTE))
    request = r.UpdateWorkflowRequest(
        namespace="default", workflow_id="w1", request=UpdateRequest(update_id="u1", name="set", input=payloads(1))
    )
    waiting = asyncio.ensure_future(shop.service.update_workflow(request))
    task = await worker.workflow_task()
    [message] = task.messages
    accept = r.UpdateAcceptance(message_id="u1/accept", update_id="u1", sequencing_event_id=message.sequencing_event_id)
    await worker.complete(task, acceptances=(accept,))
    poll = r.PollUpdateRequest(namespace="default", workflow_id="w1", run_id=old, update_id="u1")
    polled = asyncio.ensure_future(shop.service.poll_update(poll))
    await shop.settle()
    new = await reset(shop, event_id=4)
    task = await worker.workflow_task()
    assert task.token.run_id == new
    assert [one.request.update_id for one in task.messages] == ["u1"]
    done = r.UpdateCompletion(
        message_id="u1/done", update_id="u1", outcome=e.UpdateOutcome(result=payloads("in the new run"))
    )
    await worker.complete(task, acceptances=(accept,), completions=(done,))
    for response in (await soon(waiting), await soon(polled), await soon(shop.service.poll_update(poll))):
        assert response.outcome is not None
        assert (response.run_id, response.outcome.result) == (new, payloads("in the new run"))


async def two(worker: ScriptedWorker) -> tuple[r.WorkflowTask, r.WorkflowTask]:
    """The tasks of the child and of its parent, which come in any order."""
    tasks = [await worker.workflow_task(), await worker.workflow_task()]
    tasks.sort(key=lambda task: task.token.workflow_id != "kid")
    return tasks[0], tasks[1]
