"""The interceptor of clients and workers.

Owns: the spans of clients and activities, and handing the rest to ``_workflow``. Never: spans of workflow code.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from typing import Any, Final, final

import opentelemetry.baggage.propagation
import opentelemetry.trace as trace
import opentelemetry.trace.propagation.tracecontext
from opentelemetry.propagators.composite import CompositePropagator
from opentelemetry.propagators.textmap import TextMapPropagator
from opentelemetry.trace import Span, SpanKind, Tracer

from clew import activity, client, worker
from clew.contrib.opentelemetry._carrier import (
    COMPLETED_SPAN,
    HEADER,
    Attributes,
    SpanMaker,
    from_headers,
    record_error,
    to_header,
)
from clew.contrib.opentelemetry._workflow import TracingWorkflowInboundInterceptor, with_settings

PROPAGATOR_DEFAULT: Final = CompositePropagator(
    [
        opentelemetry.trace.propagation.tracecontext.TraceContextTextMapPropagator(),
        opentelemetry.baggage.propagation.W3CBaggagePropagator(),
    ]
)


@final
class TracingInterceptor(client.Interceptor, worker.Interceptor):
    """Traces calls of a client, workflows and activities, each a child of what caused it.

    Pass it to `Client.connect`, and workers of that client use it, or to `Worker` and `Replayer` alone. Names of spans,
    their attributes and the header are those of the published SDKs.

    Args:
        tracer: Makes the spans; the global tracer of this package when not given.
        propagator: Writes contexts into headers; trace context and baggage of the W3C when not given.
        always_create_workflow_spans: Also trace workflows whose starter does not trace. Off by default, as their spans
            would each begin a trace.
    """

    def __init__(
        self,
        tracer: Tracer | None = None,
        *,
        propagator: TextMapPropagator = PROPAGATOR_DEFAULT,
        always_create_workflow_spans: bool = False,
    ) -> None:
        self._tracer = tracer if tracer is not None else trace.get_tracer("clew")
        self._spans = SpanMaker(self._tracer, propagator)
        self._always_create_workflow_spans = always_create_workflow_spans

    def intercept_client(self, next: client.OutboundInterceptor) -> client.OutboundInterceptor:
        """Trace the calls of a client."""
        return _ClientOutbound(next, self._tracer, self._spans)

    def intercept_activity(self, next: worker.ActivityInboundInterceptor) -> worker.ActivityInboundInterceptor:
        """Trace activities."""
        return _ActivityInbound(next, self._tracer, self._spans)

    def workflow_interceptor_class(
        self, input: worker.WorkflowInterceptorClassInput
    ) -> type[TracingWorkflowInboundInterceptor]:
        """Trace workflows."""
        input.unsafe_extern_functions[COMPLETED_SPAN] = self._spans.make
        return with_settings(self._spans, self._always_create_workflow_spans)


@final
class _ClientOutbound(client.OutboundInterceptor):
    def __init__(self, next: client.OutboundInterceptor, tracer: Tracer, spans: SpanMaker) -> None:
        super().__init__(next)
        self._tracer = tracer
        self._spans = spans

    async def start_workflow(self, input: client.StartWorkflowInput) -> client.WorkflowHandle[Any, Any]:
        prefix = "SignalWithStartWorkflow" if input.start_signal else "StartWorkflow"
        with self._span(f"{prefix}:{input.workflow}", {"temporalWorkflowID": input.id}, input):
            return await super().start_workflow(input)

    async def query_workflow(self, input: client.QueryWorkflowInput) -> Any:
        with self._span(f"QueryWorkflow:{input.query}", {"temporalWorkflowID": input.id}, input):
            return await super().query_workflow(input)

    async def signal_workflow(self, input: client.SignalWorkflowInput) -> None:
        with self._span(f"SignalWorkflow:{input.signal}", {"temporalWorkflowID": input.id}, input):
            await super().signal_workflow(input)

    async def start_workflow_update(self, input: client.StartWorkflowUpdateInput) -> client.WorkflowUpdateHandle[Any]:
        attributes = {"temporalWorkflowID": input.id}
        if input.update_id is not None:
            attributes["temporalUpdateID"] = input.update_id
        with self._span(f"StartWorkflowUpdate:{input.update}", attributes, input):
            return await super().start_workflow_update(input)

    async def start_update_with_start_workflow(
        self, input: client.StartWorkflowUpdateWithStartInput
    ) -> client.WorkflowUpdateHandle[Any]:
        start, update = input.start_workflow_input, input.update_workflow_input
        attributes = {"temporalWorkflowID": start.id}
        if update.update_id is not None:
            attributes["temporalUpdateID"] = update.update_id
        with self._span(f"StartUpdateWithStartWorkflow:{start.workflow}", attributes, start):
            update.headers = {**update.headers, HEADER: to_header(self._spans.inject())}
            return await super().start_update_with_start_workflow(input)

    @contextlib.contextmanager
    def _span(self, name: str, attributes: Attributes, input: Any) -> Generator[Span]:
        with self._tracer.start_as_current_span(name, attributes=attributes, kind=SpanKind.CLIENT) as span:
            carrier = self._spans.inject()
            if carrier:
                input.headers = {**input.headers, HEADER: to_header(carrier)}
            yield span


@final
class _ActivityInbound(worker.ActivityInboundInterceptor):
    def __init__(self, next: worker.ActivityInboundInterceptor, tracer: Tracer, spans: SpanMaker) -> None:
        super().__init__(next)
        self._tracer = tracer
        self._spans = spans

    async def execute_activity(self, input: worker.ExecuteActivityInput) -> Any:
        info = activity.info()
        attributes = {
            "temporalWorkflowID": info.workflow_id,
            "temporalRunID": info.workflow_run_id,
            "temporalActivityID": info.activity_id,
        }
        with self._tracer.start_as_current_span(
            f"RunActivity:{info.activity_type}",
            context=self._spans.extract(from_headers(input.headers)),
            attributes=attributes,
            kind=SpanKind.SERVER,
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            try:
                return await super().execute_activity(input)
            except Exception as error:
                record_error(span, error)
                raise
