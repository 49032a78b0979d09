"""Answers to workflow tasks, on their way to the engine.

Owns: which call each kind of answer is, and that it is repeated while the task can still be alive.
Never: decides on an answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final, final

from clew.model.events import WorkflowTaskFailedCause
from clew.model.failure import Failure
from clew.model.inputs import (
    CompleteWorkflowTaskRequest,
    FailWorkflowTaskRequest,
    QueryResult,
    RecordMarkersRequest,
)
from clew.model.rejection import RejectionCode
from clew.service.contract import Service
from clew.service.errors import RPCError
from clew.service.reply import Reply
from clew.service.requests import AnswerQueryRequest, RecordMarkersResponse, WorkflowTask
from clew.worker._blame import log_failed_task, log_refusal, worker_failure
from clew.worker._reports import Report, call_back

_UNANSWERABLE: Final = (RejectionCode.INTERNAL, RejectionCode.INVALID_ARGUMENT)
"""Refusals that leave the workflow task as it is."""


@final
class Answers:
    """Sends answers; on the service loop.

    Args:
        loop: The service loop.
        service: Where they go.
        identity: Of the worker.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, service: Service, identity: str) -> None:
        self._loop = loop
        self._service = service
        self._identity = identity

    def complete(
        self, task: WorkflowTask, completion: CompleteWorkflowTaskRequest, on_refused: Callable[[], None]
    ) -> None:
        """Complete a workflow task; `on_refused` is called if the engine will not have it."""
        try:
            answer = self._service.complete_workflow_task(completion)
        except Exception as error:  # noqa: BLE001 - a service may refuse before it hands out a future
            self._completion_report(task, completion, on_refused).refuse(error)
            return

        # A report remembers how to be repeated; hardly any answer needs that.
        def look(answer: asyncio.Future[Any] | Reply[Any]) -> None:
            if not isinstance(answer, Reply) or answer.exception() is not None:
                self._completion_report(task, completion, on_refused).take(answer)

        call_back(answer, look)

    def _completion_report(
        self, task: WorkflowTask, completion: CompleteWorkflowTaskRequest, on_refused: Callable[[], None]
    ) -> Report:
        def on_verdict(error: BaseException | None) -> None:
            if error is None:
                return
            on_refused()
            if isinstance(error, RPCError) and error.code in _UNANSWERABLE:
                # The task is still out, and no repeat will be taken: say so, rather than let it time out.
                failure = worker_failure(error, "The engine could not take the answer to this workflow task")
                self.fail(task, failure, WorkflowTaskFailedCause.WORKFLOW_WORKER_UNHANDLED_FAILURE)
            else:
                log_refusal(task, error)

        return self._report(self._service.complete_workflow_task, completion, task, on_verdict)

    def record(
        self,
        task: WorkflowTask,
        request: RecordMarkersRequest,
        on_recorded: Callable[[RecordMarkersResponse], None],
        on_refused: Callable[[], None],
    ) -> None:
        """Record markers of a workflow task that goes on; one of the two is called."""
        try:
            answer = self._service.record_markers(request)
        except Exception as error:  # noqa: BLE001 - a service may refuse before it hands out a future
            self._record_report(task, request, on_recorded, on_refused).refuse(error)
            return

        def look(answer: asyncio.Future[Any] | Reply[Any]) -> None:
            if isinstance(answer, Reply) and answer.exception() is None:
                on_recorded(answer.result())
            else:
                self._record_report(task, request, on_recorded, on_refused).take(answer)

        call_back(answer, look)

    def _record_report(
        self,
        task: WorkflowTask,
        request: RecordMarkersRequest,
        on_recorded: Callable[[RecordMarkersResponse], None],
        on_refused: Callable[[], None],
    ) -> Report:
        def on_verdict(error: BaseException | None) -> None:
            if error is None:
                on_recorded(report.answer)
            else:
                on_refused()
                log_refusal(task, error)

        report = self._report(self._service.record_markers, request, task, on_verdict)
        return report

    def answer_query(self, task: WorkflowTask, answer: AnswerQueryRequest) -> None:
        """Answer a task that only asks a question."""
        self._send(self._service.answer_query, answer, task, lambda error: log_refusal(task, error))

    def fail(self, task: WorkflowTask, failure: Failure | None, cause: WorkflowTaskFailedCause) -> None:
        """Fail a workflow task, or the question that it is."""
        if task.query is not None:
            failure = failure or Failure(message="The query failed.", source="clew")
            result = QueryResult(query_id=task.query.query_id, failure=failure)
            self.answer_query(task, AnswerQueryRequest(token=task.token, result=result))
            return
        log_failed_task(task, failure, cause)
        request = FailWorkflowTaskRequest(token=task.token, cause=cause, failure=failure, identity=self._identity)
        self._send(self._service.fail_workflow_task, request, task, lambda error: log_refusal(task, error))

    def _send(
        self,
        call: Callable[[Any], Awaitable[Any]],
        request: Any,
        task: WorkflowTask,
        on_verdict: Callable[[BaseException | None], None],
    ) -> None:
        self._report(call, request, task, on_verdict).send()

    def _report(
        self,
        call: Callable[[Any], Awaitable[Any]],
        request: Any,
        task: WorkflowTask,
        on_verdict: Callable[[BaseException | None], None],
    ) -> Report:
        patience = task.workflow_task_timeout.total_seconds()
        return Report(self._loop, call, request, task.token.workflow_id, on_verdict, give_up_after=patience)
