"""What a client's end tells the log about a link that is away.

Owns: `OutageLog`: which lines, at which level, and how seldom. Never: connects, or decides whether a link is away.

How it works: it is told of each loss, each failed try and each connection. The first line of an outage comes at once;
while it lasts, one a minute. A link that breaks again and again gives at most one such line a second. Only addresses,
codes and the words of refusals are written, never what was sent.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final, final

from clew.service.errors import RPCError

_log: Final = logging.getLogger("clew.link")

REPEAT_SECONDS: Final = 60.0
FLAPPING_SECONDS: Final = 1.0


@final
class OutageLog:
    """The lines about one client's link.

    Args:
        address: Where its nodes are.
        now: The time of the loop.
    """

    def __init__(self, address: str, now: Callable[[], float]) -> None:
        self._address = address
        self._now = now
        self._lost_at: float | None = None
        self._is_told = False
        self._warned_at = float("-inf")
        self._refused_at = float("-inf")

    def lost(self, reason: str, *, is_planned: bool = False) -> None:
        """The connection is over.

        Args:
            reason: Why, as far as it is known.
            is_planned: A node asked to go elsewhere: of note only when that fails.
        """
        self._lost_at = self._now()
        self._is_told = False
        if not is_planned:
            self._warn(reason)

    def failed(self, refusal: RPCError) -> None:
        """A try to connect again failed."""
        if self._lost_at is None:
            return  # never connected: whoever starts the client is told
        if refusal.is_retryable:
            self._warn(refusal.message)
        elif self._is_due(self._refused_at):
            self._refused_at = self._now()
            self._is_told = True
            _log.error(
                "link.refused address=%s code=%s reason=%s", self._address, refusal.code.value, _line(refusal.message)
            )

    def back(self) -> None:
        """Connected."""
        if self._lost_at is not None and self._is_told:
            _log.info("link.back address=%s after=%.1fs", self._address, self._now() - self._lost_at)
        self._lost_at = None

    def _warn(self, reason: str) -> None:
        if self._lost_at is None or not self._is_due(self._warned_at):
            return
        self._warned_at = self._now()
        if self._is_told:
            away = self._warned_at - self._lost_at
            _log.warning("link.down address=%s for=%.0fs reason=%s", self._address, away, _line(reason))
        else:
            self._is_told = True
            _log.warning("link.lost address=%s reason=%s", self._address, _line(reason))

    def _is_due(self, told_at: float) -> bool:
        """Whether a line of this kind may follow the last one by now."""
        assert self._lost_at is not None, "asked during an outage only"
        seconds = REPEAT_SECONDS if told_at >= self._lost_at else FLAPPING_SECONDS
        return self._now() - told_at >= seconds


def _line(text: str) -> str:
    """The text as one line: it may come from the other end."""
    return " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())
