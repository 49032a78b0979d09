"""What an activity knows of its surroundings while it runs.

Owns: `Info`, the context a worker fills in, and how the current one is found.
Never: heartbeating, threads or processes themselves; the worker hands in what does it.

How it works: the worker makes one `_Context` an attempt and activates it (`_Context.activate`) where the function runs:
in the task of an async activity, in the thread of a plain one, in the child process of a process activity. There the
two events and the heartbeat must be such as work across the process border; the context asks no more of them than the
Protocols below.
"""

from __future__ import annotations

import contextlib
import contextvars
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final, Protocol, final

from clew.common import MetricMeter, Priority, RetryPolicy
from clew.converter import PayloadConverter


@dataclass(frozen=True, kw_only=True)
class Info:
    """What is known of the running attempt of an activity.

    Instants are aware UTC; a timeout that is not set is None.
    """

    activity_id: str
    activity_type: str
    attempt: int
    """1 for the first."""
    idempotency_key: str
    """The same for every attempt at the same intention; pass it to whatever the activity calls."""
    current_attempt_scheduled_time: datetime
    heartbeat_details: Sequence[Any] = ()
    """What the last heartbeat of an earlier attempt said."""
    heartbeat_timeout: timedelta | None = None
    is_local: bool = False
    namespace: str
    schedule_to_close_timeout: timedelta | None = None
    scheduled_time: datetime
    start_to_close_timeout: timedelta | None = None
    started_time: datetime
    task_queue: str
    task_token: bytes
    """Names this attempt to `Client.get_async_activity_handle`."""
    workflow_id: str
    workflow_run_id: str
    workflow_type: str
    priority: Priority = field(default_factory=Priority)
    retry_policy: RetryPolicy | None = None

    @property
    def workflow_namespace(self) -> str:
        """Namespace of the workflow, which is that of the activity."""
        return self.namespace

    def logger_details(self) -> dict[str, Any]:
        """What log lines of this attempt say about it."""
        return {
            "activity_id": self.activity_id,
            "activity_type": self.activity_type,
            "attempt": self.attempt,
            "namespace": self.namespace,
            "task_queue": self.task_queue,
            "workflow_id": self.workflow_id,
            "workflow_run_id": self.workflow_run_id,
            "workflow_type": self.workflow_type,
        }


@dataclass(frozen=True, kw_only=True)
class ActivityCancellationDetails:
    """Why an attempt was told to stop; more than one may hold."""

    not_found: bool = False
    """The run or this attempt is no longer there."""
    cancel_requested: bool = False
    paused: bool = False
    timed_out: bool = False
    reset: bool = False
    worker_shutdown: bool = False


class ThreadEvent(Protocol):
    """The part of `threading.Event` that is needed; `multiprocessing` events have it too."""

    def is_set(self) -> bool: ...
    def wait(self, timeout: float | None = None) -> bool: ...


class AsyncEvent(Protocol):
    """The part of `asyncio.Event` that is needed."""

    async def wait(self) -> Any: ...


@dataclass(frozen=True)
class _CompositeEvent:
    """One happening that async code and threads can both wait for. The worker sets both.

    Args:
        thread_event: Always there.
        async_event: None in threads and processes, where nothing can be awaited.
    """

    thread_event: ThreadEvent
    async_event: AsyncEvent | None = None

    def is_set(self) -> bool:
        return self.thread_event.is_set()

    async def wait(self) -> None:
        if self.async_event is None:
            raise RuntimeError("Only async activities can await this; in a thread or process use the …_sync function.")
        await self.async_event.wait()

    def wait_sync(self, timeout: float | None) -> None:
        self.thread_event.wait(timeout)


class _CancellationDetailsHolder:
    """Where the worker writes why an attempt is to stop, before it sets the cancelled event."""

    __slots__ = ("details",)

    def __init__(self, details: ActivityCancellationDetails | None = None) -> None:
        self.details = details


@dataclass(kw_only=True)
class _Context:
    """What the worker gives one attempt.

    Args:
        info: About the attempt; a function where it is made on demand.
        heartbeat: Takes the details of a heartbeat; must not block.
        cancelled_event: Set when the attempt is to stop.
        worker_shutdown_event: Set when the worker begins to stop.
        cancellation_details: Why the attempt is to stop.
        payload_converter: Of the worker's data converter.
        shield_thread_cancel_exception: Makes the block during which no cancellation is raised in this thread; None
            where none ever is.
        metric_meter: With the attributes of the attempt.
        client: Of the worker; None in threads and processes.
    """

    info: Info | Callable[[], Info]
    heartbeat: Callable[..., None]
    cancelled_event: _CompositeEvent
    worker_shutdown_event: _CompositeEvent
    cancellation_details: _CancellationDetailsHolder
    payload_converter: PayloadConverter
    shield_thread_cancel_exception: Callable[[], AbstractContextManager[None]] | None = None
    metric_meter: MetricMeter = MetricMeter.noop
    client: Any | None = None

    def get_info(self) -> Info:
        """Give the info, made once."""
        if not isinstance(self.info, Info):
            self.info = self.info()
        return self.info

    @contextlib.contextmanager
    def activate(self) -> Generator[None]:
        """Be the current context inside the block."""
        token = _current.set(self)
        try:
            yield
        finally:
            _current.reset(token)

    def set(self) -> None:
        """Be the current context of this task or thread from now on."""
        _current.set(self)

    @staticmethod
    def current() -> _Context:
        """Give the context of the running activity.

        Raises:
            RuntimeError: No activity is running here.
        """
        context = _current.get(None)
        if isinstance(context, _LateContext):
            return context.get()
        if context is None:
            raise RuntimeError(
                "Not in an activity. Call this from the function of an activity (or what it calls), in its own task or "
                "thread; threads that you start yourself need contextvars.copy_context().run."
            )
        return context


@final
class _LateContext:
    """A context that is made when the activity asks for something; most never do.

    Args:
        make: Makes it.
    """

    __slots__ = ("_made", "_make")

    def __init__(self, make: Callable[[], _Context]) -> None:
        self._make = make
        self._made: _Context | None = None

    def get(self) -> _Context:
        """Give the context, always the same."""
        if self._made is None:
            with _making:
                if self._made is None:
                    self._made = self._make()
        return self._made

    def set(self) -> None:
        """Be the current context of this task from now on."""
        _current.set(self)


_making: Final = threading.Lock()
"""An activity may ask from several threads at once."""

_current: Final[contextvars.ContextVar[_Context | _LateContext]] = contextvars.ContextVar("clew_activity")


def in_activity() -> bool:
    """Say whether the caller runs inside an activity."""
    return _current.get(None) is not None
