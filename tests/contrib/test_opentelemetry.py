"""Traces from client to activity and back, without duplicates on replay; metrics."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from typing import Any, NoReturn

import opentelemetry.baggage
import opentelemetry.context
import opentelemetry.trace as trace
import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from clew import activity, workflow
from clew.client import Client, WithStartWorkflowOperation, WorkflowFailureError, WorkflowUpdateFailedError
from clew.common import RetryPolicy, WorkflowIDConflictPolicy
from clew.contrib.opentelemetry import OpenTelemetryMeter, TracingInterceptor
from clew.contrib.opentelemetry.workflow import completed_span
from clew.converter import Payload
from clew.exceptions import ApplicationError, ApplicationErrorCategory
from clew.testing import WorkflowEnvironment
from clew.worker import Replayer, Worker

QUEUE = "traced"
SECONDS = {"start_to_close_timeout": timedelta(seconds=30)}


@activity.defn
async def in_task(value: str) -> str:
    with trace.get_tracer("user").start_as_current_span("in the activity"):
        return f"{value} {opentelemetry.baggage.get_baggage('tenant')}"


@activity.defn
def in_thread(value: str) -> str:
    return format(trace.get_current_span().get_span_context().span_id, "x")


@activity.defn
async def fails(kind: str) -> NoReturn:
    category = ApplicationErrorCategory.BENIGN if kind == "benign" else ApplicationErrorCategory.UNSPECIFIED
    raise ApplicationError("no", non_retryable=True, category=category)


@workflow.defn
class Child:
    def __init__(self) -> None:
        self.is_told = False

    @workflow.run
    async def run(self) -> str:
        await workflow.wait_condition(lambda: self.is_told)
        return "child"

    @workflow.signal
    def tell(self) -> None:
        self.is_told = True


@workflow.defn
class Parent:
    def __init__(self) -> None:
        self.is_over = False

    @workflow.run
    async def run(self) -> str:
        done = await workflow.execute_activity(in_task, "a", **SECONDS)
        completed_span("half way", attributes={"done": 1})
        child = await workflow.start_child_workflow(Child.run, id="child")
        await child.signal(Child.tell)
        await child
        await workflow.wait_condition(lambda: self.is_over)
        await workflow.execute_activity(in_task, "b", **SECONDS)
        return done

    @workflow.signal
    async def end(self) -> None:
        await workflow.execute_activity(in_task, "s", **SECONDS)
        self.is_over = True

    @workflow.query
    def state(self) -> bool:
        return self.is_over

    @workflow.update
    async def change(self, value: int) -> str:
        return await workflow.execute_activity(in_task, "u", **SECONDS)

    @change.validator
    def _check(self, value: int) -> None:
        if value < 0:
            raise ValueError("negative")


@activity.defn
async def counts() -> None:
    activity.metric_meter().create_counter("in_activity").add(1)


@workflow.defn
class Counts:
    @workflow.run
    async def run(self) -> None:
        workflow.metric_meter().create_counter("in_workflow").add(1)
        for _ in range(3):
            await workflow.execute_activity(counts, **SECONDS)


@workflow.defn
class Failing:
    @workflow.run
    async def run(self, kind: str) -> None:
        await workflow.execute_activity(fails, kind, retry_policy=RetryPolicy(maximum_attempts=1), **SECONDS)


@workflow.defn
class Again:
    @workflow.run
    async def run(self, left: int) -> str:
        if left:
            workflow.continue_as_new(left - 1)
        return await workflow.execute_activity(in_thread, "x", **SECONDS)


WORKFLOWS = [Parent, Child, Failing, Again, Counts]
ACTIVITIES = [in_task, in_thread, fails, counts]


class Traced:
    """A tracer whose spans are kept."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.interceptor = TracingInterceptor(self.provider.get_tracer("test"))

    def spans(self) -> list[ReadableSpan]:
        return list(self.exporter.get_finished_spans())

    def named(self, name: str) -> ReadableSpan:
        [span] = [span for span in self.spans() if span.name == name]
        return span

    def tree(self) -> list[str]:
        """The spans by parent, indented; siblings in the order in which they were made."""
        children: dict[int | None, list[ReadableSpan]] = {}
        known = {span.context.span_id for span in self.spans() if span.context}
        for span in self.spans():
            parent = span.parent.span_id if span.parent and span.parent.span_id in known else None
            children.setdefault(parent, []).append(span)
        lines: list[str] = []

        def add(parent: int | None, depth: int) -> None:
            for span in sorted(children.get(parent, []), key=lambda span: span.start_time or 0):
                lines.append("  " * depth + span.name)
                assert span.context is not None
                add(span.context.span_id, depth + 1)

        add(None, 0)
        return lines


