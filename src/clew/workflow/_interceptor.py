"""What passes between workflow code and the machine, and how interceptors stand in between.

Owns: the input of each call, and the inbound and outbound interceptor bases (names of the published API).
Never: the innermost ends of the two chains (``replay`` has them).

How it works: a worker's interceptors each wrap the next one. Inbound calls (run, signal, query, update) end in the
user's function; outbound calls (start an activity, a child, …) end in a command. Without interceptors no chain is
made.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NoReturn

from clew.common import (
    ParentClosePolicy,
    Payload,
    Priority,
    RetryPolicy,
    SearchAttributes,
    TypedSearchAttributes,
    VersioningBehavior,
    WorkflowIDReusePolicy,
)

if TYPE_CHECKING:
    from clew.workflow._activities import ActivityCancellationType, ActivityHandle
    from clew.workflow._children import ChildWorkflowCancellationType, ChildWorkflowHandle
    from clew.workflow._runtime import Info


@dataclass
class ExecuteWorkflowInput:
    """Input of `WorkflowInboundInterceptor.execute_workflow`."""

    type: type[Any]
    run_fn: Callable[..., Awaitable[Any]]
    args: Sequence[Any]
    headers: Mapping[str, Payload]


@dataclass
class HandleSignalInput:
    """Input of `WorkflowInboundInterceptor.handle_signal`."""

    signal: str
    args: Sequence[Any]
    headers: Mapping[str, Payload]


@dataclass
class HandleQueryInput:
    """Input of `WorkflowInboundInterceptor.handle_query`."""

    id: str
    query: str
    args: Sequence[Any]
    headers: Mapping[str, Payload]


@dataclass
class HandleUpdateInput:
    """Input of `WorkflowInboundInterceptor.handle_update_validator` and `handle_update_handler`."""

    id: str
    update: str
    args: Sequence[Any]
    headers: Mapping[str, Payload]


@dataclass(slots=True)
class StartActivityInput:
    """Input of `WorkflowOutboundInterceptor.start_activity`."""

    activity: str
    args: Sequence[Any]
    activity_id: str | None
    task_queue: str | None
    schedule_to_close_timeout: timedelta | None
    schedule_to_start_timeout: timedelta | None
    start_to_close_timeout: timedelta | None
    heartbeat_timeout: timedelta | None
    retry_policy: RetryPolicy | None
    cancellation_type: ActivityCancellationType
    headers: MutableMapping[str, Payload]
    disable_eager_execution: bool
    versioning_intent: Any
    summary: str | None
    priority: Priority | None
    arg_types: Sequence[Any] | None
    ret_type: Any | None


@dataclass(slots=True)
class StartLocalActivityInput:
    """Input of `WorkflowOutboundInterceptor.start_local_activity`."""

    activity: str
    args: Sequence[Any]
    activity_id: str | None
    schedule_to_close_timeout: timedelta | None
    schedule_to_start_timeout: timedelta | None
    start_to_close_timeout: timedelta | None
    retry_policy: RetryPolicy | None
    local_retry_threshold: timedelta | None
    cancellation_type: ActivityCancellationType
    headers: MutableMapping[str, Payload]
    summary: str | None
    durable: str
    arg_types: Sequence[Any] | None
    ret_type: Any | None


@dataclass
class StartChildWorkflowInput:
    """Input of `WorkflowOutboundInterceptor.start_child_workflow`."""

    workflow: str
    args: Sequence[Any]
    id: str
    task_queue: str | None
    cancellation_type: ChildWorkflowCancellationType
    parent_close_policy: ParentClosePolicy
    execution_timeout: timedelta | None
    run_timeout: timedelta | None
    task_timeout: timedelta | None
    id_reuse_policy: WorkflowIDReusePolicy
    retry_policy: RetryPolicy | None
    cron_schedule: str
    memo: Mapping[str, Any] | None
    search_attributes: SearchAttributes | TypedSearchAttributes | None
    headers: MutableMapping[str, Payload]
    versioning_intent: Any
    static_summary: str | None
    static_details: str | None
    priority: Priority | None
    arg_types: Sequence[Any] | None
    ret_type: Any | None


@dataclass
class ContinueAsNewInput:
    """Input of `WorkflowOutboundInterceptor.continue_as_new`."""

    workflow: str | None
    args: Sequence[Any]
    task_queue: str | None
    run_timeout: timedelta | None
    task_timeout: timedelta | None
    retry_policy: RetryPolicy | None
    memo: Mapping[str, Any] | None
    search_attributes: SearchAttributes | TypedSearchAttributes | None
    headers: MutableMapping[str, Payload]
    versioning_intent: Any
    arg_types: Sequence[Any] | None
    initial_versioning_behavior: VersioningBehavior | None = None


@dataclass
class SignalChildWorkflowInput:
    """Input of `WorkflowOutboundInterceptor.signal_child_workflow`."""

    signal: str
    args: Sequence[Any]
    child_workflow_id: str
    headers: MutableMapping[str, Payload] = field(default_factory=dict[str, Payload])


@dataclass
class SignalExternalWorkflowInput:
    """Input of `WorkflowOutboundInterceptor.signal_external_workflow`."""

    signal: str
    args: Sequence[Any]
    namespace: str
    workflow_id: str
    workflow_run_id: str | None
    headers: MutableMapping[str, Payload] = field(default_factory=dict[str, Payload])


class WorkflowInboundInterceptor:
    """Stands before the functions of a workflow. Override what is of interest and call `super` or `next`."""

    def __init__(self, next: WorkflowInboundInterceptor) -> None:
        self.next = next

    def init(self, outbound: WorkflowOutboundInterceptor) -> None:
        """Called once, before anything else, with the outbound chain; wrap it and pass it on."""
        self.next.init(outbound)

    async def execute_workflow(self, input: ExecuteWorkflowInput) -> Any:
        """Run the workflow."""
        return await self.next.execute_workflow(input)

    async def handle_signal(self, input: HandleSignalInput) -> None:
        """Handle a signal."""
        return await self.next.handle_signal(input)

    async def handle_query(self, input: HandleQueryInput) -> Any:
        """Answer a query. Must not wait for anything."""
        return await self.next.handle_query(input)

    def handle_update_validator(self, input: HandleUpdateInput) -> None:
        """Check an update; raise to refuse it."""
        self.next.handle_update_validator(input)

    async def handle_update_handler(self, input: HandleUpdateInput) -> Any:
        """Handle an update."""
        return await self.next.handle_update_handler(input)


class WorkflowOutboundInterceptor:
    """Stands behind the calls that a workflow makes. Override what is of interest and call `super` or `next`."""

    def __init__(self, next: WorkflowOutboundInterceptor) -> None:
        self.next = next

    def continue_as_new(self, input: ContinueAsNewInput) -> NoReturn:
        """Continue as new."""
        self.next.continue_as_new(input)

    def info(self) -> Info:
        """Give what the run knows of itself."""
        return self.next.info()

    async def signal_child_workflow(self, input: SignalChildWorkflowInput) -> None:
        """Signal a child."""
        return await self.next.signal_child_workflow(input)

    async def signal_external_workflow(self, input: SignalExternalWorkflowInput) -> None:
        """Signal another workflow."""
        await self.next.signal_external_workflow(input)

    def start_activity(self, input: StartActivityInput) -> ActivityHandle[Any]:
        """Start an activity; also called by `execute_activity`."""
        return self.next.start_activity(input)

    def start_local_activity(self, input: StartLocalActivityInput) -> ActivityHandle[Any]:
        """Start a local activity; also called by `execute_local_activity`."""
        return self.next.start_local_activity(input)

    async def start_child_workflow(self, input: StartChildWorkflowInput) -> ChildWorkflowHandle[Any, Any]:
        """Start a child; also called by `execute_child_workflow`."""
        return await self.next.start_child_workflow(input)
