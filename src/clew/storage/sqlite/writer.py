"""The writer of a SQLite store: its thread, and the small commits that the loop makes in its place.

Owns: the writing connection, who uses it when, and the write-ahead log. Never: what a unit or a job does.

How it works: the thread takes everything that is queued at once: all commits of it become one transaction (group
commit), then the other jobs run one by one. So while one transaction is being made durable the next one gathers,
without any delay of its own. When nothing has come for a while, the write-ahead log is brought back into the file, and
cut.

A lone small commit, for which the thread would be woken only to wake the loop again, is made *here*: on the loop's own
thread, while the writer rests, the loop has nothing else to do and the disk is quick (``pace``). Here nothing is waited
for but the disk: no lock of another program, and no checkpoint.
"""

from __future__ import annotations

import asyncio
import logging
import os
import queue
import sqlite3
import threading
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

from clew.ports.store import CommitStatus, StoreError
from clew.storage.sqlite.connection import MEMORY, WAL_CHECKPOINT_PAGES, WAL_KEPT_BYTES
from clew.storage.sqlite.errors import is_busy, to_store_error
from clew.storage.sqlite.log_room import lay_out_log
from clew.storage.sqlite.pace import CommitPace
from clew.storage.sqlite.serving import Answer, Call, StoreThread, Unit, answer_of, settle

_IDLE_SECONDS: Final = 1.0
"""How long nothing has to come before the writer tidies the log."""

_IDLE_SECONDS_MAX: Final = 60.0
"""The longest pause between two tries, while a reader keeps the log from being tidied."""

_FIRST_PIECE_COMMITS: Final = 8
_PIECE_COMMITS: Final = 24
"""After so many transactions a piece of the room of the log is laid out, and after as many more the next; a program
that makes few need not wait for it."""

_LOOK_COMMITS: Final = 128
"""How often, in transactions, the thread looks at the log from then on, and so has a commit of its own, with which the
log is brought into the file if that is due."""

_WAL_RESET_WAIT_MS: Final = 200
"""How long it then waits for readers to let go of the log."""

_SMALL_UNITS_MAX: Final = 2
_SMALL_BYTES_MAX: Final = 32 * 1024
"""What a commit may hold that the loop waits for, and that is measured to know whether it may."""

_log = logging.getLogger(__name__)


class Committer(Protocol):
    """Makes the units of several calls durable in one transaction."""

    def collect(self, units: Sequence[Unit]) -> Any:
        """The values that `commit` writes for these units; on any thread."""
        ...

    def commit(
        self, connection: sqlite3.Connection, calls: Sequence[Sequence[Unit]], values: Sequence[Any] = ()
    ) -> list[list[CommitStatus] | StoreError]:
        """One answer a call, in order; `values` are what `collect` has given for each, None where it was not asked."""
        ...


