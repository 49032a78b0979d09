"""How quickly the disk takes small commits, and whether the loop itself may wait for the next one (docs/adr/0037).

Owns: the figure, and what it allows. Never: commits, or reads a clock: durations and times come in.

How it works: each small commit, wherever it is made, moves the figure by a share. While that is low, the next one may
be made on the loop. One that takes far longer sets the figure high, and forbids it for a while; then it is for those
that the writer makes to bring the figure down again. So a disk that turns slow costs the loop one commit. No commit
counts for more than `COUNTED_SECONDS_MAX`: on a machine with other work now and then one waits for a processor, most of
all one of the writer's, which has to be given the interpreter, too; that says nothing of the disk.
"""

from __future__ import annotations

from typing import Final, final

FAST_SECONDS: Final = 0.001
"""Below this two changes of thread are a good part of what a commit takes, and nobody notices that the loop waited."""

SLOW_SECONDS: Final = 0.01
"""A commit that takes longer forbids the loop to wait for others; a turn of workflow code may take five times that."""

PAUSE_SECONDS: Final = 1.0
"""How long it is forbidden then, at least."""

COUNTED_SECONDS_MAX: Final = 2 * FAST_SECONDS

_SHARE: Final = 1 / 8


@final
class CommitPace:
    """See the module docstring. Used under the lock of the writer's connection."""

    def __init__(self) -> None:
        self._seconds = COUNTED_SECONDS_MAX
        """The figure; high until there is something to go by."""
        self._forbidden_until = 0.0

    def note(self, seconds: float, now: float) -> None:
        """A small commit took so long."""
        if seconds > SLOW_SECONDS:
            self._seconds = COUNTED_SECONDS_MAX
            self._forbidden_until = now + PAUSE_SECONDS
        else:
            self._seconds += (min(seconds, COUNTED_SECONDS_MAX) - self._seconds) * _SHARE

    def is_fast(self, now: float) -> bool:
        """Whether the loop may wait for the next commit."""
        return self._seconds < FAST_SECONDS and now >= self._forbidden_until
