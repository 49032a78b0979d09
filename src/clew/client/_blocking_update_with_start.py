"""Update-with-start of the blocking client.

Owns: the blocking form of the two calls. Never: behaviour of its own (``_update_with_start`` has it).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, overload

from clew.client._blocking_calls import BlockingCalls
from clew.client._blocking_handle import BlockingWorkflowUpdateHandle
from clew.client._client import Client
from clew.client._names import UNSET
from clew.client._update_with_start import WithStartWorkflowOperation
from clew.service.requests import UpdateStage
from clew.types import LocalReturnType, MultiParamSpec, ParamType, SelfType
from clew.workflow._definition import UpdateMethodMultiParam


class BlockingUpdateWithStartCalls:
    """The calls of a blocking client that take a `WithStartWorkflowOperation`."""

    _calls: BlockingCalls

    @overload
    def execute_update_with_start_workflow(
        self,
        update: UpdateMethodMultiParam[[SelfType], LocalReturnType],
        *,
        start_workflow_operation: WithStartWorkflowOperation[SelfType, Any],
        id: str | None = None,
        rpc_timeout: timedelta | None = None,
    ) -> LocalReturnType: ...
    @overload
    def execute_update_with_start_workflow(
        self,
        update: UpdateMethodMultiParam[[SelfType, ParamType], LocalReturnType],
        arg: ParamType,
        *,
        start_workflow_operation: WithStartWorkflowOperation[SelfType, Any],
        id: str | None = None,
        rpc_timeout: timedelta | None = None,
    ) -> LocalReturnType: ...
    @overload
    def execute_update_with_start_workflow(
        self,
        update: UpdateMethodMultiParam[MultiParamSpec, LocalReturnType],
        *,
        args: Sequence[Any],
        start_workflow_operation: WithStartWorkflowOperation[Any, Any],
        id: str | None = None,
        rpc_timeout: timedelta | None = None,
    ) -> LocalReturnType: ...
    @overload
    def execute_update_with_start_workflow(
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
    def execute_update_with_start_workflow(
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
        """As `Client.execute_update_with_start_workflow`, blocking.

        ``client.wait(operation.workflow_handle())`` gives an async handle of the run; ``get_workflow_handle`` gives one
        that blocks.
        """
        return self._calls.call(
            lambda client: _any(client).execute_update_with_start_workflow(
                update,
                arg,
                start_workflow_operation=start_workflow_operation,
                args=args,
                id=id,
                result_type=result_type,
                rpc_timeout=rpc_timeout,
            )
        )

    @overload
    def start_update_with_start_workflow(
        self,
        update: UpdateMethodMultiParam[[SelfType], LocalReturnType],
        *,
        start_workflow_operation: WithStartWorkflowOperation[SelfType, Any],
        wait_for_stage: UpdateStage,
        id: str | None = None,
        rpc_timeout: timedelta | None = None,
    ) -> BlockingWorkflowUpdateHandle[LocalReturnType]: ...
    @overload
    def start_update_with_start_workflow(
        self,
        update: UpdateMethodMultiParam[[SelfType, ParamType], LocalReturnType],
        arg: ParamType,
        *,
        start_workflow_operation: WithStartWorkflowOperation[SelfType, Any],
        wait_for_stage: UpdateStage,
        id: str | None = None,
        rpc_timeout: timedelta | None = None,
    ) -> BlockingWorkflowUpdateHandle[LocalReturnType]: ...
    @overload
    def start_update_with_start_workflow(
        self,
        update: UpdateMethodMultiParam[MultiParamSpec, LocalReturnType],
        *,
        args: Sequence[Any],
        start_workflow_operation: WithStartWorkflowOperation[Any, Any],
        wait_for_stage: UpdateStage,
        id: str | None = None,
        rpc_timeout: timedelta | None = None,
    ) -> BlockingWorkflowUpdateHandle[LocalReturnType]: ...
    @overload
    def start_update_with_start_workflow(
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
    ) -> BlockingWorkflowUpdateHandle[Any]: ...
    def start_update_with_start_workflow(
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
    ) -> BlockingWorkflowUpdateHandle[Any]:
        """As `Client.start_update_with_start_workflow`, blocking."""
        handle = self._calls.call(
            lambda client: _any(client).start_update_with_start_workflow(
                update,
                arg,
                start_workflow_operation=start_workflow_operation,
                wait_for_stage=wait_for_stage,
                args=args,
                id=id,
                result_type=result_type,
                rpc_timeout=rpc_timeout,
            )
        )
        return BlockingWorkflowUpdateHandle(self._calls, handle)


def _any(client: Client) -> Any:
    """For calls whose argument types were checked by the overloads already."""
    return client
