"""Runs one activity function as a worker would, without a worker.

Owns: `ActivityEnvironment`. Never: retries, timeouts, an engine.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, Final, ParamSpec, TypeVar, final

from clew.activity import ActivityCancellationDetails, Info
from clew.activity._context import _CancellationDetailsHolder, _CompositeEvent, _Context
from clew.activity._definition import _Definition
from clew.client import Client
from clew.common import MetricMeter
from clew.converter import DataConverter, PayloadConverter
from clew.worker._thread_calls import ThreadCall

P = ParamSpec("P")
T = TypeVar("T")

_AN_INSTANT: Final = datetime(2026, 1, 1, tzinfo=UTC)

INFO_DEFAULT: Final = Info(
    activity_id="test",
    activity_type="unknown",
    attempt=1,
    idempotency_key="test-key",
    current_attempt_scheduled_time=_AN_INSTANT,
    namespace="default",
    schedule_to_close_timeout=timedelta(seconds=1),
    scheduled_time=_AN_INSTANT,
    start_to_close_timeout=timedelta(seconds=1),
    started_time=_AN_INSTANT,
    task_queue="test",
    task_token=b"test",
    workflow_id="test",
    workflow_run_id="test-run",
    workflow_type="test",
)
"""What `activity.info` says unless the test says otherwise (`dataclasses.replace`)."""


@final
class ActivityEnvironment:
    """Runs activity functions with a context; one environment may run several, one after another or at a time.

    Args:
        client: What `activity.client` gives.

    Attributes:
        info: What `activity.info` gives; replace it before `run`.
        on_heartbeat: Called with the details of each heartbeat, on the thread that sends it.
        payload_converter: What `activity.payload_converter` gives.
        metric_meter: What `activity.metric_meter` gives.
    """

    def __init__(self, client: Client | None = None) -> None:
        self.info: Info = INFO_DEFAULT
        self.on_heartbeat: Callable[..., None] = _ignore
        self.payload_converter: PayloadConverter = DataConverter.default.payload_converter
        self.metric_meter: MetricMeter = MetricMeter.noop
        self._client = client
        self._details = _CancellationDetailsHolder()
        self._is_cancelled = False
        self._is_shutting_down = False
        self._runs: set[_Run] = set()

    def cancel(self, cancellation_details: ActivityCancellationDetails | None = None) -> None:
        """Tell what runs, and what will run, to stop; from any thread.

        Args:
            cancellation_details: Why; by default that cancellation was requested.
        """
        self._is_cancelled = True
        self._details.details = cancellation_details or ActivityCancellationDetails(cancel_requested=True)
        for run in list(self._runs):
            run.cancel()

    def worker_shutdown(self) -> None:
        """Say that the worker has begun to stop; from any thread."""
        self._is_shutting_down = True
        for run in list(self._runs):
            run.set_shutdown()

    def run(self, fn: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a function as an activity.

        An async function gives an awaitable, which runs it in a task of its own. A plain one runs here and now, on this
        thread, in a copy of the context, and is interrupted by `cancel` with `CancelledError` unless its definition
        says ``no_thread_cancel_exception``.

        Args:
            fn: The function; it need not be decorated.
            *args: Its arguments.
            **kwargs: Its keyword arguments.
        """
        run = _Run(self, fn)
        self._runs.add(run)
        if self._is_cancelled:
            run.cancel()
        if self._is_shutting_down:
            run.set_shutdown()
        if inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(getattr(fn, "__call__", None)):  # noqa: B004
            return run.start_async(fn, args, kwargs)  # type: ignore[return-value]
        return run.call(fn, args, kwargs)  # type: ignore[no-any-return]


@final
class _Run:
    """One function that runs, and the two things it can be told."""

    def __init__(self, environment: ActivityEnvironment, fn: Callable[..., Any]) -> None:
        definition = _Definition.from_callable(fn)
        self._environment = environment
        self._cancelled, self._shutdown = threading.Event(), threading.Event()
        self._async_cancelled: asyncio.Event | None = None
        self._async_shutdown: asyncio.Event | None = None
        self._task: asyncio.Task[Any] | None = None
        self._call = ThreadCall()
        self._is_interruptible = definition is None or not definition.no_thread_cancel_exception

    def start_async(self, fn: Callable[..., Any], args: Any, kwargs: Any) -> asyncio.Task[Any]:
        self._async_cancelled, self._async_shutdown = asyncio.Event(), asyncio.Event()
        if self._cancelled.is_set():
            self._async_cancelled.set()
        if self._shutdown.is_set():
            self._async_shutdown.set()
        # Made by the runner's first step, so that the context is that of the task alone.
        self._task = asyncio.get_running_loop().create_task(self._run_async(fn, args, kwargs))
        if self._cancelled.is_set():
            self._task.get_loop().call_soon(self._task.cancel)
        return self._task

    async def _run_async(self, fn: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        try:
            with self._context().activate():
                return await fn(*args, **kwargs)
        finally:
            self._environment._runs.discard(self)

    def call(self, fn: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        def within() -> Any:
            self._context().set()
            if not self._is_interruptible:
                return fn(*args, **kwargs)
            return self._call.run(lambda: fn(*args, **kwargs), ())

        try:
            return contextvars.copy_context().run(within)
        finally:
            self._environment._runs.discard(self)

    def cancel(self) -> None:
        self._cancelled.set()
        if self._task is not None and self._async_cancelled is not None:
            self._on_loop(self._async_cancelled.set)
            self._on_loop(self._task.cancel)
        elif self._is_interruptible:
            self._call.interrupt()

    def set_shutdown(self) -> None:
        self._shutdown.set()
        if self._async_shutdown is not None:
            self._on_loop(self._async_shutdown.set)

    def _on_loop(self, function: Callable[[], Any]) -> None:
        assert self._task is not None, "only a run in a task has a loop"
        self._task.get_loop().call_soon_threadsafe(function)

    def _context(self) -> _Context:
        environment = self._environment
        return _Context(
            info=environment.info,
            heartbeat=environment.on_heartbeat,
            cancelled_event=_CompositeEvent(self._cancelled, self._async_cancelled),
            worker_shutdown_event=_CompositeEvent(self._shutdown, self._async_shutdown),
            cancellation_details=environment._details,
            payload_converter=environment.payload_converter,
            shield_thread_cancel_exception=None if self._async_cancelled is not None else self._call.shield,
            metric_meter=environment.metric_meter,
            client=environment._client,
        )


def _ignore(*details: Any) -> None:
    """Nobody asked for the heartbeats."""
