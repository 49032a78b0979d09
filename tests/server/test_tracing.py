"""Traces of requests: one span each, in the trace of the caller, without what may be secret."""

from __future__ import annotations

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from tests.server.conftest import API, Served

TRACE = "0af7651916cd43dd8448eb211c80319c"


async def test_a_request_is_a_span_in_the_trace_of_its_caller(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer", provider.get_tracer)
    await served.serve()
    headers = {"traceparent": f"00-{TRACE}-b7ad6b7169203331-01", "x-request-id": "r-7"}
    await served.http.get(f"{API}/workflows/secret-id", headers=headers)
    await served.http.get("/healthz")
    (span,) = exporter.get_finished_spans()
    assert span.name == "GET describeWorkflow"
    assert span.kind is trace.SpanKind.SERVER
    assert f"{span.context.trace_id:032x}" == TRACE
    assert dict(span.attributes or {}) == {
        "http.request.method": "GET",
        "http.response.status_code": 404,
        "clew.operation": "describeWorkflow",
        "clew.request_id": "r-7",
    }
    assert "secret-id" not in span.to_json()
