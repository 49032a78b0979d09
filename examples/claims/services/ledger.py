"""The payment provider's books: payments, and the answer that was given under each idempotency key.

Both are written in one transaction and synced to disk before anything is answered. So whatever happens between the
act and the answer, a repeat finds the answer, and the act is done once.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_SCHEMA = """
CREATE TABLE IF NOT EXISTS payments (
    payment_id   INTEGER PRIMARY KEY,
    reference    TEXT NOT NULL,
    payee        TEXT NOT NULL,
    amount_cents INTEGER NOT NULL
);
CREATE TABLE IF NOT EXISTS answers (
    idempotency_key TEXT PRIMARY KEY,
    request_hash    TEXT NOT NULL,
    answer          TEXT NOT NULL,
    repeat_count    INTEGER NOT NULL DEFAULT 0
) WITHOUT ROWID;
"""


class KeyReusedError(Exception):
    """The same idempotency key came with another request: the caller has a bug, and nothing was done."""


@dataclass(frozen=True)
class LedgerSummary:
    """The books in figures."""

    payment_count: int
    amount_cents: int
    repeat_count: int
    """Requests that were answered from the books instead of paying again."""
    references: dict[str, int]
    """How many payments each reference got; 1 is the only right number."""


class Ledger:
    """Payments on disk; safe to use from many threads, one process at a time."""

    def __init__(self, path: Path) -> None:
        self._lock = threading.Lock()
        self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute("PRAGMA synchronous=FULL")
        self._db.executescript(_SCHEMA)

    def pay_once(self, key: str, request: dict[str, Any]) -> tuple[dict[str, Any], bool]:
        """Pay, or give the answer that this key got before.

        Args:
            request: ``reference``, ``payee`` and ``amount_cents``.

        Returns:
            The answer, and whether it is a repeat.

        Raises:
            KeyReusedError: The key was used for another request.
        """
        request_hash = hashlib.sha256(json.dumps(request, sort_keys=True).encode()).hexdigest()
        with self._lock:
            self._db.execute("BEGIN IMMEDIATE")
            try:
                answer, is_repeat = self._pay_or_repeat(key, request, request_hash)
                self._db.execute("COMMIT")
            except BaseException:
                self._db.execute("ROLLBACK")
                raise
        return answer, is_repeat

    def _pay_or_repeat(self, key: str, request: dict[str, Any], request_hash: str) -> tuple[dict[str, Any], bool]:
        known = self._db.execute(
            "SELECT request_hash, answer FROM answers WHERE idempotency_key = ?", (key,)
        ).fetchone()
        if known is not None:
            if known[0] != request_hash:
                raise KeyReusedError(f"idempotency key {key} belongs to another request; use a new key for a new one")
            self._db.execute("UPDATE answers SET repeat_count = repeat_count + 1 WHERE idempotency_key = ?", (key,))
            return json.loads(known[1]), True
        row = self._db.execute(
            "INSERT INTO payments (reference, payee, amount_cents) VALUES (:reference, :payee, :amount_cents)", request
        )
        answer = {"payment_id": f"pay-{row.lastrowid}", "amount_cents": request["amount_cents"]}
        self._db.execute(
            "INSERT INTO answers (idempotency_key, request_hash, answer) VALUES (?, ?, ?)",
            (key, request_hash, json.dumps(answer)),
        )
        return answer, False

    def summarize(self) -> LedgerSummary:
        """Read the books."""
        with self._lock:
            count, amount = self._db.execute("SELECT COUNT(*), COALESCE(SUM(amount_cents), 0) FROM payments").fetchone()
            (repeats,) = self._db.execute("SELECT COALESCE(SUM(repeat_count), 0) FROM answers").fetchone()
            references = dict(self._db.execute("SELECT reference, COUNT(*) FROM payments GROUP BY reference"))
        return LedgerSummary(count, amount, repeats, references)

    def close(self) -> None:
        """Let go of the file."""
        self._db.close()
