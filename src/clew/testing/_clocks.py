"""Clocks under the control of a test.

Owns: `ManualClock`, which stands still until told, and `SkippingClock`, which runs like a wall clock and can jump.
Never: decides when to jump (`_skipping` does), or knows an engine.

How it works: one clock object outlives engines; each engine gets a view of it for its own loop (`attach`, which is what
``connect_embedded(clock=…)`` takes). Moving the clock wakes the views, and each calls back, on its own loop and in the
order of their instants, the alarms that have come due. Instants never go back.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Final, final

START_DEFAULT: Final = datetime(2026, 1, 1, tzinfo=UTC)
"""Where a `ManualClock` starts: any fixed instant makes histories of tests easier to compare."""

_SLEEP_SECONDS_MAX: Final = 3600.0
"""asyncio refuses waits of years; waking once an hour to wait on costs nothing."""


@final
class ManualClock:
    """Time that passes only by `advance`. Safe to use from any thread.

    Args:
        start: Where it stands at first, aware UTC.
    """

    def __init__(self, start: datetime = START_DEFAULT) -> None:
        if start.tzinfo is None:
            raise ValueError(f"start must be an aware datetime, not {start!r}; add tzinfo=UTC.")
        self._now = start
        self._lock = threading.Lock()
        self._views: list[_View] = []

    def now(self) -> datetime:
        """Where the clock stands."""
        return self._now

    def attach(self, loop: asyncio.AbstractEventLoop) -> _View:
        """The clock as seen by one engine; pass this method as ``clock=`` of `connect_embedded`."""
        view = _View(loop, self.now, None)
        with self._lock:
            # Views of engines that have ended are of no use to anyone.
            self._views = [other for other in self._views if not other.is_over] + [view]
        return view

    def advance(self, duration: timedelta) -> datetime:
        """Move the clock ahead and wake what is due by then; gives the new instant, without waiting for the woken.

        Raises:
            ValueError: The duration is negative.
        """
        if duration < timedelta(0):
            raise ValueError(f"A clock never goes back: cannot advance by {duration}.")
        with self._lock:
            self._now += duration
            views = list(self._views)
        for view in views:
            view.wake()
        return self._now


@final
class SkippingClock:
    """Wall-clock time plus all the jumps made so far. Safe to use from any thread."""

    def __init__(self, start: datetime | None = None) -> None:
        self._start = start if start is not None else datetime.now(UTC)
        self._started_at = time.monotonic()
        self._skipped = timedelta(0)
        self._lock = threading.Lock()
        self._views: list[_View] = []

    def now(self) -> datetime:
        """The present instant of the test's world."""
        return self._start + self._skipped + timedelta(seconds=time.monotonic() - self._started_at)

    def attach(self, loop: asyncio.AbstractEventLoop) -> _View:
        """The clock as seen by one engine; pass this method as ``clock=`` of `connect_embedded`."""
        view = _View(loop, self.now, self._seconds_until)
        with self._lock:
            # Views of engines that have ended are of no use to anyone.
            self._views = [other for other in self._views if not other.is_over] + [view]
        return view

    def skip_to(self, when: datetime) -> None:
        """Jump ahead to an instant and wake what is due; no effect if it has passed."""
        with self._lock:
            self._skipped += max(when - self.now(), timedelta(0))
            views = list(self._views)
        for view in views:
            view.wake()

    def _seconds_until(self, when: datetime) -> float:
        return (when - self.now()).total_seconds()


@final
class _Alarm:
    __slots__ = ("callback",)

    def __init__(self, callback: Callable[[], None]) -> None:
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        """Take it back; no effect when it has gone off."""
        self.callback = None


@final
class _View:
    """One loop's view of a clock: a ``ports.Clock``. `call_at` belongs to the loop, the rest to any thread."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        now: Callable[[], datetime],
        seconds_until: Callable[[datetime], float] | None,
    ) -> None:
        self._loop = loop
        self._now = now
        self._seconds_until = seconds_until
        self._alarms: list[tuple[datetime, int, _Alarm]] = []
        self._order = itertools.count()
        self._handle: asyncio.TimerHandle | None = None

    @property
    def is_over(self) -> bool:
        """Whether its loop has ended."""
        return self._loop.is_closed()

    def now(self) -> datetime:
        return self._now()

    def call_at(self, when: datetime, callback: Callable[[], None]) -> _Alarm:
        alarm = _Alarm(callback)
        heapq.heappush(self._alarms, (when, next(self._order), alarm))
        if when <= self._now():
            self._loop.call_soon(self._ring)
        elif self._alarms[0][2] is alarm:
            self._sleep()
        return alarm

    def wake(self) -> None:
        """The clock was moved: ring what is due, on the loop."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._ring)

    def _ring(self) -> None:
        alarms, now = self._alarms, self._now()
        while alarms and alarms[0][0] <= now:
            alarm = heapq.heappop(alarms)[2]
            callback, alarm.callback = alarm.callback, None
            if callback is not None:
                callback()
        self._sleep()

    def _sleep(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
        while self._alarms and self._alarms[0][2].callback is None:
            heapq.heappop(self._alarms)
        if self._seconds_until is not None and self._alarms:
            seconds = min(max(self._seconds_until(self._alarms[0][0]), 0.0), _SLEEP_SECONDS_MAX)
            self._handle = self._loop.call_later(seconds, self._ring)
