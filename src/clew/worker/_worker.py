"""The worker: what a user starts so that workflows and activities run.

Owns: `Worker`, its settings, and the order in which its parts start and stop.
Never: runs a task itself.

How it works: `Worker.run` is called on the user's loop, where async activities will run. The rest lives on the service
loop of the client's connection (``_parts``), so that a blocked user loop starves neither heartbeats nor workflow
tasks. A bug in any part, or the end of the connection, ends `run` with its error: a worker is never registered but
idle.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import logging
import signal
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from datetime import timedelta
from types import TracebackType
from typing import Any, Final, Self, TypeVar, final

from clew.adapters import new_request_id
from clew.common import MetricMeter
from clew.worker import _settings as settings
from clew.worker._interceptor import Interceptor
from clew.worker._parts import Parts, PartsOptions
from clew.worker._plugin import Plugin, WorkerConfig, merge_plugins, run_through
from clew.worker._settings import WorkerDeploymentConfig

T = TypeVar("T")

GRACEFUL_SHUTDOWN_TIMEOUT_DEFAULT: Final = timedelta(seconds=10)
"""Enough for the activities of most deploys, and well below the 30 s after which orchestrators kill a process."""

SLOTS_DEFAULT: Final = 100
"""Of each kind, as published (semantics of worker tuning)."""

WATCH_SECONDS: Final = 1.0
SERVICE_SILENT_SECONDS_MAX: Final = 30.0
"""The service loop is called dead when it has not answered for so long; a busy one answers within milliseconds."""

_log: Final = logging.getLogger("clew.worker")


@final
class Worker:
    """Runs workflows and activities of one task queue.

    Use it as an async context manager, or await `run`. A worker runs once.

    Args:
        client: The client whose connection, namespace and data converter are used.
        task_queue: The queue to serve.
        activities: Functions decorated with ``@activity.defn``.
        workflows: Classes decorated with ``@workflow.defn``.
        activity_executor: Where plain (not async) activities run: a thread pool or a process pool. By default the
            worker has threads of its own, one for each activity slot.
        interceptors: Wrapped around activities and workflows; those of the client that are also worker interceptors
            come first.
        build_id: Names the version of the code; `deployment_config` says it better.
        identity: Names this worker to people; by default that of the client.
        max_cached_workflows: Runs kept in memory between their tasks; 0 replays each task from the start of its
            history.
        max_concurrent_workflow_tasks: Workflow tasks at a time.
        max_concurrent_activities: Activities at a time. Where the executor has fewer threads, no more plain activities
            than that are taken.
        max_concurrent_local_activities: Local activities at a time.
        sticky_queue_schedule_to_start_timeout: How long a task waits for the worker that has its run cached.
        max_heartbeat_throttle_interval: Longest time between two heartbeats that are sent.
        default_heartbeat_throttle_interval: The same where an activity has no heartbeat timeout.
        max_activities_per_second: Rate at which this worker takes activities; None means no limit.
        graceful_shutdown_timeout: How long running activities may go on when the worker stops; what then still runs is
            cancelled with the reason "worker shutdown" and tried again elsewhere if its retry policy allows. Default
            10 s (the published default of 0 would lose activities with one attempt on each deploy).
        workflow_failure_exception_types: Exceptions that fail the run, for every workflow of this worker, where others
            fail the workflow task.
        blocked_thread_timeout: How long workflow code may hold its thread without awaiting; its task then fails with
            the stack. None means any time. Default 2 s.
        debug_mode: Allow any time (for a debugger).
        on_fatal_error: Awaited with the error that ends the worker.
        deployment_config: The version of the code, for routing by version.
        no_remote_activities: Serve no activities from the queue, but for local ones of its own workflows.
        plugins: Bundles of settings, applied in order to what is given here, after those of the client.
        metric_meter: Where activity and workflow code records (`activity.metric_meter`, `workflow.metric_meter`), and
            the worker what it does, such as ``clew.contrib.opentelemetry.OpenTelemetryMeter``; nowhere when not given.

    The following are accepted, for programs written for the published API, and have no effect, since nothing here is
    polled, pooled or sandboxed: `workflow_task_executor`, `workflow_runner`, `unsandboxed_workflow_runner`,
    `shared_state_manager`, `max_concurrent_workflow_task_polls`, `max_concurrent_activity_task_polls`,
    `nonsticky_to_sticky_poll_ratio`, `disable_eager_activity_execution`, `disable_safe_workflow_eviction`.

    Raises:
        ValueError: An argument makes no sense; the message names it.
        TypeError: Something is not an activity, or not of the type expected.
    """

    def __init__(
        self,
        client: settings.ClientLike,
        *,
        task_queue: str,
        activities: Sequence[Callable[..., Any]] = (),
        workflows: Sequence[type[Any]] = (),
        activity_executor: concurrent.futures.Executor | None = None,
        workflow_task_executor: concurrent.futures.Executor | None = None,
        workflow_runner: Any = None,
        unsandboxed_workflow_runner: Any = None,
        interceptors: Sequence[Interceptor] = (),
        build_id: str | None = None,
        identity: str | None = None,
        max_cached_workflows: int = 1_000,
        max_concurrent_workflow_tasks: int | None = None,
        max_concurrent_activities: int | None = None,
        max_concurrent_local_activities: int | None = None,
        max_concurrent_workflow_task_polls: int | None = None,
        nonsticky_to_sticky_poll_ratio: float = 0.2,
        max_concurrent_activity_task_polls: int | None = None,
        no_remote_activities: bool = False,
        sticky_queue_schedule_to_start_timeout: timedelta = timedelta(seconds=10),
        max_heartbeat_throttle_interval: timedelta = timedelta(seconds=60),
        default_heartbeat_throttle_interval: timedelta = timedelta(seconds=30),
        max_activities_per_second: float | None = None,
        graceful_shutdown_timeout: timedelta = GRACEFUL_SHUTDOWN_TIMEOUT_DEFAULT,
        workflow_failure_exception_types: Sequence[type[BaseException]] = (),
        shared_state_manager: Any = None,
        blocked_thread_timeout: timedelta | None = timedelta(seconds=2),
        debug_mode: bool = False,
        disable_eager_activity_execution: bool = False,
        on_fatal_error: Callable[[BaseException], Awaitable[None]] | None = None,
        deployment_config: WorkerDeploymentConfig | None = None,
        disable_safe_workflow_eviction: bool = False,
        plugins: Sequence[Plugin] = (),
        metric_meter: MetricMeter | None = None,
    ) -> None:
        del workflow_task_executor, workflow_runner, unsandboxed_workflow_runner, shared_state_manager
        del max_concurrent_workflow_task_polls, max_concurrent_activity_task_polls, nonsticky_to_sticky_poll_ratio
        del disable_eager_activity_execution, disable_safe_workflow_eviction
        self._plugins = merge_plugins(client, plugins)
        config: WorkerConfig = {
            "client": client,
            "task_queue": task_queue,
            "activities": activities,
            "workflows": workflows,
            "activity_executor": activity_executor,
            "interceptors": interceptors,
            "build_id": build_id,
            "identity": identity,
            "max_cached_workflows": max_cached_workflows,
            "max_concurrent_workflow_tasks": max_concurrent_workflow_tasks,
            "max_concurrent_activities": max_concurrent_activities,
            "max_concurrent_local_activities": max_concurrent_local_activities,
            "max_activities_per_second": max_activities_per_second,
            "graceful_shutdown_timeout": graceful_shutdown_timeout,
            "workflow_failure_exception_types": workflow_failure_exception_types,
            "debug_mode": debug_mode,
            "deployment_config": deployment_config,
        }
        for plugin in self._plugins:
            config = plugin.configure_worker(config)
        settings.check_names(config)
        self._client = client = config["client"]
        self._task_queue = config["task_queue"]
        self._on_fatal_error = on_fatal_error
        self._options = PartsOptions(
            task_queue=self._task_queue,
            identity=config["identity"] or client.identity,
            instance_id=new_request_id(),
            activities=settings.read_activities(config["activities"]),
            takes_remote_activities=not no_remote_activities,
            workflows=settings.read_workflows(config["workflows"]),
            activity_executor=config["activity_executor"],
            interceptors=_merge_interceptors(client, config["interceptors"]),
            cached_workflows_max=config["max_cached_workflows"],
            workflow_tasks_max=_or_default(config["max_concurrent_workflow_tasks"]),
            activities_max=_or_default(config["max_concurrent_activities"]),
            local_activities_max=_or_default(config["max_concurrent_local_activities"]),
            activities_per_second_max=config["max_activities_per_second"],
            sticky_schedule_to_start_timeout=sticky_queue_schedule_to_start_timeout,
            heartbeat_interval_max=max_heartbeat_throttle_interval,
            heartbeat_interval_default=default_heartbeat_throttle_interval,
            graceful_shutdown_timeout=config["graceful_shutdown_timeout"],
            blocked_thread_timeout=None if config["debug_mode"] else blocked_thread_timeout,
            failure_exception_types=tuple(config["workflow_failure_exception_types"]),
            deployment=config["deployment_config"] or WorkerDeploymentConfig.of_build_id(config["build_id"]),
            metric_meter=_meter(metric_meter, client.namespace, self._task_queue),
        )
        self._options.check()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._parts: Parts | None = None
        self._stop_wanted = asyncio.Event()
        self._stopped = asyncio.Event()
        self._started = asyncio.Event()
        self._is_stop_requested = False
        self._failure: BaseException | None = None
        self._run_task: asyncio.Task[None] | None = None

    @property
    def task_queue(self) -> str:
        """The queue that is served."""
        return self._task_queue

    @property
    def client(self) -> settings.ClientLike:
        """The client whose connection is used."""
        return self._client

    @property
    def identity(self) -> str:
        """Names this worker to people."""
        return self._options.identity

    @property
    def is_running(self) -> bool:
        """Whether it has started and not stopped."""
        return self._loop is not None and not self._stopped.is_set()

    @property
    def is_shutdown(self) -> bool:
        """Whether it was told to stop, or has stopped."""
        return self._stop_wanted.is_set() or self._stopped.is_set()

    async def run(self) -> None:
        """Serve the queue until `shutdown`, or until this call is cancelled; either way running activities may finish.

        Raises:
            RuntimeError: It runs or ran already, or its connection was closed.
            RPCError: The engine refuses this worker.
            Exception: A bug in a part of the worker; it cannot go on.
        """
        await run_through(self._plugins, Worker._run)(self)

    async def _run(self) -> None:
        if self._loop is not None:
            raise RuntimeError("This worker runs already, or has run. Make a new Worker to run again.")
        self._loop = asyncio.get_running_loop()
        parts = self._parts = Parts(self._client, self._options, self._fail)
        watch = self._loop.create_task(self._watch_connection())
        try:
            await self._on_service_loop(parts.start())
            self._started.set()
            await self._stop_wanted.wait()
        finally:
            watch.cancel()
            await self._stop(parts)
        if self._failure is not None:
            raise self._failure

    async def run_until_signal(self, *signals: signal.Signals) -> None:
        """`run`, and shut down when one of these signals arrives; a second one cuts the grace time short.

        Args:
            *signals: By default SIGINT and SIGTERM. Only in the main thread of a process.
        """
        loop = asyncio.get_running_loop()
        chosen = signals or (signal.SIGINT, signal.SIGTERM)
        for number in chosen:
            loop.add_signal_handler(number, self._request_stop)
        try:
            await self.run()
        finally:
            for number in chosen:
                loop.remove_signal_handler(number)

    async def shutdown(self) -> None:
        """Stop: take no more tasks, let running activities finish within the grace time, cancel the rest.

        A call while the worker is stopping already cuts the grace time short. Returns when it has stopped; at once if
        it never ran.
        """
        self._request_stop()
        if self._loop is not None:
            await self._stopped.wait()

    async def __aenter__(self) -> Self:
        """Start; returns when the engine knows the worker."""
        if self._loop is not None:
            raise RuntimeError("This worker runs already, or has run. Make a new Worker to run again.")
        self._run_task = asyncio.get_running_loop().create_task(self.run(), name=f"clew-worker:{self._task_queue}")
        caller = asyncio.current_task()
        started = asyncio.get_running_loop().create_task(self._started.wait())
        await asyncio.wait((self._run_task, started), return_when=asyncio.FIRST_COMPLETED)
        started.cancel()
        if self._run_task.done():
            await self._run_task
        if caller is not None:
            # A worker that fails ends the block that relies on it, rather than leaving it waiting for ever.
            self._run_task.add_done_callback(lambda task: self._on_early_end(task, caller))
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Shut down, and wait for it.

        Raises:
            Exception: What ended the worker, if it failed.
        """
        assert self._run_task is not None, "the block was entered"
        self._request_stop()
        if isinstance(error, asyncio.CancelledError) and self._failure is not None:
            task = asyncio.current_task()
            if task is not None:
                task.uncancel()
        await self._run_task

    # --- starting, stopping, failing ------------------------------------------------------------------------

    def _on_early_end(self, task: asyncio.Task[None], caller: asyncio.Task[Any]) -> None:
        if not task.cancelled() and task.exception() is not None and not self._is_stop_requested:
            caller.cancel()

    def _request_stop(self) -> None:
        if self._is_stop_requested and self._parts is not None:
            self._client.connection.post(self._parts.shorten)
        self._is_stop_requested = True
        self._stop_wanted.set()

    def _fail(self, error: BaseException) -> None:
        """A part cannot go on; from any thread."""
        loop = self._loop
        assert loop is not None, "parts exist only while the worker runs"

        def note() -> None:
            if self._failure is None:
                _log.critical("worker.failed task_queue=%s", self._task_queue, exc_info=error)
                self._failure = error
                self._stop_wanted.set()

        # A closed loop has nobody left to tell.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(note)

    async def _stop(self, parts: Parts) -> None:
        stopping = asyncio.get_running_loop().create_task(self._stop_parts(parts))
        cancelled: asyncio.CancelledError | None = None
        while not stopping.done():
            try:
                await asyncio.shield(stopping)
            except asyncio.CancelledError as error:
                if cancelled is not None:
                    self._client.connection.post(parts.shorten)
                cancelled = error
        self._stopped.set()
        if cancelled is not None:
            raise cancelled

    async def _stop_parts(self, parts: Parts) -> None:
        limit = self._options.graceful_shutdown_timeout.total_seconds() + parts.stop_seconds_max
        try:
            await asyncio.wait_for(self._on_service_loop(parts.stop()), limit)
        except (TimeoutError, RuntimeError) as error:
            _log.error("worker.stop_incomplete task_queue=%s: no answer from the engine (%s)", self._task_queue, error)
        except Exception as error:  # noqa: BLE001 - told by `run`, after the worker has stopped
            self._failure = self._failure or error
        finally:
            parts.end_user_side()
        if self._failure is not None and self._on_fatal_error is not None:
            await self._on_fatal_error(self._failure)

    async def _on_service_loop(self, work: Coroutine[Any, Any, T]) -> T:
        connection = self._client.connection
        if connection.is_closed:
            work.close()
            raise RuntimeError(_closed(self._task_queue))
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, connection.service_loop))

    async def _watch_connection(self) -> None:
        """Notice a connection that was closed, or a service loop that is dead: nothing would ever come from it."""
        connection = self._client.connection
        loop = asyncio.get_running_loop()
        answered_at = loop.time()
        is_asked = False

        def answer() -> None:
            nonlocal answered_at, is_asked
            answered_at, is_asked = loop.time(), False

        while True:
            await asyncio.sleep(WATCH_SECONDS)
            if connection.is_closed:
                self._fail(RuntimeError(_closed(self._task_queue)))
                return
            if not is_asked:
                is_asked = True
                answered_at = loop.time()
                connection.post(lambda: _post_back(loop, answer))
            elif loop.time() - answered_at > SERVICE_SILENT_SECONDS_MAX:
                self._fail(RuntimeError(f"The service loop of worker {self._task_queue!r} does not answer any more."))
                return


def _post_back(loop: asyncio.AbstractEventLoop, answer: Callable[[], None]) -> None:
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(answer)


def _closed(task_queue: str) -> str:
    return (
        f"The connection of worker {task_queue!r} was closed while it was needed. "
        "Shut workers down before you close their client."
    )


def _merge_interceptors(client: settings.ClientLike, own: Sequence[Interceptor]) -> list[Interceptor]:
    from_client = [found for found in client.interceptors if isinstance(found, Interceptor)]
    return [*from_client, *(one for one in own if one not in from_client)]


def _or_default(count: int | None) -> int:
    return SLOTS_DEFAULT if count is None else count


def _meter(meter: MetricMeter | None, namespace: str, task_queue: str) -> MetricMeter:
    if meter is None:
        return MetricMeter.noop
    return meter.with_additional_attributes({"namespace": namespace, "task_queue": task_queue})
