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
from tests.cases.harness import (
    QUEUE,
    engine,
    events,
    eventually,
    service_faults,
    settled,
    unavailable,
    worker,
)

calls: list[str] = []
SHORT: dict[str, Any] = {"start_to_close_timeout": timedelta(seconds=10)}
QUICK = RetryPolicy(initial_interval=timedelta(milliseconds=10))


@pytest.fixture(autouse=True)
def _clear() -> None:
    calls.clear()
    gates.clear()


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
        assert len(await events(handle, e.WorkflowTaskCompleted)) == 1
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
        assert await events(handle, e.MarkerRecorded) == [], "nobody waited for its outcome"
        await Replayer(workflows=[Cancels]).replay_workflow(await handle.fetch_history())


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


gates: list[asyncio.Event] = []
"""The first step waits for it."""


@activity.defn
async def slow_step(n: int) -> int:
    calls.append(str(n))
    if gates:
        await gates[0].wait()
    await asyncio.sleep(0.01)
    return n


@workflow.defn
class Chain:
    """Steps until it is told to stop."""

    def __init__(self) -> None:
        self.done = 0
        self.is_told = False

    @workflow.run
    async def run(self) -> int:
        while not self.is_told:
            await workflow.execute_local_activity(slow_step, self.done, **SHORT)
            self.done += 1
        return self.done

    @workflow.signal
    def stop(self) -> None:
        self.is_told = True

    @workflow.update
    def stop_soon(self) -> int:
        self.is_told = True
        return self.done

    @workflow.query
    def how_many(self) -> int:
        return self.done


@pytest.mark.parametrize("how", ["signal", "update"])
@pytest.mark.parametrize("cache", [100, 0])
async def test_messages_reach_a_chain_of_steps_after_the_step_at_hand(how: str, cache: int) -> None:
    gates.append(asyncio.Event())
    async with engine() as client, worker(client, [Chain], [slow_step], cache=cache):
        handle = await client.start_workflow(Chain.run, id="chain", task_queue=QUEUE)
        await eventually(lambda: calls, "the first step")
        gates[0].set()
        await eventually(lambda: len(calls) > 3, "some steps")
        count = await handle.query(Chain.how_many)
        assert 0 < count <= len(calls)
        if how == "signal":
            await handle.signal(Chain.stop)
        else:
            assert await handle.execute_update(Chain.stop_soon) >= count
        at_most = len(calls) + 1
        # The query ends the task; what comes before the next one finds no step at hand.
        assert count <= await settled(handle) <= at_most
        assert len(calls) == len(set(calls)), "no step ran twice"
        assert await events(handle, e.WorkflowTaskTimedOut) == []
        assert await events(handle, e.WorkflowTaskFailed) == []
        await Replayer(workflows=[Chain]).replay_workflow(await handle.fetch_history())


@pytest.mark.parametrize("trouble", ["refused", "answer lost", "lasting"])
async def test_an_engine_that_cannot_be_reached_for_a_while_costs_no_step(trouble: str) -> None:
    async with engine() as client:
        faults = service_faults(client)
        async with worker(client, [Chain], [slow_step]):
            handle = await client.start_workflow(
                Chain.run, id="chain", task_queue=QUEUE, task_timeout=timedelta(seconds=1)
            )
            await eventually(lambda: len(calls) > 2, "some steps")
            if trouble == "lasting":
                faults.fail("record_markers", unavailable(), times=None)
                await eventually(lambda: events(handle, e.WorkflowTaskTimedOut), "the task is taken away")
                faults.clear()
            elif trouble == "refused":
                faults.fail("record_markers", unavailable(), times=2)
            else:
                faults.lose_answer("record_markers", unavailable(), times=2)
            count = len(calls)
            await eventually(lambda: len(calls) > count + 2, "further steps")
            await handle.signal(Chain.stop)
            done = await settled(handle)
            assert done == len(set(calls)) == len(await events(handle, e.MarkerRecorded))
            assert len(calls) - done <= (2 if trouble == "lasting" else 0), "what could not be recorded ran again"
            await Replayer(workflows=[Chain]).replay_workflow(await handle.fetch_history())
