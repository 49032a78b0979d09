"""A handle on one execution: result, signal, query, update, cancel, terminate, reset, delete, describe, history.

Owns: `WorkflowHandle`. Never: the way to the engine (``_outbound``).

How it works: `result` waits in long polls for the closing event of a run and, when asked to, goes on to the run that
follows it. A handle remembers up to three runs: the one calls go to (`run_id`, None for whichever is current), the one
whose result is meant (`result_run_id`), and the first of its chain (`first_execution_run_id`), by which cancel and
terminate can be sure not to hit a stranger that took over the workflow id.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Concatenate, Generic, cast, final, overload

from clew.adapters import new_request_id
from clew.client._calls import call_service
from clew.client._description import WorkflowExecutionDescription, WorkflowHistoryEventAsyncIterator
from clew.client._interceptor import (
    CancelWorkflowInput,
    DescribeWorkflowInput,
    FetchWorkflowHistoryEventsInput,
    QueryWorkflowInput,
    SignalWorkflowInput,
    StartWorkflowUpdateInput,
    TerminateWorkflowInput,
)
from clew.client._names import UNSET, arguments, query_target, signal_target, update_target
from clew.client._update_handle import WorkflowUpdateHandle
from clew.common import QueryRejectCondition, VersioningOverride
from clew.exceptions import (
    CancelledError,
    FailureError,
    TerminatedError,
    TimeoutError,
    TimeoutType,
    WorkflowContinuedAsNewError,
    WorkflowFailureError,
)
from clew.model import events as e
from clew.model.events import Event
from clew.model.history import WorkflowHistory
from clew.model.option_types import check_texts
from clew.service.operations import DeleteWorkflowRequest
from clew.service.requests import (
    ResetReapplyExcludeType,
    ResetType,
    ResetWorkflowRequest,
    UpdateStage,
    UpdateWorkflowOptionsRequest,
)
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

if TYPE_CHECKING:
    from clew.client._client import Client


@final
class WorkflowHandle(Generic[SelfType, ReturnType]):
    """A handle on one execution; made by `Client.start_workflow` and `Client.get_workflow_handle`."""

    def __init__(
        self,
        client: Client,
        id: str,
        *,
        run_id: str | None = None,
        result_run_id: str | None = None,
        first_execution_run_id: str | None = None,
        result_type: Any | None = None,
    ) -> None:
        self._client = client
        self._id = id
        self._run_id = run_id
        self._result_run_id = result_run_id
        self._first_execution_run_id = first_execution_run_id
        self._result_type = result_type

    def __repr__(self) -> str:
        run = f" run {self._run_id or self._result_run_id}" if self._run_id or self._result_run_id else ""
        return f"<WorkflowHandle {self._id!r}{run}>"

    @property
    def id(self) -> str:
        """Workflow id."""
        return self._id

    @property
    def run_id(self) -> str | None:
        """The run that calls go to; None for whichever run of the id is current."""
        return self._run_id

    @property
    def result_run_id(self) -> str | None:
        """The run whose result `result` waits for; None for the one that is current at its first call."""
        return self._result_run_id

    @property
    def first_execution_run_id(self) -> str | None:
        """The first run of the chain, if this handle knows it (from a start)."""
        return self._first_execution_run_id

    async def result(self, *, follow_runs: bool = True, rpc_timeout: timedelta | None = None) -> ReturnType:
        """Wait until the run closes, and give what it returned.

        Args:
            follow_runs: Go on to the run that follows by continue-as-new, retry or cron, until the chain ends.
            rpc_timeout: Longest wait of one poll; None lets the engine choose. The whole waits as long as it takes: put
                it into `asyncio.timeout` to bound it.

        Raises:
            WorkflowFailureError: The run failed, was cancelled or terminated, or timed out; its cause says which.
            WorkflowContinuedAsNewError: The run continued as new, and `follow_runs` is False.
            RPCError: There is no such run, or the engine cannot be reached any more.
        """
        run_id = self._result_run_id
        wait = self._client._wait_closing_event or self._wait_closing_event
        while True:
            event = await wait(self._id, run_id, rpc_timeout)
            run_id = _following_run_id(event)
            if not run_id or not follow_runs:
                return await self._outcome(event)

    async def _wait_closing_event(self, workflow_id: str, run_id: str | None, rpc_timeout: timedelta | None) -> Event:
        events = self._client._outbound.fetch_workflow_history_events(
            FetchWorkflowHistoryEventsInput(
                id=workflow_id, run_id=run_id, wait_new_event=True, close_event_only=True, rpc_timeout=rpc_timeout
            )
        )
        async for event in events:
            return event
        raise AssertionError("a long poll for the closing event ends with that event")

    async def _outcome(self, event: Event) -> ReturnType:
        values = self._client._values
        match event:
            case e.WorkflowExecutionCompleted():
                return cast(ReturnType, await values.decode_result(event.result, self._result_type))
            case e.WorkflowExecutionFailed():
                raise WorkflowFailureError(cause=await values.decode_failure(event.failure))
            case e.WorkflowExecutionCanceled():
                details = await values.decode(event.details)
                raise WorkflowFailureError(cause=CancelledError("Workflow cancelled", *details))
            case e.WorkflowExecutionTerminated():
                details = await values.decode(event.details)
                raise WorkflowFailureError(cause=TerminatedError(event.reason or "Workflow terminated", *details))
            case e.WorkflowExecutionTimedOut():
                error: FailureError = TimeoutError("Workflow timed out", type=TimeoutType.START_TO_CLOSE)
                raise WorkflowFailureError(cause=error)
            case e.WorkflowExecutionContinuedAsNew():
                raise WorkflowContinuedAsNewError(event.new_execution_run_id)
            case _:
                raise AssertionError(f"{type(event).__name__} does not close a run")

    async def cancel(self, *, reason: str = "", rpc_timeout: timedelta | None = None) -> None:
        """Ask the workflow to stop: its code gets a cancellation and may clean up, or go on.

        Args:
            reason: Why, for people and for `workflow.cancellation_reason`.
            rpc_timeout: Longest wait for the answer.

        Raises:
            RPCError: There is no such run.
        """
        await self._client._outbound.cancel_workflow(
            CancelWorkflowInput(
                id=self._id,
                run_id=self._run_id,
                first_execution_run_id=self._first_execution_run_id,
                reason=reason,
                rpc_timeout=rpc_timeout,
            )
        )

    async def terminate(self, *args: Any, reason: str | None = None, rpc_timeout: timedelta | None = None) -> None:
        """End the run at once; its code gets no say.

        Args:
            *args: Details kept with the closing event.
            reason: Why, for people.
            rpc_timeout: Longest wait for the answer.

        Raises:
            RPCError: There is no such run, or it is closed.
        """
        await self._client._outbound.terminate_workflow(
            TerminateWorkflowInput(
                id=self._id,
                run_id=self._run_id,
                first_execution_run_id=self._first_execution_run_id,
                args=args,
                reason=reason,
                rpc_timeout=rpc_timeout,
            )
        )

    async def reset(
        self,
        *,
        reason: str,
        event_id: int | None = None,
        reset_type: ResetType = ResetType.UNSPECIFIED,
        build_id: str | None = None,
        reapply_exclude: Sequence[ResetReapplyExcludeType] = (),
        rpc_timeout: timedelta | None = None,
    ) -> WorkflowHandle[SelfType, ReturnType]:
        """Go on from an earlier point of the run, as a new run; the latest run is ended if it is open.

        Give the point in one of three ways: `event_id`, `reset_type` or `build_id`. Signals and updates that came after
        it come again; activities keep their idempotency keys.

        Args:
            reason: Why, for people; it stays in both histories.
            event_id: What the history is copied up to, without that event: a WorkflowTaskCompleted, or another event
                before which a workflow task is pending.
            reset_type: The first or the last workflow task that completed.
            build_id: The first workflow task that this build of a worker completed.
            reapply_exclude: What came after the point and is left out.
            rpc_timeout: Longest wait for the answer.

        Returns:
            A handle on the new run.

        Raises:
            RPCError: There is no such run, or no workflow task is pending at that point.
        """
        check_texts(f"resetting workflow {self._id!r}", reason=reason, build_id=build_id)
        connection = self._client.connection
        request = ResetWorkflowRequest(
            namespace=self._client.namespace,
            workflow_id=self._id,
            run_id=self._run_id or "",
            reason=reason,
            request_id=new_request_id(),
            event_id=event_id or 0,
            reset_type=reset_type,
            build_id=build_id or "",
            reapply_exclude=tuple(reapply_exclude),
            identity=self._client.identity,
        )
        made = await call_service(connection, connection.service.reset_workflow, request, timeout=rpc_timeout)
        return WorkflowHandle(
            self._client,
            self._id,
            run_id=made.run_id,
            result_run_id=made.run_id,
            first_execution_run_id=self._first_execution_run_id,
            result_type=self._result_type,
        )

    async def delete(self, *, rpc_timeout: timedelta | None = None) -> str:
        """Remove a closed run and its history for good, before its retention time is over.

        It is the run of this handle where that is known (`run_id`, else `result_run_id`), so that no later run of the
        same workflow id is hit; the latest one otherwise. What other runs remember of it stays with them.

        Args:
            rpc_timeout: Longest wait for the answer.

        Returns:
            The id of the run that is gone.

        Raises:
            RPCError: There is no such run, it is open, or its last messages are still on their way.
        """
        connection = self._client.connection
        request = DeleteWorkflowRequest(
            namespace=self._client.namespace,
            workflow_id=self._id,
            run_id=self._run_id or self._result_run_id or "",
            identity=self._client.identity,
        )
        gone = await call_service(connection, connection.service.delete_workflow, request, timeout=rpc_timeout)
        return gone.run_id

    async def update_options(
        self, *, versioning_override: VersioningOverride | None, rpc_timeout: timedelta | None = None
    ) -> None:
        """Change by which worker versions the open run goes, from its next task on.

        Args:
            versioning_override: `PinnedVersioningOverride` moves the run to that version, whatever its code says;
                `AutoUpgradeVersioningOverride` lets it go with its deployment; None takes away the present override.
            rpc_timeout: Longest wait for the answer.

        Raises:
            RPCError: There is no such run, it is closed, or the override is not whole.
        """
        connection = self._client.connection
        request = UpdateWorkflowOptionsRequest(
            namespace=self._client.namespace,
            workflow_id=self._id,
            run_id=self._run_id or "",
            versioning_override=versioning_override,
            identity=self._client.identity,
        )
        await call_service(connection, connection.service.update_workflow_options, request, timeout=rpc_timeout)

    async def describe(self, *, rpc_timeout: timedelta | None = None) -> WorkflowExecutionDescription:
        """Read everything about the run, also what it waits for.

        Raises:
            RPCError: There is no such run.
        """
        return await self._client._outbound.describe_workflow(
            DescribeWorkflowInput(id=self._id, run_id=self._run_id or self._result_run_id, rpc_timeout=rpc_timeout)
        )

    async def fetch_history(self, *, rpc_timeout: timedelta | None = None) -> WorkflowHistory:
        """Read the whole history of the run as it is now.

        Raises:
            RPCError: There is no such run.
        """
        return WorkflowHistory(self._id, [event async for event in self.fetch_history_events(rpc_timeout=rpc_timeout)])

    def fetch_history_events(
        self,
        *,
        page_size: int | None = None,
        from_event_id: int = 1,
        wait_new_event: bool = False,
        close_event_only: bool = False,
        rpc_timeout: timedelta | None = None,
    ) -> WorkflowHistoryEventAsyncIterator:
        """Read events one after the other.

        Args:
            page_size: Most events fetched in one call.
            from_event_id: The first event to give.
            wait_new_event: At the end of an open run, wait for more until it closes.
            close_event_only: Only the event that closed the run.
            rpc_timeout: Longest wait for one page.
        """
        return self._client._outbound.fetch_workflow_history_events(
            FetchWorkflowHistoryEventsInput(
                id=self._id,
                run_id=self._run_id or self._result_run_id,
                from_event_id=from_event_id,
                page_size=page_size,
                wait_new_event=wait_new_event,
                close_event_only=close_event_only,
                rpc_timeout=rpc_timeout,
            )
        )

    @overload
    async def signal(
        self, signal: MethodSyncOrAsyncNoParam[SelfType, None], *, rpc_timeout: timedelta | None = None
    ) -> None: ...
    @overload
    async def signal(
        self,
        signal: MethodSyncOrAsyncSingleParam[SelfType, ParamType, None],
        arg: ParamType,
        *,
        rpc_timeout: timedelta | None = None,
    ) -> None: ...
    @overload
    async def signal(
        self,
        signal: Callable[Concatenate[SelfType, MultiParamSpec], Awaitable[None] | None],
        *,
        args: Sequence[Any],
        rpc_timeout: timedelta | None = None,
    ) -> None: ...
    @overload
    async def signal(
        self, signal: str, arg: Any = UNSET, *, args: Sequence[Any] = (), rpc_timeout: timedelta | None = None
    ) -> None: ...
    async def signal(
        self,
        signal: str | Callable[..., Any],
        arg: Any = UNSET,
        *,
        args: Sequence[Any] = (),
        rpc_timeout: timedelta | None = None,
    ) -> None:
        """Send a signal; it is durable when this returns.

        Args:
            signal: Signal method of the workflow class, or a name.
            arg: Its one argument.
            args: Its arguments, when it takes several.
            rpc_timeout: Longest wait for the answer.

        Raises:
            TypeError: The method is no signal, or takes other arguments.
            RPCError: There is no such run, or it is closed.
        """
        target = signal_target(signal)
        await self._client._outbound.signal_workflow(
            SignalWorkflowInput(
                id=self._id,
                run_id=self._run_id,
                signal=target.name,
                args=target.check(arguments(arg, args)),
                rpc_timeout=rpc_timeout,
            )
        )

    @overload
    async def query(
        self,
        query: MethodSyncOrAsyncNoParam[SelfType, LocalReturnType],
        *,
        reject_condition: QueryRejectCondition | None = None,
        rpc_timeout: timedelta | None = None,
    ) -> LocalReturnType: ...
    @overload
    async def query(
        self,
        query: MethodSyncOrAsyncSingleParam[SelfType, ParamType, LocalReturnType],
        arg: ParamType,
        *,
        reject_condition: QueryRejectCondition | None = None,
        rpc_timeout: timedelta | None = None,
    ) -> LocalReturnType: ...
    @overload
    async def query(
        self,
        query: Callable[Concatenate[SelfType, MultiParamSpec], Awaitable[LocalReturnType] | LocalReturnType],
        *,
        args: Sequence[Any],
        reject_condition: QueryRejectCondition | None = None,
        rpc_timeout: timedelta | None = None,
    ) -> LocalReturnType: ...
    @overload
    async def query(
        self,
        query: str,
        arg: Any = UNSET,
        *,
        args: Sequence[Any] = (),
        result_type: type | None = None,
        reject_condition: QueryRejectCondition | None = None,
        rpc_timeout: timedelta | None = None,
    ) -> Any: ...
    async def query(
        self,
        query: str | Callable[..., Any],
        arg: Any = UNSET,
        *,
        args: Sequence[Any] = (),
        result_type: type | None = None,
        reject_condition: QueryRejectCondition | None = None,
        rpc_timeout: timedelta | None = None,
    ) -> Any:
        """Ask the workflow's code a question; leaves nothing in history. Needs a worker.

        Args:
            query: Query method of the workflow class, or a name.
            arg: Its one argument.
            args: Its arguments, when it takes several.
            result_type: What to convert the answer to, when `query` is a name.
            reject_condition: Runs that shall not answer; None takes the client's default.
            rpc_timeout: Longest wait for the answer.

        Raises:
            WorkflowQueryRejectedError: The run's state is one that `reject_condition` names.
            WorkflowQueryFailedError: The handler raised, or there is no such query.
            RPCError: There is no such run, or no worker to ask.
        """
        target = query_target(query)
        return await self._client._outbound.query_workflow(
            QueryWorkflowInput(
                id=self._id,
                run_id=self._run_id or self._result_run_id,
                query=target.name,
                args=target.check(arguments(arg, args)),
                reject_condition=reject_condition or self._client.default_workflow_query_reject_condition,
                ret_type=result_type if result_type is not None else target.result_type,
                rpc_timeout=rpc_timeout,
            )
        )

    @overload
    async def execute_update(
        self,
        update: UpdateMethodMultiParam[[SelfType], LocalReturnType],
        *,
        id: str | None = None,
        rpc_timeout: timedelta | None = None,
    ) -> LocalReturnType: ...
    @overload
    async def execute_update(
        self,
        update: UpdateMethodMultiParam[[SelfType, ParamType], LocalReturnType],
        arg: ParamType,
        *,
        id: str | None = None,
        rpc_timeout: timedelta | None = None,
    ) -> LocalReturnType: ...
    @overload
    async def execute_update(
        self,
        update: UpdateMethodMultiParam[MultiParamSpec, LocalReturnType],
        *,
        args: Sequence[Any],
        id: str | None = None,
        rpc_timeout: timedelta | None = None,
    ) -> LocalReturnType: ...
    @overload
    async def execute_update(
        self,
        update: str,
        arg: Any = UNSET,
        *,
        args: Sequence[Any] = (),
        id: str | None = None,
        result_type: type | None = None,
        rpc_timeout: timedelta | None = None,
    ) -> Any: ...
    async def execute_update(
        self,
        update: str | Callable[..., Any],
        arg: Any = UNSET,
        *,
        args: Sequence[Any] = (),
        id: str | None = None,
        result_type: type | None = None,
        rpc_timeout: timedelta | None = None,
    ) -> Any:
        """Send an update and wait for its result.

        Args:
            update: Update method of the workflow class, or a name.
            arg: Its one argument.
            args: Its arguments, when it takes several.
            id: Update id, by which a repeat is recognised; a fresh one when not given.
            result_type: What to convert the result to, when `update` is a name.
            rpc_timeout: Longest wait for the answer.

        Raises:
            WorkflowUpdateFailedError: It was rejected, or its handler failed.
            WorkflowUpdateRPCTimeoutOrCancelledError: The wait ended before the update did.
            RPCError: There is no such run, or it is closed.
        """
        handle = await self._send_update(
            update, arguments(arg, args), UpdateStage.COMPLETED, id, result_type, rpc_timeout
        )
        return await handle.result(rpc_timeout=rpc_timeout)

    @overload
    async def start_update(
        self,
        update: UpdateMethodMultiParam[[SelfType], LocalReturnType],
        *,
        wait_for_stage: UpdateStage,
        id: str | None = None,
        rpc_timeout: timedelta | None = None,
    ) -> WorkflowUpdateHandle[LocalReturnType]: ...
    @overload
    async def start_update(
        self,
        update: UpdateMethodMultiParam[[SelfType, ParamType], LocalReturnType],
        arg: ParamType,
        *,
        wait_for_stage: UpdateStage,
        id: str | None = None,
        rpc_timeout: timedelta | None = None,
    ) -> WorkflowUpdateHandle[LocalReturnType]: ...
    @overload
    async def start_update(
        self,
        update: UpdateMethodMultiParam[MultiParamSpec, LocalReturnType],
        *,
        args: Sequence[Any],
        wait_for_stage: UpdateStage,
        id: str | None = None,
        rpc_timeout: timedelta | None = None,
    ) -> WorkflowUpdateHandle[LocalReturnType]: ...
    @overload
    async def start_update(
        self,
        update: str,
        arg: Any = UNSET,
        *,
        wait_for_stage: UpdateStage,
        args: Sequence[Any] = (),
        id: str | None = None,
        result_type: type | None = None,
        rpc_timeout: timedelta | None = None,
    ) -> WorkflowUpdateHandle[Any]: ...
    async def start_update(
        self,
        update: str | Callable[..., Any],
        arg: Any = UNSET,
        *,
        wait_for_stage: UpdateStage,
        args: Sequence[Any] = (),
        id: str | None = None,
        result_type: type | None = None,
        rpc_timeout: timedelta | None = None,
    ) -> WorkflowUpdateHandle[Any]:
        """Send an update and wait until it is accepted (or completed), but not for its result.

        Args:
            update: Update method of the workflow class, or a name.
            arg: Its one argument.
            wait_for_stage: ``ACCEPTED`` or ``COMPLETED``.
            args: Its arguments, when it takes several.
            id: Update id, by which a repeat is recognised; a fresh one when not given.
            result_type: What to convert the result to, when `update` is a name.
            rpc_timeout: Longest wait for the answer.

        Raises:
            ValueError: `wait_for_stage` is ``ADMITTED``, which nobody can wait for.
            WorkflowUpdateRPCTimeoutOrCancelledError: The wait ended before that stage.
            RPCError: There is no such run, or it is closed.
        """
        if wait_for_stage is UpdateStage.ADMITTED:
            raise ValueError("ADMITTED cannot be waited for; use ACCEPTED or COMPLETED as wait_for_stage.")
        return await self._send_update(update, arguments(arg, args), wait_for_stage, id, result_type, rpc_timeout)

    async def _send_update(
        self,
        update: str | Callable[..., Any],
        args: Sequence[Any],
        stage: UpdateStage,
        id: str | None,
        result_type: type | None,
        rpc_timeout: timedelta | None,
    ) -> WorkflowUpdateHandle[Any]:
        target = update_target(update)
        return await self._client._outbound.start_workflow_update(
            StartWorkflowUpdateInput(
                id=self._id,
                run_id=self._run_id,
                first_execution_run_id=self._first_execution_run_id,
                update_id=id,
                update=target.name,
                args=target.check(args),
                wait_for_stage=stage,
                ret_type=result_type if result_type is not None else target.result_type,
                rpc_timeout=rpc_timeout,
            )
        )

    def get_update_handle(
        self, id: str, *, workflow_run_id: str | None = None, result_type: type | None = None
    ) -> WorkflowUpdateHandle[Any]:
        """Give a handle on an update that was sent before.

        Args:
            id: Update id.
            workflow_run_id: The run it was sent to; None takes this handle's.
            result_type: What to convert the result to.
        """
        return WorkflowUpdateHandle(
            self._client, id, self._id, workflow_run_id=workflow_run_id or self._run_id, result_type=result_type
        )

    def get_update_handle_for(
        self,
        update: UpdateMethodMultiParam[MultiParamSpec, LocalReturnType],
        id: str,
        *,
        workflow_run_id: str | None = None,
    ) -> WorkflowUpdateHandle[LocalReturnType]:
        """Give a typed handle on an update that was sent before.

        Args:
            update: Update method of the workflow class.
            id: Update id.
            workflow_run_id: The run it was sent to; None takes this handle's.
        """
        return self.get_update_handle(
            id, workflow_run_id=workflow_run_id, result_type=update_target(update).result_type
        )


def _following_run_id(event: Event) -> str:
    following: str = getattr(event, "new_execution_run_id", "")
    return following
