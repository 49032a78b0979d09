"""The parts of a running worker, and the order in which they start and stop.

Owns: which parts there are, wired to each other. Never: a task.

How it works: `start` and `stop` run on the service loop. Stopping goes in this order, each step bounded: no more tasks
are taken; running activities get the grace time (`shorten` ends it); what still runs is cancelled, and at last
reported and left; cached runs are evicted without a trace in their histories; the sessions end.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final, cast, final

from clew.activity import _Definition as ActivityDefinition
from clew.common import MetricMeter
from clew.model.policies import VersioningBehavior
from clew.service.requests import WorkerHello
from clew.service_loop import ServiceLoop
from clew.worker import _settings as settings
from clew.worker._activity_calls import ActivityCalls, Threads
from clew.worker._activity_tasks import ActivityTasks
from clew.worker._attempt import Attempt
from clew.worker._codecs import CodecWay
from clew.worker._heartbeats import HeartbeatSender
from clew.worker._inbox import Inbox
from clew.worker._interceptor import Interceptor
from clew.worker._local_activities import LocalActivities
from clew.worker._machines import Machines
from clew.worker._metrics import WorkerMetrics
from clew.worker._outcomes import Outcomes
from clew.worker._processes import ProcessCalls
from clew.worker._requests import measured
from clew.worker._sessions import EarlySink, Offer, Sink, plan_offers
from clew.worker._thread_calls import CallThreads
from clew.worker._workflow_tasks import WorkflowTasks
from clew.workflow._definition import Definition as WorkflowDefinition

DRAIN_SECONDS_MAX: Final = 1.0
"""For workflow tasks that are on their way when the worker stops; a blocked one is not waited for."""

CANCEL_SECONDS_MAX: Final = 1.0
"""For activities to end after they were cancelled by the worker's shutdown."""

LAST_REPORTS_SECONDS_MAX: Final = 0.5
EVICT_SECONDS_MAX: Final = 1.0

_log: Final = logging.getLogger("clew.worker")


@dataclass(frozen=True, kw_only=True)
class PartsOptions:
    """What `Worker` was told; see there."""

    task_queue: str
    identity: str
    instance_id: str
    activities: Mapping[str | None, ActivityDefinition]
    workflows: Mapping[str | None, WorkflowDefinition]
    takes_remote_activities: bool
    activity_executor: concurrent.futures.Executor | None
    interceptors: Sequence[Interceptor]
    cached_workflows_max: int
    workflow_tasks_max: int
    activities_max: int
    local_activities_max: int
    activities_per_second_max: float | None
    sticky_schedule_to_start_timeout: timedelta
    heartbeat_interval_max: timedelta
    heartbeat_interval_default: timedelta
    graceful_shutdown_timeout: timedelta
    blocked_thread_timeout: timedelta | None
    failure_exception_types: tuple[type[BaseException], ...]
    deployment: settings.WorkerDeploymentConfig | None
    metric_meter: MetricMeter = MetricMeter.noop

    def check(self) -> None:
        """Make sure that they make sense.

        Raises:
            ValueError: They do not; the message names the argument.
            TypeError: One is not of the type expected.
        """
        if not self.activities and not self.workflows:
            raise ValueError("The worker has neither activities nor workflows. Pass at least one of them.")
        settings.check_versioning(self.deployment, self.workflows)
        settings.check_counts({"max_cached_workflows": self.cached_workflows_max}, at_least=0)
        settings.check_counts(
            {
                "max_concurrent_workflow_tasks": self.workflow_tasks_max,
                "max_concurrent_activities": self.activities_max,
                "max_concurrent_local_activities": self.local_activities_max,
            },
            at_least=1,
        )
        settings.check_durations(
            {
                "sticky_queue_schedule_to_start_timeout": self.sticky_schedule_to_start_timeout,
                "max_heartbeat_throttle_interval": self.heartbeat_interval_max,
                "default_heartbeat_throttle_interval": self.heartbeat_interval_default,
                "graceful_shutdown_timeout": self.graceful_shutdown_timeout,
                "blocked_thread_timeout": self.blocked_thread_timeout,
            }
        )


