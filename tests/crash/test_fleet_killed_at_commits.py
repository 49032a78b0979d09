"""Nodes that share a PostgreSQL database, one killed at write after write, with clients and workers elsewhere.

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
from tests.crash.sweep import Mortal, Point, Sweep, spread
from tests.postgres.databases import create_database

pytestmark = [pytest.mark.skipif(sys.platform == "win32", reason="kills with SIGKILL"), pytest.mark.e2e]

NODES = 3
KILLS = int(os.environ.get("CLEW_WRITE_KILLS", "6"))
LAST_WRITE = int(os.environ.get("CLEW_WRITE_LAST", "40"))
HAS_CALLER = bool(os.environ.get("CLEW_CRASH_RECORD"))
"""Whether a client process is killed as well: in the long form."""

KILL_SECONDS = 15
"""Allowed for each kill on a very busy machine, where workers are killed too."""


@pytest.mark.timeout(240 + KILLS * KILL_SECONDS)
async def test_nothing_is_lost_or_done_twice(tmp_path: Path) -> None:
    began = time.monotonic()
    dsn = await create_database("shards=16&lease=2")
    ledger = tmp_path / "ledger"
    ports = [free_port() for _ in range(NODES)]
    addresses = [f"127.0.0.1:{port}" for port in ports]
    caller = Program(tmp_path / "caller.log", "tests.crash.caller", ",".join(addresses), str(tmp_path))
    async with AsyncExitStack() as stack:
        stack.push_async_callback(caller.end)
        proxy = await stack.enter_async_context(CommitProxy(dsn))
        breeder = await stack.enter_async_context(Breeder())
        nodes = [
            Node(breeder, tmp_path / f"node{number}.log", "server", "start", "--store", store, "--port", str(port))
            for number, (store, port) in enumerate(zip([proxy.dsn, *[dsn] * (NODES - 1)], ports, strict=True))
        ]
        doomed = nodes[0]
        assert all(await asyncio.gather(*(node.live() for node in nodes)))
        # Half of the workers and clients know the node that is killed alone, so that much goes through it.
        workers = [
            Program(tmp_path / f"worker{number}.log", "tests.crash.mixed", address, str(ledger))
            for number, address in enumerate((addresses[0], ",".join(addresses)))
        ]
        for worker in workers:
            stack.push_async_callback(worker.end)
        await asyncio.gather(*(worker.start("ready") for worker in workers))
        clients = [await Client.connect(address) for address in (addresses[0], ",".join(addresses[1:]))]
        for client in clients:
            stack.push_async_callback(client.close)
        rounds = Rounds(clients, ledger)
        await rounds.see_through("peace")
        if HAS_CALLER:
            await caller.start("ready")
        doomed.kill()
        await doomed.wait_killed()

        def arm(node: Node, point: Point | None) -> None:
            at, how = point or (0, "")
            proxy.arm(at, how, node.kill)

        others = [Mortal("worker", worker) for worker in workers]
        points = spread(WAYS, LAST_WRITE, KILLS)
        sweep = Sweep(rounds, points, [doomed], arm, others, Mortal("caller", caller) if HAS_CALLER else None)
        await sweep.run()
        assert sweep.kills.total() == KILLS
        caller_rounds = await sweep.stop_caller(tmp_path)
        told = await rounds.check(dsn)
        for program in (*workers, *nodes):
            await program.stop()
        record(
            "fleet_postgres",
            began,
            kills=dict(sweep.kills),
            others_killed=dict(sweep.others_killed),
            nodes=NODES,
            caller_rounds=caller_rounds,
            **told,
        )
