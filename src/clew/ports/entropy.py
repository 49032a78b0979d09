"""Chance as a port."""

from __future__ import annotations

from typing import Protocol


class Entropy(Protocol):
    """Makes identifiers and secrets."""

    def uuid7(self) -> str:
        """A UUIDv7 (RFC 9562 §5.7) in text form: unique, and growing with time within one process."""
        ...

    def token(self, size: int) -> bytes:
        """`size` unpredictable bytes."""
        ...
