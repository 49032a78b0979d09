"""What a receiver remembers of keyed requests, and the protocol of whatever remembers it.

Owns: the answers of a store, and the rules that each store must keep. Never: a database.

How it works: a key goes from nothing to *in flight* to *answered*. Whoever begins it holds it for a lease and renews
that while the handler runs; when the holder dies, the lease ends and a repeat may begin again. `owner` fences: only the
present holder can renew, complete or release.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol, TypeAlias


@dataclass(frozen=True)
class StoredResponse:
    """A response as it was given.

    Args:
        status: HTTP status.
        headers: Names and values, in order.
        body: None when it was too large to be kept.
    """

    status: int
    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes | None


@dataclass(frozen=True)
class Begun:
    """The key is the caller's: carry out the request."""


@dataclass(frozen=True)
class InFlight:
    """Somebody carries out this request.

    Args:
        retry_after: After which it is worth asking again, at the latest.
    """

    retry_after: timedelta


@dataclass(frozen=True)
class Stored:
    """It was carried out.

    Args:
        response: What was answered.
    """

    response: StoredResponse


@dataclass(frozen=True)
class Mismatch:
    """The key was used for another request."""


BeginOutcome: TypeAlias = Begun | InFlight | Stored | Mismatch


class IdempotencyStore(Protocol):
    """Remembers keyed requests. Each method is one atomic step, whatever else happens at the same time."""

    async def begin(self, key: str, fingerprint: str, *, owner: str, lease: timedelta) -> BeginOutcome:
        """Take the key, if nobody has it: a new one, or one whose holder's lease is over.

        Args:
            key: The key, with its caller.
            fingerprint: Hash of the request. Any other one for this key is a `Mismatch`, also while in flight.
            owner: Fresh for this request.
            lease: How long the key is held without being renewed.
        """
        ...

    async def renew(self, key: str, *, owner: str, lease: timedelta) -> bool:
        """Hold the key for longer; False if it is no longer held by `owner`."""
        ...

    async def complete(self, key: str, response: StoredResponse, *, owner: str, kept_for: timedelta) -> bool:
        """Store the response, durably; False, without effect, if the key is no longer held by `owner`."""
        ...

    async def release(self, key: str, *, owner: str) -> None:
        """Forget the key, if `owner` holds it, so that a repeat is carried out."""
        ...
