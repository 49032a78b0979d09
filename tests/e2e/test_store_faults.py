"""Passing faults of the store: what was leased reaches its worker, what was claimed comes back, callers are told."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta

import pytest

from clew import activity, workflow
from clew.client import Client
from clew.common import RetryPolicy
from clew.model import events as e
from clew.ports.store import StoreUnavailable
from clew.testing import Faults
from tests.cases.harness import QUEUE, engine, events, parked, settled, within, worker

LATE = "late"
attempts: list[int] = []


@activity.defn
async def once() -> str:
    attempts.append(activity.info().attempt)
    return "done"


@workflow.defn
class Queued:
    """Asks for an activity on a queue of its own, of which one attempt is all there is."""

    @workflow.run
    async def run(self) -> str:
        return await workflow.execute_activity(
            once,
            task_queue=LATE,
            start_to_close_timeout=timedelta(seconds=60),
            retry_policy=RetryPolicy(maximum_attempts=1),
        )


@workflow.defn
class Waiting:
    def __init__(self) -> None:
        self.count = 0

    @workflow.signal
    def add(self) -> None:
        self.count += 1

    @workflow.query
    def counted(self) -> int:
        return self.count

    @workflow.update
    async def set_count(self, count: int) -> int:
        self.count = count
        return count

    @workflow.run
    async def run(self) -> int:
        await workflow.wait_condition(lambda: self.count >= 2)
        return self.count


@pytest.fixture
async def faults() -> Faults:
    attempts.clear()
    return Faults()


@pytest.fixture
async def client(faults: Faults) -> AsyncIterator[Client]:
    async with engine(store_faults=faults) as client:
        yield client


@pytest.mark.parametrize("is_applied", [False, True], ids=["refused", "answer lost"])
async def test_an_attempt_leased_in_a_commit_of_unknown_outcome_runs_once(
    client: Client, faults: Faults, is_applied: bool
) -> None:
    async with worker(client, [Queued]):
        handle = await client.start_workflow(Queued.run, id="queued", task_queue=QUEUE)
        await parked(handle)
        fault = faults.lose_answer if is_applied else faults.fail
        fault("commit_if_current", StoreUnavailable("the disk hiccups"))
        async with worker(client, activities=[once], queue=LATE):
            assert await settled(handle) == "done"
    assert attempts == [1]
    assert len(await events(handle, e.ActivityTaskStarted)) == 1


async def test_a_workflow_task_whose_history_cannot_be_read_at_once_keeps_its_slot(
    client: Client, faults: Faults
) -> None:
    async with worker(client, [Waiting]):
        handle = await client.start_workflow(Waiting.run, id="waiting", task_queue=QUEUE)
        await parked(handle)
    async with worker(client, [Waiting], cache=0, max_concurrent_workflow_tasks=1):
        for count in (1, 2):
            faults.fail("read_history", StoreUnavailable("the disk hiccups"))
            assert await within(handle.query(Waiting.counted), 5) == 0, count
        faults.fail("read_history", StoreUnavailable("the disk hiccups"), times=2)
        await handle.signal(Waiting.add)
        await handle.signal(Waiting.add)
        assert await settled(handle, 5) == 2
        assert faults.calls["read_history"] >= 7


async def test_calls_are_repeated_by_the_client_while_the_store_hiccups(client: Client, faults: Faults) -> None:
    async with worker(client, [Waiting]):
        handle = await client.start_workflow(Waiting.run, id="waiting", task_queue=QUEUE)
        await parked(handle)
        faults.fail("count_runs", StoreUnavailable("the disk hiccups"))
        assert (await client.count_workflows()).count == 1
        faults.fail("list_runs", StoreUnavailable("the disk hiccups"))
        assert [found.id async for found in client.list_workflows()] == ["waiting"]
        faults.fail("commit_if_current", StoreUnavailable("the disk hiccups"), times=2)
        assert await within(handle.execute_update(Waiting.set_count, 1)) == 1
        faults.fail("commit_if_current", StoreUnavailable("the disk hiccups"), times=2)
        await handle.signal(Waiting.add)
        assert await within(handle.query(Waiting.counted)) == 2
        assert await settled(handle) == 2
        faults.fail("find_run", StoreUnavailable("the disk hiccups"), times=2)
        assert await within(handle.query(Waiting.counted)) == 2