@pytest.fixture
def traced() -> Traced:
    return Traced()


@pytest.fixture
async def environment() -> AsyncIterator[WorkflowEnvironment]:
    async with await WorkflowEnvironment.start_local() as environment:
        yield environment


def client_of(environment: WorkflowEnvironment, *interceptors: Any) -> Client:
    return Client(environment.client.connection, interceptors=interceptors)


def worker_of(client: Client, **options: Any) -> Worker:
    return Worker(client, task_queue=QUEUE, workflows=WORKFLOWS, activities=ACTIVITIES, **options)


@pytest.fixture(params=[100, 0], ids=["cached", "cold"])
async def client(
    environment: WorkflowEnvironment, traced: Traced, request: pytest.FixtureRequest
) -> AsyncIterator[Client]:
    """With a worker that keeps runs, and one that replays each from the start at every task."""
    made = client_of(environment, traced.interceptor)
    async with worker_of(made, max_cached_workflows=request.param):
        yield made


@pytest.fixture
def tenant() -> Iterator[None]:
    token = opentelemetry.context.attach(opentelemetry.baggage.set_baggage("tenant", "kim"))
    yield
    opentelemetry.context.detach(token)


@pytest.mark.usefixtures("tenant")
async def test_every_step_belongs_to_what_caused_it(client: Client, traced: Traced) -> None:
    handle = await client.start_workflow(Parent.run, id="parent", task_queue=QUEUE)
    assert await handle.execute_update(Parent.change, 1, id="u1") == "u kim"
    await handle.signal(Parent.end)
    assert await handle.result() == "a kim"
    assert await handle.query(Parent.state) is True

    start = traced.named("StartWorkflow:Parent")
    names = sorted(span.name for span in traced.spans())
    assert names == sorted(
        [
            "StartWorkflow:Parent",
            "RunWorkflow:Parent",
            "CompleteWorkflow:Parent",
            "half way",
            *["StartActivity:in_task", "RunActivity:in_task"] * 4,
            "StartChildWorkflow:Child",
            "RunWorkflow:Child",
            "CompleteWorkflow:Child",
            "SignalChildWorkflow:tell",
            "HandleSignal:tell",
            "StartWorkflowUpdate:change",
            "ValidateUpdate:change",
            "HandleUpdate:change",
            "SignalWorkflow:end",
            "HandleSignal:end",
            "QueryWorkflow:state",
            "HandleQuery:state",
        ]
    )
    parents = {span.name: _parent(traced, span) for span in traced.spans() if not span.name.endswith(":in_task")}
    # A cold run's later spans hang from the starter's span, as the one of its first task is known to nobody any more.
    run_or_start = {"RunWorkflow:Parent", "StartWorkflow:Parent"}
    assert parents["RunWorkflow:Parent"] == "StartWorkflow:Parent"
    for name in ("half way", "StartChildWorkflow:Child", "CompleteWorkflow:Parent", "SignalChildWorkflow:tell"):
        assert parents[name] in run_or_start, name
    assert parents["RunWorkflow:Child"] == "StartChildWorkflow:Child"
    assert parents["HandleQuery:state"] == "QueryWorkflow:state"
    for name, cause in (
        ("HandleSignal:end", "SignalWorkflow:end"),
        ("HandleUpdate:change", "StartWorkflowUpdate:change"),
        ("ValidateUpdate:change", "StartWorkflowUpdate:change"),
    ):
        [link] = traced.named(name).links
        assert link.context.span_id == _id(traced.named(cause)), name
        assert parents[name] == "StartWorkflow:Parent"
    for span in traced.spans():
        if span.name == "RunActivity:in_task":
            assert _parent(traced, span) == "StartActivity:in_task"
            assert span.context is not None
            assert start.context is not None
            assert span.context.trace_id == start.context.trace_id
            assert set(span.attributes or ()) == {"temporalWorkflowID", "temporalRunID", "temporalActivityID"}
    assert (traced.named("half way").attributes or {})["done"] == 1
    assert (traced.named("HandleUpdate:change").attributes or {})["temporalUpdateID"] == "u1"


