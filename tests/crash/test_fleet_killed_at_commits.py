"""Nodes that share a PostgreSQL database, each killed at write after write, with clients and a worker elsewhere.

`make crash-soak` sweeps every write of a life in every way.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from clew.client import Client
from tests.crash.commit_proxy import WAYS, CommitProxy
from tests.crash.nodes import Breeder, Node, Program, free_port
from tests.crash.records import record
from tests.crash.rounds import Rounds
from tests.crash.sweep import Point, Sweep, spread
from tests.postgres.databases import create_database

pytestmark = [pytest.mark.skipif(sys.platform == "win32", reason="kills with SIGKILL"), pytest.mark.e2e]

NODES = 3
KILLS = int(os.environ.get("CLEW_WRITE_KILLS", "8"))
LAST_WRITE = int(os.environ.get("CLEW_WRITE_LAST", "40"))
KILL_SECONDS = 6
"""Allowed for each kill on a busy machine."""


@pytest.mark.timeout(240 + KILLS * KILL_SECONDS)
async def test_nothing_is_lost_or_done_twice(tmp_path: Path) -> None:
    began = time.monotonic()
    dsn = await create_database("shards=16&lease=2")
    ledger = tmp_path / "ledger"
    ports = [free_port() for _ in range(NODES)]
    address = ",".join(f"127.0.0.1:{port}" for port in ports)
    async with AsyncExitStack() as stack:
        breeder = await stack.enter_async_context(Breeder())
        proxies: dict[Node, CommitProxy] = {}
        for number, port in enumerate(ports):
            proxy = await stack.enter_async_context(CommitProxy(dsn))
            log = tmp_path / f"node{number}.log"
            proxies[Node(breeder, log, "server", "start", "--store", proxy.dsn, "--port", str(port))] = proxy
        assert all(await asyncio.gather(*(node.live() for node in proxies)))
        worker = Program(tmp_path / "worker.log", "tests.crash.mixed", address, str(ledger))
        stack.push_async_callback(worker.end)
        await worker.start("ready")
        client = await Client.connect(address)
        stack.push_async_callback(client.close)
        rounds = Rounds(client, ledger)
        await rounds.see_through("peace")
        for node in proxies:
            node.kill()
            await node.wait_killed()

        def arm(node: Node, point: Point | None) -> None:
            at, how = point or (0, "")
            proxies[node].arm(at, how, node.kill)

        sweep = Sweep(rounds, spread(WAYS, LAST_WRITE, KILLS), list(proxies), arm)
        await sweep.run()
        assert sweep.kills.total() == KILLS
        told = await rounds.check(dsn)
        await worker.stop()
        for node in proxies:
            await node.stop()
        record("fleet_postgres", began, kills=dict(sweep.kills), nodes=NODES, **told)
