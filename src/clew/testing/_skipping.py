"""Skips the time in which nothing happens.

Owns: when a `SkippingClock` may jump, and how far. Never: moves time while anything runs.

How it works: time is skipped only while somebody waits for it: for the result of a run, or in
`WorkflowEnvironment.sleep`. Then the skipper looks, on the service loop and every millisecond of real time, whether the
store knows of any work: a workflow task or activity that is scheduled or running, a run that is due, a message under
way. If there is none, the next thing to happen is the earliest instant at which a run needs attention (a timer, a
timeout, a back-off), and it jumps there.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, Final, TypeVar, final

from clew.model.limits import Limits
from clew.ports.store import Store
from clew.service.connection import Connection
from clew.service.contract import Service
from clew.service.requests import GetHistoryRequest
from clew.testing._clocks import SkippingClock

T = TypeVar("T")

_LOOK_SECONDS: Final = 0.001
_FAR: Final = datetime(9999, 1, 1, tzinfo=UTC)


@final
class TimeSkipper:
    """Moves one clock, for one engine."""

    def __init__(self, clock: SkippingClock, store: Store, connection: Connection) -> None:
        self._clock = clock
        self._store = store
        self._connection = connection
        self._lock = threading.Lock()
        self._waiting_count = 0
        self._disabled_count = 0
        self._task: asyncio.Task[None] | None = None
        self._is_over = False
        self._sleepers: list[tuple[datetime, asyncio.AbstractEventLoop, asyncio.Future[None]]] = []

    def begin_waiting(self) -> None:
        """Somebody waits for time to pass; from any thread."""
        with self._lock:
            self._waiting_count += 1
        self._connection.post(self._ensure_running)

    def end_waiting(self) -> None:
        """He waits no more."""
        with self._lock:
            self._waiting_count -= 1

    @contextmanager
    def disabled(self) -> Generator[None]:
        """Let time pass as it does in the world, whoever waits."""
        with self._lock:
            self._disabled_count += 1
        try:
            yield
        finally:
            with self._lock:
                self._disabled_count -= 1

    async def sleep_until(self, when: datetime) -> None:
        """Return once the clock shows `when`."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        with self._lock:
            self._sleepers.append((when, loop, future))
        self.begin_waiting()
        try:
            await future
        finally:
            self.end_waiting()

    async def end(self) -> None:
        """Look at the store no more; on the service loop."""
        self._is_over = True
        if self._task is not None:
            await self._task

    def _ensure_running(self) -> None:
        if not self._is_over and (self._task is None or self._task.done()):
            self._task = asyncio.get_running_loop().create_task(self._run(), name="clew-time-skipper")

    async def _run(self) -> None:
        while self._waiting_count > 0 and not self._is_over:
            if self._disabled_count == 0:
                await self._skip_if_idle()
            self._wake_sleepers()
            await asyncio.sleep(_LOOK_SECONDS)

    async def _skip_if_idle(self) -> None:
        if await self._store.find_busy_runs(None, 0, 1) or await self._store.read_outbox(None, 0, 1):
            return
        due = await self._store.find_due_runs(None, _FAR, 1)
        with self._lock:
            instants = [run.attention_at for run in due] + [when for when, _, _ in self._sleepers]
        # One that has passed is being attended to, and then there will be work.
        if instants and min(instants) > self._clock.now():
            self._clock.skip_to(min(instants))

    def _wake_sleepers(self) -> None:
        now = self._clock.now()
        with self._lock:
            woken = [sleeper for sleeper in self._sleepers if sleeper[0] <= now]
            self._sleepers = [sleeper for sleeper in self._sleepers if sleeper[0] > now]
        for _, loop, future in woken:
            if not loop.is_closed():
                loop.call_soon_threadsafe(_resolve, future)


@final
class SkippingConnection:
    """A connection that lets time be skipped while its users wait for results."""

    def __init__(self, inner: Connection, skipper: TimeSkipper) -> None:
        self._inner = inner
        self._skipper = skipper
        self.service: Service = inner.service
        self.service_loop = inner.service_loop
        self.limits: Limits = inner.limits
        self.address = inner.address

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called."""
        return self._inner.is_closed

    def call(self, method: Callable[[Any], Awaitable[T]], request: Any) -> asyncio.Future[T]:
        """As `Connection.call`."""
        future = self._inner.call(method, request)
        if isinstance(request, GetHistoryRequest) and request.wait_new_event and request.close_event_only:
            self._skipper.begin_waiting()
            future.add_done_callback(lambda _: self._skipper.end_waiting())
        return future

    def post(self, callback: Callable[[], None]) -> None:
        """As `Connection.post`."""
        self._inner.post(callback)

    def post_last(self, callback: Callable[[], None]) -> None:
        """As `Connection.post_last`."""
        self._inner.post_last(callback)

    def now_ns(self) -> int:
        """The skipping clock's time, nanoseconds since the epoch."""
        return self._inner.now_ns()

    async def close(self) -> None:
        """As `Connection.close`."""
        if not self._inner.is_closed:
            # The store must not be closed while the skipper looks at it.
            await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._skipper.end(), self.service_loop))
        await self._inner.close()


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
