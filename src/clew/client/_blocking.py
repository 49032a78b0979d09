"""The client for code without an event loop: scripts, Flask, Django, notebooks' threads.

::

    with BlockingClient.connect("sqlite:claims.db") as client:
        result = client.execute_workflow(Claim.run, claim, id="claim-4711", task_queue="claims")

Owns: `BlockingClient`. Never: behaviour of its own: each method is that of `Client`, which its docstring names; threads
and forks are dealt with in ``_blocking_calls``.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from datetime import timedelta
from types import TracebackType
from typing import Any, Concatenate, Self, TypeVar, Unpack, final, overload

from clew.client._blocking_calls import BlockingCalls
from clew.client._blocking_deployment import BlockingDeploymentCalls
from clew.client._blocking_handle import BlockingAsyncActivityHandle, BlockingWorkflowHandle
from clew.client._blocking_update_with_start import BlockingUpdateWithStartCalls
from clew.client._client import Client, StartOptions
from clew.client._description import WorkflowExecution, WorkflowExecutionCount
from clew.client._interceptor import Interceptor
from clew.client._names import UNSET
from clew.client._plugin import Plugin
from clew.common import MetricMeter, QueryRejectCondition
from clew.converter import DataConverter
from clew.service.tls import TLSConfig
from clew.types import MethodAsyncNoParam, MethodAsyncSingleParam, MultiParamSpec, ParamType, ReturnType, SelfType

T = TypeVar("T")


@final
class BlockingClient(BlockingUpdateWithStartCalls, BlockingDeploymentCalls):
    """A client whose methods block; made by `connect`. Close it, or use it as a context manager.

    One client serves any number of threads. After a fork, the child connects for itself at its first call, and handles
    go on to work.
    """

    @staticmethod
    def connect(
        target: str,
        *,
        namespace: str = "default",
        data_converter: DataConverter | None = None,
        interceptors: Sequence[Interceptor] = (),
        identity: str | None = None,
        default_workflow_query_reject_condition: QueryRejectCondition | None = None,
        plugins: Sequence[Plugin] = (),
        lazy: bool = False,
        api_key: str | None = None,
        tls: bool | TLSConfig | None = None,
        metric_meter: MetricMeter | None = None,
    ) -> BlockingClient:
        """Open an engine and give a client of it.

        Args:
            target: Which engine; see `Client.connect` for this and the next four.
            namespace: Where workflows are started and found.
            data_converter: How values become payloads.
            interceptors: User code around every call. They and the codec run in the client's own thread.
            identity: Who this is, in histories.
            default_workflow_query_reject_condition: For queries that do not say their own.
            plugins: Bundles of settings.
            lazy: Connect at the first call, in whichever process makes it: for servers that load the program and then
                fork.
            api_key: Credentials for a server.
            tls: Speak TLS with a server: True, or with which certificates.
            metric_meter: Where the client counts and times its calls.

        Raises:
            ValueError: `target` is no connection string that this build can open.
            RPCError: The store cannot be opened, or there is no such namespace.
            RuntimeError: An event loop runs in this thread; use `Client` there.
        """

        def connect() -> Coroutine[Any, Any, Client]:
            return Client.connect(
                target,
                namespace=namespace,
                data_converter=data_converter,
                interceptors=interceptors,
                identity=identity,
                default_workflow_query_reject_condition=default_workflow_query_reject_condition,
                plugins=plugins,
                api_key=api_key,
                tls=tls,
                metric_meter=metric_meter,
            )

        calls = BlockingCalls(connect)
        if not lazy:
            try:
                calls.client()
            except BaseException:
                calls.close()
                raise
        return BlockingClient(calls)

    def __init__(self, calls: BlockingCalls) -> None:
        self._calls = calls

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the engine and end the client's thread; calls of other threads that are under way are given up."""
        self._calls.close()

    @property
    def client(self) -> Client:
        """The async client behind, connected in this process; `wait` awaits its methods.

        Raises:
            RPCError: It cannot be connected, or is closed.
        """
        return self._calls.client()

    def wait(self, work: Coroutine[Any, Any, T], *, timeout: timedelta | None = None) -> T:
        """Await any coroutine on the client's loop, such as ``description.memo()``.

        Args:
            work: The coroutine.
            timeout: Longest wait; None waits as long as it takes.

        Raises:
            TimeoutError: The time is over; `work` is cancelled.
            RPCError: The client is closed.
        """
        try:
            return self._calls.call(lambda _: work, timeout)
        finally:
            # Without effect on a coroutine that has ended; one that never began would complain.
            if inspect.getcoroutinestate(work) == inspect.CORO_CREATED:
                work.close()

    @overload
    def start_workflow(
        self, workflow: MethodAsyncNoParam[SelfType, ReturnType], **options: Unpack[StartOptions]
    ) -> BlockingWorkflowHandle[SelfType, ReturnType]: ...
    @overload
    def start_workflow(
        self,
        workflow: MethodAsyncSingleParam[SelfType, ParamType, ReturnType],
        arg: ParamType,
        **options: Unpack[StartOptions],
    ) -> BlockingWorkflowHandle[SelfType, ReturnType]: ...
    @overload
    def start_workflow(
        self,
        workflow: Callable[Concatenate[SelfType, MultiParamSpec], Awaitable[ReturnType]],
        *,
        args: Sequence[Any],
        **options: Unpack[StartOptions],
    ) -> BlockingWorkflowHandle[SelfType, ReturnType]: ...
    @overload
    def start_workflow(
        self,
        workflow: str,
        arg: Any = UNSET,
        *,
        args: Sequence[Any] = (),
        result_type: type | None = None,
        **options: Unpack[StartOptions],
    ) -> BlockingWorkflowHandle[Any, Any]: ...
    def start_workflow(
        self,
        workflow: str | Callable[..., Awaitable[Any]],
        arg: Any = UNSET,
        *,
        args: Sequence[Any] = (),
        result_type: type | None = None,
        **options: Any,
    ) -> BlockingWorkflowHandle[Any, Any]:
        """As `Client.start_workflow`, blocking."""
        handle = self._calls.call(
            lambda client: _any(client).start_workflow(workflow, arg, args=args, result_type=result_type, **options)
        )
        return BlockingWorkflowHandle(self._calls, handle)

    @overload
    def execute_workflow(
        self, workflow: MethodAsyncNoParam[SelfType, ReturnType], **options: Unpack[StartOptions]
    ) -> ReturnType: ...
    @overload
    def execute_workflow(
        self,
        workflow: MethodAsyncSingleParam[SelfType, ParamType, ReturnType],
        arg: ParamType,
        **options: Unpack[StartOptions],
    ) -> ReturnType: ...
    @overload
    def execute_workflow(
        self,
        workflow: Callable[Concatenate[SelfType, MultiParamSpec], Awaitable[ReturnType]],
        *,
        args: Sequence[Any],
        **options: Unpack[StartOptions],
    ) -> ReturnType: ...
    @overload
    def execute_workflow(
        self,
        workflow: str,
        arg: Any = UNSET,
        *,
        args: Sequence[Any] = (),
        result_type: type | None = None,
        **options: Unpack[StartOptions],
    ) -> Any: ...
    def execute_workflow(
        self,
        workflow: str | Callable[..., Awaitable[Any]],
        arg: Any = UNSET,
        *,
        args: Sequence[Any] = (),
        result_type: type | None = None,
        **options: Any,
    ) -> Any:
        """As `Client.execute_workflow`, blocking until the run closes."""
        return self._calls.call(
            lambda client: _any(client).execute_workflow(workflow, arg, args=args, result_type=result_type, **options)
        )

    def get_workflow_handle(
        self,
        workflow_id: str,
        *,
        run_id: str | None = None,
        first_execution_run_id: str | None = None,
        result_type: type | None = None,
    ) -> BlockingWorkflowHandle[Any, Any]:
        """As `Client.get_workflow_handle`."""
        return BlockingWorkflowHandle(
            self._calls,
            self.client.get_workflow_handle(
                workflow_id, run_id=run_id, first_execution_run_id=first_execution_run_id, result_type=result_type
            ),
        )

    def get_workflow_handle_for(
        self,
        workflow: Callable[Concatenate[SelfType, MultiParamSpec], Awaitable[ReturnType]],
        workflow_id: str,
        *,
        run_id: str | None = None,
        first_execution_run_id: str | None = None,
    ) -> BlockingWorkflowHandle[SelfType, ReturnType]:
        """As `Client.get_workflow_handle_for`."""
        return BlockingWorkflowHandle(
            self._calls,
            self.client.get_workflow_handle_for(
                workflow, workflow_id, run_id=run_id, first_execution_run_id=first_execution_run_id
            ),
        )

    def list_workflows(
        self,
        query: str | None = None,
        *,
        limit: int | None = None,
        page_size: int = 1000,
        next_page_token: str | None = None,
        rpc_timeout: timedelta | None = None,
    ) -> Iterator[WorkflowExecution]:
        """As `Client.list_workflows`, as an iterator that blocks for each page."""
        return self._calls.iterate(
            lambda client: client.list_workflows(
                query, limit=limit, page_size=page_size, next_page_token=next_page_token, rpc_timeout=rpc_timeout
            )
        )

    def count_workflows(
        self, query: str | None = None, *, rpc_timeout: timedelta | None = None
    ) -> WorkflowExecutionCount:
        """As `Client.count_workflows`, blocking."""
        return self._calls.call(lambda client: client.count_workflows(query, rpc_timeout=rpc_timeout))

    @overload
    def get_async_activity_handle(
        self, *, workflow_id: str, run_id: str | None, activity_id: str
    ) -> BlockingAsyncActivityHandle: ...
    @overload
    def get_async_activity_handle(self, *, task_token: bytes) -> BlockingAsyncActivityHandle: ...
    def get_async_activity_handle(
        self,
        *,
        workflow_id: str | None = None,
        run_id: str | None = None,
        activity_id: str | None = None,
        task_token: bytes | None = None,
    ) -> BlockingAsyncActivityHandle:
        """As `Client.get_async_activity_handle`."""
        handle = _any(self.client).get_async_activity_handle(
            workflow_id=workflow_id, run_id=run_id, activity_id=activity_id, task_token=task_token
        )
        return BlockingAsyncActivityHandle(self._calls, handle._target)


def _any(client: Client) -> Any:
    """For calls whose argument types were checked by the overloads already."""
    return client
