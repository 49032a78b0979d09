"""How quickly the disk takes small commits, and whether the loop itself may wait for the next one (docs/adr/0048).

Owns: what is remembered of the last ones, and what that allows. Never: commits, or reads a clock: durations and times
come in.

How it works: of the last `WINDOW` small commits, wherever they were made, more than half must have been quick. So it is
what most of them take that counts: on a disk that others use, too, one of a hundred takes thirty times as long as most,
and an average would follow that one. A commit that takes far longer makes all that was known worthless, and forbids the
loop to wait for a time that grows with it; then it is for those that the writer makes to show that the disk is quick
again. So a disk that turns slow costs the loop one commit, and one that is slow now and then a small share of its time.
"""

from __future__ import annotations

from typing import Final, final

FAST_SECONDS: Final = 0.001
"""Below this two changes of thread are a good part of what a commit takes, and nobody notices that the loop waited."""

SLOW_SECONDS: Final = 0.01
"""A commit that takes longer says that the disk has turned slow; a turn of workflow code may take five times that."""

PAUSES: Final = 20
"""The loop is forbidden to wait for so many times what a slow commit took beyond `SLOW_SECONDS`: a second for 60 ms."""

WINDOW: Final = 8
"""How many commits are looked at."""

_MASK: Final = (1 << WINDOW) - 1
_QUICK_MIN: Final = WINDOW // 2 + 1


@final
class CommitPace:
    """See the module docstring. Used under the lock of the writer's connection."""

    def __init__(self) -> None:
        self._quick_bits = 0
        """A bit for each of the last commits, the latest the lowest: whether it was quick. None was yet."""
        self._forbidden_until = 0.0

    def note(self, seconds: float, now: float) -> None:
        """A small commit took so long."""
        if seconds > SLOW_SECONDS:
            self._quick_bits = 0
            self._forbidden_until = max(self._forbidden_until, now + PAUSES * (seconds - SLOW_SECONDS))
        else:
            self._quick_bits = (self._quick_bits << 1 | (seconds < FAST_SECONDS)) & _MASK

    def is_fast(self, now: float) -> bool:
        """Whether the loop may wait for the next commit."""
        return self._quick_bits.bit_count() >= _QUICK_MIN and now >= self._forbidden_until
