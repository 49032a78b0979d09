"""What runs leave behind is freed at once: the cycle collector finds nothing of ours."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from clew import activity, workflow
from clew.client import Client
from clew.testing import WorkflowEnvironment
from clew.worker import Worker

QUEUE = "no-garbage"
TIMEOUT = timedelta(minutes=1)
RUNS = 20


@activity.defn
async def echo(number: int) -> int:
    return number


@workflow.defn
class Activities:
    @workflow.run
    async def run(self) -> int:
        return sum([await workflow.execute_activity(echo, n, start_to_close_timeout=TIMEOUT) for n in range(3)])


@workflow.defn
class LocalSteps:
    @workflow.run
    async def run(self) -> int:
        return sum([await workflow.execute_local_activity(echo, n, start_to_close_timeout=TIMEOUT) for n in range(3)])


@workflow.defn
class Naps:
    """Leaves the worker's cache while it sleeps."""

    @workflow.run
    async def run(self) -> None:
        await workflow.sleep(timedelta(hours=1))


@pytest.fixture
def _collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.set_debug(0)
    gc.garbage.clear()
    gc.enable()


def left() -> list[str]:
    gc.set_debug(gc.DEBUG_SAVEALL)
    gc.collect()
    gc.set_debug(0)
    found = [type(one).__qualname__ for one in gc.garbage if type(one).__module__.startswith("clew.")]
    gc.garbage.clear()
    return found


@pytest.mark.usefixtures("_collector")
@pytest.mark.parametrize("kind", [Activities, LocalSteps, Naps])
async def test_runs_leave_nothing_to_the_collector(kind: Any) -> None:
    async with (
        await WorkflowEnvironment.start_local() as environment,
        Worker(environment.client, task_queue=QUEUE, workflows=[kind], activities=[echo]),
    ):
        await run_some(environment.client, kind, "first")
        left()
        await run_some(environment.client, kind, "second")
        assert left() == []


async def run_some(client: Client, kind: Any, name: str) -> None:
    handles = [await client.start_workflow(kind.run, id=f"{name}-{n}", task_queue=QUEUE) for n in range(RUNS)]
    if kind is not Naps:
        await asyncio.gather(*(handle.result() for handle in handles))
