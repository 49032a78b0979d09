"""C090: workflow code that blocks its thread is failed with its line; the others go on, and the worker still stops."""

from __future__ import annotations

import asyncio
import threading
import time
from datetime import timedelta

import pytest

from clew import workflow
from clew.client import Client, WorkflowHandle
from tests.cases.harness import QUEUE, engine, eventually, parked, settled, worker

_held = threading.Lock()
HEALTHY, PARKED = 50, 200


@workflow.defn
class Bad:
    @workflow.run
    async def run(self, kind: str) -> str:
        with workflow.unsafe.sandbox_unrestricted():
            if kind == "sleep":
                time.sleep(30)
            elif kind == "spin":
                while True:
                    pass
            elif kind == "lock":
                _held.acquire()  # the line that takes the lock
            elif kind != "quick":
                deadline = time.monotonic() + 3
                while time.monotonic() < deadline:
                    sum(range(1000))  # the line that computes
        return kind


@workflow.defn
class Good:
    @workflow.run
    async def run(self) -> str:
        await workflow.sleep(timedelta(milliseconds=50))
        return "good"


@workflow.defn
class Waits:
    @workflow.run
    async def run(self) -> None:
        await workflow.wait_condition(lambda: False)


async def failure_of(handle: WorkflowHandle[Bad, str]) -> str:
    """The message of the latest workflow-task failure, empty before there is one."""
    pending = (await handle.describe()).pending_workflow_task
    failure = pending.last_failure if pending is not None else None
    return f"{failure.message}\n{failure.stack_trace}" if failure is not None else ""


async def start_bad(client: Client, kind: str, n: int) -> WorkflowHandle[Bad, str]:
    return await client.start_workflow(Bad.run, kind, id=f"{kind}-{n}", task_queue=QUEUE)


@pytest.fixture
def held_lock() -> object:
    with _held:
        yield _held


@pytest.mark.slow
@pytest.mark.usefixtures("held_lock")
async def test_bad_runs_cost_the_healthy_ones_seconds_at_most() -> None:
    async with engine() as client, worker(client, [Bad, Good, Waits]) as running:
        waiting = [await client.start_workflow(Waits.run, id=f"w{n}", task_queue=QUEUE) for n in range(PARKED)]
        await parked(waiting[-1])
        bad = [await start_bad(client, kind, n) for kind, n in [("sleep", n) for n in range(8)]]
        bad += [await start_bad(client, kind, n) for kind, n in [("spin", 0), ("spin", 1), ("lock", 0), ("cpu", 0)]]
        began = time.monotonic()
        good = [await client.start_workflow(Good.run, id=f"g{n}", task_queue=QUEUE) for n in range(HEALTHY)]
        assert [await settled(handle, 20) for handle in good] == ["good"] * HEALTHY
        assert time.monotonic() - began < 8, "the healthy runs waited for the bad ones"
        for handle, line in [
            (bad[0], "# the line that sleeps"),
            (bad[8], "while True"),
            (bad[10], "# the line that takes the lock"),
            (bad[11], "# the line that computes"),
        ]:
            text = await eventually(lambda handle=handle: failure_of(handle), "the failure", 20)
            assert "did not yield for 2 s" in text
            assert line in text or "test_c090" in text
        for handle in bad:
            await handle.terminate("enough")
        began = time.monotonic()
        await running.shutdown()
        assert time.monotonic() - began < 5


async def test_with_a_longer_limit_the_long_computation_passes() -> None:
    async with engine() as client, worker(client, [Bad], blocked_thread_timeout=timedelta(seconds=8)):
        handle = await client.start_workflow(
            Bad.run, "cpu", id="cpu", task_queue=QUEUE, task_timeout=timedelta(seconds=20)
        )
        assert await settled(handle, 20) == "cpu"


async def test_a_run_that_blocks_once_is_healed_by_better_code() -> None:
    async with engine() as client:
        async with worker(client, [Bad], blocked_thread_timeout=timedelta(milliseconds=200)):
            handle = await client.start_workflow(Bad.run, "sleep", id="heals", task_queue=QUEUE)
            await eventually(lambda: failure_of(handle), "the failure")

        @workflow.defn(name="Bad")
        class Better:
            @workflow.run
            async def run(self, kind: str) -> str:
                await asyncio.sleep(0.01)
                return f"better {kind}"

        async with worker(client, [Better]):
            assert await settled(handle, 20) == "better sleep"


@pytest.mark.parametrize("kind", ["sleep", "spin"])
async def test_a_type_that_was_always_quick_holds_up_neither_engine_nor_worker(kind: str) -> None:
    async with engine() as client, worker(client, [Bad, Good]) as running:
        for n in range(5):
            quick = await client.start_workflow(Bad.run, "quick", id=f"quick-{n}", task_queue=QUEUE)
            assert await settled(quick) == "quick"
            good = await client.start_workflow(Good.run, id=f"before-{n}", task_queue=QUEUE)
            assert await settled(good) == "good"
        bad = await start_bad(client, kind, 0)
        began = time.monotonic()
        others = [await client.start_workflow(Good.run, id=f"g{n}", task_queue=QUEUE) for n in range(5)]
        same = [await client.start_workflow(Bad.run, "quick", id=f"same-{n}", task_queue=QUEUE) for n in range(5)]
        assert [await settled(handle) for handle in others] == ["good"] * 5
        assert [await settled(handle) for handle in same] == ["quick"] * 5
        assert time.monotonic() - began < 8, "the healthy runs waited for the bad one"
        text = await eventually(lambda: failure_of(bad), "the failure", 20)
        assert "did not yield for 2 s" in text
        assert "test_c090" in text
        await bad.terminate("enough")
        began = time.monotonic()
        await running.shutdown()
        assert time.monotonic() - began < 5
