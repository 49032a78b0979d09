"""Nodes that join, leave, are killed, are paused and come back; the store that is away; hints that get lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest

from clew.engine.nodes import home_of
from clew.model.commands import CompleteWorkflowExecution, StartChildWorkflowExecution, StartTimer
from clew.model.rejection import RejectionCode
from clew.ports.store import StoreUnavailable
from clew.service import requests as r
from clew.service.errors import RPCError
from tests.conformance.service.scripted import ONE_ATTEMPT, payloads, soon
from tests.fleet.notifiers import Exchange
from tests.fleet.shop import LEASE, SHARD_COUNT, FleetShop
from tests.fleet.test_three_nodes import activity, cached_at, result_of, signal, start

SECONDS = LEASE.total_seconds()


async def live_again(shop: FleetShop, seconds: float) -> None:
    """Let time pass as it does for processes: step by step, each acted on."""
    passed = 0.0
    while passed < seconds:
        shop.advance(0.5)
        passed += 0.5
        for _ in range(3):
            await asyncio.sleep(0.002)


def test_a_shard_moves_only_when_its_home_comes_or_goes() -> None:
    nodes = [f"node-{n}" for n in range(5)]
    before = {shard: home_of(shard, nodes) for shard in range(1_000)}
    assert all(150 < list(before.values()).count(node) < 250 for node in nodes), "spread evenly"
    after = {shard: home_of(shard, nodes[1:]) for shard in range(1_000)}
    assert all(after[shard] == home for shard, home in before.items() if home != "node-0")


async def test_nodes_that_come_and_go_share_the_shards(shop: FleetShop) -> None:
    assert sorted(shard for node in shop.nodes for shard in node.shards) == list(range(SHARD_COUNT))
    fourth = await shop.add_node()
    await shop.until_spread()
    await fourth.engine.stop()
    fourth.is_up = False
    shop.nodes.remove(fourth)
    await shop.until_spread()


async def test_the_shards_of_a_killed_node_are_taken_over_within_its_lease(shop: FleetShop) -> None:
    victim = shop.nodes[0]
    begun = shop.clock.now()
    victim.kill()
    held: Any = lambda: sorted(shard for node in shop.up() for shard in node.shards)  # noqa: E731
    await shop.until(lambda: held() == list(range(SHARD_COUNT)), ticking=0.25)
    assert shop.clock.now() - begun <= LEASE + timedelta(seconds=1)


async def test_timers_of_a_killed_node_fire_within_its_lease(shop: FleetShop) -> None:
    victim, other, _ = shop.nodes
    worker = await shop.worker(other)
    for number in range(8):
        await start(victim, f"w{number}")
        timer = StartTimer(timer_id="1", start_to_fire_timeout=timedelta(seconds=2 + number))
        await worker.complete(await worker.workflow_task(), timer)
    victim.kill()
    for _ in range(8):
        await shop.until(lambda: not worker.workflow_tasks.empty(), ticking=0.25)
        task = await worker.workflow_task()
        fired = next(event for event in task.events if type(event).__name__ == "TimerFired")
        started = next(event for event in task.events if type(event).__name__ == "TimerStarted")
        late = fired.event_time - started.event_time - started.start_to_fire_timeout
        assert timedelta(0) <= late <= LEASE + timedelta(seconds=1)
        await worker.complete(task, CompleteWorkflowExecution())


async def test_what_a_killed_node_had_at_workers_goes_to_others(shop: FleetShop) -> None:
    victim, other, _ = shop.nodes
    lost = await shop.worker(victim)
    await start(other)
    await lost.complete(await lost.workflow_task(), activity(), activity(2, retry_policy=ONE_ATTEMPT), sticky=True)
    old = [await lost.activity_task(), await lost.activity_task()]
    await start(other, "w2")
    await lost.workflow_task()
    victim.kill()
    worker = await shop.worker(other)
    await live_again(shop, 2.5 * SECONDS)
    again = await worker.activity_task()
    assert (again.activity_id, again.attempt) == ("a-1", 2)
    assert again.idempotency_key == old[0].idempotency_key
    tasks = {task.token.workflow_id: task for task in [await worker.workflow_task(), await worker.workflow_task()]}
    assert [type(e).__name__ for e in tasks["w1"].events].count("ActivityTaskTimedOut") == 1
    assert not tasks["w2"].is_partial
    with pytest.raises(RPCError) as caught:
        await soon(other.engine.complete_activity(r.CompleteActivityRequest(token=old[0].token)))
    assert caught.value.code is RejectionCode.ACTIVITY_NOT_FOUND


async def test_messages_of_a_killed_node_are_delivered_by_another(shop: FleetShop) -> None:
    victim, other, _ = shop.nodes
    worker = await shop.worker(victim)
    await start(victim, "parent")
    victim.engine._outbox.deliver = lambda rows: victim.kill()  # type: ignore[method-assign]
    children = [StartChildWorkflowExecution(workflow_id=f"child-{n}", workflow_type="C") for n in range(3)]
    completing = asyncio.ensure_future(worker.complete(await worker.workflow_task(), *children))
    await shop.until(lambda: not victim.is_up)
    heir = await shop.worker(other)
    seen: set[str] = set()
    while len(seen) < 4:
        await shop.until(lambda: not heir.workflow_tasks.empty(), ticking=0.25)
        task = await heir.workflow_task()
        seen.add(task.token.workflow_id)
        await heir.complete(task, *([CompleteWorkflowExecution()] if "child" in task.token.workflow_id else []))
    types = await shop.event_types("parent")
    assert types.count("ChildWorkflowExecutionStarted") == 3
    completing.cancel()


async def test_a_node_that_was_paused_comes_back_as_another(shop: FleetShop) -> None:
    sleeper, other, _ = shop.nodes
    worker = await shop.worker(sleeper)
    await start(other)
    await worker.complete(await worker.workflow_task(), activity(), sticky=True)
    old = await worker.activity_task()
    old_id = sleeper.engine.node_id
    sleeper.pause()
    await live_again(shop, 2.5 * SECONDS)
    assert sorted(shard for node in shop.up() for shard in node.shards) == list(range(SHARD_COUNT))
    sleeper.go_on()
    await shop.until(lambda: sleeper.engine.node_id != old_id, ticking=0.25)
    await shop.until(shop._is_spread, ticking=0.25)
    with pytest.raises(RPCError) as caught:
        await soon(sleeper.engine.complete_activity(r.CompleteActivityRequest(token=old.token)))
    assert caught.value.code is RejectionCode.ACTIVITY_NOT_FOUND
    worker.grant()
    await shop.until(lambda: not worker.activity_tasks.empty(), ticking=0.25)
    again = await worker.activity_task()
    assert (again.activity_id, again.attempt) == ("a-1", 2)
    await worker.complete_activity(again, "done")
    await shop.until(lambda: not worker.workflow_tasks.empty(), ticking=0.25)
    await worker.complete(await worker.workflow_task(), CompleteWorkflowExecution())
    assert (await shop.event_types()).count("ActivityTaskCompleted") == 1


async def test_an_outage_of_the_store_declares_nobody_dead(shop: FleetShop) -> None:
    a, b, _ = shop.nodes
    worker = await shop.worker(a)
    await start(b)
    await worker.complete(await worker.workflow_task(), activity(), sticky=True)
    attempt = await worker.activity_task()
    ids = [node.engine.node_id for node in shop.nodes]
    for method in ("renew_node", "read_fleet", "commit_if_current", "find_due_runs", "claim_tasks", "find_versions"):
        shop.faults.fail(method, StoreUnavailable("the database is away"), times=None)
    await live_again(shop, 3 * SECONDS)
    shop.faults.clear()
    await live_again(shop, 2 * SECONDS)
    assert [node.engine.node_id for node in shop.nodes] == ids
    await worker.complete_activity(attempt, "done")
    await worker.complete(await worker.workflow_task(), CompleteWorkflowExecution())
    assert (await shop.event_types()).count("ActivityTaskCompleted") == 1


async def test_a_worker_that_leaves_is_missed_wherever_its_runs_were_last_changed(shop: FleetShop) -> None:
    a, b, c = shop.nodes
    worker = await cached_at(shop, a)
    await signal(b)
    await worker.complete(await worker.workflow_task(), activity(), sticky=True)
    await worker.activity_task()
    await signal(b, "while it is out")
    assert worker.session is not None
    worker.session.detach()
    other = await shop.worker(c)
    assert (await other.activity_task()).attempt == 2
    assert not (await other.workflow_task()).is_partial


# --- hints that get lost ----------------------------------------------------------------------------------------------


@pytest.fixture(params=["cut", "lossy"])
async def deaf(request: pytest.FixtureRequest) -> AsyncIterator[FleetShop]:
    """Three nodes whose hints never arrive, and that know it or do not."""
    shop = FleetShop(exchange=Exchange(is_cut=request.param == "cut", is_lossy=request.param == "lossy"))
    spread = shop.until_spread
    shop.until_spread = lambda: shop.until(shop._is_spread, ticking=0.5)  # type: ignore[method-assign]
    await shop.open()
    shop.until_spread = spread  # type: ignore[method-assign]
    yield shop
    await shop.close()


async def test_without_hints_everything_happens_a_little_later(deaf: FleetShop) -> None:
    shop = deaf
    a, b, c = shop.nodes
    flows = await shop.worker(a, takes_activity_tasks=False)
    hands = await shop.worker(b, takes_workflow_tasks=False)
    await start(c)
    waiting = result_of(c)
    begun = shop.clock.now()
    await shop.until(lambda: not flows.workflow_tasks.empty(), ticking=0.5)
    await flows.complete(await flows.workflow_task(), activity(), sticky=True)
    await shop.until(lambda: not hands.activity_tasks.empty(), ticking=0.5)
    await hands.complete_activity(await hands.activity_task(), "done")
    await shop.until(lambda: not flows.workflow_tasks.empty(), ticking=0.5)
    await flows.complete(await flows.workflow_task(), CompleteWorkflowExecution(result=payloads("all")))
    await shop.until(waiting.done, ticking=0.5)
    assert [type(event).__name__ for event in waiting.result().events] == ["WorkflowExecutionCompleted"]
    assert shop.clock.now() - begun < timedelta(seconds=40)


async def test_mail_arrives_without_hints(deaf: FleetShop) -> None:
    shop = deaf
    a, _, c = shop.nodes
    worker = await shop.worker(a)
    await start(a)
    await worker.complete(await worker.workflow_task(), sticky=True)
    request = r.QueryWorkflowRequest(namespace="default", workflow_id="w1", query_type="state")
    asking = asyncio.ensure_future(c.engine.query_workflow(request))
    await shop.until(lambda: not worker.workflow_tasks.empty(), ticking=0.5)
    task = await worker.workflow_task()
    assert task.query is not None
    result = r.QueryResult(query_id=task.query.query_id, result=payloads("fine"))
    await soon(a.engine.answer_query(r.AnswerQueryRequest(token=task.token, result=result)))
    await shop.until(asking.done, ticking=0.5)
    assert asking.result().result == payloads("fine")


async def test_hints_that_come_back_are_made_up_for_at_once() -> None:
    shop = FleetShop(exchange=Exchange())
    await shop.open()
    a, _, c = shop.nodes
    worker = await shop.worker(a)
    shop.exchange.is_cut = True
    await start(c)
    await asyncio.sleep(0.02)
    assert worker.workflow_tasks.empty()
    shop.exchange.mend()
    await worker.complete(await worker.workflow_task(), CompleteWorkflowExecution())
    await shop.close()


async def test_an_idle_fleet_asks_the_store_almost_nothing(shop: FleetShop) -> None:
    for node in shop.nodes:
        await shop.worker(node)
    await start(shop.nodes[0])
    await live_again(shop, SECONDS)
    shop.faults.calls.clear()
    await live_again(shop, 60)
    per_second = sum(shop.faults.calls.values()) / 60
    assert per_second < 5, f"three idle nodes make {per_second:.1f} calls a second: {shop.faults.calls}"
