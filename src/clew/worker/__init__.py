"""Workers: what runs workflows and activities, and what replays recorded runs."""

from __future__ import annotations

from clew.worker._activity_interceptor import (
    ActivityInboundInterceptor,
    ActivityOutboundInterceptor,
    ExecuteActivityInput,
)
from clew.worker._interceptor import Interceptor, WorkflowInterceptorClassInput
from clew.worker._plugin import Plugin, ReplayerConfig, RunReplayer, WorkerConfig
from clew.worker._rebuilding import RebuiltRun, TaskStack
from clew.worker._replayer import Replayer, WorkflowReplayResult, WorkflowReplayResults
from clew.worker._settings import WorkerDeploymentConfig
from clew.worker._shared_state import SharedStateManager
from clew.worker._worker import Worker
from clew.worker.workflow_sandbox import UnsandboxedWorkflowRunner, WorkflowRunner
from clew.workflow._interceptor import (
    ContinueAsNewInput,
    ExecuteWorkflowInput,
    HandleQueryInput,
    HandleSignalInput,
    HandleUpdateInput,
    SignalChildWorkflowInput,
    SignalExternalWorkflowInput,
    StartActivityInput,
    StartChildWorkflowInput,
    StartLocalActivityInput,
    WorkflowInboundInterceptor,
    WorkflowOutboundInterceptor,
)

__all__ = [
    "ActivityInboundInterceptor",
    "ActivityOutboundInterceptor",
    "ContinueAsNewInput",
    "ExecuteActivityInput",
    "ExecuteWorkflowInput",
    "HandleQueryInput",
    "HandleSignalInput",
    "HandleUpdateInput",
    "Interceptor",
    "Plugin",
    "RebuiltRun",
    "Replayer",
    "ReplayerConfig",
    "RunReplayer",
    "SharedStateManager",
    "SignalChildWorkflowInput",
    "SignalExternalWorkflowInput",
    "StartActivityInput",
    "StartChildWorkflowInput",
    "StartLocalActivityInput",
    "TaskStack",
    "UnsandboxedWorkflowRunner",
    "Worker",
    "WorkerConfig",
    "WorkerDeploymentConfig",
    "WorkflowInboundInterceptor",
    "WorkflowInterceptorClassInput",
    "WorkflowOutboundInterceptor",
    "WorkflowReplayResult",
    "WorkflowReplayResults",
    "WorkflowRunner",
]
