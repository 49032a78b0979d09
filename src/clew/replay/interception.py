"""The inner ends of the interceptor chains.

Owns: the links that call the user's functions and the machine. Never: exists without interceptors (the machine then
calls directly).

How it works: around each step from a chain to user code and back, the context says whose code runs, so that random
draws of interceptors stay apart from those of the workflow (``chance``).
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, NoReturn, final

from clew.model import events as e
from clew.replay.chance import is_in_interceptor
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

if TYPE_CHECKING:
    from clew.replay.runtime import WorkflowRuntime
    from clew.workflow._activities import ActivityHandle
    from clew.workflow._children import ChildWorkflowHandle
    from clew.workflow._runtime import Info


@final
class InnerInbound(WorkflowInboundInterceptor):
    """Calls the user's functions."""

    def __init__(self, runtime: WorkflowRuntime) -> None:
        self._runtime = runtime

    def init(self, outbound: WorkflowOutboundInterceptor) -> None:
        self._runtime.outbound_chain = outbound

    async def execute_workflow(self, input: ExecuteWorkflowInput) -> Any:
        token = is_in_interceptor.set(False)
        try:
            return await input.run_fn(self._runtime.instance(), *input.args)
        finally:
            is_in_interceptor.reset(token)

    async def handle_signal(self, input: HandleSignalInput) -> None:
        await self._call(self._runtime.handlers.bound_signal(input.signal), input.args)

    async def handle_query(self, input: HandleQueryInput) -> Any:
        return await self._call(self._runtime.handlers.bound_query(input.query), input.args)

    def handle_update_validator(self, input: HandleUpdateInput) -> None:
        token = is_in_interceptor.set(False)
        try:
            self._runtime.handlers.call_validator(input.update, input.args)
        finally:
            is_in_interceptor.reset(token)

    async def handle_update_handler(self, input: HandleUpdateInput) -> Any:
        return await self._call(self._runtime.handlers.bound_update(input.update), input.args)

    async def _call(self, fn: Any, args: Any) -> Any:
        token = is_in_interceptor.set(False)
        try:
            result = fn(*args)
            return await result if inspect.isawaitable(result) else result
        finally:
            is_in_interceptor.reset(token)


@final
class InnerOutbound(WorkflowOutboundInterceptor):
    """Calls the machine."""

    def __init__(self, runtime: WorkflowRuntime) -> None:
        self._runtime = runtime

    def continue_as_new(self, input: ContinueAsNewInput) -> NoReturn:
        self._runtime.continue_as_new_directly(input)

    def info(self) -> Info:
        return self._runtime.info_directly()

    async def signal_child_workflow(self, input: SignalChildWorkflowInput) -> None:
        target = e.ExecutionRef(input.child_workflow_id, "", self._runtime.namespace)
        await self._runtime.out.signal_external(target, input.signal, input.args, True, input.headers)

    async def signal_external_workflow(self, input: SignalExternalWorkflowInput) -> None:
        target = e.ExecutionRef(input.workflow_id, input.workflow_run_id or "", input.namespace)
        await self._runtime.out.signal_external(target, input.signal, input.args, False, input.headers)

    def start_activity(self, input: StartActivityInput) -> ActivityHandle[Any]:
        return self._runtime.out.start_activity(input)

    def start_local_activity(self, input: StartLocalActivityInput) -> ActivityHandle[Any]:
        return self._runtime.start_local_activity_directly(input)

    async def start_child_workflow(self, input: StartChildWorkflowInput) -> ChildWorkflowHandle[Any, Any]:
        return await self._runtime.out.start_child(input)
