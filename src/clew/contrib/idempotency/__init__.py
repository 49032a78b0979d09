"""Idempotency keys at both ends of an HTTP call.

The sender (an activity) names its intention, so that the receiver can tell a repeat from a second wish::

    response = client.post(url, json=order, headers=idempotency_headers())

The receiver answers a repeat with what it answered first::

    app = IdempotencyMiddleware(app, store=SqliteIdempotencyStore("idempotency.db"))

Owns: the public names. Never: how keys come about (docs/reference/idempotency-keys.md). The hook for ``httpx`` is in
``clew.contrib.idempotency.httpx`` (extra ``httpx``).
"""

from __future__ import annotations

from clew.contrib.idempotency._headers import (
    IDEMPOTENCY_KEY_HEADER,
    current_idempotency_key,
    idempotency_headers,
    idempotency_step,
)
from clew.contrib.idempotency._middleware import IdempotencyMiddleware
from clew.contrib.idempotency._sqlite_store import SqliteIdempotencyStore
from clew.contrib.idempotency._store import Begun, IdempotencyStore, InFlight, Mismatch, Stored, StoredResponse

__all__ = [
    "IDEMPOTENCY_KEY_HEADER",
    "Begun",
    "IdempotencyMiddleware",
    "IdempotencyStore",
    "InFlight",
    "Mismatch",
    "SqliteIdempotencyStore",
    "Stored",
    "StoredResponse",
    "current_idempotency_key",
    "idempotency_headers",
    "idempotency_step",
]
