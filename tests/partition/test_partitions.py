"""Partitions for some seconds, over proxies; in the long form also between network namespaces, where the machine can.

`make partition-soak` goes on for minutes, with troubles that outlast every patience.
"""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.partition.__main__ import run
from tests.partition.namespaces import why_not
from tests.partition.proxies import ProxyNetwork
from tests.partition.runner import Settings, Told, run_under_trouble
from tests.partition.trouble import DATABASE, Hosts
from tests.postgres.databases import create_database, long_test

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

FEW = Hosts(nodes=("node-1", "node-2"), workers=("worker-1",), clients=("client-1", "client-2"))
POSTGRES_PORT = 5432


def look(told: Told) -> None:
    """There was something to find a fault in."""
    calls = told.outcome["calls"]
    assert sum(told.episodes.values()) >= 1
    assert sum(number for name, number in calls.items() if name.endswith(" ok")) >= len(FEW.clients)
    assert told.outcome["runs"] >= 1


async def test_over_proxies(tmp_path: Path) -> None:
    dsn = await create_database("shards=16&lease=2")
    parts = urlsplit(dsn)
    assert parts.port is not None
    async with ProxyNetwork(FEW.all(), seed=1) as network:
        network.lead(DATABASE, POSTGRES_PORT, parts.port)
        settings = Settings(seed=1, seconds=8, trouble_seconds_max=3, hosts=FEW)
        path = f"{parts.path.removeprefix('/')}?{parts.query}&sslmode=disable"
        look(await run_under_trouble(network, POSTGRES_PORT, path, settings, tmp_path))


@long_test
@pytest.mark.skipif(bool(why_not()), reason=why_not() or "it works here")
async def test_between_namespaces(tmp_path: Path) -> None:
    settings = Settings(seed=2, seconds=8, trouble_seconds_max=3, hosts=FEW)
    look(await run(settings, tmp_path))
