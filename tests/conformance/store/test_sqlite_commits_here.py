"""Small commits that the loop makes by itself while the disk is quick (docs/adr/0037)."""

from __future__ import annotations

import asyncio
import os
import shutil
import sqlite3
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from clew.ports.store import CommitStatus, RunWrite, StoreError, StoreFull
from clew.storage.sqlite import log_room, open_store, writer
from clew.storage.sqlite.connection import MEMORY, connect_writer
from clew.storage.sqlite.pace import FAST_SECONDS, PAUSES, SLOW_SECONDS, WINDOW, CommitPace
from clew.storage.sqlite.store import SqliteStore
from clew.storage.sqlite.threads import CallQueue
from clew.storage.sqlite.writer import is_small
from tests.conformance.store.rows import batch, history_ids, insert, load, update

Unit = tuple[RunWrite, ...]
UNITS = [(insert(1),)]
COMMITTED = [CommitStatus.COMMITTED]
DEADLINE = 60.0


class Loop(asyncio.SelectorEventLoop):
    """A loop that has as much to do as the test says."""

    def __init__(self) -> None:
        super().__init__()
        self.is_free = True

    def has_nothing_else(self) -> bool:
        return self.is_free

    @property
    def is_told(self) -> bool:
        """Whether another thread has something for this loop that has not run yet."""
        return bool(self._ready)  # type: ignore[attr-defined]


class Disk:
    """A committer that takes as long as the test says, on a clock of its own."""

    def __init__(self) -> None:
        self.now = 0.0
        self.seconds = 0.0
        self.error: StoreError | None = None
        self.gate = threading.Event()
        self.gate.set()
        self.entered = threading.Event()
        self.threads: list[threading.Thread] = []

    def collect(self, units: Sequence[Unit]) -> None:
        """There is nothing to be made of them."""

    def commit(
        self, connection: sqlite3.Connection, calls: Sequence[Sequence[Unit]], values: Sequence[Any] = ()
    ) -> list[list[CommitStatus] | StoreError]:
        self.threads.append(threading.current_thread())
        self.entered.set()
        assert self.gate.wait(DEADLINE), "the test never opens the gate"
        self.now += self.seconds
        return [self.error or [CommitStatus.COMMITTED] * len(units) for units in calls]

    @property
    def was_here(self) -> bool:
        """Whether the last commit was made on the loop's thread."""
        return self.threads[-1] is threading.main_thread()


def run(test: Callable[[Loop, Disk, CallQueue], Coroutine[Any, Any, None]]) -> None:
    # However long the test is held up, the writer does not find that it is quiet.
    with mock.patch.object(writer, "_IDLE_SECONDS", 3_600.0), asyncio.Runner(loop_factory=Loop) as runner:

        async def whole() -> None:
            loop = asyncio.get_running_loop()
            assert isinstance(loop, Loop)
            disk, calls = Disk(), CallQueue(MEMORY, loop)
            calls.add_writer(connect_writer(MEMORY, busy_timeout_ms=0, size_bytes_max=None), disk, lambda: disk.now)
            try:
                await asyncio.wait_for(test(loop, disk, calls), DEADLINE * 2)
            finally:
                disk.gate.set()
                await calls.close()

        runner.run(whole())


async def warm_up(disk: Disk, calls: CallQueue) -> None:
    """Commit until the disk is known to be quick, and the writer rests."""
    for _ in range(200):
        if disk.threads and disk.was_here:
            return
        assert await calls.commit(UNITS) == COMMITTED
    raise AssertionError("200 quick commits, and none was made on the loop")


QUICK = FAST_SECONDS / 4


def pace_of(*seconds: float) -> CommitPace:
    """A pace that has seen these, one after the other, at the time 0."""
    pace = CommitPace()
    for each in seconds:
        pace.note(each, 0.0)
    return pace


def test_quick_commits_let_the_loop_wait_and_one_slow_one_forbids_it_for_a_time() -> None:
    pace = CommitPace()
    assert not pace.is_fast(0.0), "nothing is known yet"
    while not pace.is_fast(0.0):
        pace.note(QUICK, 0.0)
    pace.note(SLOW_SECONDS * 6, 10.0)
    pause = PAUSES * SLOW_SECONDS * 5
    for _ in range(100):
        pace.note(QUICK, 10.0)
    assert not pace.is_fast(10.0 + pause * 0.99)
    assert pace.is_fast(10.0 + pause * 1.01)


