"""What a client measures of its calls, recorded with the meter that it was given.

Owns: the published names of the calls that a client makes, and the stand-in for its connection that measures them.
Never: repeats a call, or changes what it gives (each try of one that is repeated counts).

How it works: the stand-in hands everything on to the connection; the answer to a call is looked at when it comes. A
client without a meter has no stand-in.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any, Final, TypeVar, cast, final

from clew._metric import RequestMetrics
from clew.common import MetricMeter
from clew.service.connection import Connection
from clew.service.errors import RPCError

T = TypeVar("T")

_CANCELLED: Final = "cancelled"
"""The code of a call whose caller did not wait for the answer."""

_PUBLISHED: Final = {
    "start_workflow": "StartWorkflowExecution",
    "signal_workflow": "SignalWorkflowExecution",
    "signal_with_start": "SignalWithStartWorkflowExecution",
    "update_workflow": "UpdateWorkflowExecution",
    "poll_update": "PollWorkflowExecutionUpdate",
    "query_workflow": "QueryWorkflow",
    "request_cancel_workflow": "RequestCancelWorkflowExecution",
    "terminate_workflow": "TerminateWorkflowExecution",
    "describe_workflow": "DescribeWorkflowExecution",
    "reset_workflow": "ResetWorkflowExecution",
    "delete_workflow": "DeleteWorkflowExecution",
    "list_workflows": "ListWorkflowExecutions",
    "count_workflows": "CountWorkflowExecutions",
    "get_history": "GetWorkflowExecutionHistory",
    "complete_activity": "RespondActivityTaskCompleted",
    "fail_activity": "RespondActivityTaskFailed",
    "cancel_activity": "RespondActivityTaskCanceled",
    "heartbeat_activity": "RecordActivityTaskHeartbeat",
}
"""By method of the contract; a method that is not here is called after itself, as ``DescribeNamespace``."""


def measured(connection: Connection, meter: MetricMeter, namespace: str) -> Connection:
    """The connection, with the calls of a client measured."""
    metrics = RequestMetrics(meter.with_additional_attributes({"namespace": namespace}))
    return cast("Connection", _MeasuredConnection(connection, metrics))


@final
class _MeasuredConnection:
    """See the module docstring."""

    def __init__(self, connection: Connection, metrics: RequestMetrics) -> None:
        self._connection = connection
        self._metrics = metrics

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    def call(self, method: Callable[[Any], Awaitable[T]], request: Any) -> asyncio.Future[T]:
        """Call, and note what comes of it."""
        name = getattr(method, "__name__", "")
        operation = _PUBLISHED.get(name) or name.title().replace("_", "")
        is_long = name == "poll_update" or bool(getattr(request, "wait_new_event", False))
        loop = asyncio.get_running_loop()
        began_at = loop.time()

        def answered(future: asyncio.Future[T]) -> None:
            took = timedelta(seconds=loop.time() - began_at)
            self._metrics.note(operation, took, _code_of(future), is_long=is_long)

        future = self._connection.call(method, request)
        future.add_done_callback(answered)
        return future


def _code_of(future: asyncio.Future[Any]) -> str:
    if future.cancelled():
        return _CANCELLED
    error = future.exception()
    if error is None:
        return ""
    return error.code.value if isinstance(error, RPCError) else type(error).__name__
