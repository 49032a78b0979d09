"""The asking end of the threads that talk to SQLite.

Owns: `CallQueue`. Never: what a call does; jobs are functions of a connection.

How it works: a call puts a job and its future on a queue; one writer thread with the writing connection (``writer``)
and reader threads with one reading connection each (``serving``) take them from there. Answers go back to the loop by
one wake-up a transaction. A small commit may be done before `CallQueue.commit` returns.
"""

from __future__ import annotations

import asyncio
import queue
import sqlite3
from collections.abc import Callable, Sequence
from typing import Any, Final

from clew.ports.store import CommitStatus, StoreError
from clew.storage.sqlite.serving import Call, Job, ReaderThread, StoreThread, T, Unit
from clew.storage.sqlite.writer import Committer, WriterThread, is_small

_FEW_UNITS: Final = 4
"""The values of so few are made by the writer: it is hardly longer at it than at being handed them."""


class CallQueue:
    """The asking end of the threads of one store. All methods belong to the loop it was made on."""

    def __init__(self, path: str, loop: asyncio.AbstractEventLoop) -> None:
        self._path = path
        self._loop = loop
        self._reads: queue.SimpleQueue[Call | None] = queue.SimpleQueue()
        self._writes = self._reads
        self._writer: WriterThread | None = None
        self._threads: list[StoreThread] = []
        self._is_closed = False
        self._collect: Callable[[Sequence[Unit]], Any] = _nothing_of
        self._has_nothing_else: Callable[[], bool] = getattr(loop, "has_nothing_else", _cannot_tell)
        """Whether nobody else would wait if the loop did."""

    def add_writer(
        self, connection: sqlite3.Connection, committer: Committer, time: Callable[[], float] | None = None
    ) -> None:
        """Start the writer, which measures with `time` (the loop's); while there are no readers it serves reads too."""
        writer = self._writer = WriterThread(self._path, self._loop, connection, committer, time)
        self._reads = self._writes = writer.calls
        self._collect = committer.collect
        self._start(writer)

    def add_readers(self, connections: Sequence[sqlite3.Connection]) -> None:
        """Start a reader on each of `connections`."""
        self._reads = queue.SimpleQueue()
        for connection in connections:
            self._start(ReaderThread(self._path, self._loop, self._reads, connection))

    def _start(self, thread: StoreThread) -> None:
        self._threads.append(thread)
        thread.start()

    def commit(self, units: Sequence[Unit]) -> asyncio.Future[list[CommitStatus]]:
        """Make `units` durable: at once, if that is quicker than having the writer do it."""
        future: asyncio.Future[list[CommitStatus]] = self._loop.create_future()
        self._check_open()
        writer = self._writer
        if writer is not None and self._has_nothing_else() and is_small(units):
            outcome = writer.commit_here(units)
            if outcome is not None:
                if isinstance(outcome, StoreError):
                    future.set_exception(outcome)
                else:
                    future.set_result(outcome)
                if writer.take_untold():
                    self.write(_nothing)
                return future
        self._put_write(Call(future, units, None, self._values_of(units)))
        return future

    def _values_of(self, units: Sequence[Unit]) -> Any:
        """The values to be written, made here rather than by the writer, which would have to wait for the interpreter
        before it can begin, and have the loop wait for it meanwhile."""
        if len(units) <= _FEW_UNITS:
            return None
        try:
            return self._collect(units)
        except Exception:  # noqa: BLE001 - the writer meets it again, and tells who asked
            return None

    def write(self, job: Job[T]) -> asyncio.Future[T]:
        """Run `job` in the writer."""
        future: asyncio.Future[T] = self._loop.create_future()
        self._check_open()
        self._put_write(Call(future, None, job))
        return future

    def read(self, job: Job[T]) -> asyncio.Future[T]:
        """Run `job` in a reader."""
        future: asyncio.Future[T] = self._loop.create_future()
        self._check_open()
        if self._reads is self._writes:
            self._put_write(Call(future, None, job))
        else:
            self._reads.put(Call(future, None, job))
        return future

    def _put_write(self, call: Call) -> None:
        if self._writer is not None:
            self._writer.asked_count += 1
        self._writes.put(call)

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


def _nothing_of(_: Sequence[Unit]) -> None:
    """There is no writer that could take it."""


def _cannot_tell() -> bool:
    return False


def _nothing(_: sqlite3.Connection) -> None:
    """What wakes the writer, which then sees to the log when it has been quiet for a while."""
