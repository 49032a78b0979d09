"""What a node tells its log about connections that it lets nobody in on.

Owns: `RefusalLog`: which lines, and how seldom. Never: refuses.

How it works: whoever cannot be let in often comes again, and not alone: a key that has ended is carried by many
workers, and a scanner knocks a thousand times. The first refusal of a kind is told at once; those of the next
`GATHER_SECONDS` are counted, and told in one line.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final, NamedTuple, final

from clew.link.codes import CutCode

_log: Final = logging.getLogger("clew.link")

GATHER_SECONDS: Final = 30.0


class _Gathered(NamedTuple):
    times: int
    peer: str
    reason: str


@final
class RefusalLog:
    """See the module docstring; belongs to the loop of the node.

    Args:
        loop: Has the timer.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._gathered: dict[CutCode, _Gathered] = {}
        self._timers: dict[CutCode, asyncio.TimerHandle] = {}

    def note(self, code: CutCode, peer: str, reason: str) -> None:
        """A connection was refused."""
        if code not in self._timers:
            _log.warning("link.refused peer=%s code=%s reason=%s", peer, code.name, reason)
            self._timers[code] = self._loop.call_later(GATHER_SECONDS, self._tell, code)
            return
        before = self._gathered.get(code)
        self._gathered[code] = _Gathered(before.times + 1 if before is not None else 1, peer, reason)

    def close(self) -> None:
        """Tell what was gathered, and stop."""
        for timer in self._timers.values():
            timer.cancel()
        for code in list(self._gathered):
            self._tell_gathered(code)

    def _tell(self, code: CutCode) -> None:
        del self._timers[code]
        if self._tell_gathered(code):
            self._timers[code] = self._loop.call_later(GATHER_SECONDS, self._tell, code)

    def _tell_gathered(self, code: CutCode) -> bool:
        gathered = self._gathered.pop(code, None)
        if gathered is None:
            return False
        _log.warning(
            "link.refused_more code=%s count=%d within_seconds=%g last_peer=%s last_reason=%s",
            code.name,
            gathered.times,
            GATHER_SECONDS,
            gathered.peer,
            gathered.reason,
        )
        return True
