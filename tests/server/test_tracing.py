"""Traces of requests: one span each, in the trace of the caller, without what may be secret."""

from __future__ import annotations

import asyncio

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from clew.client import Client
from clew.model.rejection import Rejection, RejectionCode
from clew.server.tracing import link_tracer
from clew.service import requests as r
from clew.service.errors import RPCError
from tests.link.node import Node
from tests.link.service import FakeService, linked, make_server, until
from tests.server.conftest import API, Served


@pytest.fixture
def exporter(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    """Where the spans of this test are."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer", provider.get_tracer)
    return exporter


TRACE = "0af7651916cd43dd8448eb211c80319c"


async def test_a_request_is_a_span_in_the_trace_of_its_caller(served: Served, exporter: InMemorySpanExporter) -> None:
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


async def test_a_call_over_the_link_is_a_span_in_the_trace_of_its_caller(exporter: InMemorySpanExporter) -> None:
    service = FakeService()
    async with linked(make_server(service, tracer=link_tracer())) as (client, _):
        request = r.SignalWorkflowRequest(namespace="n", workflow_id="secret-id", signal_name="s", request_id="q")
        parent = f"00-{TRACE}-b7ad6b7169203331-01"
        await client.service.in_trace(parent, client.service.signal_workflow, request)
        await client.service.signal_workflow(request)
        service.answer = lambda request: RPCError(Rejection(code=RejectionCode.WORKFLOW_NOT_FOUND, message="no"))
        with pytest.raises(RPCError):
            await client.service.in_trace(parent, client.service.signal_workflow, request)
        service.answer = lambda request: ZeroDivisionError("secret")
        with pytest.raises(RPCError):
            await client.service.in_trace(parent, client.service.signal_workflow, request)
    inside, alone, refused, failed = exporter.get_finished_spans()
    assert [span.name for span in (inside, alone, refused, failed)] == ["LINK signal_workflow"] * 4
    assert [f"{span.context.trace_id:032x}" == TRACE for span in (inside, alone, refused, failed)] == [
        True, False, True, True,
    ]  # fmt: skip
    assert inside.kind is trace.SpanKind.SERVER
    assert inside.parent is not None
    assert f"{inside.parent.span_id:016x}" == "b7ad6b7169203331"
    assert dict(inside.attributes or {}) == {"rpc.system": "clew", "rpc.method": "signal_workflow"}
    assert dict(refused.attributes or {})["clew.code"] == "workflow_not_found"
    assert [span.status.status_code is trace.StatusCode.ERROR for span in (inside, refused, failed)] == [
        False, False, True,
    ]  # fmt: skip
    assert not any("secret" in span.to_json() for span in (inside, alone, refused, failed))


async def test_calls_that_are_taken_back_or_cut_off_end_their_spans(exporter: InMemorySpanExporter) -> None:
    service = FakeService()
    service.gate.clear()
    server = make_server(service, tracer=link_tracer())
    async with linked(server) as (client, _):
        request = r.GetHistoryRequest(namespace="n", workflow_id="w", wait_new_event=True)
        waiting = asyncio.create_task(client.service.get_history(request))
        await until(lambda: service.calls)
        waiting.cancel()
        await until(lambda: len(exporter.get_finished_spans()) == 1)
        pending = client.service.describe_workflow(r.DescribeWorkflowRequest(namespace="n", workflow_id="w"))
        await until(lambda: len(service.calls) == 2)
        server.close()
        await until(lambda: len(exporter.get_finished_spans()) == 2)
        assert not pending.done()
    codes = [dict(span.attributes or {})["clew.code"] for span in exporter.get_finished_spans()]
    assert codes == ["cancelled", "cancelled"]


async def test_what_workers_report_is_traced_only_within_a_trace(exporter: InMemorySpanExporter) -> None:
    service = FakeService()
    async with linked(make_server(service, tracer=link_tracer())) as (client, _):
        token = r.TaskToken(
            namespace="n", workflow_id="w", run_id="r", shard=0, run_key=1, scheduled_event_id=5, attempt=1, lease_id=7
        )
        await client.service.detach_activity(token)
        assert exporter.get_finished_spans() == ()
        await client.service.in_trace(f"00-{TRACE}-b7ad6b7169203331-01", client.service.detach_activity, token)
    assert [span.name for span in exporter.get_finished_spans()] == ["LINK detach_activity"]


async def test_a_client_says_in_which_trace_it_calls(exporter: InMemorySpanExporter) -> None:
    """From the span that is current where the client is used, through the thread of the link, to the node."""
    async with Node() as node:
        node.server.tracer = link_tracer()
        async with await Client.connect(f"127.0.0.1:{node.port}") as client:
            with trace.get_tracer("test").start_as_current_span("mine") as mine:
                await client.count_workflows()
            await client.count_workflows()
    calls = [span for span in exporter.get_finished_spans() if span.name == "LINK count_workflows"]
    assert len(calls) == 2
    assert calls[0].context.trace_id == mine.get_span_context().trace_id
    assert calls[0].parent is not None
    assert calls[0].parent.span_id == mine.get_span_context().span_id
    assert calls[1].parent is None
