"""A store of keyed requests in one SQLite file.

Owns: its table, and the transactions that make each step atomic among threads and processes of one machine.
Never: shared with other tables of Clew or of the user.

How it works: every step is one ``BEGIN IMMEDIATE`` transaction in a thread, over one connection for each process (a
connection must not cross a fork). A commit is on disk before the step returns.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sqlite3
import threading
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any, Final, TypeVar, final

import msgspec

from clew.adapters import to_ns, wall_now
from clew.contrib.idempotency._store import BeginOutcome, Begun, InFlight, Mismatch, Stored, StoredResponse

T = TypeVar("T")

_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS clew_idempotency_keys (
    key TEXT PRIMARY KEY,
    fingerprint TEXT NOT NULL,
    owner TEXT,                     -- who carries it out; NULL once it is answered
    expires_at INTEGER NOT NULL,    -- nanoseconds since the epoch: end of the lease, or of the time it is kept
    status INTEGER,
    headers BLOB,                   -- msgpack: a list of pairs of bytes
    body BLOB                       -- NULL while in flight, and when it was too large
) WITHOUT ROWID
"""
_INDEX: Final = "CREATE INDEX IF NOT EXISTS clew_idempotency_expiry ON clew_idempotency_keys (expires_at)"
_FORGET: Final = """
DELETE FROM clew_idempotency_keys WHERE key IN (
    SELECT key FROM clew_idempotency_keys
    WHERE expires_at < ? AND (owner IS NULL OR expires_at < ?) ORDER BY expires_at LIMIT ?
)
"""
_BUSY_SECONDS: Final = 10.0
_FORGOTTEN_A_STEP: Final = 20
"""Rows past their time that one step removes: more than it adds, few enough not to be felt."""

_log: Final = logging.getLogger("clew.contrib.idempotency")

_encode_headers = msgspec.msgpack.Encoder().encode
_decode_headers = msgspec.msgpack.Decoder(tuple[tuple[bytes, bytes], ...]).decode


