"""Plain functions on threads: the threads, and calls on them that cancellation can reach.

Owns: `CallThreads`, a pool of daemon threads, and `ThreadCall`, one call that may be interrupted.
Never: knows what an activity is.

How it works: cancellation is raised inside the thread with CPython's asynchronous exceptions, which take effect at the
next bytecode: a blocking call in C (such as `time.sleep`) ends first. A lock makes "the call is running" and "raise in
it" one thing, so that no exception can hit what the thread does next; a block may shield itself.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import queue
import threading
from collections.abc import Callable, Generator, Sequence
from typing import Any, Final, final

from clew.exceptions import CancelledError

_LOCK_SECONDS_MAX: Final = 0.1
"""The lock is held for some bytecodes; only an exception that struck just there can leave it locked."""

_numbers: Final = itertools.count(1)


@final
class CallThreads:
    """Daemon threads, made when needed, that call functions; unlike an executor's they never hold up the process's end.

    Args:
        threads_max: How many calls can run at a time.
    """

    def __init__(self, threads_max: int) -> None:
        self.threads_max = threads_max
        self._calls: queue.SimpleQueue[tuple[Callable[[Any], None], Any] | None] = queue.SimpleQueue()
        self._threads_count = 0
        self._calls_count = 0
        self._lock = threading.Lock()

    def submit(self, fn: Callable[[Any], None], arg: Any) -> None:
        """Call ``fn(arg)`` on a thread; it must keep its own errors."""
        with self._lock:
            self._calls_count += 1
            is_new = self._threads_count < min(self._calls_count, self.threads_max)
            self._threads_count += is_new
        self._calls.put((fn, arg))
        if is_new:
            threading.Thread(target=self._work, name=f"clew-activity-{next(_numbers)}", daemon=True).start()

    def close(self) -> None:
        """Let the threads end when they are free; waits for none."""
        self._calls.put(None)

    def _work(self) -> None:
        while True:
            call = self._calls.get()
            if call is None:
                # Left in the queue for the next thread.
                self._calls.put(None)
                return
            fn, arg = call
            fn(arg)
            del call, arg
            with self._lock:
                self._calls_count -= 1


@final
class ThreadCall:
    """One call on a thread, which `interrupt` can break."""

    __slots__ = ("_is_raised", "_is_running", "_is_wanted", "_lock", "_shields_count", "_thread_id")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._thread_id = 0
        self._is_running = False
        self._is_wanted = False
        self._is_raised = False
        self._shields_count = 0

    def run(self, fn: Callable[..., Any], args: Sequence[Any]) -> Any:
        """Call `fn` here.

        Raises:
            CancelledError: It was interrupted; besides what `fn` raises.
        """
        self._thread_id = threading.get_ident()
        with self._lock:
            self._is_running = True
            if self._is_wanted:
                self._is_running = False
                raise CancelledError
        try:
            return fn(*args)
        finally:
            with self._lock:
                self._is_running = False
                if self._is_raised:
                    # It may not have struck yet: then the call was done first.
                    _set_async_exception(self._thread_id, None)

    def interrupt(self) -> None:
        """Raise `CancelledError` inside the call, once; before it begins, instead of it; from any thread."""
        is_locked = self._lock.acquire(timeout=_LOCK_SECONDS_MAX)
        try:
            self._is_wanted = True
            self._raise_if_wanted()
        finally:
            if is_locked:
                self._lock.release()

    @contextlib.contextmanager
    def shield(self) -> Generator[None]:
        """Put off the interruption until the end of the block; on the thread of the call."""
        with self._lock:
            self._shields_count += 1
        try:
            yield
        finally:
            with self._lock:
                self._shields_count -= 1
                must_raise = self._is_wanted and not self._is_raised and self._shields_count == 0
                self._is_raised = self._is_raised or must_raise
            if must_raise:
                raise CancelledError

    def _raise_if_wanted(self) -> None:
        if self._is_running and not self._is_raised and self._shields_count == 0:
            self._is_raised = True
            _set_async_exception(self._thread_id, CancelledError)


def _set_async_exception(thread_id: int, exception: type[BaseException] | None) -> None:
    ctypes.pythonapi.PyThreadState_SetAsyncExc(
        ctypes.c_ulong(thread_id), ctypes.py_object(exception) if exception is not None else None
    )
