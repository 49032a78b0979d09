"""Child workflows, other workflows, and continuing as new, as workflow code calls them.

Owns: `start_child_workflow`, `execute_child_workflow`, `get_external_workflow_handle`, `continue_as_new`, the
handles. Never: starts or signals anything itself (the runtime does).
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import timedelta
from enum import IntEnum
from typing import Any, Concatenate, Generic, NoReturn, TypedDict, TypeVar, Unpack, overload

from clew.common import (
    ParentClosePolicy,
    Priority,
    RetryPolicy,
    SearchAttributes,
    TypedSearchAttributes,
    VersioningBehavior,
    WorkflowIDReusePolicy,
)
from clew.model.option_types import check_durations, check_kinds, check_policy_types, check_texts
from clew.types import (
    MethodAsyncNoParam,
    MethodAsyncSingleParam,
    MethodSyncOrAsyncNoParam,
    MethodSyncOrAsyncSingleParam,
    MultiParamSpec,
    ParamType,
    ReturnType,
    SelfType,
)
from clew.workflow._activities import UNSET, one_or_many
from clew.workflow._definition import Definition, SignalDefinition
from clew.workflow._interceptor import ContinueAsNewInput, StartChildWorkflowInput
from clew.workflow._runtime import current

WorkflowT = TypeVar("WorkflowT")
ResultT = TypeVar("ResultT")


class ChildWorkflowCancellationType(IntEnum):
    """What cancelling a child, from workflow code, waits for."""

    ABANDON = 0
    """Go on at once and let the child run."""
    TRY_CANCEL = 1
    """Ask the child to cancel and go on at once."""
    WAIT_CANCELLATION_COMPLETED = 2
    """Ask the child to cancel and wait for what it then does."""
    WAIT_CANCELLATION_REQUESTED = 3
    """Ask the child to cancel and wait until the request has reached it."""


class _Signalling(ABC):
    """What handles of other workflows share."""

    @overload
    async def signal(self, signal: MethodSyncOrAsyncNoParam[WorkflowT, None]) -> None: ...
    @overload
    async def signal(
        self, signal: MethodSyncOrAsyncSingleParam[WorkflowT, ParamType, None], arg: ParamType
    ) -> None: ...
    @overload
    async def signal(self, signal: str, arg: Any = ..., *, args: Sequence[Any] = ...) -> None: ...
    @overload
    async def signal(self, signal: Callable[..., Any], *, args: Sequence[Any]) -> None: ...
    async def signal(self, signal: Any, arg: Any = UNSET, *, args: Sequence[Any] = ()) -> None:
        """Send a signal and wait until it is recorded there.

        Args:
            signal: The handler, as ``Class.method``, or the name of the signal.
            arg: Its one argument.
            args: Its arguments, if there are several.

        Raises:
            ApplicationError: There is no such open workflow.
        """
        name = SignalDefinition.must_name_from_fn_or_str(signal)
        await self._signal(name, one_or_many(arg, args, f"signal {name!r}"))

    @abstractmethod
    async def _signal(self, name: str, args: Sequence[Any]) -> None: ...


class ChildWorkflowHandle(asyncio.Task[ResultT], _Signalling, Generic[WorkflowT, ResultT]):
    """A started child: a task that ends with its result. Cancel it to cancel the child."""

    @property
    def id(self) -> str:
        """Workflow id of the child."""
        raise NotImplementedError

    @property
    def first_execution_run_id(self) -> str | None:
        """The first run of the child; known once it has started."""
        raise NotImplementedError


class ExternalWorkflowHandle(_Signalling, Generic[WorkflowT]):
    """Another workflow, which may or may not exist."""

    @property
    @abstractmethod
    def id(self) -> str:
        """Its workflow id."""

    @property
    @abstractmethod
    def run_id(self) -> str | None:
        """The run meant; None for the current one."""

    @abstractmethod
    async def cancel(self, *, reason: str = "") -> None:
        """Ask it to cancel and wait until the request is recorded there.

        Args:
            reason: For people.

        Raises:
            ApplicationError: There is no such open workflow.
        """


class ChildWorkflowConfig(TypedDict, total=False):
    """Options of a child, all but its arguments."""

    id: str | None
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
    search_attributes: TypedSearchAttributes | SearchAttributes | None
    versioning_intent: Any
    static_summary: str | None
    static_details: str | None
    priority: Priority | None


@overload
async def start_child_workflow(
    workflow: MethodAsyncNoParam[SelfType, ReturnType], **options: Unpack[ChildWorkflowConfig]
) -> ChildWorkflowHandle[SelfType, ReturnType]: ...
@overload
async def start_child_workflow(
    workflow: MethodAsyncSingleParam[SelfType, ParamType, ReturnType],
    arg: ParamType,
    **options: Unpack[ChildWorkflowConfig],
) -> ChildWorkflowHandle[SelfType, ReturnType]: ...
@overload
async def start_child_workflow(
    workflow: Callable[Concatenate[SelfType, MultiParamSpec], Awaitable[ReturnType]],
    *,
    args: Sequence[Any],
    **options: Unpack[ChildWorkflowConfig],
) -> ChildWorkflowHandle[SelfType, ReturnType]: ...
@overload
async def start_child_workflow(
    workflow: str,
    arg: Any = ...,
    *,
    args: Sequence[Any] = ...,
    result_type: type[Any] | None = ...,
    **options: Unpack[ChildWorkflowConfig],
) -> ChildWorkflowHandle[Any, Any]: ...
async def start_child_workflow(
    workflow: Any, arg: Any = UNSET, *, args: Sequence[Any] = (), result_type: type[Any] | None = None, **options: Any
) -> ChildWorkflowHandle[Any, Any]:
    """Start a child and wait until it has started.

    Args:
        workflow: The run method, as ``Class.run``, or the name of a workflow type.
        arg: Its one argument.
        args: Its arguments, if there are several.
        result_type: What to decode the result to, for a workflow given by name.
        **options: See `ChildWorkflowConfig`. ``id`` defaults to a UUID that replay repeats.

    Returns:
        A handle: await it for the result, cancel it to cancel the child.

    Raises:
        WorkflowAlreadyStartedError: An open workflow has that id.
        EncodeError: An argument cannot be converted, or is too large.
    """
    return await current().start_child_workflow(_child_input(workflow, arg, args, result_type, **options))


@overload
async def execute_child_workflow(
    workflow: MethodAsyncNoParam[SelfType, ReturnType], **options: Unpack[ChildWorkflowConfig]
) -> ReturnType: ...
@overload
async def execute_child_workflow(
    workflow: MethodAsyncSingleParam[SelfType, ParamType, ReturnType],
    arg: ParamType,
    **options: Unpack[ChildWorkflowConfig],
) -> ReturnType: ...
@overload
async def execute_child_workflow(
    workflow: Callable[Concatenate[SelfType, MultiParamSpec], Awaitable[ReturnType]],
    *,
    args: Sequence[Any],
    **options: Unpack[ChildWorkflowConfig],
) -> ReturnType: ...
@overload
async def execute_child_workflow(
    workflow: str,
    arg: Any = ...,
    *,
    args: Sequence[Any] = ...,
    result_type: type[Any] | None = ...,
    **options: Unpack[ChildWorkflowConfig],
) -> Any: ...
async def execute_child_workflow(
    workflow: Any, arg: Any = UNSET, *, args: Sequence[Any] = (), result_type: type[Any] | None = None, **options: Any
) -> Any:
    """Run a child and give its result; see `start_child_workflow`.

    Raises:
        ChildWorkflowError: It did not complete; its cause says why.
    """
    return await (await current().start_child_workflow(_child_input(workflow, arg, args, result_type, **options)))


def get_external_workflow_handle(workflow_id: str, *, run_id: str | None = None) -> ExternalWorkflowHandle[Any]:
    """Give a handle to signal or cancel another workflow.

    Args:
        workflow_id: Its id.
        run_id: The run meant; None for the current one.
    """
    check_texts("get_external_workflow_handle", workflow_id=workflow_id, run_id=run_id)
    return current().get_external_workflow_handle(workflow_id, run_id)


def get_external_workflow_handle_for(
    workflow: Callable[Concatenate[WorkflowT, MultiParamSpec], Awaitable[Any]],
    workflow_id: str,
    *,
    run_id: str | None = None,
) -> ExternalWorkflowHandle[WorkflowT]:
    """Give a handle to signal or cancel another workflow whose class is known; see `get_external_workflow_handle`."""
    return get_external_workflow_handle(workflow_id, run_id=run_id)


class ContinueAsNewConfig(TypedDict, total=False):
    """Options of the next run; what is not given is carried over from this one."""

    task_queue: str | None
    run_timeout: timedelta | None
    task_timeout: timedelta | None
    retry_policy: RetryPolicy | None
    memo: Mapping[str, Any] | None
    search_attributes: TypedSearchAttributes | SearchAttributes | None
    versioning_intent: Any
    initial_versioning_behavior: VersioningBehavior | None


@overload
def continue_as_new(**options: Unpack[ContinueAsNewConfig]) -> NoReturn: ...
@overload
def continue_as_new(arg: Any, **options: Unpack[ContinueAsNewConfig]) -> NoReturn: ...
@overload
def continue_as_new(
    *,
    workflow: MethodAsyncNoParam[SelfType, Any] | str,
    **options: Unpack[ContinueAsNewConfig],
) -> NoReturn: ...
@overload
def continue_as_new(
    arg: ParamType,
    *,
    workflow: MethodAsyncSingleParam[SelfType, ParamType, Any] | str,
    **options: Unpack[ContinueAsNewConfig],
) -> NoReturn: ...
@overload
def continue_as_new(
    *,
    args: Sequence[Any],
    workflow: Callable[..., Awaitable[Any]] | str | None = ...,
    **options: Unpack[ContinueAsNewConfig],
) -> NoReturn: ...
def continue_as_new(arg: Any = UNSET, *, args: Sequence[Any] = (), workflow: Any = None, **options: Any) -> NoReturn:
    """End this run and go on as a new one of the same workflow id, with a fresh history.

    Args:
        arg: Its one argument.
        args: Its arguments, if there are several.
        workflow: Another workflow to go on as; None keeps the type.
        **options: See `ContinueAsNewConfig`.

    Raises:
        EncodeError: An argument cannot be converted, or is too large.
    """
    current().continue_as_new(_continue_input(workflow, arg, args, **options))


# --- from a call to its input -----------------------------------------------------------------------------


def workflow_name_and_types(workflow: Any, result_type: Any | None) -> tuple[str, Sequence[Any] | None, Any | None]:
    """Give name, argument types and result type of a workflow that is named by its run method or directly."""
    if isinstance(workflow, str):
        return workflow, None, result_type
    name, ret_type = Definition.get_name_and_result_type(workflow)
    return name, Definition.must_from_run_fn(workflow).arg_types, ret_type


def _child_input(
    workflow: Any,
    arg: Any,
    args: Sequence[Any],
    result_type: Any | None,
    *,
    id: str | None = None,
    task_queue: str | None = None,
    cancellation_type: ChildWorkflowCancellationType = ChildWorkflowCancellationType.WAIT_CANCELLATION_COMPLETED,
    parent_close_policy: ParentClosePolicy = ParentClosePolicy.TERMINATE,
    execution_timeout: timedelta | None = None,
    run_timeout: timedelta | None = None,
    task_timeout: timedelta | None = None,
    id_reuse_policy: WorkflowIDReusePolicy = WorkflowIDReusePolicy.ALLOW_DUPLICATE,
    retry_policy: RetryPolicy | None = None,
    cron_schedule: str = "",
    memo: Mapping[str, Any] | None = None,
    search_attributes: TypedSearchAttributes | SearchAttributes | None = None,
    versioning_intent: Any = None,
    static_summary: str | None = None,
    static_details: str | None = None,
    priority: Priority | None = None,
) -> StartChildWorkflowInput:
    name, arg_types, ret_type = workflow_name_and_types(workflow, result_type)
    what = f"child workflow {name!r}"
    check_texts(
        what,
        id=id,
        task_queue=task_queue,
        cron_schedule=cron_schedule,
        static_summary=static_summary,
        static_details=static_details,
    )
    check_durations(what, execution_timeout=execution_timeout, run_timeout=run_timeout, task_timeout=task_timeout)
    check_policy_types(what, retry_policy)
    check_kinds(
        what,
        priority=(priority, Priority),
        cancellation_type=(cancellation_type, ChildWorkflowCancellationType),
        parent_close_policy=(parent_close_policy, ParentClosePolicy),
        id_reuse_policy=(id_reuse_policy, WorkflowIDReusePolicy),
        memo=(memo, Mapping),
    )
    return StartChildWorkflowInput(
        workflow=name,
        args=one_or_many(arg, args, f"child workflow {name!r}"),
        id=id or "",
        task_queue=task_queue,
        cancellation_type=cancellation_type,
        parent_close_policy=parent_close_policy,
        execution_timeout=execution_timeout,
        run_timeout=run_timeout,
        task_timeout=task_timeout,
        id_reuse_policy=id_reuse_policy,
        retry_policy=retry_policy,
        cron_schedule=cron_schedule,
        memo=memo,
        search_attributes=search_attributes,
        headers={},
        versioning_intent=versioning_intent,
        static_summary=static_summary,
        static_details=static_details,
        priority=priority,
        arg_types=arg_types,
        ret_type=ret_type,
    )


def _continue_input(
    workflow: Any,
    arg: Any,
    args: Sequence[Any],
    *,
    task_queue: str | None = None,
    run_timeout: timedelta | None = None,
    task_timeout: timedelta | None = None,
    retry_policy: RetryPolicy | None = None,
    memo: Mapping[str, Any] | None = None,
    search_attributes: TypedSearchAttributes | SearchAttributes | None = None,
    versioning_intent: Any = None,
    initial_versioning_behavior: VersioningBehavior | None = None,
) -> ContinueAsNewInput:
    name: str | None = None
    arg_types: Sequence[Any] | None = None
    if workflow is not None:
        name, arg_types, _ = workflow_name_and_types(workflow, None)
    check_texts("continue_as_new", task_queue=task_queue)
    check_durations("continue_as_new", run_timeout=run_timeout, task_timeout=task_timeout)
    check_policy_types("continue_as_new", retry_policy)
    check_kinds("continue_as_new", memo=(memo, Mapping))
    return ContinueAsNewInput(
        workflow=name,
        args=one_or_many(arg, args, "continue_as_new"),
        task_queue=task_queue,
        run_timeout=run_timeout,
        task_timeout=task_timeout,
        retry_policy=retry_policy,
        memo=memo,
        search_attributes=search_attributes,
        headers={},
        versioning_intent=versioning_intent,
        arg_types=arg_types,
        initial_versioning_behavior=initial_versioning_behavior,
    )
