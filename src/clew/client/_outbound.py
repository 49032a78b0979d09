"""The end of the interceptor chain: inputs become requests of the service.

Owns: what each call of a client asks of the engine, and which refusals become which exceptions.
Never: waits, retries (``_calls``) or conversions (``_values``) themselves.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, final

import msgspec

from clew.adapters import new_request_id
from clew.client._calls import call_service
from clew.client._description import (
    WorkflowExecution,
    WorkflowExecutionAsyncIterator,
    WorkflowExecutionCount,
    WorkflowExecutionCountAggregationGroup,
    WorkflowExecutionDescription,
    WorkflowHistoryEventAsyncIterator,
)
from clew.client._handle import WorkflowHandle
from clew.client._interceptor import (
    CancelWorkflowInput,
    CompleteAsyncActivityInput,
    CountWorkflowsInput,
    DescribeWorkflowInput,
    FailAsyncActivityInput,
    FetchWorkflowHistoryEventsInput,
    HeartbeatAsyncActivityInput,
    ListWorkflowsInput,
    OutboundInterceptor,
    QueryWorkflowInput,
    ReportCancellationAsyncActivityInput,
    SignalWorkflowInput,
    StartWorkflowInput,
    StartWorkflowUpdateInput,
    StartWorkflowUpdateWithStartInput,
    TerminateWorkflowInput,
)
from clew.client._update_handle import WorkflowUpdateHandle
from clew.common import (
    Priority,
    QueryRejectCondition,
    RetryPolicy,
    VersioningOverride,
    WorkflowIDConflictPolicy,
    WorkflowIDReusePolicy,
)
from clew.exceptions import (
    AsyncActivityCancelledError,
    WorkflowAlreadyStartedError,
    WorkflowQueryFailedError,
    WorkflowQueryRejectedError,
    WorkflowUpdateRPCTimeoutOrCancelledError,
)
from clew.model.events import ZERO, Event, UpdateRequest, WorkflowExecutionStarted
from clew.model.failure import Failure
from clew.model.history import WorkflowHistory
from clew.model.option_types import check_kinds, check_policy_types, check_texts
from clew.model.rejection import RejectionCode
from clew.service import requests as r
from clew.service.errors import RPCError

if TYPE_CHECKING:
    from clew.client._client import Client

_HISTORY_PAGE_DEFAULT: Final = 1_000
_STAGES: Final = (r.UpdateStage.ADMITTED, r.UpdateStage.ACCEPTED, r.UpdateStage.COMPLETED)


@final
class ServiceOutbound(OutboundInterceptor):
    """Makes the calls of one client."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._connection = client.connection
        self._service = client.connection.service
        self._values = client._values

    async def start_workflow(self, input: StartWorkflowInput) -> WorkflowHandle[Any, Any]:
        """Start a run, with a signal if one is given; a repeat carries the same request id."""
        request = await self._start_request(input)
        try:
            if input.start_signal is None:
                response = await self._call(self._service.start_workflow, request, input.rpc_timeout)
            else:
                what = f"the arguments of signal {input.start_signal!r} for workflow {input.id!r}"
                with_signal = r.SignalWithStartRequest(
                    start=request,
                    signal_name=input.start_signal,
                    signal_input=await self._values.encode(input.start_signal_args, what),
                )
                response = await self._call(self._service.signal_with_start, with_signal, input.rpc_timeout)
        except RPCError as error:
            raise _start_error(error, input) from error
        return self._handle_of(input, response)

    async def cancel_workflow(self, input: CancelWorkflowInput) -> None:
        """Ask a run to stop."""
        check_texts(f"cancelling workflow {input.id!r}", reason=input.reason)
        request = r.RequestCancelRequest(
            namespace=self._client.namespace,
            workflow_id=input.id,
            run_id=input.run_id or "",
            first_execution_run_id=input.first_execution_run_id or "",
            request_id=new_request_id(),
            identity=self._client.identity,
            reason=input.reason,
        )
        await self._call(self._service.request_cancel_workflow, request, input.rpc_timeout)

    async def terminate_workflow(self, input: TerminateWorkflowInput) -> None:
        """End a run."""
        check_texts(f"terminating workflow {input.id!r}", reason=input.reason)
        request = r.TerminateWorkflowRequest(
            namespace=self._client.namespace,
            workflow_id=input.id,
            run_id=input.run_id or "",
            first_execution_run_id=input.first_execution_run_id or "",
            identity=self._client.identity,
            reason=input.reason or "",
            details=await self._values.encode(input.args, f"the details of terminating workflow {input.id!r}"),
        )
        await self._call(self._service.terminate_workflow, request, input.rpc_timeout)

    async def describe_workflow(self, input: DescribeWorkflowInput) -> WorkflowExecutionDescription:
        """Read a description."""
        request = r.DescribeWorkflowRequest(
            namespace=self._client.namespace, workflow_id=input.id, run_id=input.run_id or ""
        )
        found = await self._call(self._service.describe_workflow, request, input.rpc_timeout)
        return WorkflowExecutionDescription(
            found, self._values, functools.partial(self._first_event, found.info.workflow_id, found.info.run_id)
        )

    async def _first_event(self, workflow_id: str, run_id: str) -> WorkflowExecutionStarted:
        handle = self._client.get_workflow_handle(workflow_id, run_id=run_id)
        async for event in handle.fetch_history_events(page_size=1):
            assert isinstance(event, WorkflowExecutionStarted), "event 1 starts the run"
            return event
        raise AssertionError("every run has its first event")

    def fetch_workflow_history_events(
        self, input: FetchWorkflowHistoryEventsInput
    ) -> WorkflowHistoryEventAsyncIterator:
        """Read events."""
        return WorkflowHistoryEventAsyncIterator(
            functools.partial(self._history_page, input), (input.run_id or "", input.from_event_id)
        )

    async def _history_page(
        self, input: FetchWorkflowHistoryEventsInput, position: tuple[str, int]
    ) -> tuple[Sequence[Event], tuple[str, int] | None]:
        run_id, from_event_id = position
        request = r.GetHistoryRequest(
            namespace=self._client.namespace,
            workflow_id=input.id,
            run_id=run_id,
            from_event_id=from_event_id,
            events_max=input.page_size or _HISTORY_PAGE_DEFAULT,
            wait_new_event=input.wait_new_event,
            close_event_only=input.close_event_only,
        )
        page = await call_service(
            self._connection,
            self._service.get_history,
            request,
            timeout=input.rpc_timeout,
            is_long_poll=input.wait_new_event,
        )
        if input.close_event_only and page.events:
            return page.events, None
        # The run is pinned from the first answer on: "the current run" may mean another one by the next page.
        return page.events, (page.run_id, page.next_event_id) if page.next_event_id else None

    async def wait_closing_event(self, workflow_id: str, run_id: str | None, rpc_timeout: timedelta | None) -> Event:
        """Wait for the event that closes a run, as `fetch_workflow_history_events` would, without its iterator."""
        from_event_id = 1
        while from_event_id:
            request = r.GetHistoryRequest(
                namespace=self._client.namespace,
                workflow_id=workflow_id,
                run_id=run_id or "",
                from_event_id=from_event_id,
                events_max=_HISTORY_PAGE_DEFAULT,
                wait_new_event=True,
                close_event_only=True,
            )
            page = await call_service(
                self._connection, self._service.get_history, request, timeout=rpc_timeout, is_long_poll=True
            )
            if page.events:
                return page.events[0]
            run_id, from_event_id = page.run_id, page.next_event_id
        raise AssertionError("a long poll for the closing event ends with that event")

    def list_workflows(self, input: ListWorkflowsInput) -> WorkflowExecutionAsyncIterator:
        """List runs."""
        left = [input.limit]

        async def fetch_page(token: str) -> tuple[Sequence[WorkflowExecution], str | None]:
            size = input.page_size if left[0] is None else min(input.page_size, left[0])
            if size <= 0:
                return (), None
            request = r.ListWorkflowsRequest(
                namespace=self._client.namespace, query=input.query or "", page_size=size, page_token=token
            )
            page = await self._call(self._service.list_workflows, request, input.rpc_timeout)
            if left[0] is not None:
                left[0] -= len(page.executions)
            executions = [WorkflowExecution(info, self._values) for info in page.executions]
            return executions, page.next_page_token if page.next_page_token and left[0] != 0 else None

        async def fetch_history(execution: WorkflowExecution) -> WorkflowHistory:
            return await self._client.get_workflow_handle(execution.id, run_id=execution.run_id).fetch_history()

        return WorkflowExecutionAsyncIterator(fetch_page, input.next_page_token or "", fetch_history)

    async def count_workflows(self, input: CountWorkflowsInput) -> WorkflowExecutionCount:
        """Count runs."""
        request = r.CountWorkflowsRequest(namespace=self._client.namespace, query=input.query or "")
        found = await self._call(self._service.count_workflows, request, input.rpc_timeout)
        groups = [WorkflowExecutionCountAggregationGroup(count, [name]) for name, count in found.groups.items()]
        return WorkflowExecutionCount(found.count, groups)

    async def query_workflow(self, input: QueryWorkflowInput) -> Any:
        """Ask a run's code a question."""
        if input.reject_condition is not None:
            check_kinds("query", reject_condition=(input.reject_condition, QueryRejectCondition))
        request = r.QueryWorkflowRequest(
            namespace=self._client.namespace,
            workflow_id=input.id,
            run_id=input.run_id or "",
            query_type=input.query,
            query_args=await self._values.encode(
                input.args, f"the arguments of query {input.query!r} to workflow {input.id!r}"
            ),
            header=self._values.encode_headers(input.headers),
            reject_condition=input.reject_condition or QueryRejectCondition.NONE,
        )
        try:
            answer = await self._call(self._service.query_workflow, request, input.rpc_timeout)
        except RPCError as error:
            if error.code is RejectionCode.QUERY_FAILED:
                raise WorkflowQueryFailedError(error.message) from await self._query_cause(error)
            raise
        if answer.rejected_status is not None:
            raise WorkflowQueryRejectedError(answer.rejected_status)
        return await self._values.decode_result(answer.result, input.ret_type)

    async def _query_cause(self, error: RPCError) -> BaseException:
        """What the handler raised, if the engine says; else the refusal itself."""
        told = error.rejection.details.get("failure")
        if not told:
            return error
        try:
            failure = msgspec.json.decode(told, type=Failure)
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            return error
        return await self._values.decode_failure(failure)

    async def signal_workflow(self, input: SignalWorkflowInput) -> None:
        """Send a signal; a repeat carries the same request id."""
        check_texts(f"signal of workflow {input.id!r}", signal=input.signal, request_id=input.request_id)
        request = r.SignalWorkflowRequest(
            namespace=self._client.namespace,
            workflow_id=input.id,
            run_id=input.run_id or "",
            signal_name=input.signal,
            request_id=input.request_id or new_request_id(),
            input=await self._values.encode(
                input.args, f"the arguments of signal {input.signal!r} to workflow {input.id!r}"
            ),
            identity=self._client.identity,
            header=self._values.encode_headers(input.headers),
        )
        await self._call(self._service.signal_workflow, request, input.rpc_timeout)

    async def start_workflow_update(self, input: StartWorkflowUpdateInput) -> WorkflowUpdateHandle[Any]:
        """Send an update until it has reached the stage waited for; a repeat carries the same update id."""
        request = await self._update_request(input)
        response = await self._await_stage(request, input)
        return self._update_handle_of(input, response)

    async def start_update_with_start_workflow(
        self, input: StartWorkflowUpdateWithStartInput
    ) -> WorkflowUpdateHandle[Any]:
        """Start a run with an update, or update the open one, in one step; a repeat carries the same ids."""
        start, update = input.start_workflow_input, input.update_workflow_input
        request = r.UpdateWithStartRequest(
            start=await self._start_request(start), update=await self._update_request(update)
        )
        try:
            response = await self._call(self._service.update_with_start, request, update.rpc_timeout)
        except RPCError as error:
            if error.code is RejectionCode.DEADLINE_EXCEEDED:
                raise WorkflowUpdateRPCTimeoutOrCancelledError(error.message) from error
            raise _start_error(error, start) from error
        input._on_start(self._handle_of(start, response.start))
        answer = response.update
        if not _has_reached(answer.stage, update.wait_for_stage):
            on_run = msgspec.structs.replace(request.update, run_id=answer.run_id)
            answer = await self._await_stage(on_run, update)
        return self._update_handle_of(update, answer)

    async def heartbeat_async_activity(self, input: HeartbeatAsyncActivityInput) -> None:
        """Say that an activity is alive."""
        request = r.HeartbeatActivityRequest(
            token=input.target,
            details=await self._values.encode(input.details, "the heartbeat details"),
            identity=self._client.identity,
        )
        answer = await self._call(self._service.heartbeat_activity, request, input.rpc_timeout)
        if answer.cancel_requested:
            raise AsyncActivityCancelledError

    async def complete_async_activity(self, input: CompleteAsyncActivityInput) -> None:
        """Give an activity's result."""
        request = r.CompleteActivityRequest(
            token=input.target,
            result=await self._values.encode([input.result], "the values of the activity result"),
            identity=self._client.identity,
        )
        await self._call(self._service.complete_activity, request, input.rpc_timeout)

    async def fail_async_activity(self, input: FailAsyncActivityInput) -> None:
        """Fail an attempt."""
        details = input.last_heartbeat_details
        request = r.FailActivityRequest(
            token=input.target,
            failure=await self._values.encode_failure(input.error),
            last_heartbeat_details=await self._values.encode(details, "the heartbeat details") if details else None,
            identity=self._client.identity,
        )
        await self._call(self._service.fail_activity, request, input.rpc_timeout)

    async def report_cancellation_async_activity(self, input: ReportCancellationAsyncActivityInput) -> None:
        """Say that an activity stopped."""
        request = r.CancelActivityRequest(
            token=input.target,
            details=await self._values.encode(input.details, "the cancellation details"),
            identity=self._client.identity,
        )
        await self._call(self._service.cancel_activity, request, input.rpc_timeout)

    async def _call(self, method: Any, request: Any, timeout: timedelta | None) -> Any:
        return await call_service(self._connection, method, request, timeout=timeout)

    async def _start_request(self, input: StartWorkflowInput) -> r.StartWorkflowRequest:
        what = f"workflow {input.workflow!r} with id {input.id!r}"
        check_texts(
            what,
            workflow=input.workflow,
            id=input.id,
            task_queue=input.task_queue,
            request_id=input.request_id,
            cron_schedule=input.cron_schedule,
            static_summary=input.static_summary,
            static_details=input.static_details,
        )
        if input.retry_policy is not None:
            check_policy_types(what, input.retry_policy)
        memo = input.memo
        if (
            type(input.id_reuse_policy) is not WorkflowIDReusePolicy
            or type(input.id_conflict_policy) is not WorkflowIDConflictPolicy
            or not (input.priority is None and input.versioning_override is None and memo is None)
        ):
            check_kinds(
                what,
                priority=(input.priority, Priority),
                versioning_override=(input.versioning_override, VersioningOverride),
                id_reuse_policy=(input.id_reuse_policy, WorkflowIDReusePolicy),
                id_conflict_policy=(input.id_conflict_policy, WorkflowIDConflictPolicy),
                memo=(memo, Mapping),
            )
        metadata = None
        if input.static_summary or input.static_details:
            metadata = await self._values.encode_metadata(input.static_summary, input.static_details, what)
        return r.StartWorkflowRequest(
            namespace=self._client.namespace,
            workflow_id=input.id,
            workflow_type=input.workflow,
            task_queue=input.task_queue,
            request_id=input.request_id or new_request_id(),
            input=await self._values.encode(input.args, f"the arguments of {what}"),
            identity=self._client.identity,
            workflow_execution_timeout=_duration(input.execution_timeout, "execution_timeout"),
            workflow_run_timeout=_duration(input.run_timeout, "run_timeout"),
            workflow_task_timeout=_duration(input.task_timeout, "task_timeout"),
            id_reuse_policy=input.id_reuse_policy,
            id_conflict_policy=input.id_conflict_policy,
            retry_policy=_checked_policy(input.retry_policy),
            cron_schedule=input.cron_schedule,
            start_delay=_duration(input.start_delay, "start_delay"),
            memo=await self._values.encode_memo(memo, what) if memo else None,
            search_attributes=self._values.encode_search_attributes(input.search_attributes),
            header=self._values.encode_headers(input.headers) if input.headers else None,
            priority=input.priority,
            versioning_override=input.versioning_override,
            user_metadata=metadata,
        )

    def _handle_of(self, input: StartWorkflowInput, response: r.StartWorkflowResponse) -> WorkflowHandle[Any, Any]:
        return WorkflowHandle(
            self._client,
            input.id,
            result_run_id=response.run_id,
            first_execution_run_id=response.first_execution_run_id or response.run_id,
            result_type=input.ret_type,
        )

    async def _update_request(self, input: StartWorkflowUpdateInput) -> r.UpdateWorkflowRequest:
        check_texts(f"update of workflow {input.id!r}", update=input.update, update_id=input.update_id)
        args = await self._values.encode(
            input.args, f"the arguments of update {input.update!r} to workflow {input.id!r}"
        )
        return r.UpdateWorkflowRequest(
            namespace=self._client.namespace,
            workflow_id=input.id,
            run_id=input.run_id or "",
            first_execution_run_id=input.first_execution_run_id or "",
            wait_stage=input.wait_for_stage,
            request=UpdateRequest(
                update_id=input.update_id or new_request_id(),
                name=input.update,
                input=args,
                header=self._values.encode_headers(input.headers),
                identity=self._client.identity,
            ),
        )

    async def _await_stage(self, request: r.UpdateWorkflowRequest, input: StartWorkflowUpdateInput) -> r.UpdateResponse:
        while True:
            try:
                response: r.UpdateResponse = await self._call(self._service.update_workflow, request, input.rpc_timeout)
            except RPCError as error:
                if error.code is RejectionCode.DEADLINE_EXCEEDED:
                    raise WorkflowUpdateRPCTimeoutOrCancelledError(error.message) from error
                raise
            if _has_reached(response.stage, request.wait_stage):
                return response

    def _update_handle_of(
        self, input: StartWorkflowUpdateInput, response: r.UpdateResponse
    ) -> WorkflowUpdateHandle[Any]:
        return WorkflowUpdateHandle(
            self._client,
            response.update_id,
            response.workflow_id,
            workflow_run_id=response.run_id,
            result_type=input.ret_type,
            known_outcome=response.outcome,
        )


def _has_reached(stage: r.UpdateStage, wanted: r.UpdateStage) -> bool:
    return _STAGES.index(stage) >= _STAGES.index(wanted)


def _start_error(error: RPCError, input: StartWorkflowInput) -> Exception:
    if error.code is RejectionCode.WORKFLOW_ALREADY_STARTED:
        run_id = error.rejection.details.get("run_id")
        return WorkflowAlreadyStartedError(input.id, input.workflow, run_id=run_id)
    return error


def _duration(value: Any, name: str) -> timedelta:
    if value is None:
        return ZERO
    if not isinstance(value, timedelta):
        raise TypeError(f"{name} must be a datetime.timedelta, but is {value!r}.")
    if value < ZERO:
        raise ValueError(f"{name} must not be negative, but is {value}. Leave it out for no limit.")
    return value


def _checked_policy(policy: Any) -> RetryPolicy | None:
    if policy is not None and not isinstance(policy, RetryPolicy):
        raise TypeError(f"retry_policy must be a clew.common.RetryPolicy, but is {policy!r}.")
    return policy
