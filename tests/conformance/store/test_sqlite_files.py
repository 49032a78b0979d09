"""SQLite files: who may open what, and what is said about files that are not well."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sqlite3
import stat
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from clew.ports.store import (
    CommitStatus,
    Store,
    StoreCorrupt,
    StoreError,
    StoreFull,
    StoreIncompatible,
    StoreInUse,
    StoreReadOnly,
    StoreUnavailable,
)
from clew.storage.sqlite import open_reader, open_store
from clew.storage.sqlite.schema import APPLICATION_ID, migrations
from tests.conformance.store.rows import NAMESPACE, batch, history_ids, insert, load, update

COMMITTED = [CommitStatus.COMMITTED]
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
IS_ROOT = hasattr(os, "geteuid") and os.geteuid() == 0

OWNER = textwrap.dedent("""
    import asyncio, sys
    from clew.storage.sqlite import open_store

    async def main():
        store = await open_store(sys.argv[1])
        print("open", flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
        await store.close()

    asyncio.run(main())
""")

FORKING_OWNER = textwrap.dedent("""
    import asyncio, os, sys
    from clew.storage.sqlite import open_store

    async def main():
        await open_store(sys.argv[1])
        child = os.fork()
        if child == 0:
            sys.stdin.readline()
            os._exit(0)
        print(child, flush=True)
        os._exit(1)

    asyncio.run(main())
""")


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "claims.db")


@pytest.fixture
def owner(path: str) -> Iterator[subprocess.Popen[str]]:
    """Another process that owns the store."""
    process = subprocess.Popen(
        [sys.executable, "-c", OWNER, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=ENVIRONMENT
    )
    assert process.stdout is not None
    assert process.stdin is not None
    assert process.stdout.readline() == "open\n"
    yield process
    process.kill()
    process.wait(10)
    process.stdin.close()
    process.stdout.close()


async def open_and_close(address: str) -> None:
    store = await open_store(address)
    await store.close()


async def test_a_second_process_is_told_who_has_the_file(
    path: str, tmp_path: Path, owner: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    link = tmp_path / "link.db"
    link.symlink_to(path)
    monkeypatch.chdir(tmp_path)
    for address in (path, f"sqlite:{path}", f"sqlite://{path}", str(link), "claims.db", "./sub/../claims.db"):
        with pytest.raises(StoreInUse) as caught:
            await open_store(address)
        assert f"process {owner.pid}" in str(caught.value)
        assert path in str(caught.value)
    owner.kill()
    owner.wait(10)
    await open_and_close(path)


async def test_a_closed_owner_lets_go(path: str, owner: subprocess.Popen[str]) -> None:
    owner.communicate("\n", timeout=10)
    assert owner.returncode == 0
    await open_and_close(path)


async def test_one_process_opens_a_file_once(path: str) -> None:
    store = await open_store(path)
    with pytest.raises(StoreInUse, match="already in this process"):
        await open_store(path)
    assert await store.commit_if_current([(insert(1),)]) == COMMITTED
    await store.close()
    await open_and_close(path)


@pytest.fixture
def orphan(path: str) -> Iterator[int]:
    """A forked child of an owner that is gone; its process id."""
    if not hasattr(os, "fork"):
        pytest.skip("the system has no fork")
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", FORKING_OWNER, path],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT,
    )
    assert process.stdout is not None
    assert process.stdin is not None
    child = int(process.stdout.readline())
    process.wait(10)
    yield child
    process.stdin.close()
    process.stdout.close()


async def test_a_forked_child_does_not_keep_the_file(path: str, orphan: int) -> None:
    os.kill(orphan, 0)  # it is still there
    await open_and_close(path)


async def test_a_reader_works_beside_the_owner_and_without_one(path: str) -> None:
    with pytest.raises(StoreError, match="does not exist"):
        await open_reader(path)
    store = await open_store(path)
    first = insert(1, "w")
    await store.commit_if_current([(first,)])
    reader = await open_reader(path)
    found = await reader.find_run(NAMESPACE, "w", "")
    assert found is not None
    assert found.version == 1
    await store.commit_if_current([(update(first),)])
    found = await reader.find_run(NAMESPACE, "w", "")
    assert found is not None
    assert found.version == 2, "a reader sees what was committed meanwhile"
    assert [row.run_key for row in await reader.list_runs(NAMESPACE, None, 10, None)] == [1]
    assert not hasattr(reader, "commit_if_current")
    await store.close()
    assert await reader.count_runs(NAMESPACE, None)
    await reader.close()
    alone = await open_reader(path)
    assert len(await alone.read_history(0, 1, 1, 10_000)) == 2
    await alone.close()


async def test_a_reader_sees_what_a_killed_owner_had_committed(path: str, tmp_path: Path) -> None:
    store = await open_store(path)
    await store.commit_if_current([(insert(1),)])
    copy = tmp_path / "copy"
    copy.mkdir()
    for name in ("claims.db", "claims.db-wal"):
        shutil.copy(tmp_path / name, copy / name)
    await store.close()
    reader = await open_reader(str(copy / "claims.db"))
    assert (await reader.load_run(0, 1)) is not None
    await reader.close()


@pytest.mark.skipif(shutil.which("sqlite3") is None, reason="the sqlite3 shell is not installed")
async def test_the_sqlite_shell_reads_events_and_runs_beside_the_owner(path: str) -> None:
    store = await open_store(path)
    await store.commit_if_current([(insert(1, "w", batches=(batch(1, 2), batch(3))),), (insert(2, "v"),)])

    async def ask(query: str) -> list[dict[str, object]]:
        process = await asyncio.create_subprocess_exec(
            "sqlite3", "-readonly", "-json", path, query, stdout=asyncio.subprocess.PIPE
        )
        output, _ = await process.communicate()
        assert process.returncode == 0
        return json.loads(output)  # type: ignore[no-any-return]

    events = await ask("SELECT * FROM clew_events WHERE workflow_id = 'w' ORDER BY event_id")
    assert [event["event_id"] for event in events] == [1, 2, 3]
    assert events[2]["namespace"] == NAMESPACE
    assert events[2]["run_id"] == "run-1"
    assert events[2]["event_type"] == "TimerFired"
    assert str(events[2]["event_time"]).startswith("2026-03-01T08:00:00")
    assert json.loads(str(events[2]["attributes"])) == {"timer_id": "t-3"}
    runs = await ask("SELECT workflow_id, status, start_time FROM clew_executions ORDER BY run_key")
    assert runs[0] == {"workflow_id": "w", "status": "Running", "start_time": "2026-03-01T08:00:00.123Z"}
    assert [run["workflow_id"] for run in runs] == ["w", "v"]
    await store.close()


async def test_the_file_says_that_history_is_append_only(path: str) -> None:
    store = await open_store(path)
    await store.commit_if_current([(insert(1),)])
    await store.close()
    connection = sqlite3.connect(path)
    with pytest.raises(sqlite3.IntegrityError, match="append-only"):
        connection.execute("UPDATE history SET events = '[]'")
    connection.close()


async def test_a_file_of_another_program_is_left_alone(path: str) -> None:
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE mine (x)")
    connection.commit()
    connection.close()
    before = Path(path).read_bytes()
    for opening in (open_store, open_reader):
        with pytest.raises(StoreIncompatible, match="another program"):
            await opening(path)
    assert Path(path).read_bytes() == before


async def test_a_file_that_is_no_database_is_left_alone(path: str) -> None:
    Path(path).write_bytes(b"Dear diary, today I met a labyrinth. " * 200)
    before = Path(path).read_bytes()
    for opening in (open_store, open_reader):
        with pytest.raises(StoreIncompatible, match="not an SQLite database"):
            await opening(path)
    assert Path(path).read_bytes() == before


async def test_an_empty_file_becomes_a_store(path: str) -> None:
    Path(path).touch()
    with pytest.raises(StoreIncompatible, match="no store was made there"):
        await open_reader(path)
    await open_and_close(path)
    connection = sqlite3.connect(path)
    assert connection.execute("PRAGMA application_id").fetchone() == (APPLICATION_ID,)
    names = [name for (name,) in connection.execute("SELECT name FROM schema_migrations ORDER BY name")]
    assert names == sorted(migration.name for migration in migrations())
    connection.close()


async def test_a_store_of_an_older_clew_is_brought_up_to_date(path: str) -> None:
    await open_and_close(path)
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("DROP TABLE deployments")
    connection.execute("DROP TABLE api_keys")
    connection.execute("DELETE FROM schema_migrations WHERE name NOT LIKE '001%'")
    connection.execute("PRAGMA user_version = 1")
    connection.close()
    with pytest.raises(StoreIncompatible):
        await open_reader(path)
    store = await open_store(path)
    assert await store.list_deployments() == []
    await store.close()


async def test_a_store_of_a_newer_clew_is_left_alone(path: str) -> None:
    await open_and_close(path)
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version = 999")
    connection.close()
    for opening in (open_store, open_reader):
        with pytest.raises(StoreIncompatible, match=r"999.*Upgrade Clew"):
            await opening(path)


async def test_a_directory_is_no_store(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="is a directory"):
        await open_store(str(tmp_path))


async def test_a_missing_directory_is_named(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="does not exist") as caught:
        await open_store(str(tmp_path / "no" / "such" / "claims.db"))
    assert str(tmp_path / "no" / "such") in str(caught.value)


@pytest.mark.parametrize("address", ["", "sqlite:", "sqlite://host/claims.db", "a\0b"])
async def test_an_address_without_a_file_is_refused(address: str) -> None:
    with pytest.raises(StoreError, match="address"):
        await open_store(address)


def _make_read_only(path: str) -> bool:
    """Make file and folder read-only for this user, root included where the file system can."""
    os.chmod(path, 0o444)
    os.chmod(os.path.dirname(path), 0o555)
    if not IS_ROOT:
        return True
    return subprocess.run(["chattr", "+i", path], capture_output=True, check=False).returncode == 0


def _make_writable(path: str) -> None:
    if IS_ROOT:
        subprocess.run(["chattr", "-i", path], capture_output=True, check=False)
    os.chmod(os.path.dirname(path), 0o755)
    os.chmod(path, 0o644)


@pytest.mark.parametrize(("mask", "mode"), [(0o022, 0o600), (0o277, 0o400)], ids=["usual", "strict"])
async def test_a_new_file_is_for_its_owner_alone(path: str, mask: int, mode: int) -> None:
    before = os.umask(mask)
    try:
        store = await open_store(path)
        found = {name: stat.S_IMODE(os.stat(os.path.join(os.path.dirname(path), name)).st_mode)
                 for name in os.listdir(os.path.dirname(path))}  # fmt: skip
    finally:
        os.umask(before)
    await store.close()
    assert len(found) >= 3, "the file, its log and the owner's"
    assert set(found.values()) == {mode}, found


async def test_a_file_keeps_the_mode_that_its_owner_gave_it(path: str) -> None:
    await open_and_close(path)
    os.chmod(path, 0o640)
    store = await open_store(path)
    try:
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o640
        assert stat.S_IMODE(os.stat(f"{path}-wal").st_mode) == 0o640
    finally:
        await store.close()


async def test_a_read_only_file_is_said_to_be_one(path: str) -> None:
    await open_and_close(path)
    if not _make_read_only(path):
        pytest.skip("root may write here whatever the permissions, and the file system has no immutable files")
    try:
        with pytest.raises(StoreReadOnly, match="cannot be written"):
            await open_store(path)
    finally:
        _make_writable(path)
    await open_and_close(path)


async def _fill(store: Store, first_key: int) -> list[int]:
    """Insert runs until the store is full; the keys of those that were acknowledged."""
    done: list[int] = []

    async def insert_many() -> None:
        for key in range(first_key, first_key + 10_000):
            assert await store.commit_if_current([(insert(key, state=b"x" * 20_000),)]) == COMMITTED
            done.append(key)

    with pytest.raises(StoreFull, match="Make room"):
        await insert_many()
    return done


async def test_a_size_limit_is_full_and_nothing_is_lost(path: str) -> None:
    store = await open_store(path, size_bytes_max=1_000_000)
    done = await _fill(store, 1)
    assert done
    first = await load(store, 1)
    with pytest.raises(StoreFull):
        await store.commit_if_current([(update(first, state=b"y" * 100_000),)])
    assert (await load(store, 1)).version == 1
    await store.close()
    store = await open_store(path, size_bytes_max=4_000_000)
    assert [row.run_key for row in await store.list_runs(NAMESPACE, None, 1000, None)] == done[::-1]
    assert await store.commit_if_current([(update(first, state=b"y" * 100_000),)]) == COMMITTED
    await store.close()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 3 MB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounting = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(folder)], capture_output=True, check=False
    )
    if mounting.returncode != 0:
        pytest.skip("mounting a small file system needs root")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


async def test_a_full_disk_loses_nothing_and_works_again_with_room(small_disk: Path) -> None:
    ballast = small_disk / "ballast"
    ballast.write_bytes(b"x" * 1_000_000)
    path = str(small_disk / "claims.db")
    store = await open_store(path)
    done = await _fill(store, 1)
    assert done
    with pytest.raises(StoreFull):
        await store.commit_if_current([(insert(20_000, state=b"x" * 200_000),)])
    assert [row.run_key for row in await store.list_runs(NAMESPACE, None, 1000, None)] == done[::-1]
    await store.close()
    store = await open_store(path)
    assert await load(store, done[0]), "a full disk does not keep a store from being opened"
    ballast.unlink()
    more = 30_000
    assert await store.commit_if_current([(insert(more, state=b"x" * 20_000),)]) == COMMITTED
    await store.close()
    store = await open_store(path)
    assert [row.run_key for row in await store.list_runs(NAMESPACE, None, 1000, None)] == [more, *done[::-1]]
    for key in done:
        assert await history_ids(store, key) == [1, 2]
    await store.close()


def _damage(path: str, table: str) -> None:
    """Overwrite the root page of a table."""
    connection = sqlite3.connect(path)
    (page_size,) = connection.execute("PRAGMA page_size").fetchone()
    (root,) = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = ?", (table,)).fetchone()
    connection.close()
    with open(path, "r+b") as file:
        file.seek((root - 1) * page_size)
        file.write(b"\xa5" * page_size)


async def test_a_damaged_file_is_said_to_be_one_at_open(path: str) -> None:
    await open_and_close(path)
    _damage(path, "executions")
    with pytest.raises(StoreCorrupt, match="integrity_check"):
        await open_store(path)
    with pytest.raises(StoreCorrupt):
        await open_store(path)


async def test_a_damaged_page_is_said_to_be_one_when_it_is_met(path: str) -> None:
    store = await open_store(path)
    first = insert(1)
    await store.commit_if_current([(first,)])
    await store.close()
    _damage(path, "history")
    store = await open_store(path)
    assert (await load(store, 1)).version == 1
    with pytest.raises(StoreCorrupt, match="integrity_check"):
        await store.read_history(0, 1, 1, 1000)
    with pytest.raises(StoreCorrupt, match="nothing was written"):
        await store.commit_if_current([(update(first),)])
    with pytest.raises(StoreCorrupt):
        await store.commit_if_current([(insert(2),), (insert(3),)])
    assert (await load(store, 1)).version == 1
    assert await store.load_run(0, 2) is None
    await store.close()


def _hold_write_lock(path: str) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("BEGIN IMMEDIATE")
    return connection


async def test_a_foreign_write_lock_is_waited_for(path: str) -> None:
    store = await open_store(path)
    await store.commit_if_current([(insert(1),)])
    other = _hold_write_lock(path)
    waiting = [store.commit_if_current([(insert(key),)]) for key in range(2, 30)]
    namespace_call = store.reserve_run_keys(100_000)
    assert (await load(store, 1)).version == 1, "readers do not wait for the writer"
    done, _ = await asyncio.wait([asyncio.ensure_future(call) for call in waiting], timeout=0.3)
    assert not done
    other.execute("ROLLBACK")
    other.close()
    assert [await call for call in waiting] == [COMMITTED] * 28
    assert await namespace_call >= 1
    await store.close()


async def test_a_lock_held_beyond_the_bound_is_unavailable_then_works(path: str) -> None:
    store = await open_store(path, busy_timeout=timedelta(milliseconds=100))
    other = _hold_write_lock(path)
    with pytest.raises(StoreUnavailable, match="locked by another program"):
        await store.commit_if_current([(insert(1),), (insert(2),)])
    with pytest.raises(StoreUnavailable):
        await store.commit_if_current([(insert(1),)])
    other.execute("ROLLBACK")
    other.close()
    assert await store.load_run(0, 1) is None
    assert await store.commit_if_current([(insert(1),)]) == COMMITTED
    await store.close()


async def test_the_log_stays_bounded_once_a_long_reader_is_gone(path: str) -> None:
    store = await open_store(path)
    row = insert(1, state=b"x" * 100_000)
    await store.commit_if_current([(row,)])
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN")
    assert other.execute("SELECT count(*) FROM executions").fetchone() == (1,)

    async def write(count: int) -> None:
        nonlocal row
        for _ in range(count):
            row = update(row, state=(b"%06d" % row.version) * 17_000)
            assert await store.commit_if_current([(row,)]) == COMMITTED

    await write(300)
    grown = os.path.getsize(path + "-wal")
    assert grown > 20_000_000, "a reader that stays open keeps the log from being reused"
    other.execute("ROLLBACK")
    other.close()
    deadline = asyncio.get_running_loop().time() + 20
    while os.path.getsize(path + "-wal") > 17_000_000:
        assert asyncio.get_running_loop().time() < deadline, "the log was not cut after the reader was gone"
        await asyncio.sleep(0.05)
    await write(300)
    assert os.path.getsize(path + "-wal") < 25_000_000
    await store.close()
    assert not os.path.exists(path + "-wal"), "a closed store is one file"
