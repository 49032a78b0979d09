"""A power failure at any moment: what was acknowledged is there, and nothing is there by halves (law 3).

The store is written to in a process whose file operations are watched. Afterwards the files are put together as they
could have been at any point: everything before the last sync of each file, and of what came after it nothing, or some
sectors. Each such disk is opened and looked at.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import random
import shutil
import sqlite3
import subprocess
import sys
import textwrap
import time
from collections import Counter
from pathlib import Path

import pytest

from clew.storage.sqlite import open_store
from tests.conformance.store.rows import history_ids
from tests.crash import records
from tests.crash.watched_files import Journal

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks at SQLite through ldd")

ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
MOMENTS = int(os.environ.get("CLEW_POWER_LOSS_MOMENTS", "60"))

WRITER = textwrap.dedent("""
    import asyncio, pickle, sys
    from clew.ports.store import CommitStatus, PendingItem
    from tests.conformance.store.rows import insert, update
    from tests.crash.watched_files import Journal, Step, watch

    journal = Journal()
    watch(journal.steps.append)
    from clew.storage.sqlite import connection, log_room, open_store

    def lay_out(path, size, wanted, extend=log_room.lay_out_from):
        # This file is not opened by SQLite, so it is watched by hand.
        journal.steps.append(Step("write", path, size, bytes(wanted - size)))
        extend(path, size, wanted)
        journal.steps.append(Step("sync", path))

    log_room.lay_out_from = lay_out
    if sys.argv[2] == "unsafe":
        connection.WAL_CHECKPOINT_PAGES = 1000
        real = connection.connect_writer
        def careless(*args, **kwargs):
            opened = real(*args, **kwargs)
            opened.execute("PRAGMA synchronous = NORMAL")
            return opened
        import clew.storage.sqlite.store as store_module
        store_module.connect_writer = careless

    async def write(store, key, count):
        row = insert(key, items_put=(PendingItem(kind=1, item_id=1, data=b"1"),))
        await commit(store, row)
        for _ in range(count):
            version = row.version + 1
            row = update(row, items_put=(PendingItem(kind=1, item_id=1, data=b"%d" % version),))
            await commit(store, row)

    async def commit(store, row):
        assert await store.commit_if_current([(row,)]) == [CommitStatus.COMMITTED]
        journal.note((row.run_key, row.version))

    async def main():
        store = await open_store(sys.argv[1])
        journal.note("ready")
        await asyncio.gather(*[write(store, key, 60) for key in range(1, 9)])
        with open(sys.argv[1] + ".journal", "wb") as file:
            pickle.dump(journal.steps, file)

    asyncio.run(main())
""")


def record(folder: Path, how: str) -> Journal:
    """Write to a store, and give what happened to its files until then."""
    path = folder / "store.db"
    subprocess.run([sys.executable, "-c", WRITER, str(path), how], check=True, env=ENVIRONMENT, timeout=120)
    journal = Journal()
    journal.steps = pickle.loads((folder / "store.db.journal").read_bytes())
    return journal


async def lost_after(journal: Journal, count: int, folder: Path, chance: random.Random | None) -> list[str]:
    """What is wrong with the store after a power failure behind the first `count` steps."""
    folder.mkdir()
    journal.rebuild(count, folder, chance)
    path = str(folder / "store.db")
    with sqlite3.connect(path) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    connection.close()
    store = await open_store(path)
    wrong: list[str] = []
    try:
        acknowledged: dict[int, int] = {}
        for note in journal.notes(count):
            if note != "ready":
                acknowledged[note[0]] = max(acknowledged.get(note[0], 0), note[1])
        for key, version in acknowledged.items():
            row = await store.load_run(0, key)
            if row is None or row.version < version:
                wrong.append(f"version {version} of run {key} was acknowledged; there is {row and row.version}")
                continue
            assert await history_ids(store, key) == list(range(1, row.history_length + 1)), "a gap in a history"
            assert row.items[0].data == b"%d" % row.version, "state and items are of one commit"
    finally:
        await store.close()
    return wrong


async def test_what_was_acknowledged_survives_a_power_failure(tmp_path: Path) -> None:
    journal = await asyncio.to_thread(record, tmp_path, "safe")
    ready = next(index for index, step in enumerate(journal.steps) if step.data == "ready")
    chance = random.Random(11)
    writes = sum(step.kind == "write" for step in journal.steps)
    assert writes > 500, "the writes of the store were seen"
    assert any(step.kind == "write" and len(step.data) > 500_000 for step in journal.steps), "the log was laid out"
    began = time.monotonic()
    moments: Counter[str] = Counter()
    for number in range(MOMENTS):
        count = chance.randrange(ready, len(journal.steps))
        torn = chance if number % 2 else None
        assert await lost_after(journal, count, tmp_path / f"disk{number}", torn) == []
        shutil.rmtree(tmp_path / f"disk{number}")
        moments["some sectors after the last sync" if torn else "nothing after the last sync"] += 1
    records.record("power_loss_sqlite", began, kills=dict(moments), steps=len(journal.steps))


async def test_a_store_that_does_not_sync_each_commit_is_found_out(tmp_path: Path) -> None:
    journal = await asyncio.to_thread(record, tmp_path, "unsafe")
    found = await lost_after(journal, len(journal.steps), tmp_path / "disk", None)
    assert found, "a commit that was not synced before it was acknowledged is lost"
