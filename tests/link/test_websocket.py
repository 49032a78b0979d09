"""Clients and workers over a real WebSocket."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from clew import activity, workflow
from clew.client import Client
from clew.service.errors import RPCError
from clew.worker import Worker
from tests.link.node import Node

QUEUE = "link"
SECONDS_MAX = 20.0


@activity.defn
async def double(value: int) -> int:
    return value * 2


@workflow.defn
class Doubles:
    @workflow.run
    async def run(self, value: int) -> int:
        return await workflow.execute_activity(double, value, start_to_close_timeout=timedelta(seconds=10))


async def test_a_workflow_runs_over_the_link() -> None:
    async with Node() as node, await Client.connect(node.address) as client:
        async with Worker(client, task_queue=QUEUE, workflows=[Doubles], activities=[double]):
            results = await asyncio.wait_for(
                asyncio.gather(
                    *(client.execute_workflow(Doubles.run, n, id=f"w{n}", task_queue=QUEUE) for n in range(50))
                ),
                SECONDS_MAX,
            )
        assert results == [n * 2 for n in range(50)]


async def test_nobody_there() -> None:
    async with Node() as node:
        pass
    from clew.linked import connect_server

    with pytest.raises(RPCError, match="No node can be reached"):
        await connect_server([("127.0.0.1", node.port)], patience_seconds=0.2)
