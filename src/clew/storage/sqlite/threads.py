"""The threads that talk to SQLite, and how calls reach them and answers come back.

Owns: one writer thread with the writing connection, and reader threads with one reading connection each.
Never: what a call does; jobs are functions of a connection.

How it works: a call puts a job and its future on a queue. The writer takes everything that is queued at once: all
commits of it become one transaction (group commit), then the other jobs run one by one. So while one transaction is
being made durable the next one gathers, without any delay of its own. Answers go back to the loop by one wake-up a
transaction. When nothing has come for a while, the writer brings the write-ahead log back into the file and cuts it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import queue
import sqlite3
import threading
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, Protocol, TypeVar

from clew.ports.store import CommitStatus, RunWrite, StoreError
from clew.storage.sqlite.connection import WAL_KEPT_BYTES
from clew.storage.sqlite.errors import to_store_error

T = TypeVar("T")
Unit = tuple[RunWrite, ...]
Job = Callable[[sqlite3.Connection], T]

_IDLE_SECONDS: Final = 1.0
"""How long nothing has to come before the writer tidies the log."""

_IDLE_SECONDS_MAX: Final = 60.0
"""The longest pause between two tries, while a reader keeps the log from being tidied."""

_WAL_CHECK_COMMITS: Final = 256
"""How often, in transactions, the writer looks at the size of the log under steady load."""

_WAL_RESET_WAIT_MS: Final = 200
"""How long it then waits for readers to let go of the log."""

_log = logging.getLogger(__name__)


class _Call(NamedTuple):
    """A commit (`units`) or another job (`job`)."""

    future: asyncio.Future[Any]
    units: Sequence[Unit] | None
    job: Job[Any] | None


class _Answer(NamedTuple):
    future: asyncio.Future[Any]
    result: Any
    error: StoreError | None


class Committer(Protocol):
    """Makes the units of several calls durable in one transaction."""

    def commit(
        self, connection: sqlite3.Connection, calls: Sequence[Sequence[Unit]]
    ) -> list[list[CommitStatus] | StoreError]:
        """One answer a call, in order."""
        ...


class _Thread:
    """A thread that serves a queue until None comes."""

    def __init__(self, name: str, path: str, loop: asyncio.AbstractEventLoop, calls: queue.SimpleQueue[_Call | None]):
        self._path = path
        self._loop = loop
        self.calls = calls
        """Where calls are put; None ends the thread."""
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    async def wait_stopped(self) -> None:
        """Return when the thread has ended."""
        await self._loop.run_in_executor(None, self._thread.join)

    def _run(self) -> None:
        raise NotImplementedError

    def _run_job(self, connection: sqlite3.Connection, call: _Call) -> _Answer:
        assert call.job is not None
        try:
            return _Answer(call.future, call.job(connection), None)
        except Exception as error:  # noqa: BLE001 - the caller is told
            if connection.in_transaction:
                with contextlib.suppress(sqlite3.Error):
                    connection.execute("ROLLBACK")
            store_error = to_store_error(error, self._path)
            if store_error is not error:
                store_error.__cause__ = error
            return _Answer(call.future, None, store_error)

    def _answer(self, answers: list[_Answer]) -> None:
        try:
            self._loop.call_soon_threadsafe(_settle, answers)
        except RuntimeError:
            _log.warning("store.answers_undeliverable count=%d: the loop that asked has been closed", len(answers))


def _settle(answers: list[_Answer]) -> None:
    for future, result, error in answers:
        if future.done():
            continue
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)


class ReaderThread(_Thread):
    """Serves reading jobs, on a connection of its own; several may share one queue."""

    def __init__(
        self,
        path: str,
        loop: asyncio.AbstractEventLoop,
        calls: queue.SimpleQueue[_Call | None],
        connection: sqlite3.Connection,
    ) -> None:
        super().__init__("clew-store-reader", path, loop, calls)
        self._connection = connection

    def _run(self) -> None:
        try:
            while (call := self.calls.get()) is not None:
                self._answer([self._run_job(self._connection, call)])
            self.calls.put(None)  # for the others that share the queue
        finally:
            self._connection.close()


class WriterThread(_Thread):
    """Serves commits and writing jobs, in groups."""

    def __init__(
        self, path: str, loop: asyncio.AbstractEventLoop, connection: sqlite3.Connection, committer: Committer
    ) -> None:
        super().__init__("clew-store-writer", path, loop, queue.SimpleQueue())
        self._connection = connection
        self._committer = committer
        self._wal_path = path + "-wal"
        self._commit_count = 0

    def _run(self) -> None:
        try:
            pause: float | None = None
            while True:
                try:
                    first = self.calls.get(timeout=pause)
                except queue.Empty:
                    pause = None if self._tidy_log() else min((pause or _IDLE_SECONDS) * 2, _IDLE_SECONDS_MAX)
                    continue
                if first is None or not self._serve(first):
                    return
                pause = _IDLE_SECONDS
        finally:
            self._connection.close()

    def _serve(self, first: _Call) -> bool:
        """Serve `first` and all that is queued behind it; False when the last of it was the end."""
        commits: list[_Call] = []
        jobs: list[_Call] = []
        call: _Call | None = first
        left = self.calls.qsize()
        while call is not None:
            (jobs if call.units is None else commits).append(call)
            if left == 0:
                break
            left -= 1
            call = self.calls.get()
        if commits:
            self._commit(commits)
        for job in jobs:
            self._answer([self._run_job(self._connection, job)])
        return call is not None

    def _commit(self, calls: list[_Call]) -> None:
        try:
            outcomes = self._committer.commit(self._connection, [call.units or () for call in calls])
        except Exception as error:  # noqa: BLE001 - a bug: a writer that ended would leave every caller waiting
            _log.exception("store.commit_bug path=%s", self._path)
            outcomes = [to_store_error(error, self._path)] * len(calls)
        answers: list[_Answer] = []
        for call, outcome in zip(calls, outcomes, strict=True):
            if isinstance(outcome, StoreError):
                answers.append(_Answer(call.future, None, outcome))
            else:
                answers.append(_Answer(call.future, outcome, None))
        self._answer(answers)
        self._commit_count += 1
        if self._commit_count % _WAL_CHECK_COMMITS == 0 and self._log_bytes() > WAL_KEPT_BYTES:
            self._checkpoint("RESTART", _WAL_RESET_WAIT_MS)

    def _log_bytes(self) -> int:
        try:
            return os.stat(self._wal_path).st_size
        except OSError:
            return 0

    def _tidy_log(self) -> bool:
        """Bring the log into the file; whether that is complete."""
        if self._log_bytes() == 0:
            return True
        return self._checkpoint("TRUNCATE" if self._log_bytes() > WAL_KEPT_BYTES else "PASSIVE", 0)

    def _checkpoint(self, mode: str, wait_ms: int) -> bool:
        (timeout_ms,) = self._connection.execute("PRAGMA busy_timeout").fetchone()
        try:
            self._connection.execute(f"PRAGMA busy_timeout = {wait_ms}")
            busy, logged, copied = self._connection.execute(f"PRAGMA wal_checkpoint({mode})").fetchone()
            return bool(busy == 0 and logged == copied)
        except sqlite3.Error as error:
            _log.warning("store.checkpoint_failed path=%s: %s", self._path, to_store_error(error, self._path))
            return False
        finally:
            self._connection.execute(f"PRAGMA busy_timeout = {timeout_ms}")


class CallQueue:
    """The asking end of the threads of one store. All methods belong to the loop it was made on."""

    def __init__(self, path: str, loop: asyncio.AbstractEventLoop) -> None:
        self._path = path
        self._loop = loop
        self._reads: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        self._writes = self._reads
        self._threads: list[_Thread] = []
        self._is_closed = False

    def add_writer(self, connection: sqlite3.Connection, committer: Committer) -> None:
        """Start the writer; while there are no readers it serves reads too."""
        writer = WriterThread(self._path, self._loop, connection, committer)
        self._reads = self._writes = writer.calls
        self._start(writer)

    def add_readers(self, connections: Sequence[sqlite3.Connection]) -> None:
        """Start a reader on each of `connections`."""
        self._reads = queue.SimpleQueue()
        for connection in connections:
            self._start(ReaderThread(self._path, self._loop, self._reads, connection))

    def _start(self, thread: _Thread) -> None:
        self._threads.append(thread)
        thread.start()

    def commit(self, units: Sequence[Unit]) -> asyncio.Future[list[CommitStatus]]:
        """Have the writer make `units` durable."""
        future: asyncio.Future[list[CommitStatus]] = self._loop.create_future()
        self._check_open()
        self._writes.put(_Call(future, units, None))
        return future

    def write(self, job: Job[T]) -> asyncio.Future[T]:
        """Run `job` in the writer."""
        future: asyncio.Future[T] = self._loop.create_future()
        self._check_open()
        self._writes.put(_Call(future, None, job))
        return future

    def read(self, job: Job[T]) -> asyncio.Future[T]:
        """Run `job` in a reader."""
        future: asyncio.Future[T] = self._loop.create_future()
        self._check_open()
        self._reads.put(_Call(future, None, job))
        return future

    async def close(self) -> None:
        """Serve what was accepted, then end the threads; calls after this are refused.

        The writer ends last: whoever closes the last connection brings the log into the file and removes it, which a
        connection that only reads cannot.
        """
        self._is_closed = True
        while self._threads:
            thread = self._threads[-1]
            thread.calls.put(None)
            await thread.wait_stopped()
            if thread in self._threads:
                self._threads.remove(thread)

    def _check_open(self) -> None:
        if self._is_closed:
            raise StoreError(f"the store {self._path} is closed. Expected: no calls after close(); open it again")
