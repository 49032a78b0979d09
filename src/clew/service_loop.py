"""The event loop that an embedded engine lives on: asyncio, made for being woken by other threads all the time.

Owns: how that loop waits and is woken, its timers, and *lent turns*: user code that runs between two of its rounds.
Never: knows what a turn does, or what else runs on it.

How it works: it is asyncio's selector loop with a round of its own.

* While no file descriptor is busy (an embedded engine has at most one that listens for other processes), the loop
  sleeps on a lock rather than in the selector. Waking it then costs one release of a lock: no bytes through a pipe, no
  system calls to read them, and the thread that wakes it keeps the interpreter's lock. Quiet descriptors are left to a
  *poller*, a thread that waits in the selector and wakes the loop; then the loop waits there itself, until they have
  been quiet for some time. So never both of them wait there, and none takes what the other has been told.
* Timers are tuples in a heap, so that they compare without calls.
* While it sleeps, another thread may *borrow* the loop (`borrow`): run its rounds until there is nothing left to do,
  instead of waking the loop's own thread to do the same. A thread that waits for an answer anyway then has
  it without any change of thread. Whoever runs rounds holds `_rounds`.
* A *lent turn* (`lend`) is run by the loop's own thread, at the top of a round, where nothing else is under way. That
  saves two changes of thread for each, which is more than most of them take. A turn that takes long must not hold up
  the loop: a watch looks every `WATCH_SECONDS`, and a turn that it finds twice keeps the thread, while the *loop moves*
  to a new one and goes on there. The thread that is left finishes its turn, reports that it is late, and ends; one that
  had borrowed the loop goes on with its own work, and the loop's own thread takes over.

Whoever takes the turn out of `_seat` decides which of the two it is: its thread, when it is done, or the watch. Each
thread has a seat of its own.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import logging
import math
import select
import selectors
import sys
import threading
from asyncio import events as asyncio_events
from collections import deque
from collections.abc import Callable, Sized
from contextvars import Context, copy_context
from time import monotonic
from typing import Any, Final, Protocol, final

WATCH_SECONDS: Final = 0.05
"""A turn that is found by two looks in a row has taken longer than any that merely decides what comes next."""

_IDLE_LOOKS: Final = 40
"""The watch goes to sleep when it has seen no turn for so many looks."""

_TURNS_A_ROUND: Final = 128
"""After so many turns, some 5 ms, what else is ready has its go, such as the commits that they have asked for. With 64
the writer took a tenth more for each workflow of a busy engine, as it got them in smaller batches."""

_CALLBACKS_A_ROUND: Final = range(100)
"""After so many callbacks, those that they have asked for included, timers and descriptors have their go."""

_BORROWED_SECONDS_MAX: Final = 0.01
"""Whoever borrows the loop begins nothing further after so long; a step of a lone run takes a tenth of it."""

_SLEEP_SECONDS_MAX: Final = 3600.0

_STALE_TIMERS_MIN: Final = 100
"""Timers that were cancelled are thrown out when there are so many and more than half of all."""

_QUIET_SLEEPS: Final = 16
"""Descriptors of which nothing was heard for so many sleeps are left to the poller."""

_POLLER_END_SECONDS: Final = 5.0

_CAN_POLL_ELSEWHERE: Final = tuple(
    kind for name in ("EpollSelector", "KqueueSelector") if (kind := getattr(selectors, name, None)) is not None
)
"""Selectors that hear at once of a descriptor which another thread adds while one waits in them."""

_WAKE_BYTES: Final = 4096

_AWAKE: Final = 0
_ON_LOCK: Final = 1
_IN_SELECTOR: Final = 2

_log: Final = logging.getLogger("clew.service")


class LoopMoved(BaseException):
    """Ends `run_forever` on a thread that the loop has left; nothing of the loop may be touched there any more."""


class LentTurn(Protocol):
    """What is lent. Compared by identity."""

    def run(self) -> None:
        """Do it; keeps its own errors."""
        ...


class TurnOwner(Protocol):
    """Who lends turns to the loop.

    Attributes:
        is_borrowable: Whether a thread that has borrowed the loop may run its turns, so that one that blocks holds up
            whatever else that thread has to do.
    """

    @property
    def is_borrowable(self) -> bool: ...

    def lent_failed(self, turn: Any, error: BaseException) -> None:
        """It raised, which turns should not; told before whatever else becomes of it."""
        ...

    def lent_done(self, turn: Any) -> None:
        """It is done; on the loop."""
        ...

    def lent_moved(self, turn: Any, thread: threading.Thread) -> None:
        """The loop leaves `thread` to the turn; on the thread of the watch, before the loop goes on."""
        ...

    def lent_late(self, turn: Any) -> None:
        """A turn that was left its thread is done; on that thread, which ends afterwards or was borrowed from."""
        ...

    def lent_back(self, turn: Any) -> None:
        """It will not be run, as the loop is about to end; on the loop."""
        ...


def _nothing() -> None:
    """Wakes a loop."""


def _run_each(callbacks: list[Callable[[], object]]) -> None:
    """Run them as the loop itself would: one that raises is told about, and costs the others nothing."""
    for callback in callbacks:
        try:
            callback()
        except Exception as error:  # noqa: BLE001 - told
            context = {"message": f"Exception in callback {callback!r}", "exception": error}
            asyncio.get_running_loop().call_exception_handler(context)


@final
class _Entry(asyncio.Handle):
    """A callback in the queue; asyncio's own, without what debugging asks for."""

    __slots__ = ()

    def __init__(
        self, callback: Callable[..., object], args: tuple[Any, ...], loop: ServiceLoop, context: Context | None
    ) -> None:
        self._context = copy_context() if context is None else context
        self._loop = loop
        self._callback = callback
        self._args = args
        self._cancelled = False
        self._repr = None
        self._source_traceback = None


