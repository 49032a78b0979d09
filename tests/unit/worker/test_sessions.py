"""What a worker offers to do, and its arguments."""

from __future__ import annotations

import concurrent.futures
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from clew import activity, workflow
from clew.service.requests import WorkerHello
from clew.worker import Worker
from clew.worker._sessions import Offer, plan_offers
from tests.unit.worker.fakes import FakeClient, FakeConnection

HELLO = WorkerHello(namespace="n", task_queue="q", identity="i", instance_id="w")


def plan(**changes: Any) -> list[Offer]:
    facts: dict[str, Any] = {
        "async_types": (),
        "blocking_types": (),
        "dynamic_is_blocking": None,
        "workflow_tasks_max": 5,
        "activity_tasks_max": 10,
        "threads_max": 10,
    }
    return plan_offers(HELLO, **{**facts, **changes})


def test_one_session_serves_all_when_threads_are_enough() -> None:
    (offer,) = plan(async_types=("a",), blocking_types=("b",))
    assert offer.hello.activity_types == ("a", "b")
    assert (offer.workflow_tasks_max, offer.activity_tasks_max) == (5, 10)


def test_plain_activities_get_as_many_credits_as_threads() -> None:
    mine, blocking = plan(async_types=("a",), blocking_types=("b",), threads_max=3)
    assert (mine.hello.activity_types, mine.activity_tasks_max, mine.workflow_tasks_max) == (("a",), 7, 5)
    assert (blocking.hello.activity_types, blocking.activity_tasks_max, blocking.workflow_tasks_max) == (("b",), 3, 0)
    assert blocking.hello.instance_id != mine.hello.instance_id


def test_without_async_activities_the_one_session_has_fewer_credits() -> None:
    (offer,) = plan(blocking_types=("b",), threads_max=3)
    assert (offer.activity_tasks_max, offer.workflow_tasks_max) == (3, 5)


@pytest.mark.parametrize("dynamic_is_blocking", [True, False])
def test_a_dynamic_activity_takes_any_type_within_what_can_run(dynamic_is_blocking: bool) -> None:
    (offer,) = plan(async_types=("a",), blocking_types=("b",), dynamic_is_blocking=dynamic_is_blocking, threads_max=3)
    assert offer.hello.activity_types is None
    assert offer.activity_tasks_max == 3


def test_a_worker_without_activities_takes_none() -> None:
    (offer,) = plan()
    assert offer.hello.takes_activity_tasks is False
    assert offer.activity_tasks_max == 0


# --- arguments ---------------------------------------------------------------------------------------------------


@activity.defn(name="same")
def one() -> None: ...


@activity.defn(name="same")
def other() -> None: ...


@workflow.defn
class Flow:
    @workflow.run
    async def run(self) -> None: ...


@pytest.fixture
def client() -> Iterator[FakeClient]:
    connection = FakeConnection()
    yield FakeClient(connection)
    connection.stop()


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({}, ValueError, "neither activities nor workflows"),
        ({"activities": [one, other]}, ValueError, r"claim the activity type 'same': .*one and .*other"),
        ({"activities": [len]}, TypeError, "len is not an activity"),
        ({"workflows": [Flow, Flow]}, ValueError, "claim the workflow type 'Flow'"),
        ({"workflows": [int]}, ValueError, "not a workflow"),
        ({"activities": [one], "max_concurrent_activities": 0}, ValueError, "max_concurrent_activities is 0"),
        ({"activities": [one], "max_cached_workflows": -1}, ValueError, "max_cached_workflows is -1"),
        ({"activities": [one], "graceful_shutdown_timeout": 3}, TypeError, "pass a datetime.timedelta"),
        (
            {"activities": [one], "graceful_shutdown_timeout": timedelta(seconds=-1)},
            ValueError,
            "cannot be negative",
        ),
    ],
)
async def test_arguments_that_make_no_sense_are_refused(
    client: FakeClient, arguments: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        Worker(client, task_queue="q", **arguments)


async def test_an_empty_task_queue_is_refused(client: FakeClient) -> None:
    with pytest.raises(ValueError, match="task_queue is empty"):
        Worker(client, task_queue="", activities=[one])


async def test_a_worker_runs_once(client: FakeClient) -> None:
    worker = Worker(client, task_queue="q", activities=[one])
    async with worker:
        assert worker.is_running
    with pytest.raises(RuntimeError, match="Make a new Worker"):
        await worker.run()


async def test_shutting_down_a_worker_that_never_ran_returns_at_once(client: FakeClient) -> None:
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        worker = Worker(client, task_queue="q", activities=[one], activity_executor=pool)
        await worker.shutdown()
        assert worker.is_shutdown
