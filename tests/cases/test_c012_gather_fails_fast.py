"""C012: gather fails fast while its siblings are still out."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from clew import activity, workflow
from clew.common import RetryPolicy
from clew.exceptions import ActivityError, ApplicationError, WorkflowFailureError
from clew.model import events as e
from tests.cases.harness import (
    ACTIVITY,
    QUEUE,
    engine,
    events,
    eventually,
    no_errors,
    one_task,
    parked,
    replay_check,
    settled,
    worker,
)

ONCE: dict[str, Any] = {**ACTIVITY, "retry_policy": RetryPolicy(maximum_attempts=1)}


@activity.defn
async def fail_now() -> str:
    raise ApplicationError("failed")


@activity.defn
async def slow(seconds: float) -> float:
    await asyncio.sleep(seconds)
    return seconds


def _steps(*seconds: float) -> list[Any]:
    return [
        workflow.start_activity(fail_now, **ONCE),
        *(workflow.start_activity(slow, each, **ONCE) for each in seconds or (0.2, 0.4)),
    ]


@workflow.defn
class Uncaught:
    @workflow.run
    async def run(self) -> None:
        await asyncio.gather(*_steps())


@workflow.defn
class OutlivedBySiblings:
    @workflow.run
    async def run(self) -> None:
        await asyncio.gather(*_steps(3600, 3600))  # no machine is so slow that they would be through before


@workflow.defn
class Caught:
    @workflow.run
    async def run(self) -> list[Any]:
        steps = _steps()
        try:
            await asyncio.gather(*steps)
        except ActivityError as error:
            return [str(error.cause), await steps[1], await steps[2]]
        return []


@workflow.defn
class ReturnsExceptions:
    @workflow.run
    async def run(self) -> list[Any]:
        values = await asyncio.gather(*_steps(), return_exceptions=True)
        return [type(value).__name__ if isinstance(value, Exception) else value for value in values]


async def test_uncaught_fails_at_once_and_asks_the_siblings_to_stop(caplog: pytest.LogCaptureFixture) -> None:
    async with engine() as client, worker(client, [OutlivedBySiblings], [fail_now, slow]):
        handle = await client.start_workflow(OutlivedBySiblings.run, id="uncaught", task_queue=QUEUE)
        error = await settled(handle)
        assert isinstance(error, WorkflowFailureError)
        assert isinstance(error.cause, ActivityError)
        assert not await events(handle, e.ActivityTaskCompleted)
        await replay_check(handle, OutlivedBySiblings)
    no_errors(caplog)


async def test_caught_the_other_results_are_still_readable() -> None:
    async with engine() as client, worker(client, [Caught], [fail_now, slow]):
        handle = await client.start_workflow(Caught.run, id="caught", task_queue=QUEUE)
        text, *rest = await settled(handle)
        assert "failed" in text
        assert rest == [0.2, 0.4]
        await replay_check(handle, Caught)


async def test_return_exceptions_gives_values_in_argument_order() -> None:
    async with engine() as client, worker(client, [ReturnsExceptions], [fail_now, slow]):
        handle = await client.start_workflow(ReturnsExceptions.run, id="returned", task_queue=QUEUE)
        assert await settled(handle) == ["ActivityError", 0.2, 0.4]
        await replay_check(handle, ReturnsExceptions)


async def test_in_one_task_the_success_is_in_the_history() -> None:
    async with engine() as client:
        async with worker(client, [Uncaught]):
            handle = await client.start_workflow(Uncaught.run, id="one-task", task_queue=QUEUE)
            await parked(handle)
        async with worker(client, [], [fail_now, slow]):
            await eventually(lambda: _closed_activities(handle, 3))
        async with one_task(client, [], [Uncaught]):
            error = await settled(handle)
        assert isinstance(error, WorkflowFailureError)
        assert len(await events(handle, e.ActivityTaskCompleted)) == 2
        await replay_check(handle, Uncaught)


async def _closed_activities(handle: Any, count: int) -> bool:
    return len(await events(handle, e.ActivityTaskCompleted, e.ActivityTaskFailed)) == count
