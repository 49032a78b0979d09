"""Time and chance of the real world, behind the ports.

Owns: `SystemClock` and `SystemEntropy`, the only places of the engine that read the operating system's clock and random
source. Never: policy.

How it works: the wall clock is the authority (design §6), but it may be set back. `SystemClock.now` never goes back:
after such a step it runs at half speed until the wall clock has caught up: timers go on firing, late rather than
early and never in a standstill. A wait is slept in pieces: a clock that was set forward, or a machine that slept,
is noticed within `SLEEP_SECONDS_MAX`.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Final, final

SLEEP_SECONDS_MAX: Final = 1.0
"""One wake-up a second costs nothing measurable and bounds how late a jump of the wall clock is noticed."""

_CHANCE_BYTES: Final = 4096

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_LOW_BITS: Final = (1 << 62) - 1
_time_ns: Final = time.time_ns
"""Taken once, like `_now` below."""
_COUNTER_BITS: Final = 74
"""The bits of a UUIDv7 below the milliseconds, without version and variant (RFC 9562 §5.7)."""


class _Chance(threading.local):
    """Bytes of the operating system's random source, fetched many at a time by each thread.

    Each call of ``os.urandom`` gives up the interpreter's lock, and a busy process waits long to get it back. For ids;
    secrets come from the source itself.
    """

    _bytes = b""
    _position = 0

    def take(self, size: int) -> bytes:
        """`size` bytes that nobody else gets."""
        if self._position + size > len(self._bytes):
            self.refill()
        start, self._position = self._position, self._position + size
        return self._bytes[start : self._position]

    def refill(self) -> None:
        """Throw away what is left, and fetch more."""
        self._bytes, self._position = os.urandom(_CHANCE_BYTES), 0


_chance: Final = _Chance()

if hasattr(os, "register_at_fork"):
    # Otherwise parent and child would go on to draw the same bytes.
    os.register_at_fork(after_in_child=_chance.refill)


def to_ns(instant: datetime) -> int:
    """Nanoseconds since the epoch, exact to the microsecond that a datetime holds."""
    return (instant - _EPOCH) // _MICROSECOND * 1_000


def new_request_id() -> str:
    """A fresh id by which a repeated request is recognised."""
    # The text of a random UUID (RFC 9562 §5.4), without the object, which takes longer to make than the rest.
    chance = _chance.take(16)
    digits = chance.hex()
    variant = "89ab"[chance[8] & 3]
    return f"{digits[:8]}-{digits[8:12]}-4{digits[13:16]}-{variant}{digits[17:20]}-{digits[20:]}"


@final
class SystemClock:
    """The wall clock as seen by one event loop; never goes back."""

    def __init__(self, loop: asyncio.AbstractEventLoop, *, wall: Callable[[], datetime] | None = None) -> None:
        self._loop = loop
        self._wall = wall if wall is not None else wall_now
        self._last = self._wall()
        self._catching_up_since: float | None = None

    def now(self) -> datetime:
        """The present instant, aware UTC."""
        look = self._wall  # the interpreter looks for a method first when an attribute is called
        wall = look()
        if wall >= self._last:
            self._last = wall
            self._catching_up_since = None
            return wall
        return self._now_ahead_of_wall()

    def _now_ahead_of_wall(self) -> datetime:
        monotonic = time.monotonic()
        if self._catching_up_since is not None:
            self._last += timedelta(seconds=(monotonic - self._catching_up_since) / 2)
        self._catching_up_since = monotonic
        return self._last

    def call_at(self, when: datetime, callback: Callable[[], None]) -> Alarm:
        """Call back on the loop at or after `when`, never before."""
        return Alarm(self, self._loop, when, callback)


@final
class Alarm:
    """One armed wake-up; taken back by `cancel`."""

    __slots__ = ("_callback", "_clock", "_handle", "_loop", "_when")

    def __init__(
        self, clock: SystemClock, loop: asyncio.AbstractEventLoop, when: datetime, callback: Callable[[], None]
    ) -> None:
        self._clock = clock
        self._loop = loop
        self._when = when
        self._callback: Callable[[], None] | None = callback
        self._handle: asyncio.TimerHandle | None = None
        self._arm()

    def cancel(self) -> None:
        """Take it back; no effect when it has gone off."""
        self._callback = None
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _arm(self) -> None:
        seconds = (self._when - self._clock.now()).total_seconds()
        self._handle = self._loop.call_later(min(max(seconds, 0.0), SLEEP_SECONDS_MAX), self._wake)

    def _wake(self) -> None:
        if self._callback is None:
            return
        if self._clock.now() < self._when:
            self._arm()
            return
        callback, self._callback, self._handle = self._callback, None, None
        callback()


@final
class SystemEntropy:
    """Identifiers and secrets from the operating system's random source."""

    def __init__(self) -> None:
        self._last_ms = 0
        self._counter = 0

    def uuid7(self) -> str:
        """A UUIDv7 in text form; within this process each is greater than the one before, whatever the clock does."""
        ms = _time_ns() // 1_000_000
        if ms > self._last_ms:
            self._last_ms = ms
            # The top bit stays clear, so that there is room to count up within this millisecond.
            self._counter = int.from_bytes(_chance.take(10)) >> (81 - _COUNTER_BITS)
        else:
            self._counter += 1 + int.from_bytes(_chance.take(4))
            if self._counter >> _COUNTER_BITS:
                self._last_ms += 1
                self._counter = int.from_bytes(_chance.take(10)) >> (81 - _COUNTER_BITS)
        return _uuid7_text(self._last_ms, self._counter)

    def token(self, size: int) -> bytes:
        """`size` unpredictable bytes."""
        return os.urandom(size)


def _uuid7_text(ms: int, counter: int) -> str:
    high, low = counter >> 62, counter & _LOW_BITS
    text = ((ms << 80) | (0x7 << 76) | (high << 64) | (0b10 << 62) | low).to_bytes(16).hex()
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


_now: Final = datetime.now
"""Taken once: what others may later put in front of it is not meant for the engine's clock."""


def wall_now() -> datetime:
    """The operating system's time; it may go back."""
    return _now(UTC)
