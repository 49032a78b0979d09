"""Chaos over what workflows are made of: every test runs once for each place where worker or engine can die."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from clew import activity, workflow
from clew.client import Client
from clew.exceptions import WorkflowFailureError
from clew.worker import Worker
from tests.cases.harness import eventually

LIMITS: dict[str, Any] = {"start_to_close_timeout": timedelta(seconds=30)}

done: dict[str, int] = {}
"""What was done, by idempotency key."""


@activity.defn
async def step(number: int) -> int:
    return done.setdefault(activity.info().idempotency_key, number)


@activity.defn
def plain_step(number: int) -> int:
    return done.setdefault(activity.info().idempotency_key, number)


@activity.defn
async def flaky_step(number: int) -> int:
    if activity.info().attempt < 3:
        raise RuntimeError("not yet")
    return done.setdefault(activity.info().idempotency_key, number)


@workflow.defn
class LocalSteps:
    @workflow.run
    async def run(self) -> int:
        total = 0
        for number in range(4):
            total += await workflow.execute_local_activity(step, number, **LIMITS)
        total += await workflow.execute_activity(plain_step, 10, **LIMITS)
        return total + await workflow.execute_local_activity(step, 5, **LIMITS)


@workflow.defn
class Chain:
    @workflow.run
    async def run(self, number: int) -> int:
        await workflow.execute_activity(flaky_step, number, **LIMITS)
        await workflow.sleep(timedelta(hours=1))
        if number < 2:
            workflow.continue_as_new(number + 1)
        return number


@workflow.defn
class Updated:
    def __init__(self) -> None:
        self.values: list[int] = []
        self.is_done = False

    @workflow.run
    async def run(self) -> list[int]:
        await workflow.wait_condition(lambda: self.is_done)
        return self.values

    @workflow.update
    async def add(self, number: int) -> int:
        self.values.append(await workflow.execute_activity(step, number, **LIMITS))
        return len(self.values)

    @workflow.signal
    async def finish(self) -> None:
        await workflow.sleep(5)
        self.is_done = True


@workflow.defn
class Cancelled:
    @workflow.run
    async def run(self) -> None:
        try:
            await workflow.sleep(timedelta(days=30))
        except asyncio.CancelledError:
            await workflow.execute_activity(step, 99, **LIMITS)
            raise


@workflow.defn
class Parent:
    @workflow.run
    async def run(self) -> int:
        children = [await workflow.start_child_workflow(Child.run, n, id=f"child-{n}") for n in range(2)]
        for child in children:
            await child.signal(Child.go, 5)
        return sum([await child for child in children])


@workflow.defn
class Child:
    def __init__(self) -> None:
        self.value = 0

    @workflow.run
    async def run(self, number: int) -> int:
        # Without a timeout: skipped time could pass it while a crashed worker is replaced on a slow machine.
        await workflow.wait_condition(lambda: self.value > 0)
        return number + await workflow.execute_activity(step, self.value, **LIMITS)

    @workflow.signal
    def go(self, value: int) -> None:
        self.value = value


@workflow.defn
class Timers:
    @workflow.run
    async def run(self) -> str:
        if workflow.patched("step-first"):
            await workflow.execute_activity(step, 1, **LIMITS)
        await asyncio.gather(workflow.sleep(5), workflow.sleep(50))
        try:
            async with asyncio.timeout(10):
                await workflow.sleep(500)
        except TimeoutError:
            return "timed out"
        return "slept"


def make_worker(client: Client) -> Worker:
    done.clear()
    workflows: list[type[Any]] = [LocalSteps, Chain, Updated, Cancelled, Parent, Child, Timers]
    return Worker(client, task_queue="q", workflows=workflows, activities=[step, plain_step, flaky_step])


@pytest.mark.clew_chaos
async def test_local_activities(clew_client: Client) -> None:
    async with make_worker(clew_client):
        assert await clew_client.execute_workflow(LocalSteps.run, id="w", task_queue="q") == 21
    assert sorted(done.values()) == [0, 1, 2, 3, 5, 10]


@pytest.mark.clew_chaos
async def test_retries_and_continue_as_new(clew_client: Client) -> None:
    async with make_worker(clew_client):
        assert await clew_client.execute_workflow(Chain.run, 0, id="w", task_queue="q") == 2
    assert sorted(done.values()) == [0, 1, 2]


@pytest.mark.clew_chaos(seconds=20)
async def test_updates(clew_client: Client) -> None:
    async with make_worker(clew_client):
        handle = await clew_client.start_workflow(Updated.run, id="w", task_queue="q")
        assert await handle.execute_update(Updated.add, 5) == 1
        assert await handle.execute_update(Updated.add, 6) == 2
        await handle.signal(Updated.finish)
        assert await handle.result() == [5, 6]
    assert sorted(done.values()) == [5, 6]


@pytest.mark.clew_chaos
async def test_cancellation_with_clean_up(clew_client: Client) -> None:
    async with make_worker(clew_client):
        handle = await clew_client.start_workflow(Cancelled.run, id="w", task_queue="q")

        async def is_asleep() -> bool:
            return bool((await handle.describe()).pending_timers)

        await eventually(is_asleep)
        await handle.cancel()
        with pytest.raises(WorkflowFailureError):
            await handle.result()
    assert sorted(done.values()) == [99]


@pytest.mark.clew_chaos(seconds=20)
async def test_children_and_signals_between_runs(clew_client: Client) -> None:
    async with make_worker(clew_client):
        assert await clew_client.execute_workflow(Parent.run, id="w", task_queue="q") == 11
    assert sorted(done.values()) == [5, 5]


@pytest.mark.clew_chaos
async def test_timers_and_patches(clew_client: Client) -> None:
    async with make_worker(clew_client):
        assert await clew_client.execute_workflow(Timers.run, id="w", task_queue="q") == "timed out"
    assert sorted(done.values()) == [1]
