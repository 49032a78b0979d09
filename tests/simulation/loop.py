"""The event loop of the simulation: virtual time, and an order that comes from a seed.

Owns: `SimLoop`, and `Lane`, which stands for one process of the simulated world. Never: knows what runs in a lane.

How it works: every callback belongs to the lane of the context it was scheduled from. Within a lane callbacks run in
the order in which they were scheduled, as asyncio promises; between lanes chance decides, since processes have no
common order. Time stands still while anything can run, and then jumps to the next timer. A lane can be killed (nothing
of it ever runs again, not even a ``finally``) or frozen for a while (everything of it runs later, as in a paused
process). Each step goes into a running hash, so that two runs can be compared bit by bit.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import hashlib
import heapq
import itertools
import random
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from typing import Any, Final, TypeVar

T = TypeVar("T")

STEPS_AT_ONE_INSTANT_MAX: Final = 100_000
"""More callbacks than this without time passing is a spin, not work."""

STEPS_MAX: Final = 300_000
"""The same for a whole simulation, of which the longest take a tenth of that."""


class Spin(AssertionError):
    """Something schedules itself again and again without waiting for anything."""


class Lane:
    """One process of the simulated world."""

    __slots__ = ("context", "frozen_until", "is_dead", "is_listed", "name", "ready", "tasks")

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_dead = False
        self.is_listed = False
        self.frozen_until = 0.0
        self.ready: deque[SimHandle] = deque()
        self.tasks: list[asyncio.Task[Any]] = []
        """Kept to the end of the simulation: a task that is collected runs its ``finally`` blocks."""
        self.context = contextvars.copy_context()
        self.context.run(LANE.set, self)


LANE: contextvars.ContextVar[Lane] = contextvars.ContextVar("simulation_lane")


class SimHandle:
    """A scheduled callback; plays the part of ``asyncio.Handle`` and ``asyncio.TimerHandle``."""

    __slots__ = ("_args", "_callback", "_cancelled", "_context", "_when", "lane")

    def __init__(self, callback: Callable[..., object], args: Any, context: contextvars.Context, when: float) -> None:
        self._callback: Callable[..., object] | None = callback
        self._args = args
        self._context = context
        self._when = when
        self._cancelled = False
        self.lane: Lane = context[LANE]

    def cancel(self) -> None:
        self._cancelled = True
        self._callback = self._args = None

    def cancelled(self) -> bool:
        return self._cancelled

    def when(self) -> float:
        return self._when


class SimLoop(asyncio.AbstractEventLoop):
    """See the module docstring.

    Args:
        chance: Decides the order between lanes and between timers of one instant.
    """

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._now = 0.0
        self._timers: list[tuple[float, int, int, SimHandle]] = []
        self._count = itertools.count()
        self._listed: list[Lane] = []
        self._lanes: list[Lane] = []
        self._closed = False
        self._at_instant = 0
        self._hash = hashlib.blake2b(digest_size=16)
        self.steps = 0
        self.errors: list[dict[str, Any]] = []
        self.log: list[str] | None = None
        """Notes in full, when somebody wants to read them."""
        self.root = self.lane("root")

    # --- lanes ------------------------------------------------------------------------------------------------------

    def lane(self, name: str) -> Lane:
        """A new process."""
        lane = Lane(name)
        self._lanes.append(lane)
        return lane

    def kill(self, lane: Lane) -> None:
        """The process ends here, in the middle of whatever it did."""
        lane.is_dead = True
        lane.ready.clear()
        self.note(f"kill {lane.name}")

    def freeze(self, lane: Lane, seconds: float) -> None:
        """The process stands still for so long, and then goes on as if nothing had been."""
        lane.frozen_until = max(lane.frozen_until, self._now + seconds)
        self.note(f"freeze {lane.name} {seconds:.3f}")
        self._push_timer(lane.frozen_until, self._nothing, (), self.root.context.copy())

    def spawn(self, lane: Lane, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Begin a coroutine in a lane."""
        return lane.context.copy().run(self.create_task, work)

    def post(self, lane: Lane, delay: float, callback: Callable[..., object], *args: Any) -> None:
        """Run a callback in a lane, after a delay."""
        context = lane.context.copy()
        if delay <= 0:
            self.call_soon(callback, *args, context=context)
        else:
            self.call_later(delay, callback, *args, context=context)

    def note(self, text: str) -> None:
        """Put something that happened into the trace."""
        line = f"{self._now:.6f} {text}"
        self._hash.update(line.encode())
        if self.log is not None:
            self.log.append(line)

    def digest(self) -> str:
        """The hash of everything so far."""
        return self._hash.hexdigest()

    def held(self) -> tuple[int, int]:
        """How many coroutines live in processes that live, and how many timers are armed there."""
        lanes = [lane for lane in self._lanes if not lane.is_dead and lane is not self.root]
        coroutines = sum(not task.done() for lane in lanes for task in lane.tasks)
        armed = (handle for *_, handle in self._timers if handle._callback is not None)
        return coroutines, sum(not handle.lane.is_dead and handle.lane is not self.root for handle in armed)

    # --- running ----------------------------------------------------------------------------------------------------

    def run(self, until: Callable[[], bool], *, seconds_max: float) -> bool:
        """Run until the condition holds, nothing is left, or time has come so far; whether the condition holds."""
        before = asyncio._get_running_loop()
        asyncio._set_running_loop(self)
        end = self._now + seconds_max
        try:
            while not until():
                if not self._step() and not self._advance(end):
                    return until()
            return True
        finally:
            asyncio._set_running_loop(before)

    def shut(self) -> None:
        """The end: whatever is left never runs.

        Coroutines are closed here, on this loop, which takes nothing any more: left to the collector they would run
        their ``finally`` blocks on whichever loop is running then.
        """
        self._closed = True
        self._timers.clear()
        self._listed.clear()
        before = asyncio._get_running_loop()
        asyncio._set_running_loop(self)
        try:
            for lane in self._lanes:
                lane.is_dead = True
                lane.ready.clear()
                while lane.tasks:
                    lane.context.run(_end_task, lane.tasks.pop())
        finally:
            asyncio._set_running_loop(before)

    def _step(self) -> bool:
        listed = self._listed
        while listed:
            index = self._chance.randrange(len(listed)) if len(listed) > 1 else 0
            lane = listed[index]
            if not lane.ready or lane.is_dead or lane.frozen_until > self._now:
                listed[index] = listed[-1]
                listed.pop()
                lane.is_listed = False
                continue
            handle = lane.ready.popleft()
            if handle._callback is None:
                continue
            self.steps += 1
            self._at_instant += 1
            if self._at_instant > STEPS_AT_ONE_INSTANT_MAX or self.steps > STEPS_MAX:
                raise Spin(f"{self._at_instant} callbacks at {self._now:.3f} s, {self.steps} in all")
            self._hash.update(lane.name.encode())
            try:
                handle._context.run(handle._callback, *handle._args)
            except (KeyboardInterrupt, SystemExit):
                raise
            except BaseException as error:  # noqa: BLE001 - as asyncio does
                self.call_exception_handler({"message": f"error in {handle._callback!r}", "exception": error})
            return True
        return False

    def _advance(self, end: float) -> bool:
        timers = self._timers
        while timers and timers[0][3]._callback is None:
            heapq.heappop(timers)
        if not timers or timers[0][0] > end:
            self._now = max(self._now, min(end, timers[0][0])) if timers else self._now
            return False
        if timers[0][0] > self._now:
            self._now = timers[0][0]
            self._at_instant = 0
            self._thaw()
        while timers and timers[0][0] <= self._now:
            handle = heapq.heappop(timers)[3]
            if handle._callback is not None:
                self._enqueue(handle)
        return True

    def _thaw(self) -> None:
        for lane in self._lanes:
            if lane.ready and not lane.is_listed and not lane.is_dead and lane.frozen_until <= self._now:
                lane.is_listed = True
                self._listed.append(lane)

    def _enqueue(self, handle: SimHandle) -> None:
        lane = handle.lane
        if lane.is_dead:
            return
        lane.ready.append(handle)
        if not lane.is_listed and lane.frozen_until <= self._now:
            lane.is_listed = True
            self._listed.append(lane)

    def _push_timer(
        self, when: float, callback: Callable[..., object], args: Any, context: contextvars.Context
    ) -> SimHandle:
        handle = SimHandle(callback, args, context, when)
        # asyncio promises no order between timers of one instant.
        heapq.heappush(self._timers, (when, self._chance.getrandbits(16), next(self._count), handle))
        return handle

    def _nothing(self) -> None:
        """A time at which to look whether a lane has thawed."""

    # --- what asyncio asks for --------------------------------------------------------------------------------------

    def time(self) -> float:
        return self._now

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> SimHandle:
        handle = SimHandle(callback, args, context or contextvars.copy_context(), self._now)
        if not self._closed:
            self._enqueue(handle)
        return handle

    call_soon_threadsafe = call_soon  # type: ignore[assignment]

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> SimHandle:
        return self.call_at(self._now + max(delay, 0.0), callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> SimHandle:
        return self._push_timer(when, callback, args, context or contextvars.copy_context())

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(  # type: ignore[override]
        self, coro: Coroutine[Any, Any, T] | Generator[Any, None, T], **options: Any
    ) -> asyncio.Task[T]:
        options.setdefault("name", "sim")
        task: asyncio.Task[T] = asyncio.Task(coro, loop=self, **options)  # type: ignore[arg-type]
        context = options.get("context")
        lane = LANE.get() if context is None else context[LANE]
        lane.tasks.append(task)
        if len(lane.tasks) > 256:
            lane.tasks[:] = [kept for kept in lane.tasks if not kept.done()]
        return task

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return not self._closed

    def is_closed(self) -> bool:
        return self._closed

    def get_task_factory(self) -> None:
        return None

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if self._closed or "never retrieved" in str(context.get("message")):
            return  # When the collector finds a future is no part of what happens.
        self.errors.append(context)
        self.note(f"error {context.get('message')} {context.get('exception')!r}")

    default_exception_handler = call_exception_handler

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Callable[..., T], *args: Any
    ) -> asyncio.Future[T]:
        """There are no threads: the function runs here and now."""
        future: asyncio.Future[T] = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:  # noqa: BLE001 - told to the caller
            future.set_exception(error)
        return future


def _end_task(task: asyncio.Task[Any]) -> None:
    task._log_destroy_pending = False  # type: ignore[attr-defined]
    if not task.done():
        with contextlib.suppress(Exception, asyncio.CancelledError):
            task.get_coro().close()  # type: ignore[union-attr]
