"""The service, measured: how long each call takes and how it ends, how long tasks wait and run.

Owns: the wrapper around the contract. Never: changes a call or an answer.

How it works: every method is passed through, and what it answers is given on as it is; of a `Reply` the measure hears
first. Of a worker, the sink is wrapped too: an offer says since when its task was ready, and is remembered until the
answer with its lease comes, or the worker is gone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import datetime
from typing import Any, Final, cast, final

from clew.model.failure import ApplicationInfo, Failure
from clew.model.inputs import TaskToken
from clew.server.metrics.metrics import ACTIVITY, WORKFLOW, Metrics
from clew.server.metrics.registry import Series
from clew.service import requests as r
from clew.service.contract import EarlyTaskSink, Service, TaskSink, WorkerSession
from clew.service.errors import RPCError
from clew.service.reply import Reply, Teller
from clew.service.telling import telling

_OK: Final = "ok"
_OFFERS_MAX: Final = 50_000
"""Tasks out at workers that are remembered; those beyond are not measured."""

_TaskKey = tuple[int, int, int]
"""The shard, the run and the lease."""

TaskSeries = tuple[Series, Series]


@final
class MeteredService:
    """Stands for the contract; see `metered`."""

    def __init__(self, service: Service, metrics: Metrics) -> None:
        self._service = service
        self._metrics = metrics
        self._loop = asyncio.get_running_loop()
        self._offers: dict[_TaskKey, tuple[float, Series]] = {}
        self._ending: dict[str, Callable[[Any], None]] = {
            "complete_workflow_task": self._ended,
            "fail_workflow_task": self._workflow_task_failed,
            "complete_activity": self._ended,
            "fail_activity": self._activity_failed,
            "cancel_activity": self._ended,
            "release_activity": self._ended,
        }

    def __getattr__(self, name: str) -> Callable[[Any], Any]:
        method = getattr(self._service, name)
        ending = self._ending.get(name)
        seconds, time = self._metrics.call_seconds.series(name), self._loop.time

        def call(request: Any) -> Any:
            if ending is not None:
                ending(request)
            measure = _Measure(self, name, seconds, time())
            answer = method(request)
            if isinstance(answer, Reply):
                cast("Reply[Any]", answer).listen(measure)
                return cast("Reply[Any]", answer)
            return telling(answer, measure.tell)

        call.__name__ = name
        # Found at once the next time.
        object.__setattr__(self, name, call)
        return call

    async def attach_worker(self, hello: r.WorkerHello, sink: TaskSink) -> WorkerSession:
        """Take in a worker, and watch what it is offered."""
        watched = (
            _MeteredEarlySink(self, hello.task_queue, sink, sink)
            if isinstance(sink, EarlyTaskSink)
            else _MeteredSink(self, hello.task_queue, sink)
        )
        seconds = self._metrics.call_seconds.series("attach_worker")
        measure = _Measure(self, "attach_worker", seconds, self._loop.time())
        return await telling(self._service.attach_worker(hello, watched), measure.tell)

    def offered(self, task: r.WorkflowTask | r.ActivityTask, scheduled_at: datetime | None, series: TaskSeries) -> None:
        """A worker gets a task."""
        started_at = task.started_time
        if scheduled_at is not None and started_at is not None:
            seconds = (started_at - scheduled_at).total_seconds()
            series[0].observe(seconds if seconds > 0 else 0.0)
        if len(self._offers) < _OFFERS_MAX:
            token = task.token
            self._offers[token.shard, token.run_key, token.lease_id] = self._loop.time(), series[1]

    def task_series(self, kind: str, task_queue: str) -> TaskSeries:
        """Where the times of a queue's tasks go: how long they waited, how long they ran."""
        metrics = self._metrics
        return metrics.task_waits.series(kind, task_queue), metrics.task_runs.series(kind, task_queue)

    def ended(self, name: str, error: BaseException | None) -> None:
        """A call has ended."""
        code = error.code.value if isinstance(error, RPCError) else "internal"
        self._metrics.calls.add(name, _OK if error is None else code)

    def time(self) -> float:
        """The loop's."""
        return self._loop.time()

    def _ended(self, request: Any) -> None:
        token = request.token
        if type(token) is TaskToken:
            offer = self._offers.pop((token.shard, token.run_key, token.lease_id), None)
            if offer is not None:
                offer[1].observe(self._loop.time() - offer[0])

    def _workflow_task_failed(self, request: r.FailWorkflowTaskRequest) -> None:
        self._metrics.task_failures.add(WORKFLOW, request.cause.value)
        self._ended(request)

    def _activity_failed(self, request: r.FailActivityRequest) -> None:
        self._metrics.task_failures.add(ACTIVITY, _kind_of(request.failure))
        self._ended(request)


@final
class _Measure(Teller):
    """Of one call under way."""

    __slots__ = ("_began", "_name", "_seconds", "_service")

    def __init__(self, service: MeteredService, name: str, seconds: Series, began: float) -> None:
        super().__init__()
        self._service = service
        self._name = name
        self._seconds = seconds
        self._began = began

    def tell(self, error: BaseException | None) -> None:
        """A call has ended; one that nobody waits for any more (cancelled) has not."""
        if error is None or isinstance(error, Exception):
            self._service.ended(self._name, error)
            self._seconds.observe(self._service.time() - self._began)


class _MeteredSink:
    """A worker's end, watched."""

    def __init__(self, service: MeteredService, task_queue: str, sink: TaskSink) -> None:
        self._service = service
        self._workflow = service.task_series(WORKFLOW, task_queue)
        self._activity = service.task_series(ACTIVITY, task_queue)
        self._sink = sink
        self.cancel_activity = sink.cancel_activity
        self.evict_workflow = sink.evict_workflow

    def offer_workflow_task(self, task: r.WorkflowTask) -> None:
        """Hand over one workflow task."""
        if task.query is None:
            self._service.offered(task, task.scheduled_time, self._workflow)
        self._sink.offer_workflow_task(task)

    def offer_activity_task(self, task: r.ActivityTask) -> None:
        """Hand over one attempt of an activity."""
        scheduled_at = task.current_attempt_scheduled_time or task.scheduled_time
        self._service.offered(task, scheduled_at, self._activity)
        self._sink.offer_activity_task(task)


@final
class _MeteredEarlySink(_MeteredSink):
    """The same of one that takes workflow tasks early."""

    def __init__(self, service: MeteredService, task_queue: str, sink: TaskSink, early: EarlyTaskSink) -> None:
        super().__init__(service, task_queue, sink)
        self._early = early
        self.confirm_workflow_task = early.confirm_workflow_task

    def offer_early_workflow_task(self, task: r.WorkflowTask) -> bool:
        """Hand over one workflow task ahead of its cause."""
        is_taken = self._early.offer_early_workflow_task(task)
        if is_taken:
            self._service.offered(task, task.scheduled_time, self._workflow)
        return is_taken


def metered(service: Service, metrics: Metrics) -> Service:
    """The same service, measured; on the service loop."""
    return cast(Service, MeteredService(service, metrics))


def _kind_of(failure: Failure) -> str:
    info = failure.info
    if isinstance(info, ApplicationInfo):
        return info.type or "ApplicationError"
    return type(info).__name__.removesuffix("Info") if info is not None else "unknown"
