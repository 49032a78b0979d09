"""Hints between nodes as a port: small messages that may get lost.

Owns: the Protocol `Notifier`. Never: what a message means (``engine.hints``), or any guarantee.

How it works: a node subscribes to channels and is called for each message that arrives on one of them, its own
included. Sending happens apart from any commit. Nothing may rest on a message: behind each hint stands a slow look at
the store, which `on_gap` asks for at once when messages may have been missed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Protocol

MESSAGE_BYTES_MAX: Final = 7_000
"""Of one message; PostgreSQL takes 7,999 bytes."""

CHANNEL_BYTES_MAX: Final = 50
"""Of the name of a channel: letters, digits, ``-`` and ``_``; leaves room for a prefix of the adapter's own."""


class Notifier(Protocol):
    """Publishes and subscribes. All methods and callbacks belong to the engine's loop."""

    @property
    def is_connected(self) -> bool:
        """Whether messages are expected to arrive at present."""
        ...

    def subscribe(
        self, channels: Sequence[str], on_message: Callable[[str], None], on_gap: Callable[[], None]
    ) -> Awaitable[None]:
        """Listen on these channels and no others from now on; done when that holds.

        Args:
            channels: Names; a later call replaces them.
            on_message: Called with each message.
            on_gap: Called when messages may have been missed, once messages arrive again.
        """
        ...

    def publish(self, channel: str, message: str) -> None:
        """Send soon, without waiting for anyone. A message that cannot be sent is dropped."""
        ...

    def close(self) -> Awaitable[None]:
        """Send what is still to be sent, as far as that works at once, and listen no more."""
        ...
