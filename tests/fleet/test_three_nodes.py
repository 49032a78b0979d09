"""Client, engine node and worker at three different nodes: everything works as on one."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from clew.engine.recovery import ORPHAN_SECONDS
from clew.engine.runs import RunEntry
from clew.model.commands import (
    CompleteWorkflowExecution,
    RequestCancelActivityTask,
    ScheduleActivityTask,
    StartChildWorkflowExecution,
    StartTimer,
)
from clew.model.events import UpdateOutcome, UpdateRequest
from clew.model.failure import ApplicationInfo, Failure
from clew.model.policies import WorkflowExecutionStatus
from clew.model.rejection import RejectionCode
from clew.service import operations as o
from clew.service import requests as r
from clew.service.errors import RPCError
from tests.conformance.service.scripted import ScriptedWorker, payloads, soon
from tests.fleet.shop import FleetShop, Node

MINUTE = timedelta(minutes=1)


def activity(number: int = 1, **fields: Any) -> ScheduleActivityTask:
    values = {"activity_id": f"a-{number}", "activity_type": "a", "start_to_close_timeout": MINUTE, **fields}
    return ScheduleActivityTask(**values)


async def start(node: Node, workflow_id: str = "w1", **fields: Any) -> r.StartWorkflowResponse:
    request = r.StartWorkflowRequest(
        namespace="default",
        workflow_id=workflow_id,
        workflow_type="W",
        task_queue="q",
        request_id=workflow_id,
        **fields,
    )
    return await soon(node.engine.start_workflow(request))


async def signal(node: Node, name: str = "go", workflow_id: str = "w1") -> None:
    request = r.SignalWorkflowRequest(
        namespace="default", workflow_id=workflow_id, signal_name=name, request_id=f"{name}-{workflow_id}"
    )
    await soon(node.engine.signal_workflow(request))


def result_of(node: Node, workflow_id: str = "w1") -> asyncio.Future[r.GetHistoryResponse]:
    request = r.GetHistoryRequest(
        namespace="default", workflow_id=workflow_id, wait_new_event=True, close_event_only=True
    )
    return asyncio.ensure_future(node.engine.get_history(request))


def send_update(
    node: Node, update_id: str = "u1", stage: r.UpdateStage = r.UpdateStage.COMPLETED
) -> asyncio.Future[r.UpdateResponse]:
    request = r.UpdateWorkflowRequest(
        namespace="default",
        workflow_id="w1",
        wait_stage=stage,
        request=UpdateRequest(update_id=update_id, name="add", input=payloads(1)),
    )
    return asyncio.ensure_future(node.engine.update_workflow(request))


async def cached_at(shop: FleetShop, node: Node, workflow_id: str = "w1", **hello: Any) -> ScriptedWorker:
    """A worker at the node that has the run cached."""
    worker = await shop.worker(node, **hello)
    await start(node, workflow_id)
    await worker.complete(await worker.workflow_task(), sticky=True)
    return worker


async def test_a_run_started_here_is_worked_on_there_and_awaited_elsewhere(shop: FleetShop) -> None:
    a, b, c = shop.nodes
    worker = await shop.worker(c)
    await start(b)
    waiting = result_of(a)
    await worker.complete(await worker.workflow_task(), activity(), sticky=True)
    await worker.complete_activity(await worker.activity_task(), "done")
    await worker.complete(await worker.workflow_task(), CompleteWorkflowExecution(result=payloads("all done")))
    closing = await soon(waiting)
    assert [type(event).__name__ for event in closing.events] == ["WorkflowExecutionCompleted"]
    described = await soon(b.engine.describe_workflow(r.DescribeWorkflowRequest(namespace="default", workflow_id="w1")))
    assert described.info.status is WorkflowExecutionStatus.COMPLETED


async def test_workflow_and_activity_workers_at_different_nodes(shop: FleetShop) -> None:
    a, b, c = shop.nodes
    flows = await shop.worker(a, takes_activity_tasks=False)
    hands = await shop.worker(b, takes_workflow_tasks=False)
    await start(c)
    await flows.complete(await flows.workflow_task(), *[activity(n) for n in range(20)], sticky=True)
    for _ in range(20):
        await hands.complete_activity(await hands.activity_task())
    seen = 0
    while seen < 20:
        task = await flows.workflow_task()
        seen += sum(type(event).__name__ == "ActivityTaskCompleted" for event in task.events)
        await flows.complete(task, *([CompleteWorkflowExecution()] if seen == 20 else []), sticky=True)
    assert seen == 20


async def test_a_signal_through_another_node_goes_to_the_worker_that_has_the_run(shop: FleetShop) -> None:
    a, b, c = shop.nodes
    worker = await cached_at(shop, a)
    await shop.worker(c)
    for number in range(5):
        await signal((b, c)[number % 2], f"s{number}")
        task = await worker.workflow_task()
        assert task.is_partial, "it has the run cached, and gets only what is new"
        await worker.complete(task, sticky=True)


async def test_signals_through_all_nodes_at_once_are_all_recorded(shop: FleetShop) -> None:
    worker = await cached_at(shop, shop.nodes[0])
    await asyncio.gather(*[signal(shop.next_node(), f"s{number}") for number in range(30)])
    names: list[str] = []
    while len(names) < 30:
        task = await worker.workflow_task()
        names += [event.signal_name for event in task.events if type(event).__name__ == "WorkflowExecutionSignaled"]
        await worker.complete(task, sticky=True)
    assert sorted(names) == sorted(f"s{number}" for number in range(30))
    history = await shop.history()
    assert [event.event_id for event in history] == list(range(1, len(history) + 1))


async def test_a_query_is_asked_where_the_run_is_cached(shop: FleetShop) -> None:
    a, _, c = shop.nodes
    worker = await cached_at(shop, a)
    request = r.QueryWorkflowRequest(namespace="default", workflow_id="w1", query_type="state", query_args=payloads(7))
    asking = asyncio.ensure_future(c.engine.query_workflow(request))
    task = await worker.workflow_task()
    assert task.query is not None
    assert (task.is_partial, task.query.query_args) == (True, payloads(7))
    big = payloads("x" * 200_000)
    result = r.QueryResult(query_id=task.query.query_id, result=big)
    await soon(a.engine.answer_query(r.AnswerQueryRequest(token=task.token, result=result)))
    assert (await soon(asking)).result == big


async def test_a_query_that_fails_there_fails_here(shop: FleetShop) -> None:
    a, _, c = shop.nodes
    worker = await cached_at(shop, a)
    request = r.QueryWorkflowRequest(namespace="default", workflow_id="w1", query_type="nonsense")
    asking = asyncio.ensure_future(c.engine.query_workflow(request))
    task = await worker.workflow_task()
    assert task.query is not None
    failure = Failure(message="no such query", info=ApplicationInfo(type="Unknown"))
    result = r.QueryResult(query_id=task.query.query_id, failure=failure)
    await soon(a.engine.answer_query(r.AnswerQueryRequest(token=task.token, result=result)))
    with pytest.raises(RPCError, match="no such query") as caught:
        await soon(asking)
    assert caught.value.code is RejectionCode.QUERY_FAILED


async def test_a_closed_run_is_queried_by_any_node_that_has_a_worker(shop: FleetShop) -> None:
    a, b, c = shop.nodes
    first = await shop.worker(a)
    await start(a)
    await first.complete(await first.workflow_task(), CompleteWorkflowExecution())
    assert first.session is not None
    first.session.detach()
    second = await shop.worker(b)
    request = r.QueryWorkflowRequest(namespace="default", workflow_id="w1", query_type="state")
    asking = asyncio.ensure_future(c.engine.query_workflow(request))
    task = await second.workflow_task()
    assert task.query is not None
    assert task.events[0].event_id == 1
    result = r.QueryResult(query_id=task.query.query_id, result=payloads("fine"))
    await soon(b.engine.answer_query(r.AnswerQueryRequest(token=task.token, result=result)))
    assert (await soon(asking)).result == payloads("fine")


async def test_a_query_rides_on_the_task_that_another_node_has(shop: FleetShop) -> None:
    a, _, c = shop.nodes
    worker = await cached_at(shop, a)
    await signal(c)
    task = await worker.workflow_task()
    request = r.QueryWorkflowRequest(namespace="default", workflow_id="w1", query_type="state")
    asking = asyncio.ensure_future(c.engine.query_workflow(request))
    await signal(c, "more")
    await shop.until(lambda: any(entry.queries for entry in a.engine._cache._entries.values()))
    await worker.complete(task, sticky=True)
    following = await worker.workflow_task()
    (query,) = following.queries
    await worker.complete(
        following, sticky=True, query_results=(r.QueryResult(query_id=query.query_id, result=payloads("seen")),)
    )
    assert (await soon(asking)).result == payloads("seen")


@pytest.mark.parametrize("end", ["completed", "rejected"])
async def test_an_update_through_another_node_hears_of_its_end(shop: FleetShop, end: str) -> None:
    a, _, c = shop.nodes
    worker = await cached_at(shop, a)
    for number in range(3):
        updating = send_update(c, f"u{number}")
        task = await worker.workflow_task()
        (message,) = task.messages
        failure = Failure(message="not now", info=ApplicationInfo(type="No"))
        if end == "completed":
            await worker.complete(
                task,
                sticky=True,
                acceptances=(r.UpdateAcceptance(message_id="a", update_id=f"u{number}", sequencing_event_id=2),),
                completions=(
                    r.UpdateCompletion(
                        message_id="c", update_id=f"u{number}", outcome=UpdateOutcome(result=payloads(number))
                    ),
                ),
            )
            assert (await soon(updating)).outcome == UpdateOutcome(result=payloads(number))
        else:
            rejection = r.UpdateRejection(message_id=message.message_id, update_id=f"u{number}", failure=failure)
            await worker.complete(task, sticky=True, rejections=(rejection,))
            assert (await soon(updating)).outcome == UpdateOutcome(failure=failure)


@pytest.mark.parametrize("is_early", [False, True])
async def test_who_asks_for_an_update_that_another_node_rejects_just_then_hears_of_it(
    shop: FleetShop, monkeypatch: pytest.MonkeyPatch, is_early: bool
) -> None:
    a, _, c = shop.nodes
    worker = await cached_at(shop, a)
    updating = send_update(c)
    task = await worker.workflow_task()
    (message,) = task.messages
    failure = Failure(message="not now", info=ApplicationInfo(type="No"))
    rejection = r.UpdateRejection(message_id=message.message_id, update_id="u1", failure=failure)
    updates, gone = c.engine._updates, asyncio.Event()
    durable, settle = updates._durable, updates.settle
    words: list[tuple[int, Any]] = []

    async def let_go_meanwhile(entry: RunEntry) -> None:
        monkeypatch.setattr(updates, "_durable", durable)
        await worker.complete(task, sticky=True, rejections=(rejection,))
        await shop.until(lambda: bool(words) and entry.is_discarded and entry.successor is not None, seconds=30)
        if is_early:
            settle(*words.pop())
        gone.set()
        await durable(entry)

    monkeypatch.setattr("clew.engine.updates.WORD_SECONDS", 60.0)  # However slow the machine is.
    monkeypatch.setattr(updates, "settle", lambda *word: words.append(word))
    monkeypatch.setattr(updates, "_durable", let_go_meanwhile)
    request = r.PollUpdateRequest(namespace="default", workflow_id="w1", update_id="u1")
    polling = asyncio.ensure_future(c.engine.poll_update(request))
    await soon(gone.wait())
    if not is_early:
        for _ in range(100):  # The poll looks at the run again, which does not know the update any more.
            await asyncio.sleep(0)
        settle(*words.pop())
    assert (await soon(polling)).outcome == UpdateOutcome(failure=failure)
    assert (await soon(updating)).outcome == UpdateOutcome(failure=failure)


async def test_an_accepted_update_completes_in_a_later_task(shop: FleetShop) -> None:
    a, b, c = shop.nodes
    worker = await cached_at(shop, a)
    accepted = send_update(b, stage=r.UpdateStage.ACCEPTED)
    completed = send_update(c)
    task = await worker.workflow_task()
    await worker.complete(
        task, sticky=True, acceptances=(r.UpdateAcceptance(message_id="a", update_id="u1", sequencing_event_id=2),)
    )
    assert (await soon(accepted)).stage is r.UpdateStage.ACCEPTED
    await signal(b)
    outcome = UpdateOutcome(result=payloads("late"))
    await worker.complete(
        await worker.workflow_task(),
        sticky=True,
        completions=(r.UpdateCompletion(message_id="c", update_id="u1", outcome=outcome),),
    )
    assert (await soon(completed)).outcome == outcome


async def test_who_waits_for_an_update_hears_of_a_run_that_changes_once_more_as_it_wakes(
    shop: FleetShop, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b, c = shop.nodes
    worker = await cached_at(shop, a)
    updates, woken = c.engine._updates, asyncio.Event()
    look_again = updates.look_again

    def look_again_and_let_go(entry: RunEntry) -> None:
        waiting = list(entry.update_waiters)
        look_again(entry)
        if waiting and not entry.update_waiters and not woken.is_set():
            c.engine._discarded(entry)
            woken.set()

    monkeypatch.setattr(updates, "look_again", look_again_and_let_go)
    completed = send_update(c)
    acceptance = r.UpdateAcceptance(message_id="a", update_id="u1", sequencing_event_id=2)
    await worker.complete(await worker.workflow_task(), sticky=True, acceptances=(acceptance,))
    await soon(woken.wait())
    await signal(b)
    outcome = UpdateOutcome(result=payloads("late"))
    completion = r.UpdateCompletion(message_id="c", update_id="u1", outcome=outcome)
    await worker.complete(await worker.workflow_task(), sticky=True, completions=(completion,))
    assert (await soon(completed)).outcome == outcome


async def test_a_running_attempt_is_told_to_stop_at_another_node(shop: FleetShop) -> None:
    a, b, _ = shop.nodes
    flows = await shop.worker(a, takes_activity_tasks=False)
    hands = await shop.worker(b, takes_workflow_tasks=False)
    await start(a)
    await flows.complete(await flows.workflow_task(), activity(), sticky=True)
    attempt = await hands.activity_task()
    await signal(b)
    task = await flows.workflow_task()
    await flows.complete(task, RequestCancelActivityTask(scheduled_event_id=5), sticky=True)
    token, reason = await soon(hands.cancels.get())
    assert (token.activity_id or token.scheduled_event_id, reason) == (5, r.ActivityCancelReason.CANCEL_REQUESTED)
    heartbeat = r.HeartbeatActivityRequest(token=attempt.token)
    assert (await soon(b.engine.heartbeat_activity(heartbeat))).cancel_requested


async def test_a_timer_set_through_one_node_fires_once(shop: FleetShop) -> None:
    worker = await shop.worker(shop.nodes[0])
    for number in range(12):
        await start(shop.next_node(), f"w{number}")
        task = await worker.workflow_task()
        timer = StartTimer(timer_id="1", start_to_fire_timeout=timedelta(seconds=5 if number % 2 else 100))
        await worker.complete(task, timer, sticky=True)
    await asyncio.sleep(0.02)
    assert worker.workflow_tasks.empty()
    for number in range(12):
        if number == 6:
            assert worker.workflow_tasks.empty()
        await shop.until(lambda: not worker.workflow_tasks.empty(), ticking=1.0)
        task = await worker.workflow_task()
        due = task.scheduled_time
        assert due is not None
        assert [type(event).__name__ for event in task.events].count("TimerFired") == 1
        await worker.complete(task, CompleteWorkflowExecution())
    for number in range(12):
        assert (await shop.event_types(f"w{number}")).count("TimerFired") == 1


async def test_children_and_parents_at_different_nodes(shop: FleetShop) -> None:
    a, b, c = shop.nodes
    worker = await shop.worker(b)
    await start(c, "parent")
    children = [StartChildWorkflowExecution(workflow_id=f"child-{n}", workflow_type="C") for n in range(5)]
    await worker.complete(await worker.workflow_task(), *children, sticky=True)
    ended = 0
    while ended < 5:
        task = await worker.workflow_task()
        if task.token.workflow_id == "parent":
            ended += sum(type(event).__name__ == "ChildWorkflowExecutionCompleted" for event in task.events)
            await worker.complete(task, *([CompleteWorkflowExecution()] if ended == 5 else []), sticky=True)
        else:
            await worker.complete(task, CompleteWorkflowExecution())
    assert (await shop.event_types("parent")).count("ChildWorkflowExecutionStarted") == 5
    closing = await soon(result_of(a, "parent"))
    assert [type(event).__name__ for event in closing.events] == ["WorkflowExecutionCompleted"]


async def test_what_follows_a_change_that_lost_its_guard_overwrites_nothing(shop: FleetShop) -> None:
    """Two batches of one run are on their way when another node has changed it: the second must lose as well."""
    a, b, _ = shop.nodes
    await start(a)
    await b.engine._locator.find("default", "w1")
    await signal(a, "first")
    second = asyncio.ensure_future(signal(b, "second"))
    hold = shop.faults.hold("commit_if_current", times=2)
    await shop.until(lambda: hold.held_count == 1)
    third = asyncio.ensure_future(signal(b, "third"))
    await shop.until(lambda: hold.held_count == 2)
    hold.release()
    await soon(asyncio.gather(second, third))
    names = [event.signal_name for event in await shop.history() if type(event).__name__ == "WorkflowExecutionSignaled"]
    assert sorted(names) == ["first", "second", "third"]


async def test_a_close_that_this_node_has_missed_is_noticed_by_who_waits(shop: FleetShop) -> None:
    a, _, c = shop.nodes
    worker = await cached_at(shop, a)
    await c.engine._locator.find("default", "w1")
    await signal(a)
    await worker.complete(await worker.workflow_task(), CompleteWorkflowExecution())
    assert c.engine._cache.get_open("default", "w1") is not None, "it believes the run to be open"
    closing = await soon(result_of(c))
    assert [type(event).__name__ for event in closing.events] == ["WorkflowExecutionCompleted"]


async def test_a_namespace_made_at_one_node_can_be_used_at_all(shop: FleetShop) -> None:
    a, b, c = shop.nodes
    await soon(a.engine.create_namespace(o.CreateNamespaceRequest(name="claims")))
    worker = await shop.worker(b, namespace="claims")
    start_it = r.StartWorkflowRequest(
        namespace="claims", workflow_id="w1", workflow_type="W", task_queue="q", request_id="1"
    )
    await soon(c.engine.start_workflow(start_it))
    await worker.complete(await worker.workflow_task(), CompleteWorkflowExecution())


async def test_what_a_worker_of_a_dead_node_never_got_is_given_out_as_soon_as_it_comes_back(shop: FleetShop) -> None:
    """Whichever node sees to the run: the one that the worker came to tells the others."""
    a, b, c = shop.nodes
    count = 8
    worker = await shop.worker(c, is_remote=True, credits=count)
    for number in range(count):
        await start(a, f"w{number}")
    for _ in range(count):
        await worker.complete(await worker.workflow_task(), activity())
    attempts = [await worker.activity_task() for _ in range(count)]
    assert worker.session is not None
    c.kill()
    again = await shop.worker(
        b,
        is_remote=True,
        credits=count,
        held_attempts=(attempts[0].token,),
        former_sessions=(worker.session.session_id,),
    )
    began = shop.clock.now()
    await shop.until(lambda: again.activity_tasks.qsize() == count - 1, ticking=0.1, seconds=60)
    assert shop.clock.now() - began < timedelta(seconds=ORPHAN_SECONDS)
    await again.complete_activity(attempts[0])
    given = {(await again.activity_task()).token.workflow_id for _ in range(count - 1)}
    assert given == {f"w{number}" for number in range(count)} - {attempts[0].token.workflow_id}
