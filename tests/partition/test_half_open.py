"""Connections that are half open are noticed and replaced within the bounds that docs/explanation/link.md states."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from clew import workflow
from clew.client import Client
from clew.link.websocket import UNACKNOWLEDGED_SECONDS_MAX
from clew.worker import Worker
from tests.link.node import Node
from tests.partition.__main__ import DATABASE_PATH, NamespacePostgres
from tests.partition.namespaces import CONTROL, NamespaceNetwork, why_not
from tests.partition.proxies import ProxyNetwork
from tests.partition.rules import CUT
from tests.partition.runner import SERVER_PORT, Processes, start_node
from tests.partition.trouble import DATABASE
from tests.postgres.databases import long_test

QUEUE = "half-open"
PORT = 7233
SECONDS_MAX = 35.0
"""Less than the 40 s of silence that are allowed where nothing is set."""


@workflow.defn
class Echo:
    @workflow.run
    async def run(self, value: int) -> int:
        return value


@pytest.mark.parametrize("ways", [("to", "from"), ("to",), ("from",)], ids=lambda ways: "+".join(ways))
@pytest.mark.parametrize("who", ["worker", "client"])
async def test_a_link_that_goes_silent_is_replaced(who: str, ways: tuple[str, ...]) -> None:
    async with (
        ProxyNetwork(["worker", "client"], seed=1) as network,
        Node(ping_seconds=0.3, silence_seconds=1.5) as node,
    ):
        network.lead("node", PORT, node.port)
        addresses = ["{}:{}".format(*network.address(caller, "node", PORT)) for caller in ("worker", "client")]
        async with (
            await Client.connect(addresses[0]) as of_worker,
            await Client.connect(addresses[1]) as client,
            Worker(of_worker, task_queue=QUEUE, workflows=[Echo]),
        ):
            assert await client.execute_workflow(Echo.run, 1, id="w1", task_queue=QUEUE) == 1
            for way in ways:
                network.silence(*((who, "node") if way == "to" else ("node", who)))
            async with asyncio.timeout(SECONDS_MAX):
                assert await client.execute_workflow(Echo.run, 2, id="w2", task_queue=QUEUE) == 2


@long_test
@pytest.mark.skipif(bool(why_not()), reason=why_not() or "it works here")
@pytest.mark.timeout(400)
async def test_a_node_whose_machine_vanishes_is_left_long_before_its_silence_is_noticed(tmp_path: Path) -> None:
    """Nobody closes the connection, and nobody acknowledges what is sent. Found by partitions: calls hung for 40 s."""
    nodes = ("node-1", "node-2")
    async with NamespaceNetwork([DATABASE, *nodes], seed=1) as network:
        server = NamespacePostgres({"listen_addresses": "*"})
        processes = Processes(network, tmp_path)
        try:
            await asyncio.to_thread(server.create)
            await asyncio.to_thread(network.on_host, DATABASE, server.start)
            await asyncio.gather(*(start_node(network, processes, node, server.port, DATABASE_PATH) for node in nodes))
            address = ",".join(f"{network.listen_host(node)}:{SERVER_PORT}" for node in nodes)
            async with await Client.connect(address) as client:
                # It is connected to one of them, and has to leave that one.
                for number, node in enumerate(nodes):
                    network.set_rule(CONTROL, node, CUT)
                    network.set_rule(node, CONTROL, CUT)
                    began = time.monotonic()
                    await client.start_workflow(Echo.run, number, id=f"w{number}", task_queue=QUEUE)
                    assert time.monotonic() - began < UNACKNOWLEDGED_SECONDS_MAX + 20, "noticed by silence alone"
                    network.heal()
        finally:
            await processes.end()
            server.remove()
