"""Runs from start to close through the contract: hand-over, durability, restart, refusals."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import timedelta

import pytest

from clew.engine.starts import RACES_MAX
from clew.model.commands import (
    CompleteWorkflowExecution,
    ScheduleActivityTask,
    StartChildWorkflowExecution,
    StartTimer,
)
from clew.model.payload import ENCODING_KEY, JSON_PLAIN, Payload, to_stored
from clew.model.policies import WorkflowExecutionStatus, WorkflowIDConflictPolicy, WorkflowIDReusePolicy
from clew.model.rejection import RejectionCode
from clew.service import requests as r
from clew.service.errors import RPCError
from tests.conformance.service.scripted import ONE_ATTEMPT, Shop, payloads, soon

MINUTE = timedelta(minutes=1)


def activity(number: int = 1, **fields: object) -> ScheduleActivityTask:
    values = {
        "activity_id": f"a-{number}",
        "activity_type": "a",
        "start_to_close_timeout": MINUTE,
        "input": payloads(number),
        **fields,
    }
    return ScheduleActivityTask(**values)  # type: ignore[arg-type]


async def test_one_activity_and_a_result(shop: Shop) -> None:
    worker = await shop.worker()
    await shop.start()
    await worker.complete(await worker.workflow_task(), activity())
    attempt = await worker.activity_task()
    assert attempt.input == payloads(1)
    assert attempt.attempt == 1
    assert len(attempt.idempotency_key) == 64
    await worker.complete_activity(attempt, "done")
    task = await worker.workflow_task()
    await worker.complete(task, CompleteWorkflowExecution(result=payloads("all done")))
    assert await shop.event_types() == [
        "WorkflowExecutionStarted",
        "WorkflowTaskScheduled",
        "WorkflowTaskStarted",
        "WorkflowTaskCompleted",
        "ActivityTaskScheduled",
        "ActivityTaskStarted",
        "ActivityTaskCompleted",
        "WorkflowTaskScheduled",
        "WorkflowTaskStarted",
        "WorkflowTaskCompleted",
        "WorkflowExecutionCompleted",
    ]
    described = await shop.describe()
    assert described.info.status is WorkflowExecutionStatus.COMPLETED
    assert described.waiting_for == ()


async def test_tasks_wait_in_the_store_until_a_worker_comes(shop: Shop) -> None:
    for number in range(30):
        await shop.start(f"w{number}")
    described = await shop.describe("w7")
    assert "no worker polls task queue 'q'" in described.waiting_for[0]
    worker = await shop.worker(credits=4)
    seen = set()
    for _ in range(30):
        task = await worker.workflow_task()
        seen.add(task.token.workflow_id)
        await worker.complete(task, CompleteWorkflowExecution())
    assert seen == {f"w{number}" for number in range(30)}


async def test_a_sticky_worker_gets_only_what_is_new(shop: Shop) -> None:
    worker = await shop.worker()
    await shop.start()
    first = await worker.workflow_task()
    assert not first.is_partial
    await worker.complete(first, activity(), sticky=True)
    await worker.complete_activity(await worker.activity_task())
    second = await worker.workflow_task()
    assert second.is_partial
    assert [e.event_id for e in second.events] == [4, 5, 6, 7, 8, 9]
    assert second.previous_started_event_id == 3


async def test_a_sticky_worker_that_leaves_loses_the_run_to_another(shop: Shop) -> None:
    first = await shop.worker(instance_id="one")
    await shop.start()
    await first.complete(
        await first.workflow_task(), StartTimer(timer_id="1", start_to_fire_timeout=MINUTE), sticky=True
    )
    second = await shop.worker(instance_id="two")
    assert first.session is not None
    first.session.detach()
    await shop.signal("go")
    task = await second.workflow_task()
    assert not task.is_partial
    assert task.events[0].event_id == 1


async def test_a_vanished_worker_gives_back_its_workflow_task_at_once(shop: Shop) -> None:
    first = await shop.worker(instance_id="one")
    await shop.start()
    lost = await first.workflow_task()
    second = await shop.worker(instance_id="two")
    assert first.session is not None
    first.session.detach()
    task = await second.workflow_task()
    await second.complete(task, CompleteWorkflowExecution())
    with pytest.raises(RPCError) as caught:
        await first.complete(lost, CompleteWorkflowExecution())
    assert caught.value.code in (RejectionCode.WORKFLOW_TASK_NOT_FOUND, RejectionCode.WORKFLOW_ALREADY_COMPLETED)


async def test_a_vanished_worker_loses_its_attempts(shop: Shop) -> None:
    first = await shop.worker(instance_id="one")
    await shop.start()
    await first.complete(await first.workflow_task(), activity(), activity(2, retry_policy=ONE_ATTEMPT))
    lost = [await first.activity_task(), await first.activity_task()]
    second = await shop.worker(instance_id="two")
    assert first.session is not None
    first.session.detach()
    again = await second.activity_task()
    assert again.activity_id == "a-1"
    assert again.attempt == 2
    assert again.idempotency_key == lost[0].idempotency_key
    task = await second.workflow_task()
    assert [type(e).__name__ for e in task.events if "Activity" in type(e).__name__][-1] == "ActivityTaskTimedOut"
    with pytest.raises(RPCError) as caught:
        await first.complete_activity(lost[0])
    assert caught.value.code is RejectionCode.ACTIVITY_NOT_FOUND


async def test_a_timer_fires_when_it_is_due_and_not_before(shop: Shop) -> None:
    worker = await shop.worker()
    await shop.start()
    await worker.complete(await worker.workflow_task(), StartTimer(timer_id="1", start_to_fire_timeout=MINUTE))
    shop.advance(59)
    await asyncio.sleep(0.05)
    assert worker.workflow_tasks.empty()
    shop.advance(1)
    task = await worker.workflow_task()
    assert "TimerFired" in [type(e).__name__ for e in task.events]


async def test_a_restart_takes_up_what_was_out_at_workers(file_shop: Shop) -> None:
    shop = file_shop
    worker = await shop.worker()
    await shop.start("waits-for-task")
    await worker.workflow_task()
    await shop.start("waits-for-activity")
    await worker.complete(await worker.workflow_task(), activity())
    await worker.activity_task()
    await shop.start("sleeps")
    await worker.complete(await worker.workflow_task(), StartTimer(timer_id="1", start_to_fire_timeout=MINUTE))
    await shop.restart()
    worker = await shop.worker()
    task = await worker.workflow_task()
    assert task.token.workflow_id == "waits-for-task"
    await worker.complete(task, CompleteWorkflowExecution())
    attempt = await worker.activity_task()
    assert (attempt.token.workflow_id, attempt.attempt) == ("waits-for-activity", 2)
    assert attempt.input == payloads(1)
    await worker.complete_activity(attempt)
    await worker.complete(await worker.workflow_task(), CompleteWorkflowExecution())
    shop.advance(61)
    assert (await worker.workflow_task()).token.workflow_id == "sleeps"


async def test_a_signal_is_recorded_once_for_one_request(shop: Shop) -> None:
    worker = await shop.worker()
    await shop.start()
    await worker.complete(await worker.workflow_task(), StartTimer(timer_id="1", start_to_fire_timeout=MINUTE))
    await shop.signal("s", 1, request_id="same")
    await shop.signal("s", 1, request_id="same")
    assert (await shop.event_types()).count("WorkflowExecutionSignaled") == 1


async def test_a_signal_during_a_task_makes_another_task(shop: Shop) -> None:
    worker = await shop.worker()
    await shop.start()
    task = await worker.workflow_task()
    await shop.signal("s", 1)
    with pytest.raises(RPCError) as caught:
        await worker.complete(task, CompleteWorkflowExecution())
    assert caught.value.code is RejectionCode.UNHANDLED_COMMAND
    worker.grant()
    again = await worker.workflow_task()
    await worker.complete(again, CompleteWorkflowExecution())
    types = await shop.event_types()
    assert types.index("WorkflowTaskFailed") < types.index("WorkflowExecutionSignaled")
    assert types[-1] == "WorkflowExecutionCompleted"


@pytest.mark.parametrize("race", [2, 20])
async def test_one_of_many_starts_wins(shop: Shop, race: int) -> None:
    outcomes = await asyncio.gather(*[shop.start("same") for _ in range(race)], return_exceptions=True)
    winners = [o for o in outcomes if isinstance(o, r.StartWorkflowResponse)]
    losers = [o for o in outcomes if isinstance(o, RPCError)]
    assert len(winners) == 1
    assert len(losers) == race - 1
    assert {e.code for e in losers} == {RejectionCode.WORKFLOW_ALREADY_STARTED}
    assert {e.rejection.details["run_id"] for e in losers} == {winners[0].run_id}


async def test_a_repeated_start_is_answered_as_the_first(shop: Shop) -> None:
    first = await shop.start(request_id="r")
    again = await shop.start(request_id="r")
    assert again.run_id == first.run_id
    worker = await shop.worker()
    await worker.complete(await worker.workflow_task(), CompleteWorkflowExecution())
    after_close = await shop.start(request_id="r")
    assert after_close.run_id == first.run_id
    other = await shop.start(request_id="other")
    assert other.run_id != first.run_id


async def test_id_policies(shop: Shop) -> None:
    first = await shop.start()
    used = await shop.start(id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING)
    assert (used.run_id, used.started) == (first.run_id, False)
    replaced = await shop.start(id_conflict_policy=WorkflowIDConflictPolicy.TERMINATE_EXISTING)
    assert replaced.run_id != first.run_id
    assert (await shop.event_types(run_id=first.run_id))[-1] == "WorkflowExecutionTerminated"
    worker = await shop.worker()
    task = await worker.workflow_task()
    assert task.token.run_id == replaced.run_id
    await worker.complete(task, CompleteWorkflowExecution())
    with pytest.raises(RPCError) as caught:
        await shop.start(id_reuse_policy=WorkflowIDReusePolicy.REJECT_DUPLICATE)
    assert caught.value.code is RejectionCode.WORKFLOW_ALREADY_STARTED


async def test_starts_that_replace_each_other_all_win(shop: Shop) -> None:
    first = await shop.start()
    replace = WorkflowIDConflictPolicy.TERMINATE_EXISTING
    crowd = 3 * RACES_MAX  # Were there one winner a round, some would give up as busy.
    started = await asyncio.gather(*(shop.start(id_conflict_policy=replace) for _ in range(crowd)))
    run_ids = {first.run_id, *(response.run_id for response in started)}
    assert len(run_ids) == crowd + 1
    page = await soon(shop.service.list_workflows(r.ListWorkflowsRequest(namespace="default", page_size=100)))
    assert {run.run_id for run in page.executions} == run_ids
    statuses = Counter(run.status for run in page.executions)
    assert statuses == {WorkflowExecutionStatus.RUNNING: 1, WorkflowExecutionStatus.TERMINATED: crowd}


async def test_reading_waits_for_the_close(shop: Shop) -> None:
    worker = await shop.worker()
    await shop.start()
    waiting = asyncio.ensure_future(
        shop.service.get_history(
            r.GetHistoryRequest(namespace="default", workflow_id="w1", close_event_only=True, wait_new_event=True)
        )
    )
    await worker.complete(await worker.workflow_task(), CompleteWorkflowExecution(result=payloads(7)))
    response = await soon(waiting)
    assert [type(e).__name__ for e in response.events] == ["WorkflowExecutionCompleted"]


async def test_lists_and_counts(shop: Shop) -> None:
    for number in range(5):
        await shop.start(f"w{number}")
    worker = await shop.worker()
    await worker.complete(await worker.workflow_task(), CompleteWorkflowExecution())
    page = await soon(shop.service.list_workflows(r.ListWorkflowsRequest(namespace="default", page_size=3)))
    assert [e.workflow_id for e in page.executions] == ["w4", "w3", "w2"]
    rest = await soon(
        shop.service.list_workflows(
            r.ListWorkflowsRequest(namespace="default", page_size=3, page_token=page.next_page_token)
        )
    )
    assert [e.workflow_id for e in rest.executions] == ["w1", "w0"]
    running = await soon(
        shop.service.count_workflows(r.CountWorkflowsRequest(namespace="default", query="ExecutionStatus = 'Running'"))
    )
    assert running.count == 4


async def test_a_filter_on_an_attribute_that_no_run_has_had_is_refused(shop: Shop) -> None:
    async def refusal(query: str, *, counts: bool = False) -> str:
        asked = (
            shop.service.count_workflows(r.CountWorkflowsRequest(namespace="default", query=query))
            if counts
            else shop.service.list_workflows(r.ListWorkflowsRequest(namespace="default", query=query))
        )
        with pytest.raises(RPCError) as caught:
            await soon(asked)
        assert caught.value.code is RejectionCode.INVALID_ARGUMENT
        return str(caught.value)

    async def count(query: str) -> int:
        return (
            await soon(shop.service.count_workflows(r.CountWorkflowsRequest(namespace="default", query=query)))
        ).count

    assert "Did you mean ExecutionStatus?" in await refusal("Status = 'Running'")
    assert "there is no attribute 'Customer'" in await refusal("Customer = 'ada'", counts=True)
    assert await count("TemporalChangeVersion = 'patch'") == 0, "runs of a patch are asked for when there are none yet"
    ada = Payload({ENCODING_KEY: JSON_PLAIN, "type": b"Keyword"}, b'"ada"')
    await shop.start(search_attributes={"Customer": to_stored(ada)})
    assert await count("Customer = 'ada' AND ExecutionStatus = 'Running'") == 1
    assert await count("Customer IN (1, 2)") == 0
    assert "search attributes in use: Customer" in await refusal("Foo = 'x' OR Customer = 'ada'", counts=True)
    await soon(shop.service.terminate_workflow(r.TerminateWorkflowRequest(namespace="default", workflow_id="w1")))
    later = shop.clock.now() + timedelta(days=1)
    assert await soon(shop.engine._store.delete_closed_runs("default", later, 10)) == 1
    assert await count("Customer = 'ada'") == 0, "an attribute stays known when the last run with it is gone"


async def test_refusals_name_what_is_wrong(shop: Shop) -> None:
    with pytest.raises(RPCError, match=r"workflow 'nobody' does not exist in namespace 'default'") as caught:
        await shop.signal("s", workflow_id="nobody")
    assert caught.value.code is RejectionCode.WORKFLOW_NOT_FOUND
    with pytest.raises(RPCError, match=r"namespace 'defautl' does not exist.*did you mean 'default'"):
        await shop.start(namespace="defautl")
    with pytest.raises(RPCError) as caught:
        await shop.start("x" * 1001)
    assert caught.value.code is RejectionCode.INVALID_ARGUMENT
    await shop.start()
    await soon(shop.service.terminate_workflow(r.TerminateWorkflowRequest(namespace="default", workflow_id="w1")))
    with pytest.raises(RPCError) as caught:
        await soon(shop.service.terminate_workflow(r.TerminateWorkflowRequest(namespace="default", workflow_id="w1")))
    assert caught.value.code is RejectionCode.WORKFLOW_ALREADY_COMPLETED


async def test_a_type_nobody_knows_waits_and_says_so(shop: Shop) -> None:
    worker = await shop.worker(workflow_types=("Other",))
    await shop.start()
    described = await shop.until_described(lambda d: bool(d.waiting_for))
    assert "no worker on task queue 'q' has type 'W' registered" in described.waiting_for[0]
    assert worker.workflow_tasks.empty()
    knows = await shop.worker(workflow_types=("W",), instance_id="two")
    assert (await knows.workflow_task()).workflow_type == "W"


async def test_a_lost_row_is_queued_again(shop: Shop) -> None:
    await shop.start()
    store = shop.engine._store
    run = await soon(store.find_run("default", "w1", ""))
    assert await soon(store.find_queued_events(run.shard, run.run_key)) == {2}
    from clew.ports.store import TaskKind

    claimed = await soon(store.claim_tasks("default", "q", TaskKind.WORKFLOW, 10, shop.clock.now()))
    await soon(store.delete_tasks([row.task_id for row in claimed]))
    assert await soon(shop.engine._keeping.sweep()) == 1
    worker = await shop.worker()
    assert (await worker.workflow_task()).token.workflow_id == "w1"


async def test_no_message_is_left_of_a_child_that_began(shop: Shop) -> None:
    worker = await shop.worker()
    await shop.start()
    task = await worker.workflow_task()
    children = [StartChildWorkflowExecution(workflow_id=f"kid-{n}", workflow_type="Kid") for n in range(5)]
    await worker.complete(task, *children)

    for command in children:
        await shop.until_started(command.workflow_id)

    async def deliver_all() -> None:
        while await shop.engine._store.read_outbox(None, 0, 100):
            await asyncio.sleep(0.01)

    await soon(deliver_all())
