"""The idempotency key of an activity (design §8).

Owns: the one formula. Never: secrets (the caller has that of the namespace).

How it works: ``HMAC-SHA256(secret, lp(workflow_id) + lp(activity_id) + lp(generation))`` as 64 lower-case hex digits.
``lp(x)`` is the UTF-8 of ``x`` preceded by its length in bytes as an 8-byte big-endian number, so that no two triples
give the same message (``("ab", "c")`` and ``("a", "bc")`` differ). Test vectors are in ``docs/reference`` and checked.

*Generation* names one intention to act. It is the run id of the first run that had the intention: a workflow-level
retry and a reset inherit it; continue-as-new, the next cron run and a new run of the same workflow id have their own.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from typing import Final

BLOCK_BYTES: Final = 64
"""Block size of SHA-256 (FIPS 180-4), to which HMAC pads its key (RFC 2104 §2)."""


def idempotency_key(secret: bytes, workflow_id: str, activity_id: str, generation: str) -> str:
    """The key that every attempt of this activity carries.

    Args:
        secret: That of the namespace.
        workflow_id: Of the execution.
        activity_id: Of the activity; stable under replay.
        generation: ``ExecutionState.key_generation``.
    """
    message = _lp(workflow_id) + _lp(activity_id) + _lp(generation)
    inner, outer = _keyed(secret)
    inner, outer = inner.copy(), outer.copy()
    inner.update(message)
    outer.update(inner.digest())
    return outer.hexdigest()


@lru_cache(maxsize=4_096)
def _lp(text: str) -> bytes:
    """Kept for a while: a run's ids come with each of its activities, an activity's id with each run."""
    data = text.encode()
    return len(data).to_bytes(8, "big") + data


@lru_cache(maxsize=256)
def _keyed(secret: bytes) -> tuple[hashlib._Hash, hashlib._Hash]:
    """The two hashes of HMAC with the key already in them (RFC 2104 §4): a key costs two copies instead of a set-up."""
    key = hashlib.sha256(secret).digest() if len(secret) > BLOCK_BYTES else secret
    key = key.ljust(BLOCK_BYTES, b"\0")
    return hashlib.sha256(bytes(b ^ 0x36 for b in key)), hashlib.sha256(bytes(b ^ 0x5C for b in key))