def test_after_a_slow_commit_the_writer_has_to_show_that_the_disk_is_quick_again() -> None:
    pace = pace_of(*[QUICK] * 100, SLOW_SECONDS * 1.1)
    for _ in range(WINDOW // 2):
        pace.note(QUICK, 100.0)
        assert not pace.is_fast(100.0)
    pace.note(QUICK, 100.0)
    assert pace.is_fast(100.0)


def test_a_longer_pause_is_not_cut_by_a_commit_that_was_less_slow() -> None:
    pace = pace_of(SLOW_SECONDS * 10, SLOW_SECONDS * 1.01, *[QUICK] * 100)
    assert not pace.is_fast(PAUSES * SLOW_SECONDS * 8)


def test_commits_that_are_all_a_little_slow_do_not_count_as_quick() -> None:
    assert not pace_of(*[FAST_SECONDS * 1.1] * 1_000).is_fast(0.0)


@pytest.mark.parametrize("every", [3, 6, 100])
def test_now_and_then_one_that_waits_for_a_processor_does_not_make_the_disk_slow(every: int) -> None:
    pace = CommitPace()
    for number in range(1_000):
        pace.note(SLOW_SECONDS if number % every == 0 else QUICK, 0.0)
        assert number < 2 * WINDOW or pace.is_fast(0.0)
    for _ in range(WINDOW // 2):
        pace.note(SLOW_SECONDS, 0.0)
    assert not pace.is_fast(0.0), "now it is slow every time"


def test_the_answer_of_a_commit_on_the_loop_is_there_at_once() -> None:
    async def test(loop: Loop, disk: Disk, calls: CallQueue) -> None:
        await warm_up(disk, calls)
        await calls.write(lambda connection: None)  # whatever woke the writer is over
        answer = calls.commit(UNITS)
        assert answer.done()
        assert answer.result() == COMMITTED
        assert disk.was_here

    run(test)


def test_a_commit_on_the_loop_is_not_told_before_one_that_was_made_earlier() -> None:
    async def test(loop: Loop, disk: Disk, calls: CallQueue) -> None:
        await warm_up(disk, calls)
        await calls.write(lambda connection: None)
        told: list[str] = []
        count = len(disk.threads)
        loop.is_free = False
        earlier = calls.commit(UNITS)
        earlier.add_done_callback(lambda _: told.append("earlier"))
        # The writer is through with it, and at rest; the loop, held up here, has not heard of it yet.
        while len(disk.threads) == count or not loop.is_told or not is_at_rest(calls):
            time.sleep(0.001)
        loop.is_free = True
        later = calls.commit(UNITS)
        later.add_done_callback(lambda _: told.append("later"))
        await later
        await earlier
        assert told == ["earlier", "later"]

    run(test)


def is_at_rest(calls: CallQueue) -> bool:
    assert calls._writer is not None
    return not calls._writer._rest.locked()


def test_what_the_store_says_on_the_loop_reaches_the_caller() -> None:
    async def test(loop: Loop, disk: Disk, calls: CallQueue) -> None:
        await warm_up(disk, calls)
        disk.error = StoreFull("no room")
        with pytest.raises(StoreFull):
            await calls.commit(UNITS)

    run(test)


def test_a_disk_that_turns_slow_costs_the_loop_one_commit() -> None:
    async def test(loop: Loop, disk: Disk, calls: CallQueue) -> None:
        await warm_up(disk, calls)
        await calls.write(lambda connection: None)
        disk.seconds = SLOW_SECONDS * 5
        await calls.commit(UNITS)
        assert disk.was_here
        for _ in range(50):
            await calls.commit(UNITS)
            assert not disk.was_here
        # While the writer waits for the disk, timers of the loop and other calls go on.
        disk.gate.clear()
        disk.entered.clear()
        answer = calls.commit(UNITS)
        fired: asyncio.Future[None] = loop.create_future()
        loop.call_later(0.001, fired.set_result, None)
        await fired
        assert await asyncio.to_thread(disk.entered.wait, DEADLINE)
        assert not answer.done()
        disk.gate.set()
        assert await answer == COMMITTED

    run(test)


def test_a_disk_that_is_quick_again_is_found_to_be_so() -> None:
    async def test(loop: Loop, disk: Disk, calls: CallQueue) -> None:
        await warm_up(disk, calls)
        disk.seconds = SLOW_SECONDS * 5
        for _ in range(10):
            await calls.commit(UNITS)
        assert not disk.was_here
        disk.seconds = 0.0
        for _ in range(100):
            await calls.commit(UNITS)
            assert not disk.was_here, "the pause is not over"
        disk.now += PAUSES * SLOW_SECONDS * 4
        await warm_up(disk, calls)

    run(test)


def test_the_writer_commits_while_the_loop_has_something_else_to_do() -> None:
    async def test(loop: Loop, disk: Disk, calls: CallQueue) -> None:
        await warm_up(disk, calls)
        loop.is_free = False
        await calls.commit(UNITS)
        assert not disk.was_here

    run(test)


def test_what_is_large_goes_to_the_writer() -> None:
    large = insert(1, state=b"x" * 100_000)
    assert is_small(UNITS)
    assert not is_small([(large,)])
    assert not is_small([(insert(1, batches=(batch(1, 2_000),)),)])
    assert not is_small([(insert(n),) for n in range(5)])

    async def test(loop: Loop, disk: Disk, calls: CallQueue) -> None:
        await warm_up(disk, calls)
        await calls.commit([(large,)])
        assert not disk.was_here

    run(test)


def test_commits_keep_their_order_behind_what_the_writer_was_asked() -> None:
    async def test(loop: Loop, disk: Disk, calls: CallQueue) -> None:
        await warm_up(disk, calls)
        held = threading.Event()
        job = calls.write(lambda connection: held.wait(DEADLINE))
        answer = calls.commit(UNITS)
        assert not answer.done()
        held.set()
        assert await job
        assert await answer == COMMITTED
        assert not disk.was_here

    run(test)


def test_the_writer_has_its_turn_in_a_long_sequence() -> None:
    async def test(loop: Loop, disk: Disk, calls: CallQueue) -> None:
        await warm_up(disk, calls)
        for _ in range(1_000):
            await calls.commit(UNITS)
        here = sum(thread is threading.main_thread() for thread in disk.threads)
        assert 0 < len(disk.threads) - here < here

    run(test)


def test_no_commit_is_made_on_the_loop_once_the_store_closes() -> None:
    async def test(loop: Loop, disk: Disk, calls: CallQueue) -> None:
        await warm_up(disk, calls)
        await calls.close()
        with pytest.raises(StoreError, match="is closed"):
            calls.commit(UNITS)

    run(test)


# --- on a real file --------------------------------------------------------------------------------------------


def with_store(path: str, test: Callable[[SqliteStore, Loop], Coroutine[Any, Any, None]]) -> None:
    with asyncio.Runner(loop_factory=Loop) as runner:

        async def whole() -> None:
            loop = asyncio.get_running_loop()
            assert isinstance(loop, Loop)
            store = await open_store(path)
            writer = store._calls._writer
            assert writer is not None
            writer._pace.is_fast = lambda now: True  # type: ignore[method-assign]
            try:
                await asyncio.wait_for(test(store, loop), DEADLINE * 2)
            finally:
                await store.close()

        runner.run(whole())


async def commit(store: SqliteStore, row: RunWrite) -> bool:
    """Commit one row; whether that was done on the loop."""
    answer = store.commit_if_current([(row,)])
    was_here = answer.done()
    assert await answer == COMMITTED
    return was_here


async def until(condition: Callable[[], bool | Awaitable[bool]]) -> None:
    deadline = asyncio.get_running_loop().time() + DEADLINE
    while True:
        found = condition()
        if found if isinstance(found, bool) else await found:
            return
        assert asyncio.get_running_loop().time() < deadline, "not reached in time"
        await asyncio.sleep(0.01)


def test_guards_hold_on_the_loop_as_in_the_writer(tmp_path: Path) -> None:
    async def test(store: SqliteStore, loop: Loop) -> None:
        row = insert(1)
        await commit(store, row)
        seen = 0
        for number in range(3, 60):
            row = update(row, batches=(batch(number),))
            seen += await commit(store, row)
        assert seen > 20
        stale = store.commit_if_current([(update(insert(1), batches=(batch(3),)),)])
        assert await stale == [CommitStatus.VERSION_CONFLICT]
        await commit(store, update(row, batches=(batch(60),)))
        assert await history_ids(store, load_key(row)) == list(range(1, 61))

    with_store(str(tmp_path / "s.db"), test)


def load_key(row: RunWrite) -> int:
    return row.run_key


def test_a_lock_of_another_program_holds_up_the_writer_and_not_the_loop(tmp_path: Path) -> None:
    path = str(tmp_path / "s.db")

    async def test(store: SqliteStore, loop: Loop) -> None:
        row = insert(1)
        await commit(store, row)
        await until(lambda: is_writer_idle(store))
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            answer = store.commit_if_current([(update(row, batches=(batch(3),)),)])
            assert not answer.done()
            await asyncio.sleep(0)
            assert not answer.done()
            other.execute("ROLLBACK")
        assert await answer == COMMITTED
        found = await load(store, row.run_key)
        assert found.version == 2

    with_store(path, test)


def is_writer_idle(store: SqliteStore) -> bool:
    writer = store._calls._writer
    assert writer is not None
    return writer.is_idle


def test_a_log_written_on_the_loop_is_brought_into_the_file_when_it_is_quiet(tmp_path: Path) -> None:
    path = str(tmp_path / "s.db")

    async def test(store: SqliteStore, loop: Loop) -> None:
        row = insert(1)
        await commit(store, row)
        await until(lambda: is_writer_idle(store))
        number, was_here = 2, False
        while not was_here:
            number += 1
            row = update(row, batches=(batch(number),))
            was_here = await commit(store, row)
        await until(lambda: versions_in_file_alone(path, tmp_path / "copy.db") == [row.version])

    with_store(path, test)


def versions_in_file_alone(path: str, copy: Path) -> list[int]:
    """What the database holds without its log; nothing if it is being written."""
    shutil.copyfile(path, copy)
    try:
        with closing(sqlite3.connect(f"file:{copy}?immutable=1", uri=True)) as connection:
            return [version for (version,) in connection.execute("SELECT version FROM executions")]
    except sqlite3.Error:
        return []


# --- room for the log ------------------------------------------------------------------------------------------


def test_a_log_gets_its_room_by_pieces_and_what_is_in_it_survives_a_crash(tmp_path: Path) -> None:
    path = str(tmp_path / "s.db")

    async def test(store: SqliteStore, loop: Loop) -> None:
        loop.is_free = False
        row = insert(1)
        await commit(store, row)
        last = 2
        size = pieces = 0
        while size < log_room.LOG_ROOM_BYTES:
            assert last < 500, "the room of the log is never laid out"
            last += 1
            row = update(row, batches=(batch(last),))
            await commit(store, row)
            before, size = size, os.stat(path + "-wal").st_size
            assert size - before <= log_room.PIECE_BYTES + 100_000, "a piece, and the commit itself"
            pieces += size - before > log_room.PIECE_BYTES / 2
        assert pieces >= log_room.LOG_ROOM_BYTES // log_room.PIECE_BYTES
        last += 1
        await commit(store, update(row, batches=(batch(last),)))
        assert os.stat(path + "-wal").st_size == log_room.LOG_ROOM_BYTES
        # As after a crash: the file and its log, and nothing of the memory they share.
        for ending in ("", "-wal"):
            shutil.copyfile(path + ending, str(tmp_path / "crashed.db") + ending)
        crashed = await open_store(str(tmp_path / "crashed.db"))
        assert await history_ids(crashed, 1) == list(range(1, last + 1))
        await crashed.close()

    with_store(path, test)


@pytest.mark.parametrize("trouble", ["little is free", "the disk is full"])
def test_without_room_the_log_stays_as_it_is(tmp_path: Path, trouble: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(tmp_path / "s.db")
    tries = 0

    def free_bytes(_: str) -> int:
        nonlocal tries
        tries += 1
        return 1024 if trouble == "little is free" else 1 << 50

    def fsync(_: int) -> None:
        raise OSError(28, "No space left on device")

    async def test(store: SqliteStore, loop: Loop) -> None:
        loop.is_free = False
        row = insert(1)
        await commit(store, row)
        for number in range(3, 60):
            row = update(row, batches=(batch(number),))
            await commit(store, row)
        await until(lambda: tries > 0)
        assert await history_ids(store, 1) == list(range(1, 60))
        assert os.stat(path + "-wal").st_size < log_room.LOG_ROOM_BYTES

    monkeypatch.setattr(log_room, "free_bytes", free_bytes)
    monkeypatch.setattr(os, "fsync", fsync)
    with_store(path, test)
