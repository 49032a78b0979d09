"""Time as a port: the one authority for instants and deadlines (design §6)."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Protocol


class Cancellable(Protocol):
    """Something armed that can be taken back."""

    def cancel(self) -> None: ...


class Clock(Protocol):
    """Reads the time and wakes a callback at one. Instants are aware UTC; they never go back."""

    def now(self) -> datetime: ...

    def call_at(self, when: datetime, callback: Callable[[], None]) -> Cancellable:
        """Call back on the engine's loop at or after `when`, never before."""
        ...
