"""A compensation that fails for good stops no other, and whoever waits for the run is told of it."""

from __future__ import annotations

import dataclasses
from datetime import timedelta
from typing import Any

import pytest

from clew import activity, workflow
from clew.client import Client
from clew.common import RetryPolicy
from clew.converter import DataConverter, DefaultFailureConverterWithEncodedAttributes
from clew.exceptions import ActivityError, ApplicationError, CancelledError, ChildWorkflowError, WorkflowFailureError
from tests.cases.harness import QUEUE, engine, eventually, replay_check, settled, worker

STEP: dict[str, Any] = {
    "start_to_close_timeout": timedelta(seconds=30),
    "retry_policy": RetryPolicy(maximum_attempts=2),
}
undone: list[str] = []
PLACE = "Where it was raised"


@activity.defn
async def book(what: str) -> None:
    if what == "flight":
        raise ApplicationError("no seat", non_retryable=True)


@activity.defn
async def undo(what: str) -> None:
    if what == "car":
        raise RuntimeError("the rental is closed")
    undone.append(what)


@workflow.defn
class Trip:
    def __init__(self) -> None:
        self.is_booked = False

    @workflow.run
    async def run(self, last: str, raises_own: bool) -> None:
        async with workflow.saga() as saga:
            for what in ("hotel", "car", last):
                saga.add(undo, what, before=True, **STEP)
                await workflow.execute_activity(book, what, **STEP)
            if raises_own:
                raise ApplicationError("it rains", type="Weather")
            self.is_booked = True
            await workflow.wait_condition(lambda: False)

    @workflow.query
    def booked(self) -> bool:
        return self.is_booked


@workflow.defn
class Travel:
    @workflow.run
    async def run(self) -> None:
        await workflow.execute_child_workflow(Trip.run, args=["flight", False], id="trip-of-travel")


@pytest.fixture(autouse=True)
def _clear() -> None:
    undone.clear()


def notes(error: BaseException | None) -> list[str]:
    """What the error tells besides where it was raised."""
    return [note for note in getattr(error, "__notes__", ()) if not note.startswith(PLACE)]


async def end_of(client: Client, workflow_id: str = "trip") -> BaseException:
    error = await settled(client.get_workflow_handle(workflow_id))
    assert isinstance(error, WorkflowFailureError)
    return error.cause


@pytest.mark.parametrize("is_encoded", [False, True])
async def test_the_error_tells_of_the_compensation_that_failed(is_encoded: bool) -> None:
    async with engine() as plain:
        client = plain
        if is_encoded:
            hidden = dataclasses.replace(
                DataConverter.default, failure_converter_class=DefaultFailureConverterWithEncodedAttributes
            )
            client = Client(plain.connection, data_converter=hidden)
        async with worker(client, [Trip], [book, undo]):
            handle = await client.start_workflow(Trip.run, args=["flight", False], id="trip", task_queue=QUEUE)
            cause = await end_of(client)
            assert isinstance(cause, ActivityError)
            assert "no seat" in str(cause.__cause__)
            [note] = notes(cause)
            assert note.startswith("A compensation failed")
            assert "the rental is closed" in note
            assert undone == ["flight", "hotel"]
            if is_encoded:
                assert "rental is closed" not in str((await handle.fetch_history()).events[-1])
            if not is_encoded:
                await replay_check(handle, Trip)


async def test_an_error_of_the_workflow_tells_too_whatever_crashed_meanwhile() -> None:
    async with engine() as client:
        await client.start_workflow(Trip.run, args=["boat", True], id="trip", task_queue=QUEUE)
        async with worker(client, [Trip], [book, undo], cache=0):  # Each task begins from history, as after a crash.
            cause = await end_of(client)
    assert isinstance(cause, ApplicationError)
    assert (cause.type, cause.message) == ("Weather", "it rains")
    assert "the rental is closed" in "".join(notes(cause))
    assert undone == ["boat", "hotel"]


async def test_a_cancelled_run_tells_in_its_details() -> None:
    async with engine() as client, worker(client, [Trip], [book, undo]):
        handle = await client.start_workflow(Trip.run, args=["boat", False], id="trip", task_queue=QUEUE)
        await eventually(lambda: handle.query(Trip.booked), "all is booked")
        await handle.cancel()
        cause = await end_of(client)
        assert isinstance(cause, CancelledError)
        assert "the rental is closed" in "".join(str(detail) for detail in cause.details)
        assert undone == ["boat", "hotel"]
        await replay_check(handle, Trip)


async def test_a_parent_hears_of_it_from_its_child() -> None:
    async with engine() as client, worker(client, [Trip, Travel], [book, undo]):
        await client.start_workflow(Travel.run, id="travel", task_queue=QUEUE)
        cause = await end_of(client, "travel")
        assert isinstance(cause, ChildWorkflowError)
        assert "the rental is closed" in "".join(notes(cause.__cause__))
