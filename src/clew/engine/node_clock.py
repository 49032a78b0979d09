"""The store's time, as a node reads it (design §6).

Owns: `NodeClock`, the node's own clock put right by what the store says. Never: asks the store (``engine.nodes`` does).

How it works: the difference to the store's clock is measured with every renewal of the node's lease, good to half the
time that the call took. A difference below that says nothing and changes nothing. The time never goes back: put back,
the clock stands still until it has been caught up with, and alarms armed before go off late rather than early.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Final, final

from clew.ports.clock import Cancellable, Clock

MEASURABLE: Final = timedelta(milliseconds=5)
"""Differences that the scheduling of two processes makes anyway."""


@final
class NodeClock:
    """A ``ports.Clock`` over another one. All methods belong to the engine's loop."""

    def __init__(self, own: Clock) -> None:
        self._own = own
        self.offset = timedelta(0)
        """What is added to the node's own time."""
        self._last = own.now()

    def now(self) -> datetime:
        """The present instant by the store's clock."""
        now = self._own.now() + self.offset
        if now > self._last:
            self._last = now
        return self._last

    def call_at(self, when: datetime, callback: Callable[[], None]) -> Cancellable:
        """Call back at or after `when`, never before."""
        return _Alarm(self, when, callback)

    def own_now(self) -> datetime:
        """The node's own time, between two readings of which a call of the store is measured."""
        return self._own.now()

    def learn(self, asked_at: datetime, told: datetime) -> None:
        """The store was asked at `asked_at` (of `own_now`) and said that it is `told`."""
        took = self._own.now() - asked_at
        measured = told - (asked_at + took / 2)
        if abs(measured - self.offset) > took / 2 + MEASURABLE:
            self.offset = measured

    def call_own_at(self, when: datetime, callback: Callable[[], None]) -> Cancellable:
        """Call back about `when`, which an alarm looks at again."""
        return self._own.call_at(when - self.offset, callback)


@final
class _Alarm:
    __slots__ = ("_armed", "_callback", "_clock", "_when")

    def __init__(self, clock: NodeClock, when: datetime, callback: Callable[[], None]) -> None:
        self._clock = clock
        self._when = when
        self._callback: Callable[[], None] | None = callback
        self._armed = clock.call_own_at(when, self._wake)

    def cancel(self) -> None:
        """Take it back; no effect when it has gone off."""
        self._callback = None
        self._armed.cancel()

    def _wake(self) -> None:
        callback = self._callback
        if callback is None:
            return
        if self._clock.now() < self._when:
            self._armed = self._clock.call_own_at(self._when, self._wake)
            return
        self._callback = None
        callback()
