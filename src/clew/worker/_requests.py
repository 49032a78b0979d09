"""Calls of the service that are counted and timed, for a worker with a meter.

Owns: the published names of the calls that a worker makes, and the stand-in that measures them. Never: repeats a call
or changes what it gives.

How it works: the stand-in has the methods that a worker calls and hands everything else on. Each gives a `Reply` that
answers when the real answer comes, so nobody waits longer, and a worker without a meter has no stand-in at all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import datetime
from functools import partial
from typing import Any, Final, cast, final

from clew.service.contract import Service
from clew.service.errors import RPCError
from clew.service.reply import Reply
from clew.worker._metrics import WorkerMetrics
from clew.worker._reports import call_back

OPERATIONS: Final = {
    "complete_workflow_task": "RespondWorkflowTaskCompleted",
    "fail_workflow_task": "RespondWorkflowTaskFailed",
    "record_markers": "RecordMarkers",
    "answer_query": "RespondQueryTaskCompleted",
    "complete_activity": "RespondActivityTaskCompleted",
    "fail_activity": "RespondActivityTaskFailed",
    "cancel_activity": "RespondActivityTaskCanceled",
    "release_activity": "ReleaseActivityTask",
    "detach_activity": "DetachActivityTask",
    "heartbeat_activity": "RecordActivityTaskHeartbeat",
    "get_history": "GetWorkflowExecutionHistory",
}
"""By method of the contract: the name of the published call, or one of the same kind where there is none."""


def measured(service: Service, metrics: WorkerMetrics) -> Service:
    """The service, with the calls of a worker measured."""
    return cast("Service", _MeasuredService(service, metrics))


@final
class _MeasuredService:
    """See the module docstring."""

    def __init__(self, service: Service, metrics: WorkerMetrics) -> None:
        self._service = service
        self._metrics = metrics

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._service, name)
        operation = OPERATIONS.get(name)
        if operation is not None:
            method = partial(_call, method, operation, self._metrics)
            setattr(self, name, method)
        return method


def _call(method: Callable[[Any], Awaitable[Any]], operation: str, metrics: WorkerMetrics, request: Any) -> Reply[Any]:
    began_at = metrics.now()
    told: Reply[Any] = Reply()
    answer = method(request)
    call_back(answer, partial(_answered, told, operation, metrics, began_at))
    return told


def _answered(
    told: Reply[Any],
    operation: str,
    metrics: WorkerMetrics,
    began_at: datetime,
    answer: asyncio.Future[Any] | Reply[Any],
) -> None:
    error: BaseException | None
    try:
        value, error = answer.result(), None
    except BaseException as raised:  # noqa: BLE001 - handed on as it is
        value, error = None, raised
    metrics.note_request(operation, began_at, _code_of(error))
    if error is not None:
        told.set_exception(error)
    else:
        told.set_result(value)


def _code_of(error: BaseException | None) -> str:
    if error is None:
        return ""
    return error.code.value if isinstance(error, RPCError) else type(error).__name__
