"""Interceptors of a client: user code around every call that leaves it.

Owns: the chain's base classes and the inputs that travel along it, with the names of the published API.
Never: makes a call (``_outbound`` is the end of the chain).

How it works: `Interceptor.intercept_client` wraps the next outbound in the list; the first of the list is outermost.
Inputs are dataclasses that an interceptor may change before passing them on; `headers` are payloads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from clew.common import (
    Payload,
    Priority,
    QueryRejectCondition,
    RetryPolicy,
    SearchAttributes,
    TypedSearchAttributes,
    VersioningOverride,
    WorkflowIDConflictPolicy,
    WorkflowIDReusePolicy,
)
from clew.model.inputs import ActivityTarget, TaskToken
from clew.service.requests import UpdateStage

if TYPE_CHECKING:
    from clew.client._description import (
        WorkflowExecutionAsyncIterator,
        WorkflowExecutionCount,
        WorkflowExecutionDescription,
        WorkflowHistoryEventAsyncIterator,
    )
    from clew.client._handle import WorkflowHandle
    from clew.client._update_handle import WorkflowUpdateHandle


@dataclass
class StartWorkflowInput:
    """Input for `OutboundInterceptor.start_workflow`."""

    workflow: str
    args: Sequence[Any]
    id: str
    task_queue: str
    execution_timeout: timedelta | None = None
    run_timeout: timedelta | None = None
    task_timeout: timedelta | None = None
    id_reuse_policy: WorkflowIDReusePolicy = WorkflowIDReusePolicy.ALLOW_DUPLICATE
    id_conflict_policy: WorkflowIDConflictPolicy = WorkflowIDConflictPolicy.UNSPECIFIED
    retry_policy: RetryPolicy | None = None
    cron_schedule: str = ""
    memo: Mapping[str, Any] | None = None
    search_attributes: TypedSearchAttributes | SearchAttributes | None = None
    start_delay: timedelta | None = None
    start_signal: str | None = None
    start_signal_args: Sequence[Any] = ()
    static_summary: str | None = None
    static_details: str | None = None
    headers: Mapping[str, Payload] = field(default_factory=dict[str, Payload])
    ret_type: type | None = None
    priority: Priority | None = None
    versioning_override: VersioningOverride | None = None
    request_id: str | None = None
    rpc_timeout: timedelta | None = None


@dataclass
class CancelWorkflowInput:
    """Input for `OutboundInterceptor.cancel_workflow`."""

    id: str
    run_id: str | None
    first_execution_run_id: str | None
    reason: str = ""
    rpc_timeout: timedelta | None = None


@dataclass
class DescribeWorkflowInput:
    """Input for `OutboundInterceptor.describe_workflow`."""

    id: str
    run_id: str | None
    rpc_timeout: timedelta | None = None


@dataclass
class FetchWorkflowHistoryEventsInput:
    """Input for `OutboundInterceptor.fetch_workflow_history_events`."""

    id: str
    run_id: str | None
    from_event_id: int = 1
    page_size: int | None = None
    wait_new_event: bool = False
    close_event_only: bool = False
    rpc_timeout: timedelta | None = None


@dataclass
class ListWorkflowsInput:
    """Input for `OutboundInterceptor.list_workflows`."""

    query: str | None
    page_size: int = 1000
    next_page_token: str | None = None
    limit: int | None = None
    rpc_timeout: timedelta | None = None


@dataclass
class CountWorkflowsInput:
    """Input for `OutboundInterceptor.count_workflows`."""

    query: str | None
    rpc_timeout: timedelta | None = None


@dataclass
class QueryWorkflowInput:
    """Input for `OutboundInterceptor.query_workflow`."""

    id: str
    run_id: str | None
    query: str
    args: Sequence[Any]
    reject_condition: QueryRejectCondition | None = None
    headers: Mapping[str, Payload] = field(default_factory=dict[str, Payload])
    ret_type: type | None = None
    rpc_timeout: timedelta | None = None


@dataclass
class SignalWorkflowInput:
    """Input for `OutboundInterceptor.signal_workflow`."""

    id: str
    run_id: str | None
    signal: str
    args: Sequence[Any]
    headers: Mapping[str, Payload] = field(default_factory=dict[str, Payload])
    request_id: str | None = None
    rpc_timeout: timedelta | None = None


@dataclass
class TerminateWorkflowInput:
    """Input for `OutboundInterceptor.terminate_workflow`."""

    id: str
    run_id: str | None
    first_execution_run_id: str | None
    args: Sequence[Any]
    reason: str | None
    rpc_timeout: timedelta | None = None


@dataclass
class StartWorkflowUpdateInput:
    """Input for `OutboundInterceptor.start_workflow_update`."""

    id: str
    run_id: str | None
    first_execution_run_id: str | None
    update_id: str | None
    update: str
    args: Sequence[Any]
    wait_for_stage: UpdateStage
    headers: Mapping[str, Payload] = field(default_factory=dict[str, Payload])
    ret_type: type | None = None
    rpc_timeout: timedelta | None = None


@dataclass
class StartWorkflowUpdateWithStartInput:
    """Input for `OutboundInterceptor.start_update_with_start_workflow`."""

    start_workflow_input: StartWorkflowInput
    update_workflow_input: StartWorkflowUpdateInput
    _on_start: Callable[[WorkflowHandle[Any, Any]], None]
    """Called with the handle of the run as soon as it is known."""


@dataclass
class HeartbeatAsyncActivityInput:
    """Input for `OutboundInterceptor.heartbeat_async_activity`."""

    target: TaskToken | ActivityTarget
    details: Sequence[Any]
    rpc_timeout: timedelta | None = None


@dataclass
class CompleteAsyncActivityInput:
    """Input for `OutboundInterceptor.complete_async_activity`."""

    target: TaskToken | ActivityTarget
    result: Any
    rpc_timeout: timedelta | None = None


@dataclass
class FailAsyncActivityInput:
    """Input for `OutboundInterceptor.fail_async_activity`."""

    target: TaskToken | ActivityTarget
    error: Exception
    last_heartbeat_details: Sequence[Any] = ()
    rpc_timeout: timedelta | None = None


@dataclass
class ReportCancellationAsyncActivityInput:
    """Input for `OutboundInterceptor.report_cancellation_async_activity`."""

    target: TaskToken | ActivityTarget
    details: Sequence[Any]
    rpc_timeout: timedelta | None = None


class Interceptor:
    """Base of what is passed as ``interceptors`` to `Client.connect`; override what you need."""

    def intercept_client(self, next: OutboundInterceptor) -> OutboundInterceptor:
        """Wrap the calls of a client.

        Args:
            next: The rest of the chain; call it to go on.
        """
        return next


class OutboundInterceptor:
    """Base of a link in the chain: each method hands on to `next`; override those you care for."""

    def __init__(self, next: OutboundInterceptor) -> None:
        self.next = next

    async def start_workflow(self, input: StartWorkflowInput) -> WorkflowHandle[Any, Any]:
        """Called for every start, also with a signal."""
        return await self.next.start_workflow(input)

    async def cancel_workflow(self, input: CancelWorkflowInput) -> None:
        """Called for every `WorkflowHandle.cancel`."""
        await self.next.cancel_workflow(input)

    async def describe_workflow(self, input: DescribeWorkflowInput) -> WorkflowExecutionDescription:
        """Called for every `WorkflowHandle.describe`."""
        return await self.next.describe_workflow(input)

    def fetch_workflow_history_events(
        self, input: FetchWorkflowHistoryEventsInput
    ) -> WorkflowHistoryEventAsyncIterator:
        """Called for every read of a history."""
        return self.next.fetch_workflow_history_events(input)

    def list_workflows(self, input: ListWorkflowsInput) -> WorkflowExecutionAsyncIterator:
        """Called for every `Client.list_workflows`."""
        return self.next.list_workflows(input)

    async def count_workflows(self, input: CountWorkflowsInput) -> WorkflowExecutionCount:
        """Called for every `Client.count_workflows`."""
        return await self.next.count_workflows(input)

    async def query_workflow(self, input: QueryWorkflowInput) -> Any:
        """Called for every `WorkflowHandle.query`."""
        return await self.next.query_workflow(input)

    async def signal_workflow(self, input: SignalWorkflowInput) -> None:
        """Called for every `WorkflowHandle.signal`."""
        await self.next.signal_workflow(input)

    async def terminate_workflow(self, input: TerminateWorkflowInput) -> None:
        """Called for every `WorkflowHandle.terminate`."""
        await self.next.terminate_workflow(input)

    async def start_workflow_update(self, input: StartWorkflowUpdateInput) -> WorkflowUpdateHandle[Any]:
        """Called for every `WorkflowHandle.start_update` and `execute_update`."""
        return await self.next.start_workflow_update(input)

    async def start_update_with_start_workflow(
        self, input: StartWorkflowUpdateWithStartInput
    ) -> WorkflowUpdateHandle[Any]:
        """Called for every update with start."""
        return await self.next.start_update_with_start_workflow(input)

    async def heartbeat_async_activity(self, input: HeartbeatAsyncActivityInput) -> None:
        """Called for every `AsyncActivityHandle.heartbeat`."""
        await self.next.heartbeat_async_activity(input)

    async def complete_async_activity(self, input: CompleteAsyncActivityInput) -> None:
        """Called for every `AsyncActivityHandle.complete`."""
        await self.next.complete_async_activity(input)

    async def fail_async_activity(self, input: FailAsyncActivityInput) -> None:
        """Called for every `AsyncActivityHandle.fail`."""
        await self.next.fail_async_activity(input)

    async def report_cancellation_async_activity(self, input: ReportCancellationAsyncActivityInput) -> None:
        """Called for every `AsyncActivityHandle.report_cancellation`."""
        await self.next.report_cancellation_async_activity(input)