@final
class SqliteIdempotencyStore:
    """Remembers keyed requests in a SQLite file; see `IdempotencyStore`.

    Args:
        path: The file, made when missing at the first use.
        unanswered_kept_for: How long a key is remembered whose request was begun and never answered, and never tried
            again; until then the same key with another request is refused.
        now: Tells the present instant, aware UTC.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        unanswered_kept_for: timedelta = timedelta(days=7),
        now: Callable[[], datetime] = wall_now,
    ) -> None:
        self._path = os.fspath(path)
        self._unanswered_ns = _ns(unanswered_kept_for)
        self._now = now
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        self._process_id = 0
        self._left_behind: list[sqlite3.Connection] = []
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._renew_lock)

    async def begin(self, key: str, fingerprint: str, *, owner: str, lease: timedelta) -> BeginOutcome:
        """Take the key, if nobody has it."""
        return await self._step(lambda db, now: self._begin(db, now, key, fingerprint, owner, _ns(lease)))

    async def renew(self, key: str, *, owner: str, lease: timedelta) -> bool:
        """Hold the key for longer; False if it is no longer held by `owner`."""
        statement = "UPDATE clew_idempotency_keys SET expires_at = ? WHERE key = ? AND owner = ?"
        return await self._step(lambda db, now: db.execute(statement, (now + _ns(lease), key, owner)).rowcount == 1)

    async def complete(self, key: str, response: StoredResponse, *, owner: str, kept_for: timedelta) -> bool:
        """Store the response, durably; False if the key is no longer held by `owner`."""
        statement = (
            "UPDATE clew_idempotency_keys SET owner = NULL, expires_at = ?, status = ?, headers = ?, body = ? "
            "WHERE key = ? AND owner = ?"
        )
        values = (response.status, _encode_headers(response.headers), response.body, key, owner)
        return await self._step(lambda db, now: db.execute(statement, (now + _ns(kept_for), *values)).rowcount == 1)

    async def release(self, key: str, *, owner: str) -> None:
        """Forget the key, if `owner` holds it."""
        statement = "DELETE FROM clew_idempotency_keys WHERE key = ? AND owner = ?"
        await self._step(lambda db, now: db.execute(statement, (key, owner)))

    def close(self) -> None:
        """Close the file; a later step opens it again."""
        with self._lock:
            if self._connection is not None and self._process_id == os.getpid():
                self._connection.close()
            self._connection = None

    def _begin(
        self, db: sqlite3.Connection, now: int, key: str, fingerprint: str, owner: str, lease_ns: int
    ) -> BeginOutcome:
        self._forget(db, now)
        found = db.execute(
            "SELECT fingerprint, owner, expires_at, status, headers, body FROM clew_idempotency_keys WHERE key = ?",
            (key,),
        ).fetchone()
        if found is None:
            db.execute(
                "INSERT INTO clew_idempotency_keys (key, fingerprint, owner, expires_at) VALUES (?, ?, ?, ?)",
                (key, fingerprint, owner, now + lease_ns),
            )
            return Begun()
        known_fingerprint, holder, expires_at, status, headers, body = found
        if holder is None and expires_at <= now:
            db.execute("DELETE FROM clew_idempotency_keys WHERE key = ?", (key,))
            return self._begin(db, now, key, fingerprint, owner, lease_ns)
        if known_fingerprint != fingerprint:
            return Mismatch()
        if holder is None:
            return Stored(_read_response(status, headers, body))
        if expires_at > now:
            return InFlight(timedelta(microseconds=(expires_at - now) // 1000))
        db.execute(
            "UPDATE clew_idempotency_keys SET owner = ?, expires_at = ? WHERE key = ?", (owner, now + lease_ns, key)
        )
        return Begun()

    def _forget(self, db: sqlite3.Connection, now: int) -> None:
        db.execute(_FORGET, (now, now - self._unanswered_ns, _FORGOTTEN_A_STEP))

    async def _step(self, step: Callable[[sqlite3.Connection, int], T]) -> T:
        return await asyncio.to_thread(self._in_transaction, step)

    def _in_transaction(self, step: Callable[[sqlite3.Connection, int], T]) -> T:
        with self._lock:
            db = self._open()
            db.execute("BEGIN IMMEDIATE")
            try:
                result = step(db, to_ns(self._now()))
                db.execute("COMMIT")
            except BaseException:
                if db.in_transaction:
                    db.execute("ROLLBACK")
                raise
            return result

    def _open(self) -> sqlite3.Connection:
        if self._connection is not None and self._process_id != os.getpid():
            # Neither used nor closed: SQLite forbids both after a fork.
            self._left_behind.append(self._connection)
            self._connection = None
        if self._connection is None:
            self._connection = _connect(self._path)
            self._process_id = os.getpid()
        return self._connection

    def _renew_lock(self) -> None:
        """After a fork: another thread of the parent may have held the lock, and will never give it back here."""
        self._lock = threading.Lock()


def _read_response(status: Any, headers: Any, body: Any) -> StoredResponse:
    """The response of a row.

    What somebody else changed in the file is as if it had been too large to be kept: the request was carried out, so
    its repeat must not be.
    """
    try:
        is_sound = type(status) is int and 100 <= status <= 999 and (body is None or type(body) is bytes)
        if is_sound:
            return StoredResponse(status, _decode_headers(headers), body)
        _log.error("idempotency.row_damaged status=%r", status)
    except (msgspec.DecodeError, TypeError, RecursionError) as error:
        _log.error("idempotency.row_damaged error=%s", error)
    return StoredResponse(status if type(status) is int else 0, (), None)


def _connect(path: str) -> sqlite3.Connection:
    db = sqlite3.connect(path, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False)
    try:
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = FULL")
        db.execute(_SCHEMA)
        db.execute(_INDEX)
    except BaseException:
        db.close()
        raise
    return db


def _ns(duration: timedelta) -> int:
    return duration // timedelta(microseconds=1) * 1000
