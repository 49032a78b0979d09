"""Workers that move between the nodes of a fleet take with them what they run."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta

import pytest

from clew.adapters import SystemEntropy, to_ns
from clew.engine.fleet import node_of
from clew.link import LinkClient, LinkServer
from clew.model.commands import CompleteWorkflowExecution, ScheduleActivityTask
from clew.ports.store import StoreUnavailable
from clew.service import requests as r
from clew.service.errors import RPCError
from tests.conformance.service.scripted import ONE_ATTEMPT, ScriptedWorker, soon
from tests.fleet.shop import LEASE, FleetShop
from tests.link.memory import MemoryDial
from tests.link.service import until


class Linked:
    """A fleet of two nodes, and a worker with an attempt behind a link to the first."""

    def __init__(self) -> None:
        self.shop = FleetShop(nodes=2)
        self.attempt: r.ActivityTask

    async def open(self) -> None:
        await self.shop.open()
        self.servers = [
            LinkServer(
                node.engine,
                node=str(number),
                new_token=SystemEntropy().uuid7,
                now_ns=lambda: to_ns(self.shop.clock.now()),
            )
            for number, node in enumerate(self.shop.nodes)
        ]
        self.dial = MemoryDial(*self.servers)
        self.client = LinkClient(self.dial, chance=lambda: 0.0)
        await soon(self.client.start())
        assert self.client.node == "0"
        self.worker = ScriptedWorker(self.client.service)
        await self.worker.attach()
        await self.shop.start()
        activity = ScheduleActivityTask(
            activity_id="a",
            activity_type="A",
            task_queue="q",
            start_to_close_timeout=timedelta(hours=1),
            retry_policy=ONE_ATTEMPT,
        )
        await self.worker.complete(await self.worker.workflow_task(), activity)
        self.attempt = await self.worker.activity_task()

    async def close(self) -> None:
        await soon(self.client.close())
        for server in self.servers:
            server.close()
        await self.shop.close()

    def holder(self) -> str:
        """The node that the attempt belongs to, as the second node knows it."""
        entries = self.shop.nodes[1].engine._cache._entries.values()
        sessions = [activity.session for entry in entries for activity in entry.state.activities.values()]
        return node_of(sessions[0]) if sessions else ""

    async def finish(self) -> None:
        """The attempt ends, at the second node, and was the only one."""
        assert self.client.node == "1"
        await until(lambda: self.holder() == self.shop.nodes[1].engine.node_id, "the attempt was taken over")
        await self.worker.complete_activity(self.attempt, "done")
        await self.worker.complete(await self.worker.workflow_task(), CompleteWorkflowExecution())
        types = await self.shop.event_types()
        assert types.count("ActivityTaskStarted") == 1
        assert "ActivityTaskCompleted" in types
        assert "ActivityTaskTimedOut" not in types
        assert self.worker.cancels.empty()


@pytest.fixture
async def linked() -> AsyncIterator[Linked]:
    linked = Linked()
    await linked.open()
    yield linked
    await linked.close()


async def test_when_its_node_drains(linked: Linked) -> None:
    first = linked.shop.nodes[0]
    linked.servers[0].drain()
    await until(lambda: linked.client.node == "1")
    assert await soon(linked.servers[0].wait_drained(5))
    linked.servers[0].close()
    first.is_up = False
    await soon(first.engine.stop())
    await linked.finish()


async def test_a_report_under_way_as_its_node_dies_that_the_next_node_refuses_for_now(linked: Linked) -> None:
    """The attempt is the worker's until the verdict is final: the next node is told of it all the same."""
    linked.shop.nodes[0].kill()
    report = linked.client.service.complete_activity(r.CompleteActivityRequest(token=linked.attempt.token))
    linked.shop.faults.fail("commit_if_current", StoreUnavailable("the store is away"), times=None)
    linked.dial.servers = [linked.servers[1]]
    linked.dial.cut()
    with pytest.raises(RPCError) as caught:
        await soon(report)
    assert caught.value.is_retryable
    assert linked.client.node == "1"
    linked.shop.faults.clear()
    await until(lambda: linked.holder() == linked.shop.nodes[1].engine.node_id, "the attempt was taken over")
    for _ in range(3):
        linked.shop.advance(LEASE.total_seconds())
        await linked.shop.settle()
    await linked.finish()


async def test_when_its_node_dies(linked: Linked) -> None:
    linked.shop.nodes[0].kill()
    linked.dial.servers = [linked.servers[1]]
    linked.dial.cut()
    await until(lambda: linked.client.node == "1")
    for _ in range(3):
        linked.shop.advance(LEASE.total_seconds())
        await linked.shop.settle()
    await linked.finish()
