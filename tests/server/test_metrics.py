"""What `/metrics` tells: in a format that Prometheus reads, true, bounded; and files that use only what there is."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest

from clew.adapters import SystemEntropy
from clew.engine import Engine
from clew.model.commands import CompleteWorkflowExecution, ScheduleActivityTask, StartTimer
from clew.model.events import WorkflowTaskFailedCause
from clew.server.metrics.metrics import Metrics
from clew.server.metrics.registry import SERIES_MAX, Counter, Gauge, Histogram, Metric, render
from clew.server.metrics.service import metered
from clew.server.metrics.store import metered_store
from clew.service import requests as r
from clew.service.errors import RPCError
from clew.storage.sqlite import open_store
from tests.conformance.service.scripted import soon
from tests.server.conftest import API, Served

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
SAMPLE = re.compile(r'^[a-z_]+(\{[a-z_]+="(?:[^"\\\n]|\\.)*"(,[a-z_]+="(?:[^"\\\n]|\\.)*")*\})? [-+0-9.e]+(Inf)?$')


class Measured(Served):
    """An engine whose service and store are measured."""

    async def open(self) -> None:
        self.metrics = Metrics()
        clock = self.clock.attach(asyncio.get_running_loop())
        store = metered_store(await open_store(self.path, clock=clock), self.metrics)
        self.engine = Engine(store, clock=clock, entropy=SystemEntropy(), telemetry=self.metrics)
        await self.engine.start()
        self.service = metered(self.engine, self.metrics)


@pytest.fixture
async def measured() -> AsyncIterator[Measured]:
    shop = Measured(":memory:")
    await shop.open()
    await shop.serve(metrics=shop.metrics)
    yield shop
    await shop.http.aclose()
    await shop.close()


async def test_a_run_leaves_its_traces(measured: Measured) -> None:
    metrics = measured.metrics
    worker = await measured.worker()
    await measured.start()
    task = await worker.workflow_task()
    command = ScheduleActivityTask(activity_id="a", activity_type="a", start_to_close_timeout=timedelta(hours=1))
    await worker.complete(task, command, StartTimer(timer_id="t", start_to_fire_timeout=timedelta(seconds=5)))
    attempt = await worker.activity_task()
    failure = r.Failure(message="no")
    await soon(measured.service.fail_activity(r.FailActivityRequest(token=attempt.token, failure=failure)))
    measured.advance(6)
    await worker.complete(await worker.workflow_task(), CompleteWorkflowExecution())
    await measured.http.get(f"{API}/workflows/nope")
    await measured.start("w2", task_queue="nobody")
    found = await measured.http.get("/metrics")
    assert found.headers["content-type"].startswith("text/plain; version=0.0.4")
    lines = found.text.splitlines()
    assert all(line.startswith("# ") or SAMPLE.match(line) for line in lines)
    for expected in (
        'clew_workflows_started_total{namespace="default"} 2',
        'clew_workflows_closed_total{namespace="default",status="Completed"} 1',
        'clew_task_failures_total{kind="activity",cause="unknown"} 1',
        'clew_task_schedule_to_start_seconds_count{kind="workflow",task_queue="q"} 2',
        'clew_task_start_to_end_seconds_count{kind="workflow",task_queue="q"} 2',
        'clew_service_calls_total{method="start_workflow",code="ok"} 2',
        'clew_http_requests_total{operation="describeWorkflow",status="404"} 1',
        'clew_task_queue_backlog{namespace="default",task_queue="nobody",kind="workflow"} 1',
        'clew_task_queue_pollers{namespace="default",task_queue="q",kind="workflow"} 1',
    ):
        assert expected in lines, expected
    assert metrics.timer_lag.count() >= 1
    assert metrics.commit_seconds.count() == metrics.commit_units.count() > 5
    assert metrics.run_lookups.value("hit") >= 3


async def test_failures_are_counted_by_cause(measured: Measured) -> None:
    worker = await measured.worker()
    await measured.start()
    task = await worker.workflow_task()
    cause = WorkflowTaskFailedCause.UNHANDLED_COMMAND
    await soon(measured.service.fail_workflow_task(r.FailWorkflowTaskRequest(token=task.token, cause=cause)))
    assert measured.metrics.task_failures.value("workflow", cause.value) == 1
    with pytest.raises(RPCError):
        await measured.describe("nope")
    assert measured.metrics.calls.value("describe_workflow", "workflow_not_found") == 1


def test_labels_from_users_are_escaped_and_their_number_is_bounded() -> None:
    counter, gauge, histogram = Counter("c", "x", ("l",)), Gauge("g", "x", ("l",)), Histogram("h", "x", ("l",))
    for number in range(SERIES_MAX + 100):
        name = f'queue "{number}"\\\n'
        counter.add(name)
        gauge.set(number, name)
        histogram.observe(0.1, name)
    lines = render([counter, gauge, histogram]).splitlines()
    assert all(line.startswith("# ") or SAMPLE.match(line) for line in lines)
    assert sum(line.startswith("c{") for line in lines) == SERIES_MAX + 1
    assert 'c{l="other"} 100' in lines
    assert 'h_count{l="other"} 100' in lines


def test_buckets_are_cumulative_and_end_with_all() -> None:
    histogram = Histogram("h", "x", bounds=(1.0, 2.0))
    for number in (0.5, 1.0, 1.5, 9.0):
        histogram.observe(number)
    lines = render([histogram]).splitlines()[2:]
    buckets = ['h_bucket{le="1"} 2', 'h_bucket{le="2"} 3', 'h_bucket{le="+Inf"} 4']
    assert lines == [*buckets, "h_sum 12", "h_count 4"]


def test_alerts_and_dashboard_name_only_metrics_that_there_are() -> None:
    known = {metric.name for metric in vars(Metrics()).values() if isinstance(metric, Metric)}
    dashboard = json.loads((DEPLOY / "grafana" / "clew.json").read_text("utf-8"))
    expressions = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    expressions.append((DEPLOY / "prometheus" / "alerts.yml").read_text("utf-8"))
    used = {name for text in expressions for name in re.findall(r"\b(?:clew|process)_[a-z_]+", text)}
    bare = {re.sub(r"_(bucket|sum|count)$", "", name) for name in used}
    assert bare <= known, bare - known
    assert len(bare) > 15