class WriterThread(StoreThread):
    """Serves commits and writing jobs, in groups.

    Attributes:
        asked_count: Calls that were put for it; belongs to the loop.
    """

    def __init__(
        self,
        path: str,
        loop: asyncio.AbstractEventLoop,
        connection: sqlite3.Connection,
        committer: Committer,
        time: Callable[[], float] | None = None,
    ) -> None:
        super().__init__("clew-store-writer", path, loop, queue.SimpleQueue())
        self._connection = connection
        self._committer = committer
        self._time = time or loop.time
        self._wal_path = path + "-wal"
        (self._busy_timeout_ms,) = connection.execute("PRAGMA busy_timeout").fetchone()
        self.asked_count = 0
        self._told_count = 0
        self._rest = threading.Lock()
        """Held by whoever uses the connection."""
        self._pace = CommitPace()
        self._is_set_for_loop = False
        self._here_count = 0
        """Commits that the loop has made since the writer's last."""
        self._commit_count = 0
        """All others."""
        self._is_laid_out = path == MEMORY
        self._look_at = _FIRST_PIECE_COMMITS
        self._is_log_tidy = True

    @property
    def is_idle(self) -> bool:
        """Whether it has done all that it was asked, and the loop has heard of it; on the loop.

        A commit that the loop makes is told at once. One before it, made but still on its way to the loop, would be
        told later, and whoever asked for both takes answers to come in the order of the commits.
        """
        return self.asked_count == self._told_count

    def settle(self, answers: list[Answer]) -> None:
        self._told_count += len(answers)
        settle(answers)

    def _run(self) -> None:
        try:
            pause: float | None = None
            here_count = 0
            while True:
                try:
                    first = self.calls.get(timeout=pause)
                except queue.Empty:
                    if here_count != self._here_count:
                        here_count = self._here_count
                    else:
                        pause = self._next_pause(pause)
                    continue
                if first is None or not self._serve(first):
                    return
                pause = _IDLE_SECONDS
        finally:
            self._connection.close()

    def _next_pause(self, pause: float | None) -> float | None:
        """Tidy the log, as nothing has come for a while."""
        with self._rest:
            self._set_for_writer()
            self._is_log_tidy = self._tidy_log()
        return None if self._is_log_tidy else min((pause or _IDLE_SECONDS) * 2, _IDLE_SECONDS_MAX)

    def _serve(self, first: Call) -> bool:
        """Serve `first` and all that is queued behind it; False when the last of it was the end."""
        commits: list[Call] = []
        jobs: list[Call] = []
        call: Call | None = first
        left = self.calls.qsize()
        while call is not None:
            (jobs if call.units is None else commits).append(call)
            if left == 0:
                break
            left -= 1
            call = self.calls.get()
        answers: list[Answer] = []
        with self._rest:
            self._set_for_writer()
            self._is_log_tidy = False
            if commits:
                answers = self._commit(commits)
            if self._is_log_due():
                self.answer(answers)
                answers = []
                self._look_at_log()
            for job in jobs:
                self.answer(answers)
                answers = [self.run_job(self._connection, job)]
        # Told last, so that the loop finds the writer at rest.
        self.answer(answers)
        return call is not None

    def _commit(self, calls: list[Call]) -> list[Answer]:
        began_at = self._time()
        outcomes = self._try_commit([call.units or () for call in calls], [call.values for call in calls])
        if len(calls) == 1 and is_small(calls[0].units or ()):
            ended_at = self._time()
            self._pace.note(ended_at - began_at, ended_at)
        count = 1 + self._here_count
        self._here_count = 0
        self._commit_count += count
        return [answer_of(call.future, outcome) for call, outcome in zip(calls, outcomes, strict=True)]

    def _try_commit(
        self, calls: list[Sequence[Unit]], values: Sequence[Any] = ()
    ) -> list[list[CommitStatus] | StoreError]:
        try:
            return self._committer.commit(self._connection, calls, values)
        except Exception as error:  # noqa: BLE001 - a bug: a writer that ended would leave every caller waiting
            _log.exception("store.commit_bug path=%s", self._path)
            return [to_store_error(error, self._path)] * len(calls)

    # --- on the loop ----------------------------------------------------------------------------------------

    def commit_here(self, units: Sequence[Unit]) -> list[CommitStatus] | StoreError | None:
        """Make `units` durable on the loop's own thread; None, and nothing done, when that is the thread's to do."""
        if not self.is_idle or self._is_log_due():
            return None
        if not self._rest.acquire(blocking=False):
            return None
        try:
            began_at = self._time()
            if not self._pace.is_fast(began_at):
                return None
            self._set_for_loop()
            (outcome,) = self._try_commit([units])
            if isinstance(outcome, StoreError) and is_busy(outcome.__cause__):
                return None
            ended_at = self._time()
            self._pace.note(ended_at - began_at, ended_at)
            self._here_count += 1
            return outcome
        finally:
            self._rest.release()

    def take_untold(self) -> bool:
        """Whether the thread sleeps for good and does not know that the loop has written to the log."""
        was_tidy, self._is_log_tidy = self._is_log_tidy, False
        return was_tidy

    def _set_for_loop(self) -> None:
        """Let a commit wait for nothing but the disk."""
        if not self._is_set_for_loop:
            self._is_set_for_loop = True
            self._connection.execute("PRAGMA busy_timeout = 0")
            self._connection.execute("PRAGMA wal_autocheckpoint = 0")

    def _set_for_writer(self) -> None:
        if self._is_set_for_loop:
            self._is_set_for_loop = False
            self._connection.execute(f"PRAGMA busy_timeout = {self._busy_timeout_ms}")
            self._connection.execute(f"PRAGMA wal_autocheckpoint = {WAL_CHECKPOINT_PAGES}")

    # --- the log --------------------------------------------------------------------------------------------

    def _is_log_due(self) -> bool:
        """Whether the thread has to look at the log after its next commit."""
        return self._commit_count + self._here_count >= self._look_at

    def _look_at_log(self) -> None:
        if not self._is_laid_out:
            self._is_laid_out = not lay_out_log(self._connection, self._wal_path)
        self._look_at = self._commit_count + (_LOOK_COMMITS if self._is_laid_out else _PIECE_COMMITS)
        if self._log_bytes() > WAL_KEPT_BYTES:
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


def is_small(units: Sequence[Unit]) -> bool:
    """Whether these units are so little that the loop may wait for them."""
    if len(units) > _SMALL_UNITS_MAX:
        return False
    size = 0
    for unit in units:
        for write in unit:
            size += len(write.state)
            for batch in write.batches:
                size += len(batch.events)
    return size <= _SMALL_BYTES_MAX
