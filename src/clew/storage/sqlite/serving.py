"""What the threads of a SQLite store have in common, and the reading one.

Owns: calls on their way to a thread, answers on their way back to the loop. Never: what a call does.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import queue
import sqlite3
import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

from clew.ports.store import CommitStatus, RunWrite, StoreError
from clew.storage.sqlite.errors import to_store_error

T = TypeVar("T")
Unit = tuple[RunWrite, ...]
Job = Callable[[sqlite3.Connection], T]

_log = logging.getLogger(__name__)


class Call(NamedTuple):
    """A commit (`units`, with its values, if they are made) or another job (`job`)."""

    future: asyncio.Future[Any]
    units: Sequence[Unit] | None
    job: Job[Any] | None
    values: Any = None


class Answer(NamedTuple):
    future: asyncio.Future[Any]
    result: Any
    error: StoreError | None


class StoreThread:
    """A thread that serves a queue until None comes."""

    def __init__(self, name: str, path: str, loop: asyncio.AbstractEventLoop, calls: queue.SimpleQueue[Call | None]):
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

    def run_job(self, connection: sqlite3.Connection, call: Call) -> Answer:
        assert call.job is not None
        try:
            return Answer(call.future, call.job(connection), None)
        except Exception as error:  # noqa: BLE001 - the caller is told
            if connection.in_transaction:
                with contextlib.suppress(sqlite3.Error):
                    connection.execute("ROLLBACK")
            store_error = to_store_error(error, self._path)
            if store_error is not error:
                store_error.__cause__ = error
            return Answer(call.future, None, store_error)

    def answer(self, answers: list[Answer]) -> None:
        """Have the loop settle these; in the thread."""
        if not answers:
            return
        try:
            self._loop.call_soon_threadsafe(self.settle, answers)
        except RuntimeError:
            _log.warning("store.answers_undeliverable count=%d: the loop that asked has been closed", len(answers))

    def settle(self, answers: list[Answer]) -> None:
        """Tell those who asked; on the loop."""
        settle(answers)


def answer_of(future: asyncio.Future[Any], outcome: list[CommitStatus] | StoreError) -> Answer:
    return Answer(future, None, outcome) if isinstance(outcome, StoreError) else Answer(future, outcome, None)


def settle(answers: list[Answer]) -> None:
    for future, result, error in answers:
        if future.done():
            continue
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)


class ReaderThread(StoreThread):
    """Serves reading jobs, on a connection of its own; several may share one queue."""

    def __init__(
        self,
        path: str,
        loop: asyncio.AbstractEventLoop,
        calls: queue.SimpleQueue[Call | None],
        connection: sqlite3.Connection,
    ) -> None:
        super().__init__("clew-store-reader", path, loop, calls)
        self._connection = connection

    def _run(self) -> None:
        try:
            while (call := self.calls.get()) is not None:
                self.answer([self.run_job(self._connection, call)])
            self.calls.put(None)  # for the others that share the queue
        finally:
            self._connection.close()
