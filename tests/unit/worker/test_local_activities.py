"""Local activities, through a real engine in memory: durable steps, retries, timeouts, cancellation, moves."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta
from typing import Any

import pytest

from clew import activity, workflow
from clew.client import WorkflowFailureError
from clew.common import RetryPolicy
from clew.exceptions import ActivityError, ApplicationError
from clew.model import events as e
from clew.worker import Replayer
from tests.cases.harness import QUEUE, engine, events, eventually, settled, worker

calls: list[str] = []
SHORT: dict[str, Any] = {"start_to_close_timeout": timedelta(seconds=10)}
QUICK = RetryPolicy(initial_interval=timedelta(milliseconds=10))


@pytest.fixture(autouse=True)
def _clear() -> None:
    calls.clear()


@activity.defn
async def add_one(n: int) -> int:
    info = activity.info()
    assert info.is_local
    calls.append(info.idempotency_key)
    return n + 1


@activity.defn
def add_one_in_thread(n: int) -> int:
    calls.append(activity.info().activity_id)
    return n + 1


@activity.defn
async def fail_twice() -> str:
    calls.append(str(activity.info().attempt))
    if activity.info().attempt < 3:
        raise ValueError("not yet")
    return "third"


@activity.defn
async def fail_for_good() -> None:
    raise ApplicationError("never", type="Never", non_retryable=True)


@activity.defn
async def hang() -> str:
    calls.append("hang")
    try:
        await asyncio.sleep(30)
    except asyncio.CancelledError:
        calls.append("stopped")
        raise
    return "slept"


ALL = [add_one, add_one_in_thread, fail_twice, fail_for_good, hang]


@workflow.defn
class Adds:
    @workflow.run
    async def run(self, how: str, durable: str) -> int:
        n = 0
        for _ in range(5):
            if how == "async":
                n = await workflow.execute_local_activity(add_one, n, durable=durable, **SHORT)
            else:
                n = await workflow.execute_local_activity(add_one_in_thread, n, durable=durable, **SHORT)
        return n


@pytest.mark.parametrize("durable", ["step", "batch"])
@pytest.mark.parametrize("how", ["async", "thread"])
@pytest.mark.parametrize("cache", [100, 0])
async def test_each_step_runs_once_and_is_one_marker(how: str, durable: str, cache: int) -> None:
    async with engine() as client, worker(client, [Adds], ALL, cache=cache):
        handle = await client.start_workflow(Adds.run, args=[how, durable], id="adds", task_queue=QUEUE)
        assert await settled(handle) == 5
        assert len(await events(handle, e.MarkerRecorded)) == 5
        assert await events(handle, e.ActivityTaskScheduled) == []
        assert len(calls) == len(set(calls)) == 5, "each with a name, or key, of its own"
        await Replayer(workflows=[Adds]).replay_workflow(await handle.fetch_history())


@workflow.defn
class One:
    @workflow.run
    async def run(self, name: str) -> Any:
        options: dict[str, Any] = {"retry_policy": QUICK, **SHORT}
        if name == "hang":
            options["start_to_close_timeout"] = timedelta(milliseconds=50)
            options["retry_policy"] = RetryPolicy(initial_interval=timedelta(milliseconds=10), maximum_attempts=2)
        return await workflow.execute_local_activity(name, **options)


async def test_a_failed_attempt_is_tried_again_in_place() -> None:
    async with engine() as client, worker(client, [One], ALL):
        handle = await client.start_workflow(One.run, "fail_twice", id="one", task_queue=QUEUE)
        assert await settled(handle) == "third"
        assert calls == ["1", "2", "3"]
        assert len(await events(handle, e.MarkerRecorded)) == 1


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("fail_for_good", "Never: never"),
        ("hang", "StartToClose timeout"),
        ("unheard_of", "Local activity 'unheard_of' is not registered with this worker; it has: add_one"),
    ],
)
async def test_a_final_failure_reaches_the_workflow(name: str, message: str) -> None:
    async with engine() as client, worker(client, [One], ALL):
        handle = await client.start_workflow(One.run, name, id="one", task_queue=QUEUE)
        error = await settled(handle)
        assert isinstance(error, WorkflowFailureError)
        assert isinstance(error.cause, ActivityError)
        assert message in str(error.cause.cause)
        if name == "hang":
            assert calls.count("hang") == 2
            await eventually(lambda: calls.count("stopped") == 2, "both attempts end")


@workflow.defn
class Cancels:
    @workflow.run
    async def run(self) -> str:
        handle = workflow.start_local_activity(hang, **SHORT)
        await workflow.sleep(0.05)
        handle.cancel()
        try:
            await handle
        except asyncio.CancelledError:
            return "cancelled"
        except ActivityError as error:
            return f"error {error.cause}"
        return "done"


async def test_a_cancelled_local_activity_stops() -> None:
    async with engine() as client, worker(client, [Cancels], ALL):
        handle = await client.start_workflow(
            Cancels.run, id="cancels", task_queue=QUEUE, task_timeout=timedelta(seconds=1)
        )
        assert await settled(handle) == "cancelled"
        await eventually(lambda: "stopped" in calls, "the attempt ends")


@activity.defn
async def long() -> str:
    calls.append("long")
    await asyncio.sleep(1.6)
    return "long"


@workflow.defn
class Long:
    @workflow.run
    async def run(self) -> str:
        return await workflow.execute_local_activity(long, **SHORT)


@pytest.mark.parametrize("cache", [100, 0])
async def test_a_step_longer_than_the_task_extends_it(cache: int) -> None:
    async with engine() as client, worker(client, [Long], [long], cache=cache):
        handle = await client.start_workflow(Long.run, id="long", task_queue=QUEUE, task_timeout=timedelta(seconds=1))
        assert await settled(handle) == "long"
        assert calls == ["long"], "it was not begun again"
        assert await events(handle, e.WorkflowTaskTimedOut) == []


@activity.defn
async def retry_much_later() -> str:
    calls.append(str(activity.info().attempt))
    if activity.info().attempt == 1:
        raise ApplicationError("later", next_retry_delay=timedelta(milliseconds=300))
    return "later"


@workflow.defn
class BacksOff:
    @workflow.run
    async def run(self) -> str:
        return await workflow.execute_local_activity(
            retry_much_later, local_retry_threshold=timedelta(milliseconds=100), **SHORT
        )


async def test_a_long_back_off_is_a_durable_timer() -> None:
    async with engine() as client, worker(client, [BacksOff], [retry_much_later]):
        handle = await client.start_workflow(BacksOff.run, id="later", task_queue=QUEUE)
        assert await settled(handle) == "later"
        assert calls == ["1", "2"]
        assert len(await events(handle, e.TimerFired)) == 1


async def test_a_stop_leaves_the_step_to_the_next_worker() -> None:
    @workflow.defn(name="Moves")
    class Moves:
        @workflow.run
        async def run(self) -> str:
            return await workflow.execute_local_activity("step", **SHORT)

    @activity.defn(name="step")
    async def slow() -> str:
        calls.append("slow")
        await asyncio.sleep(30)
        return "slow"

    @activity.defn(name="step")
    async def quick() -> str:
        calls.append("quick")
        return "quick"

    async with engine() as client:
        async with worker(client, [Moves], [slow], graceful_shutdown_timeout=timedelta(0)) as first:
            handle = await client.start_workflow(Moves.run, id="moves", task_queue=QUEUE)
            await eventually(lambda: calls, "the first attempt")
            began = time.monotonic()
            await first.shutdown()
            assert time.monotonic() - began < 3
        async with worker(client, [Moves], [quick]):
            assert await settled(handle) == "quick"
    assert calls == ["slow", "quick"]