@final
class ServiceLoop(asyncio.SelectorEventLoop):
    """See the module.

    Args:
        move: Starts a thread that calls `run_forever`, when the loop has to leave its own; None: nothing is lent.
    """

    # What the base class has, of which its published types say nothing.
    _ready: deque[asyncio.Handle]
    _closed: bool
    _stopping: bool
    _thread_id: int | None
    _selector: Any
    _ssock: Any
    _check_closed: Callable[[], None]
    _check_running: Callable[[], None]
    _process_events: Callable[[Any], None]
    _remove_reader: Callable[[Any], bool]
    _remove_writer: Callable[[Any], bool]
    _write_to_self: Callable[[], None]
    _asyncgen_firstiter_hook: Callable[[Any], None]
    _asyncgen_finalizer_hook: Callable[[Any], None]

    restores_generator_hooks: Final = True
    """Turns may leave their own hooks for asynchronous generators behind: they are set back after a round of turns."""

    def __init__(self, move: Callable[[], None] | None = None) -> None:
        super().__init__()
        self._move = move
        self._watched: Any = getattr(self._selector, "_fd_to_key", None) or self._selector.get_map()
        """What the selector watches; one is the loop's own."""
        self._can_poll_elsewhere = isinstance(self._selector, _CAN_POLL_ELSEWHERE) and isinstance(self._watched, dict)
        is_epoll = type(self._selector) is getattr(selectors, "EpollSelector", None) and self._can_poll_elsewhere
        self._epoll: Any = getattr(self._selector, "_selector", None) if is_epoll else None
        """What the selector is made of, where it is that: asked directly, it costs a third."""
        self._wake_descriptor: int = self._ssock.fileno()
        self._has_looked = False
        """Whether the last round began with a look at the descriptors."""
        self._quiet_count = 0
        self._poller: _Poller | None = None
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._timer_numbers = itertools.count()
        self._stale_timers_count = 0
        self._sleep_state = _AWAKE
        self._sleep_lock = threading.Lock()
        self._sleep_lock.acquire()
        self._sleep_until = math.inf
        """Until when it sleeps on the lock if nothing wakes it."""
        self._rounds = threading.Lock()
        """Held by the thread that runs rounds."""
        self._borrower: asyncio.AbstractEventLoop | None = None
        """The loop whose thread has borrowed this one."""
        self._for_borrower: list[Callable[[], object]] = []
        """What its thread is to run on its own loop, once it has given this one back."""
        self._borrowers_ready: Sized = ()
        """What that loop has ready, as far as it tells."""
        self._borrowed_until = 0.0
        """When the borrower should come to an end."""
        self._home: tuple[int, threading.Thread, int] | None = None
        """The loop's own thread and where it sleeps, while it is borrowed."""
        self.turns_a_round = _TURNS_A_ROUND
        self._turns: deque[tuple[TurnOwner, LentTurn]] = deque()
        self._seat: list[tuple[TurnOwner, LentTurn]] = []
        """The turn that is being run, if one is; taken out by its thread or by the watch."""
        self._seat_thread: threading.Thread | None = None
        self._turn_number = 0
        self._last: list[Callable[[], object]] = []
        """What is to run once the turns of this round are over."""
        self._outward: dict[asyncio.AbstractEventLoop, list[Callable[[], object]]] = {}
        """What is to run on other loops, gathered until this round of callbacks is over."""
        self._promise: Callable[[], object] | None = None
        """What somebody is about to borrow the loop for."""
        self._promise_number = 0
        self._is_watched = False
        self._watch_wanted: threading.Event | None = None
        self._ended = threading.Event()
        self._move_lock = threading.Lock()

    # --- other loops ----------------------------------------------------------------------------------------

    def wake_other(self, loop: asyncio.AbstractEventLoop, callback: Callable[[], object]) -> None:
        """Run `callback` on another loop soon; from any thread.

        From this loop's own thread all that a round of callbacks has for a loop goes there with one wake-up, when the
        round is over: each wake-up is a system call, and lets the other thread have the interpreter before it has all
        that it could work on.

        Raises:
            RuntimeError: That loop is closed.
        """
        if threading.get_ident() != self._thread_id or self._stopping:
            loop.call_soon_threadsafe(callback)
            return
        callbacks = self._outward.get(loop)
        if callbacks is not None:
            callbacks.append(callback)
            return
        if loop.is_closed():
            raise RuntimeError("Event loop is closed")
        self._outward[loop] = [callback]

    def _wake_others(self) -> None:
        outward, self._outward = self._outward, {}
        borrower = self._borrower
        for loop, callbacks in outward.items():
            try:
                if loop is borrower:
                    self._for_borrower.extend(callbacks)
                else:
                    loop.call_soon_threadsafe(_run_each, callbacks)
            except RuntimeError:
                if not loop.is_closed():
                    raise
                # Closed since then: nobody is there for whom these could matter.

    # --- lent turns -----------------------------------------------------------------------------------------

    def lend(self, owner: TurnOwner, turn: LentTurn) -> bool:
        """Let the loop's thread run a turn soon; on the loop. Gives whether it will."""
        if self._move is None or self._closed:
            return False
        self._turns.append((owner, turn))
        if not self._is_watched:
            self._begin_watching()
        return True

    def stop_lending(self) -> None:
        """Run no more turns, and give those back that wait; on the loop."""
        self._move = None
        self._ended.set()
        turns, self._turns = self._turns, deque()
        for owner, turn in turns:
            owner.lent_back(turn)
        if self._watch_wanted is not None:
            self._watch_wanted.set()

    def call_after_turns(self, callback: Callable[[], object]) -> None:
        """Run a callback once the turns that wait now are over, or have had their share of the time; on the loop."""
        self._last.append(callback)

    @property
    def has_turns(self) -> bool:
        """Whether turns wait; on the loop."""
        return bool(self._turns)

    def has_nothing_else(self) -> bool:
        """Whether nobody would notice if whatever runs now took a moment; asked by it, on the loop."""
        if self._ready or self._turns or self._last or self._outward or self._stopping:
            return False
        return not (self._borrowers_ready or self._for_borrower)

    def _run_last(self) -> None:
        callbacks, self._last = self._last, []
        _run_each(callbacks)

    def _run_turns(self) -> None:
        turns, seat, is_borrowed = self._turns, self._seat, self._borrower is not None
        hooks = sys.get_asyncgen_hooks()
        for _ in range(min(len(turns), self.turns_a_round)):
            if is_borrowed and (not turns[0][0].is_borrowable or monotonic() >= self._borrowed_until):
                break
            owner, turn = turns.popleft()
            self._turn_number += 1
            seat.append((owner, turn))
            try:
                turn.run()
            except BaseException as error:  # noqa: BLE001 - the loop must live, and the owner is told
                owner.lent_failed(turn, error)
            finally:
                # Not empty unless the watch has been quicker, which must hold for whatever happened above.
                try:
                    seat.pop()
                except IndexError:
                    self._be_late(owner, turn)
            owner.lent_done(turn)
        if sys.get_asyncgen_hooks() != hooks:
            sys.set_asyncgen_hooks(*hooks)

    def _be_late(self, owner: TurnOwner, turn: LentTurn) -> None:
        with self._move_lock:
            pass  # Whoever held it, the watch, has told the owner by now.
        try:
            owner.lent_late(turn)
        finally:
            raise LoopMoved

    def _begin_watching(self) -> None:
        self._is_watched = True
        if self._watch_wanted is None:
            self._watch_wanted = threading.Event()
            threading.Thread(target=self._watch, args=(self._watch_wanted,), name="clew-watch", daemon=True).start()
        self._watch_wanted.set()

    def _watch(self, wanted: threading.Event) -> None:
        while True:
            wanted.wait()
            wanted.clear()
            if self._move is None:
                return
            try:
                self._look_until_idle()
            except Exception:  # noqa: BLE001 - logged
                # Whoever lends next starts anew; a loop that is never rescued would be worse than a look too many.
                self._is_watched = False
                _log.exception("service.watch_failed")

    def _look_until_idle(self) -> None:
        seen_number, seen_number_idle, idle_count = -1, self._turn_number, 0
        seen_promise = -1
        while self._move is not None:
            self._ended.wait(WATCH_SECONDS)
            promise = self._promise
            if promise is not None and self._promise_number == seen_promise:
                self._promise = None
                self.call_soon_threadsafe(promise)
            seen_promise = self._promise_number if promise is not None else -1
            number = self._turn_number
            if self._seat and number == seen_number:
                self._rescue()
            seen_number = number if self._seat else -1
            idle_count = idle_count + 1 if number == seen_number_idle and not self._seat else 0
            seen_number_idle = number
            if idle_count >= _IDLE_LOOKS:
                self._is_watched = False
                if not self._turns and not self._seat and self._promise is None:
                    return
                self._is_watched, idle_count = True, 0

    def _rescue(self) -> None:
        """The turn at hand takes too long: it keeps its thread, and the loop gets another."""
        with self._move_lock:
            move, thread = self._move, self._seat_thread
            if move is None or thread is None:
                return
            try:
                owner, turn = self._seat.pop()
            except IndexError:
                return
            owner.lent_moved(turn, thread)
            if self._home is not None:
                self._take_home(self._home)
                self.call_soon_threadsafe(_nothing)
                return
            self._thread_id = None
            self._rounds.release()
            move()

    # --- running --------------------------------------------------------------------------------------------

    def run_forever(self) -> None:
        """Run until `stop`.

        Raises:
            LoopMoved: The loop has left this thread and goes on in another.
        """
        self._check_closed()
        self._check_running()
        hooks = sys.get_asyncgen_hooks()
        thread_id = self._thread_id = threading.get_ident()
        self._seat_thread = threading.current_thread()
        # A list of its own: a late turn on a thread that the loop has left must find its seat empty, whatever turn is
        # being run here by then.
        self._seat = []
        self._rounds.acquire()
        sys.set_asyncgen_hooks(firstiter=self._asyncgen_firstiter_hook, finalizer=self._asyncgen_finalizer_hook)
        asyncio_events._set_running_loop(self)
        try:
            self._run_until_stopped()
        finally:
            asyncio_events._set_running_loop(None)
            sys.set_asyncgen_hooks(*hooks)
            if self._thread_id == thread_id:  # else the loop runs in another thread by now
                self._stopping = False
                self._thread_id = None
                self._rounds.release()

    def _run_until_stopped(self) -> None:
        while True:
            if self._outward:  # left behind on the thread that this loop has come from
                self._wake_others()
            self._wait()
            self._run_round()
            if self._stopping:
                break

    def _run_round(self) -> None:
        ready, pop, is_borrowed = self._ready, self._ready.popleft, self._borrower is not None
        for _ in _CALLBACKS_A_ROUND:
            if not ready or (is_borrowed and monotonic() >= self._borrowed_until):
                break
            entry = pop()
            if entry._cancelled:
                continue
            try:
                entry._context.run(entry._callback, *entry._args)  # type: ignore[attr-defined]
            except (KeyboardInterrupt, SystemExit):
                raise
            except BaseException as error:
                if is_borrowed and not isinstance(error, (Exception, asyncio.CancelledError)):
                    raise  # Meant for the program whose thread this is, as what ends a test is.
                self._tell(entry, error)
            # Let go of it before the loop sleeps: it may hold the last run.
            entry = None  # type: ignore[assignment]
        if self._outward:
            self._wake_others()
        if self._turns:
            self._run_turns()
        if self._last:
            self._run_last()
        if self._outward:
            self._wake_others()

    # --- borrowing ------------------------------------------------------------------------------------------

    @property
    def is_asleep(self) -> bool:
        """Whether the loop sleeps where another thread could borrow it; from any thread."""
        return self._sleep_state != _AWAKE

    def borrow(self, borrower: asyncio.AbstractEventLoop, first: Callable[[], object]) -> bool | None:
        """Run `first` and what comes of it on the calling thread, if the loop sleeps; for some milliseconds.

        Args:
            borrower: The loop that runs on the calling thread, in a callback of it and outside its tasks.
            first: Should come to an end in time, as `has_borrowed_long` says.

        Returns:
            Whether there is more to do, for which nobody has been woken; None if nothing was done.

        Raises:
            KeyboardInterrupt, SystemExit: Came while something of the loop was under way, and broke it off.
        """
        if self._sleep_state == _AWAKE or not self._rounds.acquire(blocking=False):
            return None
        state = self._sleep_state
        if state == _AWAKE or self._closed or self._stopping or self._thread_id is None or self._seat_thread is None:
            self._rounds.release()
            return None
        home = self._home = (self._thread_id, self._seat_thread, state)
        outward = self._for_borrower = []
        self._borrower, self._borrowers_ready = borrower, getattr(borrower, "_ready", ())
        self._sleep_state = _AWAKE
        self._thread_id, self._seat_thread = threading.get_ident(), threading.current_thread()
        hooks = sys.get_asyncgen_hooks()
        sys.set_asyncgen_hooks(firstiter=self._asyncgen_firstiter_hook, finalizer=self._asyncgen_finalizer_hook)
        asyncio_events._set_running_loop(self)
        is_here, is_more = True, False
        try:
            self._borrowed_until = until = monotonic() + _BORROWED_SECONDS_MAX
            first()
            while True:
                self._run_round()
                turns = self._turns
                if not (turns[0][0].is_borrowable if turns else self._ready or self._last) or self._stopping:
                    break
                if monotonic() >= until:
                    break
        except LoopMoved:
            is_here = False
        finally:
            asyncio_events._set_running_loop(borrower)
            sys.set_asyncgen_hooks(*hooks)
            if is_here:
                is_more = self._take_home(home)
        if outward:
            _run_each(outward)
        return is_more

    def promise(self, first: Callable[[], object]) -> None:
        """Say that the calling thread is about to borrow the loop; if it does not, the watch has `first` run here."""
        self._promise_number += 1
        self._promise = first
        if not self._is_watched:
            self._begin_watching()

    def end_promise(self) -> None:
        """It has come to it, or somebody else has done it."""
        self._promise = None

    def has_borrowed_long(self) -> bool:
        """Whether what runs now on a borrowed thread should leave the rest to the loop's own."""
        return self._borrower is not None and monotonic() >= self._borrowed_until

    def _take_home(self, home: tuple[int, threading.Thread, int]) -> bool:
        """Leave the loop to its own thread again, on that of the borrower; gives whether that could do more."""
        self._thread_id, self._seat_thread, self._sleep_state = home
        self._home = self._borrower = None
        self._borrowers_ready, self._for_borrower = (), []
        # Whoever borrowed it may be late, and must find its own seat empty.
        self._seat = []
        timers, poller = self._timers, self._poller
        is_wanted = bool(
            self._outward
            or self._stopping
            or (timers and timers[0][0] < self._sleep_until)
            or (poller is not None and poller.found is not None)
            # On the lock it hears of no descriptor that has come meanwhile.
            or (home[2] == _ON_LOCK and len(self._watched) > 1 and (poller is None or not poller.is_waiting))
            or (self._turns and not self._turns[0][0].is_borrowable)
        )
        is_more = bool(self._ready or self._turns or self._last)
        self._rounds.release()
        if is_wanted:
            self._wake_up()
        return is_more and not is_wanted

    def _tell(self, entry: asyncio.Handle, error: BaseException) -> None:
        self.call_exception_handler(
            {"message": f"Exception in callback {entry!r}", "exception": error, "handle": entry}
        )

    def _wait(self) -> None:
        """Queue what is due; with nothing to do, sleep until there is."""
        timers, ready = self._timers, self._ready
        timeout = _SLEEP_SECONDS_MAX
        while timers:
            when, _, timer = timers[0]
            if timer._cancelled:
                self._stale_timers_count -= 1
            elif when <= (now := monotonic()):
                timer._scheduled = False  # type: ignore[attr-defined]
                ready.append(timer)
            else:
                timeout = when - now
                break
            heapq.heappop(timers)
        poller = self._poller
        if poller is not None and poller.found is not None:
            self._quiet_count = 0
            # Its descriptor may have been closed since, and its number be that of another by now.
            self._process_events([(key, mask) for key, mask in poller.take() if self._watched.get(key.fd) is key])
        is_busy = bool(ready or self._turns or self._last or self._stopping)
        if len(self._watched) > 1 and (poller is None or not poller.is_waiting):
            if is_busy and self._has_looked:
                # What it has to do makes more to do, as a rule: it looks at descriptors every other time.
                self._has_looked = False
                return
            self._has_looked = True
            if self._quiet_count < _QUIET_SLEEPS or not self._can_poll_elsewhere:
                self._select(0 if is_busy else timeout)
                return
            if not is_busy:
                if poller is None:
                    poller = self._poller = _Poller(self._selector, self._wake_up)
                poller.wait()
        if is_busy:
            return
        self._sleep_until = timers[0][0] if timers else math.inf
        self._sleep_state = _ON_LOCK
        self._rounds.release()
        # Looked at once more: what came before the state was set has woken nobody.
        if not ready and (poller is None or poller.found is None):
            self._sleep_lock.acquire(True, min(timeout, _SLEEP_SECONDS_MAX))
        self._rounds.acquire()
        self._sleep_state = _AWAKE

    def _select(self, timeout: float) -> None:
        """Wait in the selector, and queue what it tells."""
        is_sleep = timeout != 0
        if is_sleep:
            self._sleep_until = self._timers[0][0] if self._timers else math.inf
            self._sleep_state = _IN_SELECTOR
            self._rounds.release()
        # Looked at once more: what came before the state was set has woken nobody.
        if self._ready:
            timeout = 0
        epoll = self._epoll
        if epoll is None:
            try:
                found = self._selector.select(min(timeout, _SLEEP_SECONDS_MAX))
            finally:
                if is_sleep:
                    self._rounds.acquire()
                    self._sleep_state = _AWAKE
            if is_sleep:
                found = [(key, mask) for key, mask in found if self._watched.get(key.fd) is key]
            self._quiet_count += timeout > 0
            if any(key.fd != self._ssock.fileno() for key, _ in found):
                self._quiet_count = 0
            self._process_events(found)
            return
        # To the millisecond above, as epoll counts: a timer that is not due yet would make the loop go round.
        try:
            told = epoll.poll(math.ceil(min(timeout, _SLEEP_SECONDS_MAX) * 1e3) * 1e-3, len(self._watched))
        finally:
            if is_sleep:
                self._rounds.acquire()
                self._sleep_state = _AWAKE
        if timeout:
            self._quiet_count += 1
        for descriptor, events in told:
            if descriptor == self._wake_descriptor:
                self._read_from_self()
            else:
                self._quiet_count = 0
                self._queue_event(self._watched.get(descriptor), events)

    def _queue_event(self, key: selectors.SelectorKey | None, events: int) -> None:
        """Queue the callbacks of a descriptor that epoll tells of."""
        if key is None:
            return
        reader, writer = key.data
        if events & ~select.EPOLLOUT and reader is not None:
            if reader._cancelled:
                self._remove_reader(key.fileobj)
            else:
                self._ready.append(reader)
        if events & ~select.EPOLLIN and writer is not None:
            if writer._cancelled:
                self._remove_writer(key.fileobj)
            else:
                self._ready.append(writer)

    def _read_from_self(self) -> None:
        """Take what woke the loop in its selector: seldom more than a byte; what is left wakes it again."""
        try:
            self._ssock.recv(_WAKE_BYTES)
        except (BlockingIOError, InterruptedError):
            """Somebody else has taken it."""

    def _wake_up(self) -> None:
        """Let the loop look at what there is; from any thread."""
        state = self._sleep_state
        if state == _ON_LOCK:
            self._sleep_state = _AWAKE
            try:
                self._sleep_lock.release()
            except RuntimeError:
                """Somebody else woke it at the same moment."""
        elif state == _IN_SELECTOR:
            self._write_to_self()

    # --- what is asked of a loop ----------------------------------------------------------------------------

    def time(self) -> float:
        """The loop's clock."""
        return monotonic()

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        """Run a callback in the next round; on the loop."""
        if self._closed:
            self._check_closed()
        entry = _Entry(callback, args, self, context)
        self._ready.append(entry)
        return entry

    def call_soon_threadsafe(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        """Run a callback in the next round; from any thread."""
        if self._closed:
            self._check_closed()
        entry = _Entry(callback, args, self, context)
        self._ready.append(entry)
        if self._sleep_state != _AWAKE:
            self._wake_up()
        return entry

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """Run a callback at a time of the loop's clock; on the loop."""
        if self._closed:
            self._check_closed()
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        heapq.heappush(self._timers, (when, next(self._timer_numbers), timer))
        timer._scheduled = True  # type: ignore[attr-defined]
        return timer

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """Run a callback after so many seconds; on the loop."""
        return self.call_at(monotonic() + delay, callback, *args, context=context)

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        if not handle._scheduled:  # type: ignore[attr-defined]
            return
        self._stale_timers_count += 1
        if self._stale_timers_count > max(_STALE_TIMERS_MIN, len(self._timers) // 2):
            # The one that is being cancelled does not say so yet; it is found at its time.
            self._timers = [entry for entry in self._timers if not entry[2]._cancelled]
            heapq.heapify(self._timers)
            self._stale_timers_count = 1

    def close(self) -> None:
        """Close the loop; it must not run."""
        if self._poller is not None and not self._closed:
            self._poller.end(self._write_to_self)
        super().close()
        self._timers.clear()


@final
class _Poller:
    """A thread that waits in the selector while the loop sleeps on its lock.

    Args:
        selector: Of the loop.
        wake: Wakes the loop.
    """

    def __init__(self, selector: selectors.BaseSelector, wake: Callable[[], None]) -> None:
        self._selector = selector
        self._wake = wake
        self._wanted = threading.Event()
        self._is_over = False
        self.is_waiting = False
        """Whether the selector is the poller's; set by the loop, which is the only one to ask."""
        self.found: list[tuple[selectors.SelectorKey, int]] | None = None
        """What the selector told; the poller waits no more until that is taken, and it is asked again."""
        self._thread = threading.Thread(target=self._poll, name="clew-poller", daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Wait once; on the loop."""
        self.is_waiting = True
        self._wanted.set()

    def take(self) -> list[tuple[selectors.SelectorKey, int]]:
        """Give what was found, and the selector back; on the loop."""
        found, self.found = self.found, None
        self.is_waiting = False
        assert found is not None, "taken only when there is something"
        return found

    def end(self, interrupt: Callable[[], None]) -> None:
        """End the thread; `interrupt` makes the selector tell something."""
        self._is_over = True
        self._wanted.set()
        interrupt()
        self._thread.join(_POLLER_END_SECONDS)

    def _poll(self) -> None:
        while True:
            self._wanted.wait()
            self._wanted.clear()
            if self._is_over:
                return
            try:
                found = self._selector.select()
            except Exception:  # noqa: BLE001 - the loop, which waits there next, meets the same and tells it
                _log.exception("service.poller_failed")
                found = []
            self.found = found
            self._wake()