def _id(span: ReadableSpan) -> int:
    assert span.context is not None
    return span.context.span_id


def _parent(traced: Traced, span: ReadableSpan) -> str | None:
    found = [one.name for one in traced.spans() if span.parent is not None and _id(one) == span.parent.span_id]
    return found[0] if found else None


async def test_the_tree_of_a_run_that_stays_cached(environment: WorkflowEnvironment, traced: Traced) -> None:
    client = client_of(environment, traced.interceptor)
    async with worker_of(client):
        result = await client.execute_workflow(Again.run, 1, id="again", task_queue=QUEUE)
    assert traced.tree() == [
        "StartWorkflow:Again",
        "  RunWorkflow:Again",
        "    CompleteWorkflow:Again",
        "  RunWorkflow:Again",
        "    StartActivity:in_thread",
        "      RunActivity:in_thread",
        "    CompleteWorkflow:Again",
    ]
    assert result == format(_id(traced.named("RunActivity:in_thread")), "x")


@pytest.mark.parametrize(("kind", "is_error"), [("plain", True), ("benign", False)])
async def test_errors_are_recorded(client: Client, traced: Traced, kind: str, is_error: bool) -> None:
    with pytest.raises(WorkflowFailureError):
        await client.execute_workflow(Failing.run, kind, id="failing", task_queue=QUEUE)
    ran = traced.named("RunActivity:fails")
    assert ran.status.is_ok is not is_error
    assert [event.name for event in ran.events] == ["exception"]
    completed = traced.named("CompleteWorkflow:Failing")
    assert not completed.status.is_ok
    assert [event.name for event in completed.events] == ["exception"]


async def test_handlers_that_run_before_the_run_itself_belong_to_the_starter(
    environment: WorkflowEnvironment, traced: Traced
) -> None:
    client = client_of(environment, traced.interceptor)
    operation = WithStartWorkflowOperation(
        Parent.run, id="with-update", task_queue=QUEUE, id_conflict_policy=WorkflowIDConflictPolicy.FAIL
    )
    await client.start_workflow(Parent.run, id="with-signal", task_queue=QUEUE, start_signal="end")
    async with worker_of(client):
        await client.get_workflow_handle("with-signal").result()
        assert await client.execute_update_with_start_workflow(Parent.change, 1, start_workflow_operation=operation)
        await client.get_workflow_handle("with-update").signal(Parent.end)
        await client.get_workflow_handle("with-update").result()
    assert [line for line in traced.tree() if not line.startswith(" ")] == [
        "SignalWithStartWorkflow:Parent",
        "StartUpdateWithStartWorkflow:Parent",
        "SignalWorkflow:end",
    ]
    start = traced.named("StartUpdateWithStartWorkflow:Parent").context
    for name in ("ValidateUpdate:change", "HandleUpdate:change"):
        parent = traced.named(name).parent
        assert start is not None
        assert parent is not None
        assert parent.span_id == start.span_id


async def test_a_refused_update_is_validated_and_not_handled(client: Client, traced: Traced) -> None:
    handle = await client.start_workflow(Parent.run, id="parent", task_queue=QUEUE)
    with pytest.raises(WorkflowUpdateFailedError):
        await handle.execute_update(Parent.change, -1)
    names = [span.name for span in traced.spans()]
    assert names.count("ValidateUpdate:change") == 1
    assert "HandleUpdate:change" not in names
    await handle.terminate()


async def test_replaying_makes_no_spans(client: Client, traced: Traced) -> None:
    handle = await client.start_workflow(Parent.run, id="parent", task_queue=QUEUE)
    await handle.signal(Parent.end)
    await handle.result()
    history = await handle.fetch_history()
    made_count = len(traced.spans())
    await Replayer(workflows=WORKFLOWS, interceptors=[traced.interceptor]).replay_workflow(history)
    assert len(traced.spans()) == made_count
    # Histories fit with and without tracing, either way round.
    await Replayer(workflows=WORKFLOWS).replay_workflow(history)


