"""The client: connects to an engine, starts workflows and finds them again.

Owns: `Client` and its options. Never: the calls themselves (``_outbound``) or what a handle offers (``_handle``).

How it works: a client holds one `Connection`, one data converter and the head of an interceptor chain that ends in
`_outbound.ServiceOutbound`. It belongs to no event loop: any loop of the process may use it.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from types import TracebackType
from typing import Any, Concatenate, Self, Unpack, final, overload

from clew.client._activity_handle import AsyncActivityHandle, AsyncActivityIDReference
from clew.client._calls import call_service, refuse_in_workflow
from clew.client._deployment import DeploymentCalls
from clew.client._description import WorkflowExecutionAsyncIterator, WorkflowExecutionCount
from clew.client._handle import WorkflowHandle
from clew.client._interceptor import (
    CountWorkflowsInput,
    Interceptor,
    ListWorkflowsInput,
    OutboundInterceptor,
)
from clew.client._metrics import measured
from clew.client._names import UNSET, workflow_target
from clew.client._outbound import ServiceOutbound
from clew.client._plugin import ClientConfig, ConnectConfig, Plugin
from clew.client._start import StartOptions, start_input
from clew.client._target import PostgresTarget, ServerTarget, parse_target
from clew.client._update_with_start import UpdateWithStartCalls
from clew.client._values import Values
from clew.common import MetricMeter, QueryRejectCondition
from clew.converter import DataConverter
from clew.model.inputs import ActivityTarget, TaskToken
from clew.model.option_types import check_ids
from clew.service.connection import Connection
from clew.service.operations import DescribeNamespaceRequest
from clew.service.tls import TLSConfig
from clew.service.tokens import decode_task_token
from clew.types import MethodAsyncNoParam, MethodAsyncSingleParam, MultiParamSpec, ParamType, ReturnType, SelfType


@final
class Client(UpdateWithStartCalls, DeploymentCalls):
    """A client of one engine and namespace; made by `connect`. Close it, or use it as an async context manager."""

    @staticmethod
    async def connect(
        target: str,
        *,
        namespace: str = "default",
        data_converter: DataConverter | None = None,
        interceptors: Sequence[Interceptor] = (),
        identity: str | None = None,
        default_workflow_query_reject_condition: QueryRejectCondition | None = None,
        plugins: Sequence[Plugin] = (),
        api_key: str | None = None,
        tls: bool | TLSConfig | None = None,
        metric_meter: MetricMeter | None = None,
    ) -> Client:
        """Open an engine and give a client of it.

        Args:
            target: Which engine: ``sqlite:claims.db``, ``sqlite:///srv/claims.db`` or ``sqlite::memory:`` (the first
                client of a process opens the file and runs the engine, further ones share it), or ``host:7233`` for a
                server; several nodes of it may be given with commas between, or one name that stands for all.
            namespace: Where workflows are started and found.
            data_converter: How values become payloads; `DataConverter.default` when not given.
            interceptors: User code around every call; the first is the outermost. Those that are interceptors of a
                worker too are used by workers made with this client.
            identity: Who this is, in histories; process id and host name when not given.
            default_workflow_query_reject_condition: For queries that do not say their own.
            plugins: Bundles of settings, applied in order to what is given here. Those that are plugins of a worker
                too are used by workers made with this client.
            api_key: Credentials for a server.
            tls: Speak TLS with a server: True, or with which certificates. By default when there is an `api_key`.
            metric_meter: Where the client counts and times its calls (``clew_request`` and its kin); nowhere when not
                given.

        Raises:
            ValueError: `target` is no connection string that this build can open.
            RPCError: The store cannot be opened (another process owns it, it is no Clew store, no room or permission),
                no node of the server can be reached, it refuses this client, or there is no such namespace.
            ImportError: A server needs the extra ``link``, which is not installed.
        """
        refuse_in_workflow("connect")
        connection = await _connect_through(plugins, ConnectConfig(target, api_key, tls, identity or _identity()))
        client = Client(
            connection,
            namespace=namespace,
            data_converter=data_converter,
            interceptors=interceptors,
            identity=identity,
            default_workflow_query_reject_condition=default_workflow_query_reject_condition,
            plugins=plugins,
            metric_meter=metric_meter,
        )
        try:
            await client._check_namespace()
        except BaseException:
            await connection.close()
            raise
        return client

    def __init__(
        self,
        connection: Connection,
        *,
        namespace: str = "default",
        data_converter: DataConverter | None = None,
        interceptors: Sequence[Interceptor] = (),
        identity: str | None = None,
        default_workflow_query_reject_condition: QueryRejectCondition | None = None,
        plugins: Sequence[Plugin] = (),
        metric_meter: MetricMeter | None = None,
    ) -> None:
        given: ClientConfig = {
            "connection": connection,
            "namespace": namespace,
            "data_converter": data_converter if data_converter is not None else DataConverter.default,
            "interceptors": tuple(interceptors),
            "identity": identity,
            "default_workflow_query_reject_condition": default_workflow_query_reject_condition,
            "plugins": tuple(plugins),
            "metric_meter": metric_meter,
        }
        self._config = given
        config = given.copy()
        for plugin in plugins:
            config = plugin.configure_client(config)
        meter = config["metric_meter"]
        self.namespace = config["namespace"]
        self.connection = config["connection"]
        if meter is not None:
            self.connection = measured(self.connection, meter, self.namespace)
        self.data_converter = config["data_converter"]
        self.identity = config["identity"] or _identity()
        self.interceptors: Sequence[Interceptor] = tuple(config["interceptors"])
        self.plugins: Sequence[Plugin] = tuple(plugins)
        self.default_workflow_query_reject_condition = config["default_workflow_query_reject_condition"]
        self._values = Values(self.data_converter, self.connection.limits)
        innermost = ServiceOutbound(self)
        outbound: OutboundInterceptor = innermost
        for interceptor in reversed(self.interceptors):
            outbound = interceptor.intercept_client(outbound)
        self._outbound = outbound
        self._wait_closing_event = None if self.interceptors else innermost.wait_closing_event
        """Waits for the end of a run, where no interceptor wants to see how."""

    def __repr__(self) -> str:
        return f"<Client of {self.connection.address} namespace {self.namespace!r}>"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    def config(self) -> ClientConfig:
        """Give what this client was made with, for another one with other settings::

            config = client.config()
            config["namespace"] = "returns"
            returns = Client(**config)

        It is a copy, from before the plugins, which configure the other client anew. Both clients use one connection:
        close one of them, when neither is needed any more. Whether there is such a namespace, its first call says.
        """
        config = self._config.copy()
        config["interceptors"] = list(config["interceptors"])
        config["plugins"] = list(config["plugins"])
        return config

    async def close(self) -> None:
        """Let go of the engine. The last client of a process stops it, after what was accepted is durable."""
        await self.connection.close()

    async def _check_namespace(self) -> None:
        request = DescribeNamespaceRequest(namespace=self.namespace)
        await call_service(self.connection, self.connection.service.describe_namespace, request)

    # Overloads: method without parameter, with one, with several, and by name.
    @overload
    async def start_workflow(
        self, workflow: MethodAsyncNoParam[SelfType, ReturnType], **options: Unpack[StartOptions]
    ) -> WorkflowHandle[SelfType, ReturnType]: ...
    @overload
    async def start_workflow(
        self,
        workflow: MethodAsyncSingleParam[SelfType, ParamType, ReturnType],
        arg: ParamType,
        **options: Unpack[StartOptions],
    ) -> WorkflowHandle[SelfType, ReturnType]: ...
    @overload
    async def start_workflow(
        self,
        workflow: Callable[Concatenate[SelfType, MultiParamSpec], Awaitable[ReturnType]],
        *,
        args: Sequence[Any],
        **options: Unpack[StartOptions],
    ) -> WorkflowHandle[SelfType, ReturnType]: ...
    @overload
    async def start_workflow(
        self,
        workflow: str,
        arg: Any = UNSET,
        *,
        args: Sequence[Any] = (),
        result_type: type | None = None,
        **options: Unpack[StartOptions],
    ) -> WorkflowHandle[Any, Any]: ...
    async def start_workflow(
        self,
        workflow: str | Callable[..., Awaitable[Any]],
        arg: Any = UNSET,
        *,
        args: Sequence[Any] = (),
        result_type: type | None = None,
        **options: Any,
    ) -> WorkflowHandle[Any, Any]:
        """Start a run of a workflow; it is durable when this returns.

        Args:
            workflow: Run method of the workflow class, or the name of a type.
            arg: Its one argument.
            args: Its arguments, when it takes several.
            result_type: What to convert the result to, when `workflow` is a name.
            **options: As follows.
            id: Workflow id; at most one run of an id is open in a namespace.
            task_queue: Where the workers listen that know this workflow.
            execution_timeout: Longest time for the whole chain of runs; no limit when not given.
            run_timeout: Longest time for one run; `execution_timeout` when not given.
            task_timeout: How long a worker may take for one workflow task; 10 s when not given.
            id_reuse_policy: Whether the id may be used again after its latest run closed.
            id_conflict_policy: What to do when a run of the id is open; by default refuse.
            retry_policy: When to run the workflow again after it failed; never when not given.
            cron_schedule: Five-field cron expression or ``@every`` duration by which it runs again and again.
            memo: Values kept with the run, shown but not searched by.
            search_attributes: Values to search by.
            static_summary: One line for people.
            static_details: Some lines for people.
            start_delay: Wait before its code runs first.
            start_signal: A signal to send with the start; if a run is open, only the signal is sent.
            start_signal_args: The signal's arguments.
            request_eager_start: Accepted and without effect: a first task always goes straight to a waiting worker.
            priority: Order among the tasks of the queue.
            versioning_override: Exception from the routing of worker versions.
            request_id: By which a repeat of this very start is recognised; a fresh one when not given.
            rpc_timeout: Longest wait for the answer.

        Returns:
            A handle on the run.

        Raises:
            WorkflowAlreadyStartedError: The id is taken, by the policies given.
            TypeError: An argument has the wrong type, or the count of arguments does not fit.
            EncodeError: An argument cannot be converted, or is too large.
            RPCError: The engine refused; the message says why.
        """
        return await self._outbound.start_workflow(start_input(workflow, arg, args, result_type, options))

    @overload
    async def execute_workflow(
        self, workflow: MethodAsyncNoParam[SelfType, ReturnType], **options: Unpack[StartOptions]
    ) -> ReturnType: ...
    @overload
    async def execute_workflow(
        self,
        workflow: MethodAsyncSingleParam[SelfType, ParamType, ReturnType],
        arg: ParamType,
        **options: Unpack[StartOptions],
    ) -> ReturnType: ...
    @overload
    async def execute_workflow(
        self,
        workflow: Callable[Concatenate[SelfType, MultiParamSpec], Awaitable[ReturnType]],
        *,
        args: Sequence[Any],
        **options: Unpack[StartOptions],
    ) -> ReturnType: ...
    @overload
    async def execute_workflow(
        self,
        workflow: str,
        arg: Any = UNSET,
        *,
        args: Sequence[Any] = (),
        result_type: type | None = None,
        **options: Unpack[StartOptions],
    ) -> Any: ...
    async def execute_workflow(
        self,
        workflow: str | Callable[..., Awaitable[Any]],
        arg: Any = UNSET,
        *,
        args: Sequence[Any] = (),
        result_type: type | None = None,
        **options: Any,
    ) -> Any:
        """Start a run of a workflow and wait for its result.

        Arguments are those of `start_workflow`; the result and further errors are those of `WorkflowHandle.result`.

        Raises:
            WorkflowFailureError: The run failed, was cancelled or terminated, or timed out; its cause says which.
            WorkflowAlreadyStartedError: The id is taken, by the policies given.
            RPCError: The engine refused; the message says why.
        """
        handle = await self._outbound.start_workflow(start_input(workflow, arg, args, result_type, options))
        return await handle.result()

    def get_workflow_handle(
        self,
        workflow_id: str,
        *,
        run_id: str | None = None,
        first_execution_run_id: str | None = None,
        result_type: type | None = None,
    ) -> WorkflowHandle[Any, Any]:
        """Give a handle on an execution that exists; asks nothing of the engine.

        Args:
            workflow_id: Its id.
            run_id: A run of it; None means whichever is current.
            first_execution_run_id: The first run of the chain, so that cancel and terminate cannot hit another chain.
            result_type: What to convert the result to.

        Raises:
            TypeError: An id is no text.
        """
        check_ids(
            "get_workflow_handle", workflow_id=workflow_id, run_id=run_id, first_execution_run_id=first_execution_run_id
        )
        return WorkflowHandle(
            self,
            workflow_id,
            run_id=run_id,
            result_run_id=run_id,
            first_execution_run_id=first_execution_run_id,
            result_type=result_type,
        )

    def get_workflow_handle_for(
        self,
        workflow: Callable[Concatenate[SelfType, MultiParamSpec], Awaitable[ReturnType]],
        workflow_id: str,
        *,
        run_id: str | None = None,
        first_execution_run_id: str | None = None,
    ) -> WorkflowHandle[SelfType, ReturnType]:
        """Give a typed handle on an execution that exists; asks nothing of the engine.

        Args:
            workflow: Run method of its class, from which the types are taken.
            workflow_id: Its id.
            run_id: A run of it; None means whichever is current.
            first_execution_run_id: The first run of the chain, so that cancel and terminate cannot hit another chain.
        """
        return self.get_workflow_handle(
            workflow_id,
            run_id=run_id,
            first_execution_run_id=first_execution_run_id,
            result_type=workflow_target(workflow).result_type,
        )

    def list_workflows(
        self,
        query: str | None = None,
        *,
        limit: int | None = None,
        page_size: int = 1000,
        next_page_token: str | None = None,
        rpc_timeout: timedelta | None = None,
    ) -> WorkflowExecutionAsyncIterator:
        """List runs, newest first, fetched page by page as they are iterated.

        Args:
            query: Which, such as ``WorkflowType = 'Claim' AND ExecutionStatus = 'Running'``; all when not given.
            limit: Most runs to give.
            page_size: Most runs fetched in one call.
            next_page_token: Where to go on, from an earlier iterator.
            rpc_timeout: Longest wait for one page.
        """
        return self._outbound.list_workflows(ListWorkflowsInput(query, page_size, next_page_token, limit, rpc_timeout))

    async def count_workflows(
        self, query: str | None = None, *, rpc_timeout: timedelta | None = None
    ) -> WorkflowExecutionCount:
        """Count runs.

        Args:
            query: Which; all when not given. ``GROUP BY ExecutionStatus`` gives groups.
            rpc_timeout: Longest wait for the answer.

        Raises:
            RPCError: The query cannot be read; the message says where.
        """
        return await self._outbound.count_workflows(CountWorkflowsInput(query, rpc_timeout))

    @overload
    def get_async_activity_handle(
        self, *, workflow_id: str, run_id: str | None, activity_id: str
    ) -> AsyncActivityHandle: ...
    @overload
    def get_async_activity_handle(self, *, task_token: bytes) -> AsyncActivityHandle: ...
    def get_async_activity_handle(
        self,
        *,
        workflow_id: str | None = None,
        run_id: str | None = None,
        activity_id: str | None = None,
        task_token: bytes | None = None,
    ) -> AsyncActivityHandle:
        """Give a handle on an activity that is completed from outside, by ids or by its token.

        Args:
            workflow_id: The workflow that scheduled it.
            run_id: Its run; None for whichever is current.
            activity_id: Its id.
            task_token: What ``activity.info().task_token`` was in the attempt.

        Raises:
            ValueError: Neither all ids nor a token were given, or it is no token.
        """
        target: TaskToken | ActivityTarget
        if task_token is not None:
            if workflow_id is not None or activity_id is not None:
                raise ValueError("Give either task_token, or workflow_id, run_id and activity_id, but not both.")
            target = decode_task_token(task_token)
        elif workflow_id is not None and activity_id is not None:
            target = ActivityTarget(
                namespace=self.namespace, workflow_id=workflow_id, run_id=run_id or "", activity_id=activity_id
            )
        else:
            raise ValueError("An activity is named by task_token, or by workflow_id, run_id and activity_id.")
        return AsyncActivityHandle(self, target)


def _identity() -> str:
    return f"{os.getpid()}@{socket.gethostname()}"


async def _connect(config: ConnectConfig) -> Connection:
    target = parse_target(config.target)
    if isinstance(target, ServerTarget):
        from clew.linked import connect_server  # needs a library that the base install has not

        return await connect_server(
            target.nodes, tls=config.tls_config(), token=config.token, identity=config.identity or ""
        )
    # The engine is loaded only by those who run one.
    if isinstance(target, PostgresTarget):
        from clew.embedded import connect_embedded

        return await connect_embedded(target.address)
    from clew.joining import connect_sqlite

    return await connect_sqlite(target.path, identity=config.identity or "")


def _connect_through(plugins: Sequence[Plugin], config: ConnectConfig) -> Awaitable[Connection]:
    def around(
        plugin: Plugin, next: Callable[[ConnectConfig], Awaitable[Connection]]
    ) -> Callable[[ConnectConfig], Awaitable[Connection]]:
        return lambda config: plugin.connect_service_client(config, next)

    connect: Callable[[ConnectConfig], Awaitable[Connection]] = _connect
    for plugin in reversed(plugins):
        connect = around(plugin, connect)
    return connect(config)


__all__ = ["AsyncActivityIDReference", "Client", "StartOptions"]