@final
class Parts:
    """Everything of one running worker; made on the user's loop.

    Args:
        client: The user's client.
        options: What the worker was told.
        on_error: Told what must end the worker; from any thread.
    """

    def __init__(
        self, client: settings.ClientLike, options: PartsOptions, on_error: Callable[[BaseException], None]
    ) -> None:
        self._client = client
        self._options = options
        self._on_error = on_error
        self._connection = client.connection
        self._user_loop = asyncio.get_running_loop()
        self._user_thread_id = threading.get_ident()
        self._threads: CallThreads | None = None
        self._processes: ProcessCalls | None = None
        self._workflows: WorkflowTasks | None = None
        self._activities: ActivityTasks | None = None
        self._sinks: list[Sink] = []
        self._shortened = asyncio.Event()
        self._metrics = None
        self._service = client.connection.service
        if options.metric_meter is not MetricMeter.noop:
            self._metrics = WorkerMetrics(options.metric_meter, self._now)
            self._service = measured(self._service, self._metrics)
        codec = client.data_converter.payload_codec
        self._codec = CodecWay(codec, self._user_loop) if codec is not None else None
        if options.workflows:
            self._workflows = self._make_workflows()
        if options.activities:
            self._activities = self._make_activities()
        if self._workflows is not None and self._activities is not None:
            self._workflows.local_activities = LocalActivities(
                self._connection.service_loop,
                self._activities,
                options.activities,
                task_queue=options.task_queue,
                attempts_max=options.local_activities_max,
                now_ns=self._connection.now_ns,
                metrics=self._metrics,
            )

    @property
    def stop_seconds_max(self) -> float:
        """How long `stop` takes at most, beyond the grace time; with some room for a busy machine."""
        return DRAIN_SECONDS_MAX + CANCEL_SECONDS_MAX + LAST_REPORTS_SECONDS_MAX + EVICT_SECONDS_MAX + 5.0

    def _now(self) -> datetime:
        return datetime.fromtimestamp(self._connection.now_ns() / 1e9, UTC)

    # --- on the service loop --------------------------------------------------------------------------------

    async def start(self) -> None:
        """Attach to the engine.

        Raises:
            RPCError: The engine refuses this worker.
        """
        offers = self._offers()
        may_be_early = self._codec is None and self._lender() is not None
        for offer in offers:
            kind = EarlySink if may_be_early and offer.hello.takes_workflow_tasks else Sink
            sink = kind(self._workflows, self._activities, self._on_error)
            self._sinks.append(sink)
            await sink.attach(self._service, offer)
        if self._metrics is not None:
            takes = [offer.hello.takes_workflow_tasks for offer in offers]
            self._metrics.show_pollers(sum(takes), sum(offer.hello.takes_activity_tasks for offer in offers))

    def shorten(self) -> None:
        """End the grace time of a stop, now or when it begins."""
        self._shortened.set()

    async def stop(self) -> None:
        """Stop everything, in order."""
        for sink in self._sinks:
            sink.stop_polling()
        if self._metrics is not None:
            self._metrics.show_pollers(0, 0)
        if self._activities is not None:
            self._activities.begin_stop()
        if self._workflows is not None:
            await self._workflows.drain(DRAIN_SECONDS_MAX)
        if self._activities is not None:
            await self._stop_activities(self._activities)
        if self._workflows is not None:
            await self._workflows.close(EVICT_SECONDS_MAX)
        for sink in self._sinks:
            sink.detach()

    async def _stop_activities(self, activities: ActivityTasks) -> None:
        grace = self._options.graceful_shutdown_timeout.total_seconds()
        if activities.running_count:
            _log.info(
                "worker.stopping task_queue=%s: waiting up to %g s for %d running activities",
                self._options.task_queue,
                grace,
                activities.running_count,
            )
        idle = asyncio.ensure_future(activities.wait_idle(grace))
        shortened = asyncio.ensure_future(self._shortened.wait())
        await asyncio.wait((idle, shortened), return_when=asyncio.FIRST_COMPLETED)
        shortened.cancel()
        if idle.done() and idle.result():
            return
        idle.cancel()
        activities.cancel_all()
        if not await activities.wait_idle(CANCEL_SECONDS_MAX):
            activities.abandon_all()
            await activities.wait_idle(LAST_REPORTS_SECONDS_MAX)
        activities.close()

    # --- on the user's loop ---------------------------------------------------------------------------------

    def end_user_side(self) -> None:
        """Let go of threads and children; waits for none."""
        if self._threads is not None:
            self._threads.close()
        if self._processes is not None:
            self._processes.close()

    # --- the parts ------------------------------------------------------------------------------------------

    def _make_workflows(self) -> WorkflowTasks:
        options = self._options
        machines = Machines(
            options.workflows,
            namespace=self._client.namespace,
            task_queue=options.task_queue,
            identity=options.identity,
            data_converter=self._client.data_converter,
            limits=self._connection.limits,
            interceptors=options.interceptors,
            failure_exception_types=options.failure_exception_types,
            deployment=options.deployment,
            runs_local_activities=bool(options.activities),
            metric_meter=options.metric_meter,
        )
        workflows = WorkflowTasks(
            self._connection.service_loop,
            self._service,
            machines,
            identity=options.identity,
            cached_runs_max=options.cached_workflows_max,
            blocked_timeout=options.blocked_thread_timeout,
            post=self._connection.post,
            on_error=self._on_error,
            codec=self._codec,
            metrics=self._metrics,
        )
        workflows.slots_max = options.workflow_tasks_max
        return workflows

    def _make_activities(self) -> ActivityTasks:
        options = self._options
        loop, service = self._connection.service_loop, self._service
        outcomes = Outcomes(self._client.data_converter, self._connection.limits, options.identity)
        activities = ActivityTasks(
            loop,
            service,
            options.activities,
            outcomes,
            identity=options.identity,
            watched_loop=self._user_loop,
            watched_thread_id=self._user_thread_id,
            on_error=self._on_error,
            metrics=self._metrics,
        )
        activities.slots_max, activities.local_slots_max = options.activities_max, options.local_activities_max
        connection = self._connection
        ended: Inbox[Attempt] = Inbox(connection.post, activities.take, self._on_error, connection.post_last)
        activities.heartbeats = HeartbeatSender(
            loop,
            service,
            options.identity,
            interval_max=options.heartbeat_interval_max,
            interval_default=options.heartbeat_interval_default,
            cancel=activities.cancel,
            encode=self._codec.encode_details if self._codec is not None else None,
        )
        activities.calls = self._make_calls(outcomes, ended)
        return activities

    def _make_calls(self, outcomes: Outcomes, ended: Inbox[Attempt]) -> ActivityCalls:
        options, executor = self._options, self._options.activity_executor
        if isinstance(executor, ProcessPoolExecutor):
            converter_class = self._client.data_converter.payload_converter_class
            self._processes = ProcessCalls(executor, converter_class, self._on_error)
        elif executor is None:
            self._threads = CallThreads(options.activities_max)
        return ActivityCalls(
            self._user_loop,
            threads=self._threads or cast("Threads | None", executor),
            processes=self._processes,
            executor=executor,
            data_converter=self._client.data_converter,
            outcomes=outcomes,
            interceptors=[i.intercept_activity for i in options.interceptors if _intercepts_activities(i)],
            codec=self._codec,
            client=self._client,
            deliver=ended.put,
            deliver_last=ended.put_last,
            on_error=self._on_error,
            metric_meter=options.metric_meter,
            lender=self._lender(),
            service_loop=self._connection.service_loop,
        )

    def _lender(self) -> ServiceLoop | None:
        """The service loop, unless somebody debugs, or has said where plain functions run."""
        loop, options = self._connection.service_loop, self._options
        may_lend = options.activity_executor is None and options.blocked_thread_timeout is not None
        return loop if may_lend and isinstance(loop, ServiceLoop) else None

    def _offers(self) -> list[Offer]:
        options, deployment = self._options, self._options.deployment
        workflow_types = tuple(name for name in options.workflows if name is not None)
        hello = WorkerHello(
            namespace=self._client.namespace,
            task_queue=options.task_queue,
            identity=options.identity,
            instance_id=options.instance_id,
            workflow_types=None if None in options.workflows else workflow_types,
            takes_workflow_tasks=bool(options.workflows),
            is_sticky=options.cached_workflows_max > 0,
            sticky_schedule_to_start_timeout=options.sticky_schedule_to_start_timeout,
            deployment_version=deployment.version if deployment is not None else None,
            uses_versioning=deployment is not None and deployment.use_worker_versioning,
            versioning_behavior=(
                deployment.default_versioning_behavior if deployment is not None else VersioningBehavior.UNSPECIFIED
            ),
            activities_per_second_max=options.activities_per_second_max,
        )
        none: Mapping[str | None, ActivityDefinition] = {}
        remote = options.activities if options.takes_remote_activities else none
        named = [definition for name, definition in remote.items() if name is not None]
        dynamic = remote.get(None)
        return plan_offers(
            hello,
            async_types=[d.name for d in named if d.is_async and d.name is not None],
            blocking_types=[d.name for d in named if not d.is_async and d.name is not None],
            dynamic_is_blocking=None if dynamic is None else not dynamic.is_async,
            workflow_tasks_max=options.workflow_tasks_max if options.workflows else 0,
            activity_tasks_max=options.activities_max,
            threads_max=settings.executor_size(options.activity_executor, options.activities_max),
        )


def _intercepts_activities(interceptor: Interceptor) -> bool:
    """Whether it wraps activities at all; one that does not must not cost them the short way."""
    return type(interceptor).intercept_activity is not Interceptor.intercept_activity
