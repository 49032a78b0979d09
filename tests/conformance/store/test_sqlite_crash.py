"""A writer killed at any moment: what it had acknowledged is there, and nothing is there by halves."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import sys
import textwrap
from pathlib import Path

import pytest

from clew.ports.store import Store
from clew.storage.sqlite import open_store
from tests.conformance.store.rows import NAMESPACE, history_ids

ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
RUNS = 40
KILLS = 6
ANSWERS_BEFORE_KILL = 120

WRITER = textwrap.dedent("""
    import asyncio, sys
    from clew.ports.store import CommitStatus, PendingItem
    from clew.storage.sqlite import open_store
    from tests.conformance.store.rows import insert, load, update

    async def write(store, key):
        row = await store.load_run(0, key)
        if row is None:
            row = insert(key, items_put=(PendingItem(kind=1, item_id=1, data=b"1"),))
            await commit(store, row)
        while True:
            version = row.version + 1
            row = update(row, items_put=(PendingItem(kind=1, item_id=1, data=b"%d" % version),))
            await commit(store, row)

    async def commit(store, row):
        assert await store.commit_if_current([(row,)]) == [CommitStatus.COMMITTED]
        sys.stdout.write(f"{row.run_key} {row.version}\\n")
        sys.stdout.flush()

    async def main():
        store = await open_store(sys.argv[1])
        await asyncio.gather(*[write(store, key) for key in range(1, int(sys.argv[2]) + 1)])

    asyncio.run(main())
""")


async def write_and_kill(path: str, answers_count: int) -> dict[int, int]:
    """Run a writer until it has acknowledged so many commits, kill it; the last version that it told of each run."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        WRITER,
        path,
        str(RUNS),
        stdout=asyncio.subprocess.PIPE,
        env=ENVIRONMENT,
    )
    assert process.stdout is not None
    said: dict[int, int] = {}
    seen = 0
    async with asyncio.timeout(30):
        while line := await process.stdout.readline():
            if not line.endswith(b"\n"):
                break
            key, version = map(int, line.split())
            said[key] = version
            seen += 1
            if seen == answers_count:
                process.kill()
        await process.wait()
    assert process.returncode == -9, "the writer ended by itself"
    return said


async def check_whole(store: Store, said: dict[int, int]) -> None:
    for key, version in said.items():
        row = await store.load_run(0, key)
        assert row is not None, f"run {key} was acknowledged and is lost"
        assert row.version >= version, f"version {version} of run {key} was acknowledged and is lost"
        assert await history_ids(store, key) == list(range(1, row.history_length + 1))
        assert row.history_length == row.version + 1
        assert row.items[0].data == b"%d" % row.version, "state and items are of one commit"


@pytest.mark.skipif(sys.platform == "win32", reason="kills with SIGKILL")
async def test_what_was_acknowledged_survives_kills(tmp_path: Path) -> None:
    path = str(tmp_path / "store.db")
    total: dict[int, int] = {}
    for round_number in range(KILLS):
        said = await write_and_kill(path, ANSWERS_BEFORE_KILL + 17 * round_number)
        assert said
        total.update(said)
        store = await open_store(path)
        await check_whole(store, total)
        rows = await store.list_runs(NAMESPACE, None, 1000, None)
        assert len(rows) == RUNS
        await store.close()
    connection = sqlite3.connect(path)
    assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    connection.close()
