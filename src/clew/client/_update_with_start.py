"""Update-with-start: the start as an object, and the two calls of a client that take it.

Owns: `WithStartWorkflowOperation` and `UpdateWithStartCalls`, which `Client` inherits. Never: sends anything
(``_outbound``).

How it works: an operation says how the run would be started. The call that uses it hands the run's handle to the
operation as soon as it is known, so that `WithStartWorkflowOperation.workflow_handle` can be awaited beside the call.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from typing import Any, Concatenate, Generic, Unpack, final, overload

from clew.client._handle import WorkflowHandle
from clew.client._interceptor import (
    OutboundInterceptor,
    StartWorkflowInput,
    StartWorkflowUpdateInput,
    StartWorkflowUpdateWithStartInput,
)
from clew.client._names import UNSET, arguments, update_target
from clew.client._start import WithStartOptions, start_input
from clew.client._update_handle import WorkflowUpdateHandle
from clew.common import WorkflowIDConflictPolicy
from clew.service.requests import UpdateStage
from clew.types import (
    LocalReturnType,
    MethodAsyncNoParam,
    MethodAsyncSingleParam,
    MultiParamSpec,
    ParamType,
    ReturnType,
    SelfType,
)
from clew.workflow._definition import UpdateMethodMultiParam

_POLICIES = (WorkflowIDConflictPolicy.FAIL, WorkflowIDConflictPolicy.USE_EXISTING)


@final
class WithStartWorkflowOperation(Generic[SelfType, ReturnType]):
    """How to start the workflow of an update-with-start; good for one call.

    Args:
        workflow: Run method of the workflow class, or the name of a type.
        arg: Its one argument.
        id_conflict_policy: ``FAIL`` refuses when a run of the id is open, ``USE_EXISTING`` updates that run.
        args: Its arguments, when it takes several.
        result_type: What to convert the result to, when `workflow` is a name.
        **options: As of `Client.start_workflow`.

    Raises:
        TypeError: An option is unknown or missing, or the arguments do not fit the workflow.
        ValueError: `id_conflict_policy` is another one.
    """

    # Overloads: method without parameter, with one, with several, and by name.
    @overload
    def __init__(
        self,
        workflow: MethodAsyncNoParam[SelfType, ReturnType],
        *,
        id_conflict_policy: WorkflowIDConflictPolicy,
        **options: Unpack[WithStartOptions],
    ) -> None: ...
    @overload
    def __init__(
        self,
        workflow: MethodAsyncSingleParam[SelfType, ParamType, ReturnType],
        arg: ParamType,
        *,
        id_conflict_policy: WorkflowIDConflictPolicy,
        **options: Unpack[WithStartOptions],
    ) -> None: ...
    @overload
    def __init__(
        self,
        workflow: Callable[Concatenate[SelfType, MultiParamSpec], Awaitable[ReturnType]],
        *,
        args: Sequence[Any],
        id_conflict_policy: WorkflowIDConflictPolicy,
        **options: Unpack[WithStartOptions],
    ) -> None: ...
    @overload
    def __init__(
        self,
        workflow: str,
        arg: Any = UNSET,
        *,
        id_conflict_policy: WorkflowIDConflictPolicy,
        args: Sequence[Any] = (),
        result_type: type[ReturnType] | None = None,
        **options: Unpack[WithStartOptions],
    ) -> None: ...
    def __init__(
        self,
        workflow: str | Callable[..., Awaitable[Any]],
        arg: Any = UNSET,
        *,
        id_conflict_policy: WorkflowIDConflictPolicy,
        args: Sequence[Any] = (),
        result_type: type | None = None,
        **options: Any,
    ) -> None:
        if id_conflict_policy not in _POLICIES:
            raise ValueError(
                f"id_conflict_policy is {id_conflict_policy!r}; update with start needs WorkflowIDConflictPolicy.FAIL "
                "(refuse when a run is open) or USE_EXISTING (update the open run)."
            )
        self._input: StartWorkflowInput = start_input(
            workflow, arg, args, result_type, {**options, "id_conflict_policy": id_conflict_policy}
        )
        self._is_used = False
        self._handle: WorkflowHandle[SelfType, ReturnType] | None = None
        self._error: BaseException | None = None
        self._changed = asyncio.Event()

    async def workflow_handle(self) -> WorkflowHandle[SelfType, ReturnType]:
        """Wait until the call that uses this operation has its run, and give a handle on that.

        Raises:
            WorkflowAlreadyStartedError: The id is taken, by the policies given.
            RPCError: The engine refused; the message says why.
        """
        await self._changed.wait()
        if self._handle is not None:
            return self._handle
        assert self._error is not None, "an operation ends with a handle or an error"
        raise self._error

    def _take(self) -> StartWorkflowInput:
        if self._is_used:
            raise RuntimeError(
                "This WithStartWorkflowOperation was used already. Make a new one for each call of update with start."
            )
        self._is_used = True
        return self._input

    def _started(self, handle: WorkflowHandle[Any, Any]) -> None:
        self._handle = handle
        self._changed.set()

    def _failed(self, error: BaseException) -> None:
        self._error = error
        self._changed.set()


class UpdateWithStartCalls:
    """The calls of a client that take a `WithStartWorkflowOperation`."""

    _outbound: OutboundInterceptor

    # Overloads: update method without parameter, with one, with several, and by name.
    @overload
    async def execute_update_with_start_workflow(
        self,
        update: UpdateMethodMultiParam[[SelfType], LocalReturnType],
        *,
        start_workflow_operation: WithStartWorkflowOperation[SelfType, Any],
        id: str | None = None,
        rpc_timeout: timedelta | None = None,
    ) -> LocalReturnType: ...
    @overload
    async def execute_update_with_start_workflow(
        self,
        update: UpdateMethodMultiParam[[SelfType, ParamType], LocalReturnType],
        arg: ParamType,
        *,
        start_workflow_operation: WithStartWorkflowOperation[SelfType, Any],
        id: str | None = None,
        rpc_timeout: timedelta | None = None,
    ) -> LocalReturnType: ...
    @overload
    async def execute_update_with_start_workflow(
        self,
        update: UpdateMethodMultiParam[MultiParamSpec, LocalReturnType],
        *,
        args: Sequence[Any],
        start_workflow_operation: WithStartWorkflowOperation[Any, Any],
        id: str | None = None,
        rpc_timeout: timedelta | None = None,
    ) -> LocalReturnType: ...
    @overload
    async def execute_update_with_start_workflow(
        self,
        update: str,
        arg: Any = UNSET,
        *,
        start_workflow_operation: WithStartWorkflowOperation[Any, Any],
        args: Sequence[Any] = (),
        id: str | None = None,
        result_type: type | None = None,
        rpc_timeout: timedelta | None = None,
    ) -> Any: ...
    async def execute_update_with_start_workflow(
        self,
        update: str | Callable[..., Any],
        arg: Any = UNSET,
        *,
        start_workflow_operation: WithStartWorkflowOperation[Any, Any],
        args: Sequence[Any] = (),
        id: str | None = None,
        result_type: type | None = None,
        rpc_timeout: timedelta | None = None,
    ) -> Any:
        """Start a workflow with an update in its first task (or update the open run), and wait for the update's result.

        Both happen or neither. An update id that the workflow knows already is answered with what that update brought,
        even if the run has closed, so that the call can be repeated.

        Args:
            update: Update method of the workflow class, or a name.
            arg: Its one argument.
            start_workflow_operation: How the workflow is started.
            args: Its arguments, when it takes several.
            id: Update id, by which a repeat is recognised; a fresh one when not given.
            result_type: What to convert the result to, when `update` is a name.
            rpc_timeout: Longest wait for the answer.

        Raises:
            WorkflowAlreadyStartedError: The workflow id is taken, by the policies given.
            WorkflowUpdateFailedError: The update was rejected, or its handler failed; the run goes on.
            WorkflowUpdateRPCTimeoutOrCancelledError: The wait ended before the update did.
            RPCError: The engine refused; the message says why.
        """
        handle = await self._send(
            update, arguments(arg, args), UpdateStage.COMPLETED, start_workflow_operation, id, result_type, rpc_timeout
        )
        return await handle.result(rpc_timeout=rpc_timeout)

    @overload
    async def start_update_with_start_workflow(
        self,
        update: UpdateMethodMultiParam[[SelfType], LocalReturnType],
        *,
        start_workflow_operation: WithStartWorkflowOperation[SelfType, Any],
        wait_for_stage: UpdateStage,
        id: str | None = None,
        rpc_timeout: timedelta | None = None,
    ) -> WorkflowUpdateHandle[LocalReturnType]: ...
    @overload
    async def start_update_with_start_workflow(
        self,
        update: UpdateMethodMultiParam[[SelfType, ParamType], LocalReturnType],
        arg: ParamType,
        *,
        start_workflow_operation: WithStartWorkflowOperation[SelfType, Any],
        wait_for_stage: UpdateStage,
        id: str | None = None,
        rpc_timeout: timedelta | None = None,
    ) -> WorkflowUpdateHandle[LocalReturnType]: ...
    @overload
    async def start_update_with_start_workflow(
        self,
        update: UpdateMethodMultiParam[MultiParamSpec, LocalReturnType],
        *,
        args: Sequence[Any],
        start_workflow_operation: WithStartWorkflowOperation[Any, Any],
        wait_for_stage: UpdateStage,
        id: str | None = None,
        rpc_timeout: timedelta | None = None,
    ) -> WorkflowUpdateHandle[LocalReturnType]: ...
    @overload
    async def start_update_with_start_workflow(
        self,
        update: str,
        arg: Any = UNSET,
        *,
        start_workflow_operation: WithStartWorkflowOperation[Any, Any],
        wait_for_stage: UpdateStage,
        args: Sequence[Any] = (),
        id: str | None = None,
        result_type: type | None = None,
        rpc_timeout: timedelta | None = None,
    ) -> WorkflowUpdateHandle[Any]: ...
    async def start_update_with_start_workflow(
        self,
        update: str | Callable[..., Any],
        arg: Any = UNSET,
        *,
        start_workflow_operation: WithStartWorkflowOperation[Any, Any],
        wait_for_stage: UpdateStage,
        args: Sequence[Any] = (),
        id: str | None = None,
        result_type: type | None = None,
        rpc_timeout: timedelta | None = None,
    ) -> WorkflowUpdateHandle[Any]:
        """Start a workflow with an update in its first task (or update the open run), and wait for the update's stage.

        Arguments and errors are those of `execute_update_with_start_workflow`, and:

        Args:
            update: Update method of the workflow class, or a name.
            arg: Its one argument.
            start_workflow_operation: How the workflow is started.
            wait_for_stage: ``ACCEPTED`` or ``COMPLETED``.
            args: Its arguments, when it takes several.
            id: Update id, by which a repeat is recognised; a fresh one when not given.
            result_type: What to convert the result to, when `update` is a name.
            rpc_timeout: Longest wait for the answer.

        Raises:
            ValueError: `wait_for_stage` is ``ADMITTED``, which nobody can wait for.
        """
        if wait_for_stage is UpdateStage.ADMITTED:
            raise ValueError("ADMITTED cannot be waited for; use ACCEPTED or COMPLETED as wait_for_stage.")
        return await self._send(
            update, arguments(arg, args), wait_for_stage, start_workflow_operation, id, result_type, rpc_timeout
        )

    async def _send(
        self,
        update: str | Callable[..., Any],
        args: Sequence[Any],
        stage: UpdateStage,
        operation: WithStartWorkflowOperation[Any, Any],
        id: str | None,
        result_type: type | None,
        rpc_timeout: timedelta | None,
    ) -> WorkflowUpdateHandle[Any]:
        target = update_target(update)
        checked = target.check(args)
        start = operation._take()
        input = StartWorkflowUpdateWithStartInput(
            start_workflow_input=start,
            update_workflow_input=StartWorkflowUpdateInput(
                id=start.id,
                run_id=None,
                first_execution_run_id=None,
                update_id=id,
                update=target.name,
                args=checked,
                wait_for_stage=stage,
                ret_type=result_type if result_type is not None else target.result_type,
                rpc_timeout=rpc_timeout,
            ),
            _on_start=operation._started,
        )
        try:
            return await self._outbound.start_update_with_start_workflow(input)
        except BaseException as error:
            operation._failed(error)
            raise
