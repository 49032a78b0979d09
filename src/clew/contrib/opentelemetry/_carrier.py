"""The context of a trace in headers, and spans that are over when they are made.

Owns: the header, and making a span that has happened already. Never: decides which spans there are.

How it works: a propagator writes the context into a small dictionary, which travels as one JSON payload in the header
``_tracer-data``, as the published interceptors do. Workflow code cannot hold a span open: its beginning and its end may
lie months and processes apart. So spans of workflows are made at once with the time of the workflow, outside of the
guard, by a function that the interceptor offers to workflow code.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias

import opentelemetry.trace as trace
from opentelemetry.context import Context
from opentelemetry.propagators.textmap import Setter, TextMapPropagator
from opentelemetry.trace import Span, SpanKind, Tracer
from opentelemetry.util.types import AttributeValue

from clew.converter import Payload, PayloadConverter
from clew.exceptions import ApplicationError, ApplicationErrorCategory, DecodeError

HEADER: Final = "_tracer-data"
COMPLETED_SPAN: Final = "__clew_opentelemetry_completed_span"
"""Name of the function that workflow code calls."""

Carrier: TypeAlias = dict[str, str]
Attributes: TypeAlias = Mapping[str, AttributeValue]

_converter: Final = PayloadConverter.default


class _Setter(Setter[Carrier]):
    def set(self, carrier: Carrier, key: str, value: str) -> None:
        carrier[key] = value


_setter: Final = _Setter()


def to_header(carrier: Carrier) -> Payload:
    """Give the payload of the header."""
    return _converter.to_payloads([carrier])[0]


def from_headers(headers: Mapping[str, Payload]) -> Carrier | None:
    """Give what the header holds; None if there is none, or it is somebody else's.

    Tracing must not stop what it traces, so a header that cannot be read starts a trace of its own.
    """
    payload = headers.get(HEADER)
    if payload is None:
        return None
    try:
        [carrier] = _converter.from_payloads([payload], [Carrier])
    except DecodeError:
        return None
    return carrier or None


def record_error(span: Span, error: BaseException) -> None:
    """Note an error in a span; a benign one leaves its status alone."""
    span.record_exception(error)
    if not (isinstance(error, ApplicationError) and error.category is ApplicationErrorCategory.BENIGN):
        span.set_status(trace.Status(trace.StatusCode.ERROR, f"{type(error).__name__}: {error}"))


@dataclass(frozen=True)
class CompletedSpan:
    """A span that has happened.

    Args:
        name: Its name.
        parent: The context that it belongs to.
        time_ns: When, in nanoseconds since the epoch.
        attributes: What is known.
        link: A context that led to it, beside its parent.
        error: What went wrong, if anything did.
        kind: As OpenTelemetry has it.
        is_made_without_parent: Begin a trace, if there is no parent and no link.
    """

    name: str
    parent: Carrier | None
    time_ns: int
    attributes: Attributes = field(default_factory=dict[str, AttributeValue])
    link: Carrier | None = None
    error: BaseException | None = None
    kind: SpanKind = SpanKind.INTERNAL
    is_made_without_parent: bool = False


class SpanMaker:
    """Makes completed spans.

    Args:
        tracer: Of the program.
        propagator: Writes and reads contexts.
    """

    def __init__(self, tracer: Tracer, propagator: TextMapPropagator) -> None:
        self._tracer = tracer
        self._propagator = propagator

    def extract(self, carrier: Carrier | None) -> Context:
        """Give the context that a carrier holds; an empty one for none."""
        return self._propagator.extract(carrier or {}, context=Context())

    def inject(self, context: Context | None = None) -> Carrier:
        """Give a carrier with a context; the current one when not given."""
        carrier: Carrier = {}
        self._propagator.inject(carrier, context=context, setter=_setter)
        return carrier

    def make(self, span: CompletedSpan) -> Carrier | None:
        """Make a span and give a carrier with its context; None if it was not made."""
        if span.parent is None and span.link is None and not span.is_made_without_parent:
            return None
        context = self.extract(span.parent)
        made = self._tracer.start_span(
            span.name,
            context,
            kind=span.kind,
            attributes=span.attributes,
            links=self._links(span.link),
            start_time=span.time_ns,
        )
        if span.error is not None:
            record_error(made, span.error)
        made.end(end_time=span.time_ns)
        return self.inject(trace.set_span_in_context(made, context))

    def _links(self, carrier: Carrier | None) -> list[trace.Link]:
        if carrier is None:
            return []
        span_context = trace.get_current_span(self.extract(carrier)).get_span_context()
        return [trace.Link(span_context)] if span_context.is_valid else []
