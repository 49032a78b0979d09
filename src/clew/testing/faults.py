"""Faults on demand, around a store or the service contract.

Owns: `Faults` and what it can do to a call. Never: hooks in production code; faults enter by wrapping a port.

How it works: ``faults.wrap(store)`` gives an object with the same methods. A call first looks for the oldest fault that
was armed for its method and is not used up: the call is refused, delayed, done without its answer arriving, or held
until released. Faults may be armed from any thread, while the wrapped object is in use.

::

    faults = Faults()
    store = faults.wrap(await open_store("claims.db"))
    faults.fail("commit_if_current", StoreUnavailable("database is locked"), times=3)
    faults.lose_answer("commit_if_current", StoreUnavailable("connection lost"), after=10)
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, cast, final

T = TypeVar("T")


@final
class Hold:
    """Calls that wait until `release`."""

    def __init__(self) -> None:
        self._released = threading.Event()
        self._waiters: list[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = []
        self._lock = threading.Lock()
        self.held_count = 0
        """How many calls have arrived at it so far."""

    def release(self) -> None:
        """Let the held calls go on, and all later ones pass."""
        with self._lock:
            self._released.set()
            waiters, self._waiters = self._waiters, []
        for loop, future in waiters:
            loop.call_soon_threadsafe(_wake, future)

    async def wait(self) -> None:
        """Wait for `release`."""
        with self._lock:
            self.held_count += 1
            if self._released.is_set():
                return
            loop = asyncio.get_running_loop()
            future: asyncio.Future[None] = loop.create_future()
            self._waiters.append((loop, future))
        await future


@final
class _Fault:
    """One armed fault; `skip` calls pass first, then it takes `left` calls (None: all)."""

    def __init__(
        self,
        *,
        skip: int,
        left: int | None,
        error: Exception | None = None,
        is_done_first: bool = False,
        delay_seconds: float = 0.0,
        hold: Hold | None = None,
        action: Callable[[], None] | None = None,
    ) -> None:
        self.skip = skip
        self.left = left
        self.error = error
        self.is_done_first = is_done_first
        self.delay_seconds = delay_seconds
        self.hold = hold
        self.action = action

    def take(self) -> bool:
        """Whether this call is one of its calls."""
        if self.skip > 0:
            self.skip -= 1
            return False
        if self.left is None:
            return True
        if self.left == 0:
            return False
        self.left -= 1
        return True


@final
class Faults:
    """What is to go wrong, and how often each method was called (`calls`)."""

    def __init__(self) -> None:
        self._armed: dict[str, list[_Fault]] = {}
        self._lock = threading.Lock()
        self.calls: Counter[str] = Counter()

    def wrap(self, target: T) -> T:
        """An object with the same methods as `target`, subject to these faults."""
        return cast(T, _Wrapped(target, self))

    def fail(self, method: str, error: Exception, *, times: int | None = 1, after: int = 0) -> None:
        """Refuse calls with `error`, and do nothing of what they ask.

        Args:
            method: Name of the wrapped object's method.
            error: What is raised.
            times: How many calls; None for all until `clear`.
            after: How many calls pass first.
        """
        self._arm(method, _Fault(skip=after, left=times, error=error))

    def lose_answer(self, method: str, error: Exception, *, times: int | None = 1, after: int = 0) -> None:
        """Do what calls ask, then raise `error` in place of the answer."""
        self._arm(method, _Fault(skip=after, left=times, error=error, is_done_first=True))

    def delay(self, method: str, seconds: float, *, times: int | None = 1, after: int = 0) -> None:
        """Begin calls only after `seconds` of real time."""
        self._arm(method, _Fault(skip=after, left=times, delay_seconds=seconds))

    def hold(self, method: str, *, times: int | None = None, after: int = 0) -> Hold:
        """Keep calls waiting until the hold is released."""
        hold = Hold()
        self._arm(method, _Fault(skip=after, left=times, hold=hold))
        return hold

    def run_after(self, method: str, action: Callable[[], None], *, times: int | None = 1, after: int = 0) -> None:
        """Call `action` once calls are done, before they are answered (to kill a process there, for instance)."""
        self._arm(method, _Fault(skip=after, left=times, is_done_first=True, action=action))

    def clear(self, method: str | None = None) -> None:
        """Disarm the faults of one method, or all."""
        with self._lock:
            faults = (
                self._armed.pop(method, []) if method is not None else [f for fs in self._armed.values() for f in fs]
            )
            if method is None:
                self._armed.clear()
        for fault in faults:
            if fault.hold is not None:
                fault.hold.release()

    def _arm(self, method: str, fault: _Fault) -> None:
        with self._lock:
            self._armed.setdefault(method, []).append(fault)

    def _take(self, method: str) -> _Fault | None:
        with self._lock:
            self.calls[method] += 1
            return next((fault for fault in self._armed.get(method, ()) if fault.take()), None)

    async def _call(self, fault: _Fault, function: Callable[..., Awaitable[Any]], args: Any, kwargs: Any) -> Any:
        if fault.hold is not None:
            await fault.hold.wait()
        if fault.delay_seconds:
            await asyncio.sleep(fault.delay_seconds)
        if fault.error is not None and not fault.is_done_first:
            raise fault.error
        answer = await function(*args, **kwargs)
        if fault.action is not None:
            fault.action()
        if fault.error is not None:
            raise fault.error
        return answer


@final
class _Wrapped:
    """Stands for the target; everything but calls of methods goes straight through."""

    def __init__(self, target: Any, faults: Faults) -> None:
        self._target = target
        self._faults = faults

    def __getattr__(self, name: str) -> Any:
        value: Any = getattr(self._target, name)
        if not inspect.isroutine(value) or name.startswith("_"):
            return value
        faults = self._faults

        def call(*args: Any, **kwargs: Any) -> Any:
            fault = faults._take(name)
            return value(*args, **kwargs) if fault is None else faults._call(fault, value, args, kwargs)

        call.__name__ = name
        return call


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
