"""Time and chance of one simulated process, as the ports that the engine knows.

How it works: a node's wall clock is the loop's time plus an offset that faults may change, to and fro. What the port
gives never goes back (as the port promises): behind a clock that was set back it stands, and creeps on at half speed.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Final

from tests.simulation.loop import SimHandle, SimLoop

EPOCH: Final = datetime(2026, 1, 1, tzinfo=UTC)

LOOK_AGAIN_SECONDS: Final = 1.0
"""How often an alarm that waits looks whether the clock was moved (as the real adapter does)."""


class SimClock:
    """A ``ports.Clock``."""

    def __init__(self, loop: SimLoop, offset_seconds: float = 0.0) -> None:
        self._loop = loop
        self.offset_seconds = offset_seconds
        self._last = EPOCH - timedelta(days=1)
        self._behind_since: float | None = None

    def now(self) -> datetime:
        wall = EPOCH + timedelta(seconds=self._loop.time() + self.offset_seconds)
        if wall >= self._last:
            self._last = wall
            self._behind_since = None
            return wall
        now = self._loop.time()
        if self._behind_since is not None:
            self._last += timedelta(seconds=(now - self._behind_since) / 2)
        self._behind_since = now
        return self._last

    def jump(self, seconds: float) -> None:
        """Set the wall clock ahead, or back."""
        self.offset_seconds += seconds

    def call_at(self, when: datetime, callback: Callable[[], None]) -> Alarm:
        return Alarm(self, self._loop, when, callback)


class Alarm:
    """One armed wake-up."""

    def __init__(self, clock: SimClock, loop: SimLoop, when: datetime, callback: Callable[[], None]) -> None:
        self._clock = clock
        self._loop = loop
        self._when = when
        self._callback: Callable[[], None] | None = callback
        self._handle: SimHandle | None = None
        self._arm()

    def cancel(self) -> None:
        self._callback = None
        if self._handle is not None:
            self._handle.cancel()

    def _arm(self) -> None:
        # Rounded up: an alarm that rings a hair early would look, find nothing due, and look again at once.
        seconds = (self._when - self._clock.now()).total_seconds() + 1e-5
        self._handle = self._loop.call_later(min(max(seconds, 0.0), LOOK_AGAIN_SECONDS), self._wake)

    def _wake(self) -> None:
        if self._callback is None:
            return
        if self._clock.now() < self._when:
            self._arm()
            return
        callback, self._callback = self._callback, None
        callback()


class SimEntropy:
    """A ``ports.Entropy`` that draws from a seed."""

    def __init__(self, loop: SimLoop, chance: random.Random) -> None:
        self._loop = loop
        self._chance = chance

    def uuid7(self) -> str:
        ms = int((EPOCH.timestamp() + self._loop.time()) * 1000)
        text = f"{(ms << 80) | (0x7 << 76) | (self._chance.getrandbits(12) << 64) | (0b10 << 62):032x}"
        low = self._chance.getrandbits(62) | (0b10 << 62)
        return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{low >> 48:04x}-{low & ((1 << 48) - 1):012x}"

    def token(self, size: int) -> bytes:
        return self._chance.randbytes(size)
