"""Which cached runs are not worth their memory any more: those that nothing has come for in a while.

Owns: the rule and its numbers, and the timer that looks. Never: drops a run itself (`_workflow_tasks` does).

How it works: a cached run costs some 25 KB, and saves the replay of its history when something comes for it. One that
has gone to sleep for long and is replayed in a millisecond is not cached in a crowd. Of the others, one with a short
history is let go after seconds without anything, one with a long history stays for as long as its replay would be dear,
and the latest few stay for good. While there are no more than those, no timer runs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Final, final

from clew.model.commands import Command, StartTimer
from clew.worker._turns import CachedRun

SLEEP: Final = timedelta(seconds=60)
"""A run that asks for nothing but timers of at least this length has gone to sleep."""

SLEEPER_EVENTS_MAX: Final = 50
"""History up to which a sleeper is replayed when it wakes, in a millisecond or two."""

IDLE_SECONDS: Final = 10.0
"""Without anything for a run for this long, and longer by `SECONDS_PER_EVENT`, it is let go."""

SECONDS_PER_EVENT: Final = 0.05
"""A run of 10,000 events, half a second of replay, stays for eight minutes."""

LATEST_KEPT: Final = 50
"""The runs that were used last stay, whatever their age: that few cost a megabyte."""

CROWD: Final = 100
"""Up to this many cached runs even sleepers stay: a signal may come the next moment, and so few cost little."""

LOOK_SECONDS: Final = 5.0
"""Between two looks."""

DROPPED_AT_ONCE_MAX: Final = 200
"""Runs let go in one look, so that a crowd of them does not hold up what has come in."""

CROWD_SECONDS: Final = 0.05
"""Until the next look when there were more."""


def falls_asleep(commands: Sequence[Command], position: int) -> bool:
    """Whether a run whose history ends at `position`, and that answers with `commands`, has gone to sleep for long."""
    if position > SLEEPER_EVENTS_MAX or not commands or type(commands[0]) is not StartTimer:
        return False
    return all(type(command) is StartTimer and command.start_to_fire_timeout >= SLEEP for command in commands)


@final
class IdleRuns:
    """Looks for them. All methods belong to the service loop.

    Args:
        loop: The service loop.
        runs: All that are cached, the one used last at the end.
        may_drop: Whether nothing of a run is under way.
        drop: Lets one go.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        runs: Mapping[str, CachedRun],
        *,
        may_drop: Callable[[CachedRun], bool],
        drop: Callable[[CachedRun], None],
    ) -> None:
        self._loop = loop
        self._runs = runs
        self._may_drop = may_drop
        self._drop = drop
        self._timer: asyncio.TimerHandle | None = None
        self._is_closed = False

    def is_worth_caching(self, commands: Sequence[Command], position: int) -> bool:
        """Whether a run whose history ends at `position`, and that answers with `commands`, should stay cached."""
        return len(self._runs) <= CROWD or not falls_asleep(commands, position)

    def watch(self) -> None:
        """A run was cached."""
        if self._timer is None and len(self._runs) > LATEST_KEPT and not self._is_closed:
            self._timer = self._loop.call_later(LOOK_SECONDS, self._look)

    def close(self) -> None:
        """Look no more."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        self._timer = None
        found = self._find(self._loop.time())
        for run in found:
            self._drop(run)
        if len(found) == DROPPED_AT_ONCE_MAX and not self._is_closed:
            self._timer = self._loop.call_later(CROWD_SECONDS, self._look)
        else:
            self.watch()

    def _find(self, now: float) -> list[CachedRun]:
        found: list[CachedRun] = []
        spare_count = len(self._runs) - LATEST_KEPT
        for run in self._runs.values():
            idle = now - run.began_at
            if spare_count <= 0 or idle < IDLE_SECONDS or len(found) == DROPPED_AT_ONCE_MAX:
                break
            spare_count -= 1
            if idle >= IDLE_SECONDS + SECONDS_PER_EVENT * run.position and self._may_drop(run):
                found.append(run)
        return found
