"""A server on a SQLite file, killed at commit after commit, with clients and a worker in other processes.

`make crash-soak` sweeps every commit of a life in every way.
"""

from __future__ import annotations

import os
import sys
import time
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from clew.client import Client
from tests.crash.killed_server import WAYS
from tests.crash.nodes import Breeder, Node, Program, free_port
from tests.crash.records import record
from tests.crash.rounds import Rounds
from tests.crash.sweep import Mortal, Sweep, spread

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="looks at SQLite through ldd"),
    pytest.mark.e2e,
]

KILLS = int(os.environ.get("CLEW_COMMIT_KILLS", "8"))
LAST_COMMIT = int(os.environ.get("CLEW_COMMIT_LAST", "40"))
KILL_SECONDS = 15
"""Allowed for each kill on a very busy machine, where workers are killed too."""
HAS_CALLER = bool(os.environ.get("CLEW_CRASH_RECORD"))
"""Whether a client process is killed as well: in the long form."""


@pytest.mark.timeout(240 + KILLS * KILL_SECONDS)
async def test_nothing_is_lost_or_done_twice(tmp_path: Path) -> None:
    began = time.monotonic()
    port, database, ledger = free_port(), f"sqlite:{tmp_path / 'store.db'}", tmp_path / "ledger"
    address = f"127.0.0.1:{port}"
    worker = Program(tmp_path / "worker.log", "tests.crash.mixed", address, str(ledger))
    caller = Program(tmp_path / "caller.log", "tests.crash.caller", address, str(tmp_path))
    async with AsyncExitStack() as stack:
        stack.push_async_callback(caller.end)
        breeder = await stack.enter_async_context(Breeder())
        server = Node(breeder, tmp_path / "server.log", "server", "start", "--store", database, "--port", str(port))
        stack.push_async_callback(worker.end)
        assert await server.live()
        await worker.start("ready")
        client = await Client.connect(address)
        stack.push_async_callback(client.close)
        rounds = Rounds([client], ledger)
        await rounds.see_through("peace")
        if HAS_CALLER:
            await caller.start("ready")
        server.kill()
        await server.wait_killed()
        points, others = spread(WAYS, LAST_COMMIT, KILLS), [Mortal("worker", worker)]
        sweep = Sweep(rounds, points, [server], others=others, caller=Mortal("caller", caller) if HAS_CALLER else None)
        await sweep.run()
        assert sweep.kills.total() == KILLS
        caller_rounds = await sweep.stop_caller(tmp_path)
        told = await rounds.check(database)
        await worker.stop()
        await server.stop()
        record(
            "server_sqlite",
            began,
            kills=dict(sweep.kills),
            others_killed=dict(sweep.others_killed),
            caller_rounds=caller_rounds,
            **told,
        )
