"""The event loop that workflow code runs on: asyncio without a clock, without I/O, the same every time.

Owns: the ready queue, virtual time, the tasks of a run, and what of asyncio is refused. Never: waits, reads a clock,
touches a socket, thread or process; knows events or commands (timers go to a `TimerPort`).

How it works: asyncio's own tasks and futures ask their loop for little more than `call_soon`, so a loop is a queue of
callbacks. The machine fills it by applying one event, then runs it until it is empty (`run_until_idle`): then every
coroutine of the run waits for something that only a later event can bring. `call_later` is a durable timer. One rule
for durations: zero or less is a mere turn of the loop, more is a timer of at least 1 ms.

* Tasks are held strongly until they end, in the order of their creation.
* One task can be *held back* (`hold`): its steps are put aside until `release`. The machine does so with `run`, which
  must not overtake signals that came with the same workflow task.
* Asynchronous generators are never finalised by the collector: one that is left half-way stays so (unless it is
  closed by its own user, as `contextlib.aclosing` does), on the first run and on every replay alike.
"""

from __future__ import annotations

import asyncio
import contextvars
import gc
import math
import sys
from asyncio import events as asyncio_events
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from datetime import UTC, datetime
from typing import Any, Final, NoReturn, Protocol, TypeVar, cast, final

import msgspec

from clew.exceptions import RestrictedWorkflowAccessError
from clew.model.limits import DURATION_MAX
from clew.replay.commands import call_site

T = TypeVar("T")

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_set_running_loop: Final = asyncio_events._set_running_loop

TIMER_SECONDS_MIN: Final = 0.001
"""Shorter timers are made this long, as the published SDKs do (semantics 1.4)."""

ORDER_ATTRIBUTE: Final = "clew_order"
"""Where a task of a workflow keeps its number in the order of creation."""

_GENERATORS_KEPT_FIRST: Final = 64
"""So many asynchronous generators are kept before finished ones are looked for."""


class TimerPort(Protocol):
    """Where the loop's timers become commands."""

    def start_timer(self, timer: Timer, seconds: float) -> None:
        """Make `timer` run after `seconds` of durable time."""
        ...

    def cancel_timer(self, timer: Timer) -> None:
        """Take `timer` back."""
        ...


class Entry(msgspec.Struct, eq=False):
    """One callback in the queue; stands in for `asyncio.Handle`."""

    callback: Callable[..., object]
    args: tuple[Any, ...]
    context: contextvars.Context
    is_cancelled: bool = False

    def cancel(self) -> None:
        """Take it back."""
        self.is_cancelled = True

    def cancelled(self) -> bool:
        """Whether it was taken back."""
        return self.is_cancelled

    def get_context(self) -> contextvars.Context:
        """The context it runs in."""
        return self.context


@final
class Timer(Entry, eq=False, kw_only=True):
    """A callback that waits for durable time; stands in for `asyncio.TimerHandle`."""

    port: TimerPort
    due_seconds: float
    summary: str | None = None
    pending: Any = None
    """The command that stands for it, while it runs."""

    def when(self) -> float:
        """The loop time at which it is due."""
        return self.due_seconds

    def cancel(self) -> None:
        """Take it back; the durable timer is cancelled."""
        if not self.is_cancelled:
            self.is_cancelled = True
            if self.pending is not None:
                self.port.cancel_timer(self)


