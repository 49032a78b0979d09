"""What a client records of its calls with the meter that it is given."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from clew import workflow
from clew.client import BlockingClient, Client
from clew.service.errors import RPCError
from clew.worker import Worker
from tests.e2e.test_worker_metrics import Meter, Series

QUEUE = "measured"
SECONDS_MAX = 120.0


@workflow.defn
class Patient:
    def __init__(self) -> None:
        self._is_told = False

    @workflow.run
    async def run(self) -> str:
        await workflow.wait_condition(lambda: self._is_told)
        return "told"

    @workflow.signal
    def tell(self) -> None:
        """End the wait."""
        self._is_told = True


def operations(series: Series, name: str) -> set[Any]:
    return {attributes["operation"] for attributes in series.attributes(name)}


async def test_calls_are_counted_and_those_that_wait_apart(tmp_path: Path) -> None:
    series = Series()
    async with asyncio.timeout(SECONDS_MAX):
        async with (
            await Client.connect(f"sqlite:{tmp_path / 'a.db'}", metric_meter=Meter(series)) as client,
            Worker(client, task_queue=QUEUE, workflows=[Patient]),
        ):
            handle = await client.start_workflow(Patient.run, id="patient", task_queue=QUEUE)
            result = asyncio.ensure_future(handle.result())
            await handle.describe()
            await handle.signal(Patient.tell)
            assert await result == "told"
            with pytest.raises(RPCError):
                await client.get_workflow_handle("nobody").describe()
    assert operations(series, "clew_request") >= {
        "StartWorkflowExecution", "SignalWorkflowExecution", "DescribeWorkflowExecution", "DescribeNamespace",
    }  # fmt: skip
    assert operations(series, "clew_long_request") == {"GetWorkflowExecutionHistory"}
    assert series.attributes("clew_request_failure") == [
        {"namespace": "default", "operation": "DescribeWorkflowExecution", "status_code": "workflow_not_found"}
    ]
    assert "clew_long_request_failure" not in series.values
    for name in ("clew_request", "clew_long_request"):
        latencies = series.of(f"{name}_latency")
        assert len(latencies) == len(series.of(name))
        assert all(isinstance(value, timedelta) and value >= timedelta(0) for value in latencies)


async def test_a_call_that_nobody_waits_for_any_more_is_a_failure(tmp_path: Path) -> None:
    series = Series()
    async with asyncio.timeout(SECONDS_MAX):
        async with await Client.connect(f"sqlite:{tmp_path / 'a.db'}", metric_meter=Meter(series)) as client:
            handle = await client.start_workflow(Patient.run, id="patient", task_queue=QUEUE)
            with pytest.raises(RPCError):
                await handle.result(rpc_timeout=timedelta(milliseconds=10))
    [failure] = series.attributes("clew_long_request_failure")
    assert (failure["operation"], failure["status_code"]) == ("GetWorkflowExecutionHistory", "cancelled")


def test_a_blocking_client_has_them_too(tmp_path: Path) -> None:
    series = Series()
    with BlockingClient.connect(f"sqlite:{tmp_path / 'a.db'}", metric_meter=Meter(series)) as client:
        client.start_workflow(Patient.run, id="patient", task_queue=QUEUE)
    assert "StartWorkflowExecution" in operations(series, "clew_request")
