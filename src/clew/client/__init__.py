"""Start workflows, talk to them, and wait for their results.

::

    client = await Client.connect("sqlite:claims.db")
    result = await client.execute_workflow(Claim.run, claim, id="claim-4711", task_queue="claims")
"""

from __future__ import annotations

from clew.client._activity_handle import AsyncActivityHandle, AsyncActivityIDReference
from clew.client._blocking import BlockingClient
from clew.client._blocking_deployment import BlockingWorkerDeploymentHandle
from clew.client._blocking_handle import (
    BlockingAsyncActivityHandle,
    BlockingWorkflowHandle,
    BlockingWorkflowUpdateHandle,
)
from clew.client._client import Client
from clew.client._deployment import (
    WorkerDeploymentDescription,
    WorkerDeploymentHandle,
    WorkerDeploymentInfo,
    WorkerDeploymentVersionInfo,
    WorkerDeploymentVersionStatus,
)
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
    Interceptor,
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
from clew.client._plugin import ClientConfig, ConnectConfig, Plugin
from clew.client._start import StartOptions, WithStartOptions
from clew.client._update_handle import WorkflowUpdateHandle
from clew.client._update_with_start import WithStartWorkflowOperation
from clew.common import QueryRejectCondition, WorkflowExecutionStatus
from clew.exceptions import (
    AsyncActivityCancelledError,
    WorkflowAlreadyStartedError,
    WorkflowContinuedAsNewError,
    WorkflowFailureError,
    WorkflowQueryFailedError,
    WorkflowQueryRejectedError,
    WorkflowUpdateFailedError,
    WorkflowUpdateRPCTimeoutOrCancelledError,
)
from clew.model.compact import CompactLine, compact_history, format_compact_history
from clew.model.history import WorkflowHistory
from clew.service.errors import RPCError, RPCStatusCode
from clew.service.requests import ResetReapplyExcludeType, ResetType
from clew.service.requests import UpdateStage as WorkflowUpdateStage

__all__ = [
    "AsyncActivityCancelledError",
    "AsyncActivityHandle",
    "AsyncActivityIDReference",
    "BlockingAsyncActivityHandle",
    "BlockingClient",
    "BlockingWorkerDeploymentHandle",
    "BlockingWorkflowHandle",
    "BlockingWorkflowUpdateHandle",
    "CancelWorkflowInput",
    "Client",
    "ClientConfig",
    "CompactLine",
    "CompleteAsyncActivityInput",
    "ConnectConfig",
    "CountWorkflowsInput",
    "DescribeWorkflowInput",
    "FailAsyncActivityInput",
    "FetchWorkflowHistoryEventsInput",
    "HeartbeatAsyncActivityInput",
    "Interceptor",
    "ListWorkflowsInput",
    "OutboundInterceptor",
    "Plugin",
    "QueryRejectCondition",
    "QueryWorkflowInput",
    "RPCError",
    "RPCStatusCode",
    "ReportCancellationAsyncActivityInput",
    "ResetReapplyExcludeType",
    "ResetType",
    "SignalWorkflowInput",
    "StartOptions",
    "StartWorkflowInput",
    "StartWorkflowUpdateInput",
    "StartWorkflowUpdateWithStartInput",
    "TerminateWorkflowInput",
    "WithStartOptions",
    "WithStartWorkflowOperation",
    "WorkerDeploymentDescription",
    "WorkerDeploymentHandle",
    "WorkerDeploymentInfo",
    "WorkerDeploymentVersionInfo",
    "WorkerDeploymentVersionStatus",
    "WorkflowAlreadyStartedError",
    "WorkflowContinuedAsNewError",
    "WorkflowExecution",
    "WorkflowExecutionAsyncIterator",
    "WorkflowExecutionCount",
    "WorkflowExecutionCountAggregationGroup",
    "WorkflowExecutionDescription",
    "WorkflowExecutionStatus",
    "WorkflowFailureError",
    "WorkflowHandle",
    "WorkflowHistory",
    "WorkflowHistoryEventAsyncIterator",
    "WorkflowQueryFailedError",
    "WorkflowQueryRejectedError",
    "WorkflowUpdateFailedError",
    "WorkflowUpdateHandle",
    "WorkflowUpdateRPCTimeoutOrCancelledError",
    "WorkflowUpdateStage",
    "compact_history",
    "format_compact_history",
]