class WorkflowLoop(asyncio.AbstractEventLoop):
    """The loop of one run.

    Args:
        runtime: What ``clew.workflow`` finds by this loop.
        timers: Where timers go.
        on_error: Told of errors that no task carries on, in asyncio's form.
        check_writable: Raises where nothing may be changed; called with what is about to happen.
    """

    def __init__(
        self,
        runtime: object,
        timers: TimerPort,
        on_error: Callable[[dict[str, Any]], None],
        check_writable: Callable[[str], None],
    ) -> None:
        self.clew_runtime = runtime
        self._timers = timers
        self._on_error = on_error
        self._check_writable = check_writable
        self.ready: deque[Entry] = deque()
        self.held_task: asyncio.Task[Any] | None = None
        """The task that is held back now."""
        self._held: list[Entry] = []
        self._task_count = 0
        self._generators: list[AsyncGenerator[Any, Any]] = []
        self._generators_kept = _GENERATORS_KEPT_FIRST
        self.tasks: dict[asyncio.Task[Any], int] = {}
        """The tasks that have not ended, in the order of creation."""
        self.moment = EPOCH
        """Virtual time: that of the workflow task at hand."""
        self.is_dead = False
        """Whether the run has left the cache; then nothing runs and nothing is told."""
        self.is_replaying = True
        self.context = contextvars.Context()
        """What handlers and the run itself start with: empty, and never a thread's own."""

    # --- running -------------------------------------------------------------------------------------------

    def run_until_idle(self) -> bool:
        """Run callbacks until there is none; say whether there was any. The loop must be entered."""
        ready = self.ready
        if not ready:
            return False
        held = self.held_task
        while ready:
            entry = ready.popleft()
            if entry.is_cancelled:
                continue
            if held is not None and getattr(entry.callback, "__self__", None) is held:
                self._held.append(entry)
                continue
            try:
                entry.context.run(entry.callback, *entry.args)
            except (KeyboardInterrupt, SystemExit):
                raise
            except BaseException as error:  # noqa: BLE001 (a loop outlives its callbacks; the handler is told)
                self.call_exception_handler(
                    {"message": f"Exception in callback {entry.callback!r}", "exception": error}
                )
        return True

    def enter(self) -> tuple[Any, Any]:
        """Make this the running loop of the thread; give what `leave` needs."""
        outer, hooks = asyncio._get_running_loop(), None
        _set_running_loop(self)
        if sys.get_asyncgen_hooks()[0] is not _keep_generator:
            hooks = sys.get_asyncgen_hooks()
            sys.set_asyncgen_hooks(_keep_generator, _leave_generator)
            if getattr(outer, "restores_generator_hooks", False):
                # It does so itself, once for many activations: each change of the hooks costs two audit events.
                hooks = None
        return outer, hooks

    def leave(self, before: tuple[Any, Any]) -> None:
        """Give the thread back its former running loop."""
        outer, hooks = before
        if hooks is not None:
            sys.set_asyncgen_hooks(*hooks)
        _set_running_loop(outer)

    def hold(self, task: asyncio.Task[Any]) -> None:
        """Put the steps of `task` aside until `release`."""
        self.held_task = task

    def release(self) -> None:
        """Let the task that was held back go on, with what it missed."""
        self.held_task = None
        self.ready.extend(self._held)
        self._held.clear()

    # --- what asyncio asks for -----------------------------------------------------------------------------

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> Entry:
        """Run a callback in this activation."""
        entry = Entry(callback, args, contextvars.copy_context() if context is None else context)
        self.ready.append(entry)
        return entry

    def resume(self, entry: Entry) -> None:
        """Run what waited for an event."""
        self.ready.append(entry)

    def call_later(  # type: ignore[override]
        self,
        delay: float,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
        summary: str | None = None,
    ) -> Entry:
        """Run a callback after durable time."""
        if delay <= 0:
            return self.call_soon(callback, *args, context=context)
        seconds = max(round(checked_seconds(delay), 6), TIMER_SECONDS_MIN)
        own = contextvars.copy_context() if context is None else context
        timer = Timer(
            callback, args, own, port=self._timers, due_seconds=self.moment.timestamp() + seconds, summary=summary
        )
        self._timers.start_timer(timer, seconds)
        return timer

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> Entry:
        """Run a callback at a loop time."""
        return self.call_later(when - self.moment.timestamp(), callback, *args, context=context)

    def time(self) -> float:
        """Virtual time in seconds since the epoch."""
        return self.moment.timestamp()

    def create_future(self) -> asyncio.Future[Any]:
        """Make a future of this loop."""
        return asyncio.Future(loop=self)

    def create_task(
        self,
        coro: Coroutine[Any, Any, T] | Generator[Any, None, T],
        *,
        name: str | None = None,
        context: contextvars.Context | None = None,
        **options: Any,
    ) -> asyncio.Task[T]:
        """Make a task, which the loop holds until it ends."""
        try:
            self._check_writable("start a task")
        except Exception:
            coro.close()  # It never runs, and that is told by the error alone.
            raise
        number = self._task_count + 1
        task: asyncio.Task[T] = asyncio.Task(
            cast("Coroutine[Any, Any, T]", coro), loop=self, name=name or f"task-{number}", context=context, **options
        )
        self.adopt(task)
        return task

    def adopt(self, task: asyncio.Task[Any]) -> None:
        """Hold a task that was made for this loop."""
        self._task_count = number = self._task_count + 1
        setattr(task, ORDER_ATTRIBUTE, number)
        self.tasks[task] = number
        task._log_destroy_pending = False  # type: ignore[attr-defined]
        task.add_done_callback(self._forget, context=self.context)

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self.tasks.pop(task, None)
        if self.is_replaying and not task.cancelled():
            # What it died of was told when it happened for the first time.
            cast(Any, task)._log_traceback = False

    def set_task_factory(self, factory: Any) -> None:
        """Refused: tasks of workflows are all of one kind."""
        _refuse("a task factory", "Leave tasks as they are.")

    def get_task_factory(self) -> None:
        """None: there is no factory."""

    def get_exception_handler(self) -> None:
        """None: errors are logged with the run."""

    def set_exception_handler(self, handler: Any) -> None:
        """Refused: errors that nobody awaits are logged with the run."""
        _refuse("an exception handler", "Await the task that may fail, or catch inside it.")

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        """Report an error that no task carries on."""
        self.call_exception_handler(context)

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Report an error that no task carries on; nothing once the run has left the cache."""
        if not self.is_dead:
            self._on_error(context)

    def get_debug(self) -> bool:
        """Always false: debugging would read clocks."""
        return False

    def set_debug(self, enabled: bool) -> None:
        """Without effect."""

    def is_running(self) -> bool:
        """Whether the run is in the cache."""
        return not self.is_dead

    def is_closed(self) -> bool:
        """Whether the run has left the cache."""
        return self.is_dead

    async def shutdown_asyncgens(self) -> None:
        """Without effect: asynchronous generators are left as they are."""

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:
        """Without effect: there is no executor."""

    # --- generators, death ---------------------------------------------------------------------------------

    def keep_generator(self, generator: AsyncGenerator[Any, Any]) -> None:
        """Hold an asynchronous generator of the run, which has been asked for its first value."""
        kept = self._generators
        kept.append(generator)
        if len(kept) > self._generators_kept:
            kept[:] = [g for g in kept if getattr(g, "ag_frame", None) is not None]
            self._generators_kept = max(_GENERATORS_KEPT_FIRST, 2 * len(kept))

    def clear(self) -> list[Any]:
        """Forget everything and give the roots of what was held, so that they can be laid to rest."""
        self.is_dead = True
        roots: list[Any] = [*self.tasks, *self._generators]
        if self.ready or self._held:
            for entry in (*self.ready, *self._held):
                roots += (entry.callback, entry.args)
        self.ready.clear()
        self._held.clear()
        self.held_task = None
        self.tasks.clear()
        self._generators.clear()
        return roots


def _keep_generator(generator: AsyncGenerator[Any, Any]) -> None:
    loop = asyncio._get_running_loop()
    if isinstance(loop, WorkflowLoop):
        loop.keep_generator(generator)


def _leave_generator(generator: AsyncGenerator[Any, Any]) -> None:
    """Called by the collector in place of the generator's own clean-up, which therefore never runs."""


