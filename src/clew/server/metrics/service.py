"""The service, measured: how long each call takes and how it ends, how long tasks wait and run.

Owns: the wrapper around the contract. Never: changes a call or an answer.

How it works: every method is passed through; its awaitable is given on as it is, or, for a `Reply`, which has one
listener, as another that is told right after. Of a worker, the sink is wrapped too: an offer says since when its task
was ready, and is remembered until the answer with its lease comes, or the worker is gone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import datetime
from functools import partial
from typing import Any, Final, cast, final

from clew.model.failure import ApplicationInfo, Failure
from clew.model.inputs import TaskToken
from clew.server.metrics.metrics import ACTIVITY, WORKFLOW, Metrics
from clew.service import requests as r
from clew.service.contract import Service, TaskSink, WorkerSession
from clew.service.errors import RPCError
from clew.service.telling import telling

_OK: Final = "ok"
_OFFERS_MAX: Final = 50_000
"""Tasks out at workers that are remembered; those beyond are not measured."""

_TaskKey = tuple[str, int, int, int]


@final
class MeteredService:
    """Stands for the contract; see `metered`."""

    def __init__(self, service: Service, metrics: Metrics) -> None:
        self._service = service
        self._metrics = metrics
        self._loop = asyncio.get_running_loop()
        self._offers: dict[_TaskKey, tuple[float, str, str]] = {}
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

        def call(request: Any) -> Any:
            if ending is not None:
                ending(request)
            return self._timed(name, method(request))

        call.__name__ = name
        # Found at once the next time.
        object.__setattr__(self, name, call)
        return call

    async def attach_worker(self, hello: r.WorkerHello, sink: TaskSink) -> WorkerSession:
        """Take in a worker, and watch what it is offered."""
        watched = _MeteredSink(self, hello.task_queue, sink)
        session: WorkerSession = await self._timed("attach_worker", self._service.attach_worker(hello, watched))
        return session

    def offered(
        self, kind: str, task_queue: str, token: TaskToken, waited: tuple[datetime | None, datetime | None]
    ) -> None:
        """A worker gets a task."""
        scheduled_at, started_at = waited
        if scheduled_at is not None and started_at is not None:
            seconds = (started_at - scheduled_at).total_seconds()
            self._metrics.task_waits.observe(max(0.0, seconds), kind, task_queue)
        if len(self._offers) < _OFFERS_MAX:
            self._offers[_key_of(token)] = (self._loop.time(), kind, task_queue)

    def _ended(self, request: Any) -> None:
        token = request.token
        if isinstance(token, TaskToken) and (offer := self._offers.pop(_key_of(token), None)) is not None:
            began, kind, task_queue = offer
            self._metrics.task_runs.observe(self._loop.time() - began, kind, task_queue)

    def _workflow_task_failed(self, request: r.FailWorkflowTaskRequest) -> None:
        self._metrics.task_failures.add(WORKFLOW, request.cause.value)
        self._ended(request)

    def _activity_failed(self, request: r.FailActivityRequest) -> None:
        self._metrics.task_failures.add(ACTIVITY, _kind_of(request.failure))
        self._ended(request)

    def _timed(self, name: str, answer: Awaitable[Any]) -> Any:
        return telling(answer, partial(self._note, name, self._loop.time()))

    def _note(self, name: str, began: float, error: BaseException | None) -> None:
        """A call has ended; one that nobody waits for any more (cancelled) has not."""
        if error is not None and not isinstance(error, Exception):
            return
        code = _OK if error is None else error.code.value if isinstance(error, RPCError) else "internal"
        self._metrics.calls.add(name, code)
        self._metrics.call_seconds.observe(self._loop.time() - began, name)


@final
class _MeteredSink:
    """A worker's end, watched."""

    def __init__(self, service: MeteredService, task_queue: str, sink: TaskSink) -> None:
        self._service = service
        self._task_queue = task_queue
        self._sink = sink
        self.cancel_activity = sink.cancel_activity
        self.evict_workflow = sink.evict_workflow

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sink, name)

    def offer_workflow_task(self, task: r.WorkflowTask) -> None:
        """Hand over one workflow task."""
        if task.query is None:
            self._service.offered(WORKFLOW, self._task_queue, task.token, (task.scheduled_time, task.started_time))
        self._sink.offer_workflow_task(task)

    def offer_activity_task(self, task: r.ActivityTask) -> None:
        """Hand over one attempt of an activity."""
        scheduled_at = task.current_attempt_scheduled_time or task.scheduled_time
        self._service.offered(ACTIVITY, self._task_queue, task.token, (scheduled_at, task.started_time))
        self._sink.offer_activity_task(task)


def metered(service: Service, metrics: Metrics) -> Service:
    """The same service, measured; on the service loop."""
    return cast(Service, MeteredService(service, metrics))


def _key_of(token: TaskToken) -> _TaskKey:
    return token.run_id, token.scheduled_event_id, token.attempt, token.lease_id


def _kind_of(failure: Failure) -> str:
    info = failure.info
    if isinstance(info, ApplicationInfo):
        return info.type or "ApplicationError"
    return type(info).__name__.removesuffix("Info") if info is not None else "unknown"
