"""What a worker records of itself with the meter that it is given."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from clew import activity, workflow
from clew.common import (
    MetricAttributes,
    MetricCounter,
    MetricGauge,
    MetricHistogramTimedelta,
    MetricMeter,
    RetryPolicy,
)
from clew.exceptions import ApplicationError
from clew.model.rejection import Rejection, RejectionCode
from clew.service.errors import RPCError
from clew.testing import WorkflowEnvironment
from clew.worker import Worker
from clew.worker._metrics import WorkerMetrics
from clew.worker._requests import measured

QUEUE = "measured"
OPTIONS: dict[str, Any] = {
    "start_to_close_timeout": timedelta(seconds=20),
    "retry_policy": RetryPolicy(initial_interval=timedelta(milliseconds=1)),
}
SECONDS_MAX = 20.0


class Series:
    """Everything that was recorded, by name."""

    def __init__(self) -> None:
        self.values: dict[str, list[tuple[Any, dict[str, Any]]]] = {}

    def of(self, name: str) -> list[Any]:
        return [value for value, _ in self.values.get(name, [])]

    def attributes(self, name: str) -> list[dict[str, Any]]:
        return [attributes for _, attributes in self.values.get(name, [])]


class Instrument:
    """Any instrument; `add`, `record` and `set` are one here."""

    def __init__(self, series: Series, name: str, attributes: MetricAttributes) -> None:
        self._series, self._name, self._attributes = series, name, dict(attributes)

    def add(self, value: Any, additional_attributes: MetricAttributes | None = None) -> None:
        attributes = {**self._attributes, **(additional_attributes or {})}
        self._series.values.setdefault(self._name, []).append((value, attributes))

    record = set = add

    def with_additional_attributes(self, additional_attributes: MetricAttributes) -> Any:
        return type(self)(self._series, self._name, {**self._attributes, **additional_attributes})


class Counter(Instrument, MetricCounter):
    pass


class Latency(Instrument, MetricHistogramTimedelta):
    pass


class Gauge(Instrument, MetricGauge):
    pass


class Meter(MetricMeter):
    def __init__(self, series: Series, attributes: MetricAttributes | None = None) -> None:
        self._series, self._attributes = series, dict(attributes or {})

    def create_counter(self, name: str, description: str | None = None, unit: str | None = None) -> MetricCounter:
        return Counter(self._series, name, self._attributes)

    def create_histogram_timedelta(
        self, name: str, description: str | None = None, unit: str | None = None
    ) -> MetricHistogramTimedelta:
        return Latency(self._series, name, self._attributes)

    def create_gauge(self, name: str, description: str | None = None, unit: str | None = None) -> MetricGauge:
        return Gauge(self._series, name, self._attributes)

    def create_histogram(self, *_: Any) -> Any:
        raise NotImplementedError

    create_histogram_float = create_gauge_float = create_histogram

    def with_additional_attributes(self, additional_attributes: MetricAttributes) -> MetricMeter:
        return Meter(self._series, {**self._attributes, **additional_attributes})


@activity.defn
async def fails_once(value: int) -> int:
    if activity.info().attempt == 1:
        raise ApplicationError("not yet")
    return value


@activity.defn
def in_a_thread(value: int) -> int:
    return value


@workflow.defn
class Steps:
    def __init__(self) -> None:
        self._is_told = False

    @workflow.run
    async def run(self, ending: str) -> int:
        total = await workflow.execute_activity(fails_once, 1, **OPTIONS)
        total += await workflow.execute_activity(in_a_thread, 2, **OPTIONS)
        total += await workflow.execute_local_activity(in_a_thread, 3, start_to_close_timeout=timedelta(seconds=20))
        if ending == "fail":
            raise ApplicationError("as asked")
        if ending == "wait":
            await workflow.wait_condition(lambda: self._is_told)
        return total

    @workflow.signal
    def go_on(self) -> None:
        self._is_told = True


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(SECONDS_MAX):
        while not condition():
            await asyncio.sleep(0.005)


async def test_runs_tasks_activities_and_the_cache_are_measured() -> None:
    series = Series()

    def worker() -> Worker:
        return Worker(
            environment.client,
            task_queue=QUEUE,
            workflows=[Steps],
            activities=[fails_once, in_a_thread],
            metric_meter=Meter(series),
        )

    async with await WorkflowEnvironment.start_local() as environment:
        client = environment.client
        async with worker():
            assert await client.execute_workflow(Steps.run, "end", id="ends", task_queue=QUEUE) == 6
            with pytest.raises(Exception, match="failed"):
                await client.execute_workflow(Steps.run, "fail", id="fails", task_queue=QUEUE)
            handle = await client.start_workflow(Steps.run, "wait", id="waits", task_queue=QUEUE)
            await until(lambda: len(series.of("clew_local_activity_succeed_endtoend_latency")) == 3)
        cold = len(series.of("clew_workflow_task_replay_latency"))
        await handle.signal(Steps.go_on)
        async with worker():
            async with asyncio.timeout(SECONDS_MAX):
                assert await handle.result() == 6
            await until(lambda: len(series.of("clew_workflow_completed")) == 2)

    assert sum(series.of("clew_workflow_completed")) == 2
    assert sum(series.of("clew_workflow_failed")) == 1
    assert len(series.of("clew_workflow_endtoend_latency")) == 3
    assert len(series.of("clew_activity_execution_latency")) == 9
    assert sum(series.of("clew_activity_execution_failed")) == 3
    assert len(series.of("clew_activity_succeed_endtoend_latency")) == 6
    assert len(series.of("clew_activity_schedule_to_start_latency")) == 9
    assert sum(series.of("clew_local_activity_total")) == 3
    assert len(series.of("clew_local_activity_execution_latency")) == 3
    assert not series.of("clew_local_activity_execution_failed")
    assert len(series.of("clew_workflow_task_replay_latency")) > cold, "the second worker has replayed a run"
    assert series.of("clew_sticky_cache_miss")
    assert series.of("clew_sticky_cache_hit")
    polled = len(series.of("clew_workflow_task_queue_poll_succeed"))
    assert len(series.of("clew_workflow_task_execution_latency")) <= polled
    assert series.of("clew_workflow_task_schedule_to_start_latency")
    for name in series.values:
        if name.endswith("latency"):
            assert all(value >= timedelta(0) for value in series.of(name)), name
    every = [attributes for name in series.values for attributes in series.attributes(name)]
    assert {(found["namespace"], found["task_queue"]) for found in every} == {("default", QUEUE)}
    calls = [attributes["operation"] for attributes in series.attributes("clew_request")]
    assert calls.count("RespondActivityTaskFailed") == 3
    assert calls.count("RespondActivityTaskCompleted") == 6
    assert calls.count("RespondWorkflowTaskCompleted") <= polled
    assert len(series.of("clew_request_latency")) == len(calls)
    pollers = series.values["clew_num_pollers"]
    for kind in ("workflow_task", "activity_task"):
        mine = [value for value, attributes in pollers if attributes["poller_type"] == kind]
        assert mine == [1, 0, 1, 0], kind
    used = series.values["clew_worker_task_slots_used"]
    for kind in ("WorkflowWorker", "ActivityWorker", "LocalActivityWorker"):
        mine = [value for value, attributes in used if attributes["worker_type"] == kind]
        assert max(mine) >= 1, kind
        assert mine[-1] == 0, kind
    free = [
        value
        for value, attributes in series.values["clew_worker_task_slots_available"]
        if attributes["worker_type"] == "ActivityWorker"
    ]
    assert max(free) == 100


async def test_a_call_that_is_refused_counts_as_a_failure() -> None:
    class Refusing:
        async def complete_activity(self, request: Any) -> None:
            raise RPCError(Rejection(code=RejectionCode.ACTIVITY_NOT_FOUND, message="gone"))

        async def start_workflow(self, request: Any) -> str:
            return "handed on"

    series = Series()
    service: Any = measured(Refusing(), WorkerMetrics(Meter(series), lambda: datetime.now(UTC)))  # type: ignore[arg-type]
    with pytest.raises(RPCError, match="gone"):
        await service.complete_activity(None)
    assert await service.start_workflow(None) == "handed on"
    operation = {"operation": "RespondActivityTaskCompleted"}
    assert series.attributes("clew_request") == [operation]
    assert series.attributes("clew_request_failure") == [{**operation, "status_code": "activity_not_found"}]