def checked_seconds(seconds: float) -> float:
    """Give a duration back if a timer can have it.

    Raises:
        ValueError: It is over 100 years, infinite or not a number.
    """
    if math.isnan(seconds) or seconds > DURATION_MAX.total_seconds():
        raise ValueError(
            f"A timer of {seconds} s is over the longest possible one of {DURATION_MAX.days // 365} years. "
            "To wait for ever, wait for a condition or a future without a timeout."
        )
    return seconds


def _refuse(what: str, remedy: str) -> NoReturn:
    site = call_site()
    place = f"{site[0].co_filename}:{site[1]}" if site is not None else "an unknown line"
    raise RestrictedWorkflowAccessError(
        f"Workflow code used {what} of the event loop at {place}, which no replay can repeat. {remedy}",
        qualified_name=f"loop.{what}",
        source_line=place,
    )


_ACTIVITY: Final = "Do it in an activity: workflow.execute_activity(…)."
_AWAIT: Final = "The loop belongs to the engine: await, or create tasks."
_REFUSED: Final[dict[str, str]] = {
    "run_in_executor": _ACTIVITY,
    "set_default_executor": _ACTIVITY,
    "call_soon_threadsafe": "Workflow code has one thread; use call_soon, or send a signal from outside.",
    "run_forever": _AWAIT,
    "run_until_complete": _AWAIT,
    "stop": _AWAIT,
    "close": _AWAIT,
    "add_signal_handler": "To react to something from outside, use @workflow.signal.",
    "remove_signal_handler": "To react to something from outside, use @workflow.signal.",
    **dict.fromkeys(
        (
            "add_reader", "add_writer", "connect_accepted_socket", "connect_read_pipe", "connect_write_pipe",
            "create_connection", "create_datagram_endpoint", "create_server", "create_unix_connection",
            "create_unix_server", "getaddrinfo", "getnameinfo", "remove_reader", "remove_writer", "sendfile",
            "sock_accept", "sock_connect", "sock_recv", "sock_recv_into", "sock_recvfrom", "sock_recvfrom_into",
            "sock_sendall", "sock_sendfile", "sock_sendto", "start_tls", "subprocess_exec", "subprocess_shell",
        ),
        _ACTIVITY,
    ),
}  # fmt: skip
"""Methods of a loop that reach outside, and what to use instead."""


def _refused_method(name: str, remedy: str) -> Callable[..., NoReturn]:
    def method(self: WorkflowLoop, *args: Any, **options: Any) -> NoReturn:
        _refuse(name, remedy)

    method.__name__ = name
    method.__doc__ = f"Refused. {remedy}"
    return method


for _name, _remedy in _REFUSED.items():
    setattr(WorkflowLoop, _name, _refused_method(_name, _remedy))


_interrupted: WorkflowLoop | None = None
"""The loop whose activation a garbage collection interrupts, one at a time in a process."""


def _stand_aside(phase: str, info: dict[str, int]) -> None:
    """Let a collection find no workflow: a coroutine that another run has dropped in a cycle is closed by it, and what
    its ``finally`` asks for must not be taken for a command of the run that is active by chance."""
    global _interrupted
    if phase == "start":
        loop = asyncio._get_running_loop()
        if type(loop) is WorkflowLoop:
            _interrupted = loop
            _set_running_loop(None)
    elif _interrupted is not None:
        _set_running_loop(_interrupted)
        _interrupted = None


gc.callbacks.append(_stand_aside)
