"""Context variables that travel with a request: from client to workflow, and on to activities and children.

Owns: which variables travel, and their header. Never: puts a value into arguments or results.

How it works: on every way out the present values of the chosen variables are written into headers; on every way in
they are set from the headers around the user's function, and set back afterwards. Headers are part of history, so a
replayed run sees what it saw. Variables that are not set send no header.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Mapping
from contextvars import ContextVar
from typing import Any, Final, NoReturn, final

from clew import client, worker, workflow
from clew.converter import Payload, PayloadConverter

HEADER_PREFIX: Final = "context-"


@final
class ContextPropagationInterceptor(client.Interceptor, worker.Interceptor):
    """Carries context variables along. Pass it to `Client.connect`; workers of that client use it too.

    The values become JSON by the standard converters and are not given to the payload codec by a client: keep secrets
    out of them.

    Args:
        variables: The variables that travel. Workflow code sees the values of whoever started the run, handlers those
            of whoever sent the signal, query or update.
        types: Names of variables to the types of their values, where these are not plain JSON.
    """

    def __init__(self, *variables: ContextVar[Any], types: Mapping[str, Any] | None = None) -> None:
        if not variables:
            raise ValueError("Name at least one context variable that is to travel.")
        self._carrier = _Carrier({variable.name: variable for variable in variables}, types or {})

    def intercept_client(self, next: client.OutboundInterceptor) -> client.OutboundInterceptor:
        """Write the headers of calls."""
        return _Outbound(next, self._carrier)

    def intercept_activity(self, next: worker.ActivityInboundInterceptor) -> worker.ActivityInboundInterceptor:
        """Set the variables around activities."""
        return _ActivityInbound(next, self._carrier)

    def workflow_interceptor_class(
        self, input: worker.WorkflowInterceptorClassInput
    ) -> type[workflow.WorkflowInboundInterceptor]:
        """Set the variables around workflows, and write the headers of what they call."""
        carrier = self._carrier

        class Inbound(_WorkflowInbound):
            def __init__(self, next: workflow.WorkflowInboundInterceptor) -> None:
                super().__init__(next, carrier)

        return Inbound


@final
class _Carrier:
    def __init__(self, variables: Mapping[str, ContextVar[Any]], types: Mapping[str, Any]) -> None:
        self._variables = variables
        self._types = types
        self._converter = PayloadConverter.default

    def added_to(self, headers: Mapping[str, Payload]) -> dict[str, Payload]:
        added = dict(headers)
        for name, variable in self._variables.items():
            value = variable.get(_UNSET)
            if value is not _UNSET:
                added[HEADER_PREFIX + name] = self._converter.to_payloads([value])[0]
        return added

    @contextlib.contextmanager
    def context(self, headers: Mapping[str, Payload]) -> Generator[None]:
        tokens = [(variable, variable.set(value)) for variable, value in self._found(headers)]
        try:
            yield
        finally:
            for variable, token in reversed(tokens):
                variable.reset(token)

    def _found(self, headers: Mapping[str, Payload]) -> list[tuple[ContextVar[Any], Any]]:
        found: list[tuple[ContextVar[Any], Any]] = []
        for name, variable in self._variables.items():
            payload = headers.get(HEADER_PREFIX + name)
            if payload is not None:
                hint = self._types.get(name)
                [value] = self._converter.from_payloads([payload], [hint] if hint is not None else None)
                found.append((variable, value))
        return found


_UNSET: Final[Any] = object()


@final
class _Outbound(client.OutboundInterceptor):
    def __init__(self, next: client.OutboundInterceptor, carrier: _Carrier) -> None:
        super().__init__(next)
        self._carrier = carrier

    async def start_workflow(self, input: client.StartWorkflowInput) -> client.WorkflowHandle[Any, Any]:
        input.headers = self._carrier.added_to(input.headers)
        return await super().start_workflow(input)

    async def signal_workflow(self, input: client.SignalWorkflowInput) -> None:
        input.headers = self._carrier.added_to(input.headers)
        await super().signal_workflow(input)

    async def query_workflow(self, input: client.QueryWorkflowInput) -> Any:
        input.headers = self._carrier.added_to(input.headers)
        return await super().query_workflow(input)

    async def start_workflow_update(self, input: client.StartWorkflowUpdateInput) -> client.WorkflowUpdateHandle[Any]:
        input.headers = self._carrier.added_to(input.headers)
        return await super().start_workflow_update(input)

    async def start_update_with_start_workflow(
        self, input: client.StartWorkflowUpdateWithStartInput
    ) -> client.WorkflowUpdateHandle[Any]:
        for one in (input.start_workflow_input, input.update_workflow_input):
            one.headers = self._carrier.added_to(one.headers)
        return await super().start_update_with_start_workflow(input)


@final
class _ActivityInbound(worker.ActivityInboundInterceptor):
    def __init__(self, next: worker.ActivityInboundInterceptor, carrier: _Carrier) -> None:
        super().__init__(next)
        self._carrier = carrier

    async def execute_activity(self, input: worker.ExecuteActivityInput) -> Any:
        with self._carrier.context(input.headers):
            return await super().execute_activity(input)


class _WorkflowInbound(workflow.WorkflowInboundInterceptor):
    def __init__(self, next: workflow.WorkflowInboundInterceptor, carrier: _Carrier) -> None:
        super().__init__(next)
        self._carrier = carrier

    def init(self, outbound: workflow.WorkflowOutboundInterceptor) -> None:
        super().init(_WorkflowOutbound(outbound, self._carrier))

    async def execute_workflow(self, input: workflow.ExecuteWorkflowInput) -> Any:
        with self._carrier.context(input.headers):
            return await super().execute_workflow(input)

    async def handle_signal(self, input: workflow.HandleSignalInput) -> None:
        with self._carrier.context(input.headers):
            await super().handle_signal(input)

    async def handle_query(self, input: workflow.HandleQueryInput) -> Any:
        with self._carrier.context(input.headers):
            return await super().handle_query(input)

    def handle_update_validator(self, input: workflow.HandleUpdateInput) -> None:
        with self._carrier.context(input.headers):
            super().handle_update_validator(input)

    async def handle_update_handler(self, input: workflow.HandleUpdateInput) -> Any:
        with self._carrier.context(input.headers):
            return await super().handle_update_handler(input)


@final
class _WorkflowOutbound(workflow.WorkflowOutboundInterceptor):
    def __init__(self, next: workflow.WorkflowOutboundInterceptor, carrier: _Carrier) -> None:
        super().__init__(next)
        self._carrier = carrier

    def continue_as_new(self, input: workflow.ContinueAsNewInput) -> NoReturn:
        input.headers = self._carrier.added_to(input.headers)
        super().continue_as_new(input)

    async def signal_child_workflow(self, input: workflow.SignalChildWorkflowInput) -> None:
        input.headers = self._carrier.added_to(input.headers)
        await super().signal_child_workflow(input)

    async def signal_external_workflow(self, input: workflow.SignalExternalWorkflowInput) -> None:
        input.headers = self._carrier.added_to(input.headers)
        await super().signal_external_workflow(input)

    def start_activity(self, input: workflow.StartActivityInput) -> workflow.ActivityHandle[Any]:
        input.headers = self._carrier.added_to(input.headers)
        return super().start_activity(input)

    def start_local_activity(self, input: workflow.StartLocalActivityInput) -> workflow.ActivityHandle[Any]:
        input.headers = self._carrier.added_to(input.headers)
        return super().start_local_activity(input)

    async def start_child_workflow(
        self, input: workflow.StartChildWorkflowInput
    ) -> workflow.ChildWorkflowHandle[Any, Any]:
        input.headers = self._carrier.added_to(input.headers)
        return await super().start_child_workflow(input)
