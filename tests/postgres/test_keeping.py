"""A node's lease is renewed however many other calls wait for a connection."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import asyncpg
import pytest

from clew.storage.postgres import open_store
from tests.postgres.databases import create_database, reuse_database

LOCK = 4711
CALLS = 40


@pytest.fixture
async def dsn() -> AsyncIterator[str]:
    made = await create_database("shards=4")
    yield made
    await reuse_database(made)


async def _wait_for_lock(connection: Any, _: str) -> None:
    await connection.execute("SELECT pg_advisory_xact_lock($1)", LOCK)


async def _waiting(connection: Any) -> int:
    query = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objid = $1 AND NOT granted"
    return int(await connection.fetchval(query, LOCK))


async def test_a_lease_is_renewed_while_every_other_connection_is_taken(dsn: str) -> None:
    store = await open_store(f"{dsn}&pool_size=5&command_timeout=120&patience=120")
    holder = await asyncpg.connect(dsn.partition("?")[0])
    lease = timedelta(seconds=30)
    calls = []
    try:
        await store.join_fleet("node", "here", b"{}", lease)
        await holder.execute("SELECT pg_advisory_lock($1)", LOCK)
        calls = [asyncio.ensure_future(store.run_job(_wait_for_lock)) for _ in range(CALLS)]
        async with asyncio.timeout(60):
            while await _waiting(holder) < 2:
                await asyncio.sleep(0.01)
            view = await store.renew_node("node", None, lease)
        assert view is not None, "the node was not found"
        assert [node.node_id for node in view.nodes] == ["node"]
        assert not any(call.done() for call in calls), "a call did not wait, so it proves nothing"
    finally:
        await holder.close()  # the lock goes with it
        await asyncio.gather(*calls)
        await store.close()
