"""Two nodes on one database, behind one list of addresses: either is killed under load, and nothing is lost."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from clew.client import Client
from tests.e2e.server import doubling
from tests.e2e.server.processes import Process, free_port, start_doubling
from tests.postgres.databases import create_database, long_test

pytestmark = pytest.mark.e2e

RUNS = 60
DEADLINE_SECONDS = 150.0


@long_test
@pytest.mark.timeout(400)
async def test_either_node_is_killed_under_load_and_nothing_is_lost(tmp_path: Path) -> None:
    (tmp_path / "doubling.py").write_bytes(Path(doubling.__file__).read_bytes())
    dsn = await create_database()
    ports = free_port(), free_port()
    addresses = ",".join(f"127.0.0.1:{port}" for port in ports)

    def node(port: int) -> Process:
        return Process(tmp_path, "server", "start", "--port", str(port), CLEW_SERVER_STORE=dsn)

    first, second = node(ports[0]), node(ports[1])
    worker = Process(tmp_path, "worker", "run", "doubling", "--address", addresses, "--processes", "2")
    try:
        await asyncio.gather(*(asyncio.to_thread(one.wait_said, "Clew answers at") for one in (first, second)))
        await asyncio.to_thread(worker.wait_said, "Working for")
        async with await Client.connect(addresses) as client:
            handles = [await start_doubling(client, number) for number in range(RUNS // 3)]
            first.kill()
            handles += [await start_doubling(client, number) for number in range(RUNS // 3, 2 * RUNS // 3)]
            first = node(ports[0])
            await asyncio.to_thread(first.wait_said, "Clew answers at")
            second.kill()
            handles += [await start_doubling(client, number) for number in range(2 * RUNS // 3, RUNS)]
            async with asyncio.timeout(DEADLINE_SECONDS):
                results = await asyncio.gather(*(handle.result() for handle in handles))
            assert results == [8 * number for number in range(RUNS)]
            counted = await client.count_workflows("ExecutionStatus = 'Completed'")
            assert counted.count == RUNS
    finally:
        for process in (worker, first, second):
            process.kill()
