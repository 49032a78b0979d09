"""Why a link was cut: stable codes, as names for people and as WebSocket close codes for the wire.

Owns: the closed set. Never: decides to cut (`server` and `client` do).
"""

from __future__ import annotations

import enum
from typing import final


class CutCode(enum.IntEnum):
    """The numbers are close codes of RFC 6455: 1000 to 1013 registered ones, 4000 and up for private use."""

    NORMAL = 1000
    """Either end is done."""
    GOING_AWAY = 1001
    """The node stops, or moves its links elsewhere."""
    LOST = 1006
    """The connection broke; never sent."""
    MALFORMED = 4400
    """Bytes that are no frame, or a frame that breaks the rules."""
    UNAUTHENTICATED = 4401
    """The credentials were missing, wrong or over."""
    FORBIDDEN = 4403
    """The credentials are good for something else."""
    TIMED_OUT = 4408
    """Nothing was heard for too long, or the greeting did not come in time."""
    SUPERSEDED = 4409
    """The same session came back on another connection."""
    TOO_LARGE = 4413
    """A frame or message above the limit."""
    UNSUPPORTED_VERSION = 4426
    """No protocol version that both ends know."""
    FLOODED = 4429
    """More calls, credits or bytes at a time than were granted."""
    INTERNAL = 4500
    """A bug at the end that cut."""
    OVERLOADED = 4503
    """This node takes no more connections for now."""
    SLOW_READER = 4504
    """What was sent was not read in time."""


@final
class LinkViolation(Exception):
    """The other end broke the rules of the link; it is cut with the code.

    Attributes:
        code: Which rule.
        reason: In words: what came, what was expected.
    """

    def __init__(self, code: CutCode, reason: str) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason
