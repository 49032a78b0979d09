"""Handles of the blocking client: runs, updates, and activities that are completed from outside.

Owns: the blocking form of each method. Never: behaviour of its own: each method is that of the async handle, which its
docstring names and explains.

How it works: a handle keeps what its async counterpart knows and makes it anew for each call, on the client that is
connected then, so handles outlive a fork.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any, Concatenate, Generic, final, overload

from clew.client._activity_handle import AsyncActivityHandle
from clew.client._blocking_calls import BlockingCalls
from clew.client._client import Client
from clew.client._description import WorkflowExecutionDescription
from clew.client._handle import WorkflowHandle
from clew.client._names import UNSET
from clew.client._update_handle import WorkflowUpdateHandle
from clew.common import QueryRejectCondition, VersioningOverride
from clew.model.events import Event
from clew.model.history import WorkflowHistory
from clew.model.inputs import ActivityTarget, TaskToken
from clew.service.requests import ResetReapplyExcludeType, ResetType, UpdateStage
from clew.types import (
    LocalReturnType,
    MethodSyncOrAsyncNoParam,
    MethodSyncOrAsyncSingleParam,
    MultiParamSpec,
    ParamType,
    ReturnType,
    SelfType,
)
from clew.workflow._definition import UpdateMethodMultiParam


@final
class BlockingWorkflowHandle(Generic[SelfType, ReturnType]):
    """A handle on one execution; made by `BlockingClient.start_workflow` and `BlockingClient.get_workflow_handle`."""

    def __init__(self, calls: BlockingCalls, handle: WorkflowHandle[SelfType, ReturnType]) -> None:
        self._calls = calls
        self._handle = handle

    def __repr__(self) -> str:
        return f"<Blocking{repr(self._handle)[1:]}"

    def _on(self, client: Client) -> WorkflowHandle[SelfType, ReturnType]:
        known = self._handle
        if known._client is client:
            return known
        return WorkflowHandle(
            client,
            known.id,
            run_id=known.run_id,
            result_run_id=known.result_run_id,
            first_execution_run_id=known.first_execution_run_id,
            result_type=known._result_type,
        )

    @property
    def id(self) -> str:
        """Workflow id."""
        return self._handle.id

    @property
    def run_id(self) -> str | None:
        """The run that calls go to; None for whichever run of the id is current."""
        return self._handle.run_id

    @property
    def result_run_id(self) -> str | None:
        """The run whose result `result` waits for; None for the one that is current at its first call."""
        return self._handle.result_run_id

    @property
    def first_execution_run_id(self) -> str | None:
        """The first run of the chain, if this handle knows it (from a start)."""
        return self._handle.first_execution_run_id

    def result(
        self, *, follow_runs: bool = True, rpc_timeout: timedelta | None = None, timeout: timedelta | None = None
    ) -> ReturnType:
        """As `WorkflowHandle.result`, blocking.

        Args:
            follow_runs: Go on to the run that follows by continue-as-new, retry or cron, until the chain ends.
            rpc_timeout: Longest wait of one poll; None lets the engine choose.
            timeout: Longest wait altogether; None waits as long as it takes. The run is not touched when it is over.

        Raises:
            TimeoutError: The time is over.
        """
        return self._calls.call(
            lambda client: self._on(client).result(follow_runs=follow_runs, rpc_timeout=rpc_timeout), timeout
        )

    def cancel(self, *, reason: str = "", rpc_timeout: timedelta | None = None) -> None:
        """As `WorkflowHandle.cancel`, blocking."""
        self._calls.call(lambda client: self._on(client).cancel(reason=reason, rpc_timeout=rpc_timeout))

    def terminate(self, *args: Any, reason: str | None = None, rpc_timeout: timedelta | None = None) -> None:
        """As `WorkflowHandle.terminate`, blocking."""
        self._calls.call(lambda client: self._on(client).terminate(*args, reason=reason, rpc_timeout=rpc_timeout))

    def reset(
        self,
        *,
        reason: str,
        event_id: int | None = None,
        reset_type: ResetType = ResetType.UNSPECIFIED,
        build_id: str | None = None,
        reapply_exclude: Sequence[ResetReapplyExcludeType] = (),
        rpc_timeout: timedelta | None = None,
    ) -> BlockingWorkflowHandle[SelfType, ReturnType]:
        """As `WorkflowHandle.reset`, blocking."""
        made = self._calls.call(
            lambda client: self._on(client).reset(
                reason=reason,
                event_id=event_id,
                reset_type=reset_type,
                build_id=build_id,
                reapply_exclude=reapply_exclude,
                rpc_timeout=rpc_timeout,
            )
        )
        return BlockingWorkflowHandle(self._calls, made)

    def delete(self, *, rpc_timeout: timedelta | None = None) -> str:
        """As `WorkflowHandle.delete`, blocking."""
        return self._calls.call(lambda client: self._on(client).delete(rpc_timeout=rpc_timeout))

    def describe(self, *, rpc_timeout: timedelta | None = None) -> WorkflowExecutionDescription:
        """As `WorkflowHandle.describe`, blocking."""
        return self._calls.call(lambda client: self._on(client).describe(rpc_timeout=rpc_timeout))

    def update_options(
        self, *, versioning_override: VersioningOverride | None, rpc_timeout: timedelta | None = None
    ) -> None:
        """As `WorkflowHandle.update_options`, blocking."""
        self._calls.call(
            lambda client: self._on(client).update_options(
                versioning_override=versioning_override, rpc_timeout=rpc_timeout
            )
        )

    def fetch_history(self, *, rpc_timeout: timedelta | None = None) -> WorkflowHistory:
        """As `WorkflowHandle.fetch_history`, blocking."""
        return self._calls.call(lambda client: self._on(client).fetch_history(rpc_timeout=rpc_timeout))

    def fetch_history_events(
        self,
        *,
        page_size: int | None = None,
        from_event_id: int = 1,
        wait_new_event: bool = False,
        close_event_only: bool = False,
        rpc_timeout: timedelta | None = None,
    ) -> Iterator[Event]:
        """As `WorkflowHandle.fetch_history_events`, as an iterator that blocks for each page."""
        return self._calls.iterate(
            lambda client: self._on(client).fetch_history_events(
                page_size=page_size,
                from_event_id=from_event_id,
                wait_new_event=wait_new_event,
                close_event_only=close_event_only,
                rpc_timeout=rpc_timeout,
            )
        )

    @overload
    def signal(
        self, signal: MethodSyncOrAsyncNoParam[SelfType, None], *, rpc_timeout: timedelta | None = None
    ) -> None: ...
    @overload
    def signal(
        self,
        signal: MethodSyncOrAsyncSingleParam[SelfType, ParamType, None],
        arg: ParamType,
        *,
        rpc_timeout: timedelta | None = None,
    ) -> None: ...
    @overload
    def signal(
        self,
        signal: Callable[Concatenate[SelfType, MultiParamSpec], Awaitable[None] | None],
        *,
        args: Sequence[Any],
        rpc_timeout: timedelta | None = None,
    ) -> None: ...
    @overload
    def signal(
        self, signal: str, arg: Any = UNSET, *, args: Sequence[Any] = (), rpc_timeout: timedelta | None = None
    ) -> None: ...
    def signal(
        self,
        signal: str | Callable[..., Any],
        arg: Any = UNSET,
        *,
        args: Sequence[Any] = (),
        rpc_timeout: timedelta | None = None,
    ) -> None:
        """As `WorkflowHandle.signal`, blocking."""
        self._calls.call(lambda client: _any(self._on(client)).signal(signal, arg, args=args, rpc_timeout=rpc_timeout))

    @overload
    def query(
        self,
        query: MethodSyncOrAsyncNoParam[SelfType, LocalReturnType],
        *,
        reject_condition: QueryRejectCondition | None = None,
        rpc_timeout: timedelta | None = None,
    ) -> LocalReturnType: ...
    @overload
    def query(
        self,
        query: MethodSyncOrAsyncSingleParam[SelfType, ParamType, LocalReturnType],
        arg: ParamType,
        *,
        reject_condition: QueryRejectCondition | None = None,
        rpc_timeout: timedelta | None = None,
    ) -> LocalReturnType: ...
    @overload
    def query(
        self,
        query: Callable[Concatenate[SelfType, MultiParamSpec], Awaitable[LocalReturnType] | LocalReturnType],
        *,
        args: Sequence[Any],
        reject_condition: QueryRejectCondition | None = None,
        rpc_timeout: timedelta | None = None,
    ) -> LocalReturnType: ...
    @overload
    def query(
        self,
        query: str,
        arg: Any = UNSET,
        *,
        args: Sequence[Any] = (),
        result_type: type | None = None,
        reject_condition: QueryRejectCondition | None = None,
        rpc_timeout: timedelta | None = None,
    ) -> Any: ...
    def query(
        self,
        query: str | Callable[..., Any],
        arg: Any = UNSET,
        *,
        args: Sequence[Any] = (),
        result_type: type | None = None,
        reject_condition: QueryRejectCondition | None = None,
        rpc_timeout: timedelta | None = None,
    ) -> Any:
        """As `WorkflowHandle.query`, blocking."""
        return self._calls.call(
            lambda client: _any(self._on(client)).query(
                query,
                arg,
                args=args,
                result_type=result_type,
                reject_condition=reject_condition,
                rpc_timeout=rpc_timeout,
            )
        )

    @overload
    def execute_update(
        self,
        update: UpdateMethodMultiParam[[SelfType], LocalReturnType],
        *,
        id: str | None = None,
        rpc_timeout: timedelta | None = None,
    ) -> LocalReturnType: ...
    @overload
    def execute_update(
        self,
        update: UpdateMethodMultiParam[[SelfType, ParamType], LocalReturnType],
        arg: ParamType,
        *,
        id: str | None = None,
        rpc_timeout: timedelta | None = None,
    ) -> LocalReturnType: ...
    @overload
    def execute_update(
        self,
        update: UpdateMethodMultiParam[MultiParamSpec, LocalReturnType],
        *,
        args: Sequence[Any],
        id: str | None = None,
        rpc_timeout: timedelta | None = None,
    ) -> LocalReturnType: ...
    @overload
    def execute_update(
        self,
        update: str,
        arg: Any = UNSET,
        *,
        args: Sequence[Any] = (),
        id: str | None = None,
        result_type: type | None = None,
        rpc_timeout: timedelta | None = None,
    ) -> Any: ...
    def execute_update(
        self,
        update: str | Callable[..., Any],
        arg: Any = UNSET,
        *,
        args: Sequence[Any] = (),
        id: str | None = None,
        result_type: type | None = None,
        rpc_timeout: timedelta | None = None,
    ) -> Any:
        """As `WorkflowHandle.execute_update`, blocking."""
        return self._calls.call(
            lambda client: _any(self._on(client)).execute_update(
                update, arg, args=args, id=id, result_type=result_type, rpc_timeout=rpc_timeout
            )
        )

    @overload
    def start_update(
        self,
        update: UpdateMethodMultiParam[[SelfType], LocalReturnType],
        *,
        wait_for_stage: UpdateStage,
        id: str | None = None,
        rpc_timeout: timedelta | None = None,
    ) -> BlockingWorkflowUpdateHandle[LocalReturnType]: ...
    @overload
    def start_update(
        self,
        update: UpdateMethodMultiParam[[SelfType, ParamType], LocalReturnType],
        arg: ParamType,
        *,
        wait_for_stage: UpdateStage,
        id: str | None = None,
        rpc_timeout: timedelta | None = None,
    ) -> BlockingWorkflowUpdateHandle[LocalReturnType]: ...
    @overload
    def start_update(
        self,
        update: UpdateMethodMultiParam[MultiParamSpec, LocalReturnType],
        *,
        args: Sequence[Any],
        wait_for_stage: UpdateStage,
        id: str | None = None,
        rpc_timeout: timedelta | None = None,
    ) -> BlockingWorkflowUpdateHandle[LocalReturnType]: ...
    @overload
    def start_update(
        self,
        update: str,
        arg: Any = UNSET,
        *,
        wait_for_stage: UpdateStage,
        args: Sequence[Any] = (),
        id: str | None = None,
        result_type: type | None = None,
        rpc_timeout: timedelta | None = None,
    ) -> BlockingWorkflowUpdateHandle[Any]: ...
    def start_update(
        self,
        update: str | Callable[..., Any],
        arg: Any = UNSET,
        *,
        wait_for_stage: UpdateStage,
        args: Sequence[Any] = (),
        id: str | None = None,
        result_type: type | None = None,
        rpc_timeout: timedelta | None = None,
    ) -> BlockingWorkflowUpdateHandle[Any]:
        """As `WorkflowHandle.start_update`, blocking."""
        handle = self._calls.call(
            lambda client: _any(self._on(client)).start_update(
                update,
                arg,
                wait_for_stage=wait_for_stage,
                args=args,
                id=id,
                result_type=result_type,
                rpc_timeout=rpc_timeout,
            )
        )
        return BlockingWorkflowUpdateHandle(self._calls, handle)

    def get_update_handle(
        self, id: str, *, workflow_run_id: str | None = None, result_type: type | None = None
    ) -> BlockingWorkflowUpdateHandle[Any]:
        """As `WorkflowHandle.get_update_handle`."""
        handle = self._handle.get_update_handle(id, workflow_run_id=workflow_run_id, result_type=result_type)
        return BlockingWorkflowUpdateHandle(self._calls, handle)

    def get_update_handle_for(
        self,
        update: UpdateMethodMultiParam[MultiParamSpec, LocalReturnType],
        id: str,
        *,
        workflow_run_id: str | None = None,
    ) -> BlockingWorkflowUpdateHandle[LocalReturnType]:
        """As `WorkflowHandle.get_update_handle_for`."""
        handle = self._handle.get_update_handle_for(update, id, workflow_run_id=workflow_run_id)
        return BlockingWorkflowUpdateHandle(self._calls, handle)


@final
class BlockingWorkflowUpdateHandle(Generic[LocalReturnType]):
    """A handle on one update; made by `BlockingWorkflowHandle.start_update` and `get_update_handle`."""

    def __init__(self, calls: BlockingCalls, handle: WorkflowUpdateHandle[LocalReturnType]) -> None:
        self._calls = calls
        self._handle = handle

    def __repr__(self) -> str:
        return f"<Blocking{repr(self._handle)[1:]}"

    @property
    def id(self) -> str:
        """Update id."""
        return self._handle.id

    @property
    def workflow_id(self) -> str:
        """The workflow it was sent to."""
        return self._handle.workflow_id

    @property
    def workflow_run_id(self) -> str | None:
        """The run it was sent to, if known."""
        return self._handle.workflow_run_id

    def result(self, *, rpc_timeout: timedelta | None = None) -> LocalReturnType:
        """As `WorkflowUpdateHandle.result`, blocking."""
        return self._calls.call(lambda client: self._on(client).result(rpc_timeout=rpc_timeout))

    def _on(self, client: Client) -> WorkflowUpdateHandle[LocalReturnType]:
        known = self._handle
        if known._client is client:
            return known
        return WorkflowUpdateHandle(
            client,
            known.id,
            known.workflow_id,
            workflow_run_id=known.workflow_run_id,
            result_type=known._result_type,
            known_outcome=known._known_outcome,
        )


@final
class BlockingAsyncActivityHandle:
    """A handle on an activity that is completed from outside; made by `BlockingClient.get_async_activity_handle`."""

    def __init__(self, calls: BlockingCalls, target: TaskToken | ActivityTarget) -> None:
        self._calls = calls
        self._target = target

    def heartbeat(self, *details: Any, rpc_timeout: timedelta | None = None) -> None:
        """As `AsyncActivityHandle.heartbeat`, blocking."""
        self._calls.call(lambda client: self._on(client).heartbeat(*details, rpc_timeout=rpc_timeout))

    def complete(self, result: Any = None, *, rpc_timeout: timedelta | None = None) -> None:
        """As `AsyncActivityHandle.complete`, blocking."""
        self._calls.call(lambda client: self._on(client).complete(result, rpc_timeout=rpc_timeout))

    def fail(
        self, error: Exception, *, last_heartbeat_details: Sequence[Any] = (), rpc_timeout: timedelta | None = None
    ) -> None:
        """As `AsyncActivityHandle.fail`, blocking."""
        self._calls.call(
            lambda client: self._on(client).fail(
                error, last_heartbeat_details=last_heartbeat_details, rpc_timeout=rpc_timeout
            )
        )

    def report_cancellation(self, *details: Any, rpc_timeout: timedelta | None = None) -> None:
        """As `AsyncActivityHandle.report_cancellation`, blocking."""
        self._calls.call(lambda client: self._on(client).report_cancellation(*details, rpc_timeout=rpc_timeout))

    def _on(self, client: Client) -> AsyncActivityHandle:
        return AsyncActivityHandle(client, self._target)


def _any(handle: WorkflowHandle[Any, Any]) -> Any:
    """For calls whose argument types were checked by the overloads already."""
    return handle
