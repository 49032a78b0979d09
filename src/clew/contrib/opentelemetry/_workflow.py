"""The spans of workflow code.

Owns: which spans a run has, and when. Never: makes one by itself: the clock and chance of a span are outside of the
guard, so it asks the function that the interceptor offers.

How it works: a run attaches the context of its header; a span is made when something happens for the first time, so
never while replaying, and is over at once (see ``_carrier``). What the run calls gets the context of its span in a
header. Queries are the exception: they run in a replayed workflow and yet happen now, so they have spans of their own,
under the caller's, if the caller traces.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator, MutableMapping
from typing import Any, ClassVar, Final, NoReturn

import opentelemetry.context
from opentelemetry.context import Context
from opentelemetry.trace import SpanKind

from clew import workflow
from clew.contrib.opentelemetry._carrier import (
    COMPLETED_SPAN,
    HEADER,
    Attributes,
    Carrier,
    CompletedSpan,
    SpanMaker,
    from_headers,
    to_header,
)
from clew.converter import Payload
from clew.exceptions import is_cancelled_exception

_INTERCEPTOR_KEY: Final = opentelemetry.context.create_key("clew-tracing-interceptor")


class TracingWorkflowInboundInterceptor(workflow.WorkflowInboundInterceptor):
    """Traces one run; made by `TracingInterceptor`. Subclass it to add attributes to its spans."""

    _spans: ClassVar[SpanMaker]
    _always_create_workflow_spans: ClassVar[bool] = False

    @staticmethod
    def current() -> TracingWorkflowInboundInterceptor | None:
        """Give that of the running workflow; None where none traces."""
        found = opentelemetry.context.get_value(_INTERCEPTOR_KEY)
        return found if isinstance(found, TracingWorkflowInboundInterceptor) else None

    def init(self, outbound: workflow.WorkflowOutboundInterceptor) -> None:
        """Add the tracing of what the workflow calls."""
        super().init(_WorkflowOutbound(outbound, self))

    async def execute_workflow(self, input: workflow.ExecuteWorkflowInput) -> Any:
        """Make ``RunWorkflow`` and, at the end, ``CompleteWorkflow``."""
        name = workflow.info().workflow_type
        with self._attached(from_headers(input.headers)):
            self.completed_span(f"RunWorkflow:{name}", kind=SpanKind.SERVER, is_current=True)
            try:
                result = await super().execute_workflow(input)
            except workflow.ContinueAsNewError:
                self.completed_span(f"CompleteWorkflow:{name}")
                raise
            except BaseException as error:
                if workflow.is_failure_exception(error) or is_cancelled_exception(error):
                    self.completed_span(f"CompleteWorkflow:{name}", error=error)
                raise
            self.completed_span(f"CompleteWorkflow:{name}")
            return result

    async def handle_signal(self, input: workflow.HandleSignalInput) -> None:
        """Make ``HandleSignal``."""
        with self._attached(self._run_carrier()):
            link = from_headers(input.headers)
            self.completed_span(f"HandleSignal:{input.signal}", link=link, kind=SpanKind.SERVER, is_current=True)
            await super().handle_signal(input)

    async def handle_query(self, input: workflow.HandleQueryInput) -> Any:
        """Make ``HandleQuery``, if the caller traces."""
        caller = from_headers(input.headers)
        if caller is None:
            return await super().handle_query(input)
        with self._attached(caller):
            name = f"HandleQuery:{input.query}"
            self.completed_span(name, kind=SpanKind.SERVER, is_made_while_replaying=True, is_current=True)
            return await super().handle_query(input)

    def handle_update_validator(self, input: workflow.HandleUpdateInput) -> None:
        """Make ``ValidateUpdate``."""
        with self._attached(self._run_carrier()):
            self._update_span("ValidateUpdate", input)
            super().handle_update_validator(input)

    async def handle_update_handler(self, input: workflow.HandleUpdateInput) -> Any:
        """Make ``HandleUpdate``."""
        with self._attached(self._run_carrier()):
            self._update_span("HandleUpdate", input)
            return await super().handle_update_handler(input)

    def completed_span(
        self,
        name: str,
        *,
        attributes: Attributes | None = None,
        link: Carrier | None = None,
        error: BaseException | None = None,
        kind: SpanKind = SpanKind.INTERNAL,
        is_made_while_replaying: bool = False,
        is_current: bool = False,
    ) -> None:
        """Make a span under the current context that is over at once.

        Args:
            name: Its name.
            attributes: What is known, beside the ids of the run.
            link: A context that led to it.
            error: What went wrong, if anything did.
            kind: As OpenTelemetry has it.
            is_made_while_replaying: Make it though what it stands for may have happened before.
            is_current: Let what this task does afterwards belong to it.
        """
        carrier = self._make_span(name, attributes or {}, link, error, kind, is_made_while_replaying)
        if carrier is not None and is_current:
            opentelemetry.context.attach(self._context(carrier))

    def outbound_span(self, name: str) -> Carrier | None:
        """Make a span for a call, and give the carrier to send along: that of the span, or else the current one."""
        carrier = self._make_span(name, {}, None, None, SpanKind.CLIENT, False)
        return carrier if carrier is not None else self.current_carrier()

    def current_carrier(self) -> Carrier | None:
        """Give the carrier of the current context; None if there is nothing in it."""
        return self._spans.inject() or None

    def _make_span(
        self,
        name: str,
        attributes: Attributes,
        link: Carrier | None,
        error: BaseException | None,
        kind: SpanKind,
        is_made_while_replaying: bool,
    ) -> Carrier | None:
        if workflow.unsafe.is_replaying() and not is_made_while_replaying:
            return None
        info = workflow.info()
        span = CompletedSpan(
            name,
            parent=self.current_carrier(),
            time_ns=workflow.time_ns(),
            attributes={"temporalWorkflowID": info.workflow_id, "temporalRunID": info.run_id, **attributes},
            link=link,
            error=error,
            kind=kind,
            is_made_without_parent=self._always_create_workflow_spans,
        )
        with workflow.unsafe.sandbox_unrestricted():
            made: Carrier | None = workflow.extern_functions()[COMPLETED_SPAN](span)
        return made

    def _update_span(self, prefix: str, input: workflow.HandleUpdateInput) -> None:
        link = from_headers(input.headers)
        attributes = {"temporalUpdateID": input.id}
        name = f"{prefix}:{input.update}"
        self.completed_span(name, attributes=attributes, link=link, kind=SpanKind.SERVER, is_current=True)

    def _run_carrier(self) -> Carrier | None:
        """What handlers belong to: the starter's span, also before the run's own code has begun."""
        return from_headers(workflow.info().headers)

    def _context(self, carrier: Carrier | None) -> Context:
        return opentelemetry.context.set_value(_INTERCEPTOR_KEY, self, self._spans.extract(carrier))

    @contextlib.contextmanager
    def _attached(self, carrier: Carrier | None) -> Generator[None]:
        before = opentelemetry.context.get_current()
        opentelemetry.context.attach(self._context(carrier))
        try:
            yield
        finally:
            # Not `detach`: spans in between attached theirs, and all of them end with the block.
            opentelemetry.context.attach(before)


def with_settings(spans: SpanMaker, always_create: bool) -> type[TracingWorkflowInboundInterceptor]:
    """Give the class for one interceptor: a worker makes an object of it for each run, without arguments."""

    class Tracing(TracingWorkflowInboundInterceptor):
        _spans = spans
        _always_create_workflow_spans = always_create

    return Tracing


class _WorkflowOutbound(workflow.WorkflowOutboundInterceptor):
    def __init__(self, next: workflow.WorkflowOutboundInterceptor, run: TracingWorkflowInboundInterceptor) -> None:
        super().__init__(next)
        self._run = run

    def continue_as_new(self, input: workflow.ContinueAsNewInput) -> NoReturn:
        _add(input.headers, self._run._run_carrier())
        super().continue_as_new(input)

    async def signal_child_workflow(self, input: workflow.SignalChildWorkflowInput) -> None:
        _add(input.headers, self._run.outbound_span(f"SignalChildWorkflow:{input.signal}"))
        await super().signal_child_workflow(input)

    async def signal_external_workflow(self, input: workflow.SignalExternalWorkflowInput) -> None:
        _add(input.headers, self._run.outbound_span(f"SignalExternalWorkflow:{input.signal}"))
        await super().signal_external_workflow(input)

    def start_activity(self, input: workflow.StartActivityInput) -> workflow.ActivityHandle[Any]:
        _add(input.headers, self._run.outbound_span(f"StartActivity:{input.activity}"))
        return super().start_activity(input)

    def start_local_activity(self, input: workflow.StartLocalActivityInput) -> workflow.ActivityHandle[Any]:
        _add(input.headers, self._run.outbound_span(f"StartActivity:{input.activity}"))
        return super().start_local_activity(input)

    async def start_child_workflow(
        self, input: workflow.StartChildWorkflowInput
    ) -> workflow.ChildWorkflowHandle[Any, Any]:
        _add(input.headers, self._run.outbound_span(f"StartChildWorkflow:{input.workflow}"))
        return await super().start_child_workflow(input)


def _add(headers: MutableMapping[str, Payload], carrier: Carrier | None) -> None:
    if carrier is not None:
        headers[HEADER] = to_header(carrier)
