"""The threads on which workflow code runs, and the watch that none of them stays blocked.

Owns: `TurnThreads`: how turns get to a thread and back, and what happens to a thread that does not come back.
Never: what a turn does; the service loop is only ever told.

How it works: workflow code yields within microseconds, and each change of thread costs as much. So turns of a *kind*
(a workflow type) that has shown itself to be quick are lent to the service loop, which runs them on its own thread and
moves to another one if a turn does take long (``clew.service_loop``); the kind is then off the loop for a while.

All others are run by threads of their own. One takes them from a queue, as long as all goes well; a second would only
contend for the interpreter. While there are turns a watch ticks on the service loop, and

* turns that wait while nothing has been finished for a whole tick get one more thread, so that one bad run delays the
  others by a moment; surplus threads end when the queue is empty;
* a turn that is not over after `blocked_timeout`, nor has got on meanwhile, is *given up*: it is reported with the
  stack of its thread, the thread is abandoned (and interrupted, which helps against a loop but not inside a blocking C
  call), and others take over.

No tick counts for more than `TICK_SECONDS_MAX`, however long ago the last one was, so that a process that was
suspended, or whose service loop had no turn itself, does not blame the workflow. A turn that the service loop has left
behind is under this watch like any other.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import itertools
import logging
import queue
import sys
import threading
import traceback
from collections.abc import Callable
from time import perf_counter
from types import FrameType
from typing import Final, Protocol, final

from clew.service_loop import WATCH_SECONDS, ServiceLoop

TICK_SECONDS: Final = 0.05
"""Short against the default time-out of 2 s, long against a switch between threads (5 ms)."""

TICK_SECONDS_MAX: Final = 0.25
"""On a machine so busy that ticks come late they still add up to the true time."""

THREADS_MAX: Final = 128
"""Threads that wait for blocked turns to be given up; more would only eat memory."""

QUICK_SECONDS: Final = 0.02
"""A kind of turn of which one was done within this time is quick; most take a hundredth of it."""

SLOW_KIND_SECONDS: Final = 60.0
"""A kind that has made the service loop move is not lent to it for so long: at worst it is held up once a minute."""

_log: Final = logging.getLogger("clew.worker")
_numbers: Final = itertools.count(1)


class Turn(Protocol):
    """One thing to do on a workflow thread. Compared by identity."""

    @property
    def kind(self) -> str | None:
        """Turns of one kind take equally long; None is never quick."""
        ...

    @property
    def progress(self) -> int:
        """Changes while it gets on by itself, as a long replay does; asked from other threads."""
        ...

    def run(self) -> None:
        """Do it, on a workflow thread. Keeps its own errors; what it raises is a bug."""
        ...

    def discard(self) -> None:
        """Called on its thread instead of handing it back, when it came back after it was given up."""
        ...


class _Interrupt(BaseException):
    """Breaks a loop on an abandoned thread; seen by nobody but that thread."""


@final
class _Seat:
    """One thread, as the watch sees it."""

    __slots__ = ("is_abandoned", "lock", "seen_progress", "seen_seconds", "seen_turn", "thread", "turn")

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.turn: Turn | None = None
        self.is_abandoned = False
        self.seen_turn: Turn | None = None
        self.seen_seconds = 0.0
        self.seen_progress = 0
        self.thread: threading.Thread


@final
class TurnThreads:
    """Runs turns on threads of its own; a turn that blocks costs the others a moment.

    Args:
        loop: The service loop; all methods are called on it.
        finish: Takes each finished turn; called on the workflow thread.
        finish_here: The same for a turn that was lent to the service loop; called there.
        give_up: Takes a turn that blocks, with the stack of its thread; called on the service loop.
        on_error: Told a bug: a turn raised; called on any thread.
        blocked_timeout: Seconds a turn may take; None means any time.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        finish: Callable[[Turn], None],
        give_up: Callable[[Turn, traceback.StackSummary], None],
        on_error: Callable[[BaseException], None],
        *,
        blocked_timeout: float | None,
        finish_here: Callable[[Turn], None] | None = None,
    ) -> None:
        self._loop = loop
        self._finish = finish
        self._finish_here = finish_here
        # Without a time-out somebody is debugging: then the loop had better stay out of it.
        can_lend = finish_here is not None and blocked_timeout is not None
        self._lender = loop if can_lend and isinstance(loop, ServiceLoop) else None
        self._lendable_from: dict[str | None, float] = {}
        """For each kind that is known: the loop time from which on it may be lent; that of a quick one has passed."""
        self._left_behind: dict[Turn, _Seat] = {}
        self._give_up = give_up
        self._on_error = on_error
        self._blocked_timeout = blocked_timeout
        self._turns: queue.SimpleQueue[Turn | None] = queue.SimpleQueue()
        self._seats: list[_Seat] = []
        self._lock = threading.Lock()
        self._finished_count = 0
        self._seen_finished_count = 0
        self._is_watching = False
        self._looked_at = 0.0
        self._is_closed = False
        self._ended = asyncio.Event()

    @property
    def is_borrowable(self) -> bool:
        """Turns that are lent are quick ones, and one that blocks after all is interrupted."""
        return True

    @property
    def threads_count(self) -> int:
        """Threads that take turns now, without the abandoned ones."""
        return len(self._seats)

    def submit(self, turn: Turn) -> None:
        """Let a thread run `turn` soon."""
        if not self.lend(turn):
            self._put(turn)

    def lend(self, turn: Turn) -> bool:
        """Let the service loop run `turn` in this very round of it, if it is of a quick kind; gives whether it will."""
        lender = self._lender
        if lender is None:
            return False
        since = self._lendable_from.get(turn.kind)
        if since is None or (since != 0.0 and since > lender.time()):
            return False
        return lender.lend(self, turn)

    def _put(self, turn: Turn) -> None:
        self._turns.put(turn)
        if not self._is_watching:
            if not self._seats:
                self._add_thread()
            self._begin_watching()

    def _begin_watching(self) -> None:
        if not self._is_watching:
            self._is_watching = True
            self._seen_finished_count = self._finished_count
            self._looked_at = self._loop.time()
            self._loop.call_later(TICK_SECONDS, self._tick)

    def stop_lending(self) -> None:
        """Run what comes from now on on threads of its own."""
        self._lender = None

    async def close(self, timeout: float) -> list[str]:
        """Let the threads end after what is queued, and wait for that at most `timeout` seconds.

        Returns:
            The stacks of the threads that are still busy.
        """
        self._is_closed = True
        self._turns.put(None)
        if self._seats:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._ended.wait(), timeout)
        left = list(self._seats)
        stacks = ["".join(_stack_of(seat.thread.ident).format()) for seat in left]
        for seat in left:
            self._abandon(seat)
        return stacks

    # --- turns on the service loop's own thread; see `clew.service_loop.TurnOwner` --------------------------

    def lent_failed(self, turn: Turn, error: BaseException) -> None:
        """A turn keeps its errors, so this is a bug."""
        self._on_error(error)

    def lent_done(self, turn: Turn) -> None:
        """It is done in time."""
        finish = self._finish_here
        assert finish is not None, "nothing is lent unless it can be finished there"
        try:
            finish(turn)
        except Exception as error:  # noqa: BLE001 - whatever it is must bring the worker down, not the engine
            self._on_error(error)

    def lent_moved(self, turn: Turn, thread: threading.Thread) -> None:
        """It takes long: from now on it is one of those on threads of their own."""
        seat = _Seat()
        seat.thread, seat.turn = thread, turn
        seat.seen_turn, seat.seen_progress, seat.seen_seconds = turn, turn.progress, WATCH_SECONDS
        self._left_behind[turn] = seat
        with self._lock:
            self._seats.append(seat)
        if turn.kind is not None:
            self._lendable_from[turn.kind] = self._loop.time() + SLOW_KIND_SECONDS
        self._loop.call_soon_threadsafe(self._begin_watching)

    def lent_late(self, turn: Turn) -> None:
        """It is done after all."""
        while True:
            try:
                self._end_late(turn)
                # The thread may have only been borrowed: what it does next must not be interrupted in place of this.
                _take_back_interrupt()
                return
            except _Interrupt:
                """It came when the turn was over."""

    def _end_late(self, turn: Turn) -> None:
        seat = self._left_behind.get(turn)
        if seat is None:
            return
        if seat.turn is not None:
            self._end_turn(seat, turn)
        self._leave_for_good(seat)
        self._left_behind.pop(turn, None)

    def lent_back(self, turn: Turn) -> None:
        """The service loop is about to end."""
        self._lender = None
        self._put(turn)

    # --- the watch, on the service loop ---------------------------------------------------------------------

    def _tick(self) -> None:
        try:
            self._look()
        except Exception as error:  # noqa: BLE001 - a watch that died must bring the worker down
            self._on_error(error)

    def _look(self) -> None:
        now = self._loop.time()
        passed, self._looked_at = min(now - self._looked_at, TICK_SECONDS_MAX), now
        is_busy = False
        for seat in list(self._seats):
            turn = seat.turn
            if turn is None:
                seat.seen_turn = None
                continue
            is_busy = True
            progress = turn.progress
            if turn is not seat.seen_turn or progress != seat.seen_progress:
                seat.seen_turn, seat.seen_progress, seat.seen_seconds = turn, progress, 0.0
                continue
            seat.seen_seconds += passed
            if self._blocked_timeout is not None and seat.seen_seconds >= self._blocked_timeout:
                self._rescue(seat, turn)
        if self._is_closed:
            is_busy = bool(self._seats)
        elif not self._turns.empty():
            is_busy = True
            if self._finished_count == self._seen_finished_count and len(self._seats) < THREADS_MAX:
                self._add_thread()
        self._seen_finished_count = self._finished_count
        if is_busy:
            self._loop.call_later(TICK_SECONDS, self._tick)
        else:
            self._is_watching = False

    def _rescue(self, seat: _Seat, turn: Turn) -> None:
        stack = _stack_of(seat.thread.ident)
        with seat.lock:
            if seat.turn is not turn:
                return
            seat.is_abandoned = True
        self._abandon(seat)
        if not self._seats and not self._is_closed:
            self._add_thread()
        self._give_up(turn, stack)

    def _abandon(self, seat: _Seat) -> None:
        with seat.lock:
            seat.is_abandoned = True
            if seat.turn is not None:
                _interrupt(seat.thread)
        with self._lock:
            if seat in self._seats:
                self._seats.remove(seat)

    def _add_thread(self) -> None:
        seat = _Seat()
        seat.thread = threading.Thread(
            target=self._work, args=(seat,), name=f"clew-workflow-{next(_numbers)}", daemon=True
        )
        with self._lock:
            self._seats.append(seat)
        seat.thread.start()

    # --- the threads ----------------------------------------------------------------------------------------

    def _work(self, seat: _Seat) -> None:
        try:
            self._take_turns(seat)
        except _Interrupt:
            pass
        except BaseException as error:  # noqa: BLE001 - a thread that dies must not do so unseen
            if not seat.is_abandoned:
                self._on_error(error)
        finally:
            self._leave_for_good(seat)

    def _leave_for_good(self, seat: _Seat) -> None:
        with self._lock:
            if seat in self._seats:
                self._seats.remove(seat)
            is_last = self._is_closed and not self._seats
        if is_last:
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._ended.set)

    def _take_turns(self, seat: _Seat) -> None:
        while True:
            turn = self._turns.get()
            if turn is None:
                # Left in the queue for the next thread.
                self._turns.put(None)
                return
            seat.turn = turn
            is_known = turn.kind is None or turn.kind in self._lendable_from
            began_at = 0.0 if is_known else perf_counter()
            is_over = False
            try:
                turn.run()
                if not is_known and perf_counter() - began_at < QUICK_SECONDS:
                    self._lendable_from[turn.kind] = 0.0
            finally:
                is_over = self._end_turn(seat, turn)
            if is_over:
                return
            # Dropped here, or an idle thread would keep the last run alive.
            del turn
            if len(self._seats) > 1 and self._turns.empty() and self._leave(seat):
                return

    def _end_turn(self, seat: _Seat, turn: Turn) -> bool:
        """Hand a turn back that is done; gives whether its thread was given up meanwhile."""
        with seat.lock:
            seat.turn = None
            is_abandoned = seat.is_abandoned
        if is_abandoned:
            turn.discard()
            return True
        self._finished_count += 1
        self._finish(turn)
        return False

    def _leave(self, seat: _Seat) -> bool:
        with self._lock:
            if len(self._seats) > 1 and seat in self._seats and not self._is_closed:
                self._seats.remove(seat)
                return True
        return False


def _interrupt(thread: threading.Thread) -> None:
    if thread.ident is not None and thread.is_alive():
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(_Interrupt))


def _take_back_interrupt() -> None:
    """Let one that has not come yet never come; of the calling thread."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(threading.get_ident()), None)


def _stack_of(thread_id: int | None) -> traceback.StackSummary:
    frame: FrameType | None = sys._current_frames().get(thread_id) if thread_id is not None else None
    return traceback.extract_stack(frame) if frame is not None else traceback.StackSummary()