@pytest.mark.parametrize("always", [False, True])
async def test_a_workflow_whose_starter_does_not_trace(
    environment: WorkflowEnvironment, traced: Traced, always: bool
) -> None:
    interceptor = TracingInterceptor(traced.provider.get_tracer("test"), always_create_workflow_spans=always)
    client = client_of(environment)
    async with worker_of(client, interceptors=[interceptor]):
        await client.execute_workflow(Again.run, 0, id="again", task_queue=QUEUE)
    if always:
        assert traced.tree() == [
            "RunWorkflow:Again",
            "  StartActivity:in_thread",
            "    RunActivity:in_thread",
            "  CompleteWorkflow:Again",
        ]
    else:
        assert traced.tree() == ["RunActivity:in_thread"]


async def test_a_header_of_somebody_else_stops_nothing(environment: WorkflowEnvironment, traced: Traced) -> None:
    from clew.client import Interceptor, OutboundInterceptor, StartWorkflowInput, WorkflowHandle

    class Outbound(OutboundInterceptor):
        async def start_workflow(self, input: StartWorkflowInput) -> WorkflowHandle[Any, Any]:
            input.headers = {"_tracer-data": Payload({"encoding": b"json/plain"}, b"[1, 2]")}
            return await super().start_workflow(input)

    class Foreign(Interceptor):
        def intercept_client(self, next: OutboundInterceptor) -> OutboundInterceptor:
            return Outbound(next)

    client = client_of(environment, Foreign())
    async with worker_of(client, interceptors=[traced.interceptor]):
        async with asyncio.timeout(20):
            await client.execute_workflow(Again.run, 0, id="again", task_queue=QUEUE)


def test_instruments_record_with_their_attributes() -> None:
    reader = InMemoryMetricReader()
    meter = OpenTelemetryMeter(MeterProvider([reader]).get_meter("test"), {"base": 1})
    more = meter.with_additional_attributes({"queue": "q"})
    more.create_counter("count", "how many", "1").add(2, {"kind": "a"})
    more.create_histogram("sizes").with_additional_attributes({"kind": "b"}).record(3)
    more.create_histogram_float("ratios").record(0.5)
    more.create_histogram_timedelta("waits").record(timedelta(milliseconds=1500))
    more.create_gauge("level").set(4)
    more.create_gauge_float("share").set(0.25)
    data = reader.get_metrics_data()
    assert data is not None
    found = {metric.name: metric for metric in data.resource_metrics[0].scope_metrics[0].metrics}
    points: dict[str, Any] = {name: next(iter(metric.data.data_points)) for name, metric in found.items()}
    assert points["count"].value == 2
    assert points["count"].attributes == {"base": 1, "queue": "q", "kind": "a"}
    assert points["sizes"].attributes == {"base": 1, "queue": "q", "kind": "b"}
    assert (points["sizes"].sum, points["ratios"].sum, points["waits"].sum) == (3, 0.5, 1.5)
    assert (points["level"].value, points["share"].value) == (4, 0.25)
    assert (found["count"].unit, found["count"].description, found["waits"].unit) == ("1", "how many", "s")


@pytest.mark.parametrize("cache", [100, 0])
async def test_metrics_of_user_code_count_once_also_when_replayed(environment: WorkflowEnvironment, cache: int) -> None:
    reader = InMemoryMetricReader()
    meter = OpenTelemetryMeter(MeterProvider([reader]).get_meter("test"))
    client = client_of(environment)
    async with worker_of(client, metric_meter=meter, max_cached_workflows=cache):
        await client.execute_workflow(Counts.run, id="c", task_queue=QUEUE)
    data = reader.get_metrics_data()
    assert data is not None
    metrics = data.resource_metrics[0].scope_metrics[0].metrics
    points: dict[str, Any] = {metric.name: next(iter(metric.data.data_points)) for metric in metrics}
    about = {"namespace": "default", "task_queue": QUEUE, "workflow_type": "Counts"}
    assert (points["in_workflow"].value, points["in_workflow"].attributes) == (1, about)
    assert (points["in_activity"].value, points["in_activity"].attributes) == (3, {**about, "activity_type": "counts"})
