"""Plain functions of local activities that are done at once, run by the service loop's own thread.

Owns: which types are quick enough, and the turns that are lent to the loop for them. Never: how a function is called.

How it works: two changes of thread cost more than a step that merely computes something. So a type whose last call took
less than `QUICK_SECONDS` is run where its workflow runs, between two rounds of the service loop; one that has taken
longer goes back to the threads, and is measured there. If a call blocks after all, the loop moves on to another thread
(``clew.service_loop``), and the type is off it for a while. While the function runs the thread has no running loop, as
in a thread of its own.
"""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Callable
from time import perf_counter
from typing import Final, final

from clew.service_loop import ServiceLoop
from clew.worker._attempt import Attempt

QUICK_SECONDS: Final = 0.000_25
"""Some times what two changes of thread cost; whatever waits for anything outside takes longer."""

SLOW_TYPE_SECONDS: Final = 60.0
"""A type that has made the service loop move is not lent to it for so long."""


@final
class QuickCalls:
    """Lends calls to the service loop.

    Args:
        lender: The service loop.
        perform: Calls the function and ends the attempt; on any thread, and keeps its errors.
        submit: Runs an attempt on a thread of its own.
    """

    def __init__(
        self, lender: ServiceLoop, perform: Callable[[Attempt], None], submit: Callable[[Attempt], object]
    ) -> None:
        self._lender = lender
        self._perform = perform
        self._submit = submit
        self._last_seconds: dict[str, float] = {}
        self._lendable_from: dict[str, float] = {}

    @property
    def is_borrowable(self) -> bool:
        """A plain function may wait for the very loop whose thread would run it."""
        return False

    def start(self, attempt: Attempt) -> None:
        """Run an attempt at a local activity where it is best run; on the service loop."""
        kind = attempt.task.activity_type
        if self._last_seconds.get(kind, math.inf) < QUICK_SECONDS:
            since = self._lendable_from.get(kind)
            if (since is None or since <= self._lender.time()) and self._lender.lend(self, _Call(self, attempt)):
                return
        self._submit(attempt)

    def perform(self, attempt: Attempt) -> None:
        """Call the function, and see how long that takes; on any thread."""
        began_at = perf_counter()
        self._perform(attempt)
        self._last_seconds[attempt.task.activity_type] = perf_counter() - began_at

    # --- see `clew.service_loop.TurnOwner` ------------------------------------------------------------------

    def lent_failed(self, turn: _Call, error: BaseException) -> None:
        """A call keeps its errors; what is left is an interruption that came too late to matter."""

    def lent_done(self, turn: _Call) -> None:
        """Its end was told by itself."""

    def lent_moved(self, turn: _Call, thread: threading.Thread) -> None:
        """It takes long."""
        self._lendable_from[turn.attempt.task.activity_type] = self._lender.time() + SLOW_TYPE_SECONDS

    def lent_late(self, turn: _Call) -> None:
        """Its end was told by itself."""

    def lent_back(self, turn: _Call) -> None:
        """The service loop is about to end."""
        self._submit(turn.attempt)


@final
class _Call:
    """One call on the service loop's thread."""

    __slots__ = ("_calls", "attempt")

    def __init__(self, calls: QuickCalls, attempt: Attempt) -> None:
        self._calls = calls
        self.attempt = attempt

    def run(self) -> None:
        """Do it."""
        outer = asyncio._get_running_loop()
        asyncio._set_running_loop(None)
        try:
            self._calls.perform(self.attempt)
        finally:
            asyncio._set_running_loop(outer)
