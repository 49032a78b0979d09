"""C039: the report of a finished activity meets a passing fault."""

from __future__ import annotations

from datetime import timedelta

import pytest

from clew import activity, workflow
from clew.common import RetryPolicy
from clew.model import events as e
from tests.cases.harness import (
    QUEUE,
    engine,
    events,
    eventually,
    no_errors,
    replay_check,
    service_faults,
    settled,
    unavailable,
    worker,
)

runs: list[int] = []


@pytest.fixture(autouse=True)
def _clear() -> None:
    runs.clear()


@activity.defn
async def counts() -> int:
    runs.append(activity.info().attempt)
    return len(runs)


@workflow.defn
class Once:
    @workflow.run
    async def run(self, seconds: float) -> int:
        return await workflow.execute_activity(
            counts,
            start_to_close_timeout=timedelta(seconds=seconds),
            retry_policy=RetryPolicy(initial_interval=timedelta(milliseconds=50)),
        )


@pytest.mark.parametrize("is_applied", [False, True])
async def test_the_report_is_repeated_and_the_handler_is_not(
    is_applied: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async with engine() as client:
        faults = service_faults(client)
        if is_applied:
            faults.lose_answer("complete_activity", unavailable("the answer was lost"))
        else:
            faults.fail("complete_activity", unavailable("database is locked"), times=3)
        async with worker(client, [Once], [counts]):
            handle = await client.start_workflow(Once.run, 30, id="once", task_queue=QUEUE)
            assert await settled(handle) == 1
            await eventually(lambda: faults.calls["complete_activity"] >= (2 if is_applied else 4))
        assert runs == [1]
        assert len(await events(handle, e.ActivityTaskCompleted)) == 1
        await replay_check(handle, Once)
    no_errors(caplog)


async def test_a_fault_longer_than_the_attempt_gives_one_result(caplog: pytest.LogCaptureFixture) -> None:
    async with engine() as client:
        faults = service_faults(client)
        faults.fail("complete_activity", unavailable(), times=None)
        async with worker(client, [Once], [counts]):
            handle = await client.start_workflow(Once.run, 0.4, id="once", task_queue=QUEUE)
            await eventually(lambda: len(runs) >= 2)
            faults.clear()
            result = await settled(handle)
        assert 1 <= result <= len(runs)
        assert len(await events(handle, e.ActivityTaskCompleted)) == 1
        assert len(runs) < 10
        await replay_check(handle, Once)
    no_errors(caplog)
