"""C032: time budgets: default caps, the last error, and when to give up."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta
from typing import Any

import pytest

from clew import activity, workflow
from clew.common import RetryPolicy
from clew.exceptions import ActivityError, ApplicationError, TimeoutError, TimeoutType, WorkflowFailureError
from clew.model.failure import RetryState
from tests.cases.harness import QUEUE, engine, replay_check, settled, worker

attempts: list[int] = []


@pytest.fixture(autouse=True)
def _clear() -> None:
    attempts.clear()


class MyError(Exception):
    pass


@activity.defn
async def hangs_once() -> str:
    attempts.append(activity.info().attempt)
    if activity.info().attempt == 1:
        await asyncio.Event().wait()
    return "second"


@activity.defn
async def hangs() -> None:
    attempts.append(activity.info().attempt)
    await asyncio.Event().wait()


@activity.defn
async def fails() -> None:
    attempts.append(activity.info().attempt)
    raise MyError(str(activity.info().attempt))


@activity.defn
async def fails_for_good() -> None:
    attempts.append(activity.info().attempt)
    raise ApplicationError("no use", non_retryable=True)


@workflow.defn
class Calls:
    @workflow.run
    async def run(self, name: str, options: dict[str, Any]) -> Any:
        retry = options.pop("retry", None)
        timeouts = {key: timedelta(seconds=value) for key, value in options.items()}
        if retry is not None:
            timeouts["retry_policy"] = RetryPolicy(
                initial_interval=timedelta(seconds=retry.get("interval", 1)),
                backoff_coefficient=2.0,
                maximum_attempts=retry.get("attempts", 0),
                non_retryable_error_types=retry.get("types"),
            )
        return await workflow.execute_activity(name, **timeouts)


async def _outcome(name: str, **options: Any) -> tuple[Any, float]:
    async with engine() as client, worker(client, [Calls], [hangs_once, hangs, fails, fails_for_good]):
        clock = time.monotonic()
        handle = await client.start_workflow(Calls.run, args=[name, options], id="budget", task_queue=QUEUE)
        outcome = await settled(handle)
        seconds = time.monotonic() - clock
        await replay_check(handle, Calls)
        return outcome, seconds


def _activity_error(outcome: Any) -> ActivityError:
    assert isinstance(outcome, WorkflowFailureError)
    assert isinstance(outcome.cause, ActivityError)
    return outcome.cause


def _chain(error: BaseException | None) -> list[BaseException]:
    found = []
    while error is not None:
        found.append(error)
        error = error.__cause__
    return found


async def test_only_start_to_close_retries_a_hung_attempt() -> None:
    outcome, _ = await _outcome("hangs_once", start_to_close_timeout=0.4, retry={"attempts": 3, "interval": 0.1})
    assert outcome == "second"
    assert attempts == [1, 2]


async def test_the_budget_ends_with_a_timeout_caused_by_the_last_error() -> None:
    outcome, seconds = await _outcome("fails", schedule_to_close_timeout=1.5, retry={"interval": 0.3})
    error = _activity_error(outcome)
    assert seconds < 2.5
    assert error.retry_state == RetryState.TIMEOUT
    latest = [cause for cause in _chain(error) if isinstance(cause, ApplicationError) and cause.type == "MyError"]
    assert latest
    assert str(attempts[-1]) in str(latest[0])


async def test_a_retry_that_cannot_fit_is_not_waited_for() -> None:
    outcome, seconds = await _outcome("fails", schedule_to_close_timeout=5, retry={"interval": 60})
    error = _activity_error(outcome)
    assert seconds < 2
    assert attempts == [1]
    assert error.retry_state == RetryState.TIMEOUT
    assert any(isinstance(cause, ApplicationError) and cause.type == "MyError" for cause in _chain(error))


async def test_an_attempt_that_hangs_past_the_budget() -> None:
    outcome, _ = await _outcome("hangs", schedule_to_close_timeout=0.6)
    error = _activity_error(outcome)
    assert isinstance(error.cause, TimeoutError)
    assert error.cause.type == TimeoutType.SCHEDULE_TO_CLOSE


async def test_an_error_of_a_listed_type_is_not_retried() -> None:
    outcome, _ = await _outcome("fails", start_to_close_timeout=5, retry={"interval": 0.1, "types": ["MyError"]})
    assert _activity_error(outcome).retry_state == RetryState.NON_RETRYABLE_FAILURE
    assert attempts == [1]


async def test_an_error_flagged_by_its_raiser_is_not_retried() -> None:
    outcome, _ = await _outcome("fails_for_good", start_to_close_timeout=5, retry={"interval": 0.1})
    assert _activity_error(outcome).retry_state == RetryState.NON_RETRYABLE_FAILURE
    assert attempts == [1]
