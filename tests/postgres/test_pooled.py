"""Behind PgBouncer in transaction mode: nothing may outlive a transaction, and everything works."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from clew import activity, workflow
from clew.client import Client
from clew.ports.store import CommitStatus
from clew.storage.postgres import open_store
from clew.worker import Worker
from tests.conformance.store.rows import close, history_ids, insert, update
from tests.postgres.databases import create_database, reuse_database

PROGRAM = shutil.which("pgbouncer")
pytestmark = pytest.mark.skipif(PROGRAM is None, reason="pgbouncer is not installed (Debian: apt install pgbouncer)")
SECONDS_MAX = 60.0


@activity.defn
async def double(n: int) -> int:
    return 2 * n


@workflow.defn
class Doubles:
    @workflow.run
    async def run(self, n: int) -> int:
        for _ in range(3):
            n = await workflow.execute_activity(double, n, start_to_close_timeout=timedelta(seconds=30))
        return n


@pytest.fixture
async def dsn() -> AsyncIterator[str]:
    made = await create_database("shards=16")
    yield made
    await reuse_database(made)


@pytest.fixture
async def pooled(dsn: str) -> AsyncIterator[str]:
    """The database as it is seen through a pooler that has two connections for all."""
    parts = urlsplit(dsn)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    folder = Path(tempfile.mkdtemp(prefix="clew-pgbouncer-"))
    settings = folder / "pgbouncer.ini"
    settings.write_text(
        # With "any", whoever connects is let in as the user that is named for the database.
        f"[databases]\n* = host={parts.hostname} port={parts.port} user={parts.username}\n"
        f"[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nauth_type = any\npool_mode = transaction\n"
        "default_pool_size = 2\nmax_client_conn = 100\nunix_socket_dir =\n"
    )
    folder.chmod(0o755)
    is_root = hasattr(os, "geteuid") and os.geteuid() == 0
    as_user: dict[str, Any] = {"user": 65534, "group": 65534, "extra_groups": []} if is_root else {}
    process = subprocess.Popen([str(PROGRAM), "-q", str(settings)], stdin=subprocess.DEVNULL, **as_user)

    async def until_open() -> None:
        while True:
            assert process.poll() is None, "pgbouncer ended"
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                await asyncio.sleep(0.02)
                continue
            writer.close()
            return

    try:
        await asyncio.wait_for(until_open(), SECONDS_MAX)
        yield f"postgresql://{parts.username}@127.0.0.1:{port}{parts.path}?{parts.query}&pool_mode=transaction"
    finally:
        process.terminate()
        await asyncio.to_thread(process.wait)
        shutil.rmtree(folder, ignore_errors=True)


async def test_commits_and_reads_work_without_a_session(pooled: str) -> None:
    store = await open_store(pooled.replace("shards=16", "shards=1"))
    runs = [insert(n) for n in range(1, 41)]
    answers = await asyncio.gather(*(store.commit_if_current([(run,)]) for run in runs))
    assert answers == [[CommitStatus.COMMITTED]] * 40
    unit = (close(runs[0]), insert(100, "claim-1", expected_latest_run_key=1))
    stale = update(runs[1], expected_version=7, version=8)
    assert await store.commit_if_current([unit, (stale,), (update(runs[2]),)]) == [
        CommitStatus.COMMITTED,
        CommitStatus.VERSION_CONFLICT,
        CommitStatus.COMMITTED,
    ]
    row = await store.load_run(0, 100)
    assert row is not None
    assert await history_ids(store, 3) == [1, 2, 3]
    assert len(await store.list_runs("default", None, 100, None)) == 41
    await store.close()


async def test_workflows_run_behind_a_pooler(pooled: str) -> None:
    async with (
        await Client.connect(pooled) as client,
        Worker(client, task_queue="pooled", workflows=[Doubles], activities=[double]),
    ):
        running = [client.execute_workflow(Doubles.run, n, id=f"double-{n}", task_queue="pooled") for n in range(20)]
        assert await asyncio.wait_for(asyncio.gather(*running), SECONDS_MAX) == [8 * n for n in range(20)]
