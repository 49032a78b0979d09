"""C106: with a saga, a step whose outcome nobody knows is undone too."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from clew import activity, workflow
from clew.client import WorkflowFailureError
from clew.common import RetryPolicy
from clew.exceptions import ActivityError, ApplicationError
from clew.model import events as e
from tests.cases.conftest import Recorded
from tests.cases.harness import QUEUE, engine, events, eventually, settled, worker

STEP: Any = {
    "start_to_close_timeout": timedelta(seconds=0.3),
    "retry_policy": RetryPolicy(initial_interval=timedelta(milliseconds=10), maximum_attempts=2),
}


class Service:
    """The outside world: it keeps bookings by the caller's key, and refuses keys that were undone."""

    def __init__(self) -> None:
        self.bookings: dict[str, str] = {}
        self.undone: list[str] = []
        self.refused: list[str] = []
        self.calls: list[str] = []
        self.late = asyncio.Event()

    def book(self, key: str, what: str) -> None:
        self.calls.append(f"book {what}")
        if key in self.undone:
            self.refused.append(key)
            raise ApplicationError(f"{key} was cancelled", type="Cancelled", non_retryable=True)
        self.bookings[key] = what

    def cancel(self, key: str) -> None:
        # A booking that does not exist is cancelled all the same, and can't be made any more.
        self.calls.append(f"cancel {key}")
        self.undone.append(key)
        self.bookings.pop(key, None)


service = Service()


@pytest.fixture(autouse=True)
async def _new_service() -> None:
    service.__init__()  # type: ignore[misc]


@activity.defn
async def book(key: str, what: str, how: str) -> str:
    if how == "fails":
        raise ApplicationError("sold out", type="SoldOut", non_retryable=True)
    if how == "never reaches":
        raise ApplicationError("no route", type="NoRoute")
    if how == "comes late":
        # The attempt is given up long before its call reaches the service.
        await asyncio.shield(_arrive_late(key, what))
    service.book(key, what)
    if how == "loses its reply":
        await asyncio.sleep(30)
    if how == "slow":
        await asyncio.sleep(0.2)
    return key


late_calls: list[asyncio.Task[None]] = []


async def _arrive_late(key: str, what: str) -> None:
    async def call() -> None:
        await service.late.wait()
        service.book(key, what)

    late_calls.append(asyncio.create_task(call()))
    await asyncio.sleep(30)


@activity.defn
async def cancel_booking(key: str) -> None:
    service.cancel(key)


@workflow.defn
class Trip:
    @workflow.run
    async def run(self, steps: list[tuple[str, str]], is_parallel: bool) -> str:
        async with workflow.saga() as saga:
            if is_parallel:
                await asyncio.gather(*(self._step(saga, what, how) for what, how in steps))
            else:
                for what, how in steps:
                    await self._step(saga, what, how)
        return "booked"

    async def _step(self, saga: workflow.Saga, what: str, how: str) -> None:
        key = f"{workflow.info().workflow_id}/{what}"
        saga.add(cancel_booking, key, before=True)
        await workflow.execute_activity(book, args=[key, what, how], **STEP)


async def _run(client: Any, steps: list[tuple[str, str]], *, is_parallel: bool = False) -> Any:
    return await client.start_workflow(Trip.run, args=[steps, is_parallel], id="trip", task_queue=QUEUE)


async def _failed(handle: Any) -> ActivityError:
    error = await settled(handle)
    assert isinstance(error, WorkflowFailureError), error
    assert isinstance(error.cause, ActivityError)
    return error.cause


@pytest.mark.parametrize("how", ["loses its reply", "never reaches"])
async def test_the_lost_step_and_all_before_it_are_undone(how: str, recorded: Recorded) -> None:
    async with engine() as client, worker(client, [Trip], [book, cancel_booking]):
        handle = await _run(client, [("hotel", "works"), ("car", "works"), ("flight", how)])
        await _failed(handle)
        assert service.bookings == {}
        assert service.undone == ["trip/flight", "trip/car", "trip/hotel"], "the last one first"
        compensations = [
            event for event in await events(handle, e.ActivityTaskScheduled) if event.activity_type == "cancel_booking"
        ]
        assert len(compensations) == 3
        assert all(event.user_metadata is not None for event in compensations), "history shows them as such"
        await recorded.add(handle, Trip)


async def test_one_of_parallel_steps_fails_while_another_is_under_way(recorded: Recorded) -> None:
    async with engine() as client, worker(client, [Trip], [book, cancel_booking]):
        handle = await _run(client, [("hotel", "slow"), ("flight", "fails"), ("car", "works")], is_parallel=True)
        error = await _failed(handle)
        assert isinstance(error.cause, ApplicationError)
        assert error.cause.type == "SoldOut"
        assert sorted(service.undone) == ["trip/car", "trip/flight", "trip/hotel"]
        await eventually(lambda: "book hotel" in service.calls, "the hotel's step took effect")
        assert service.bookings == {}, "between its effect and its reply, and undone all the same"
        await recorded.add(handle, Trip)


async def test_a_late_attempt_does_not_book_again_after_the_undo(recorded: Recorded) -> None:
    late_calls.clear()
    async with engine() as client, worker(client, [Trip], [book, cancel_booking]):
        handle = await _run(client, [("hotel", "works"), ("flight", "comes late")])
        await _failed(handle)
        assert service.undone == ["trip/flight", "trip/hotel"]
        service.late.set()
        outcomes = await asyncio.gather(*late_calls, return_exceptions=True)
        assert outcomes
        assert all(isinstance(outcome, ApplicationError) for outcome in outcomes), "the service refuses the key"
        assert service.refused == ["trip/flight"] * len(outcomes)
        assert service.bookings == {}
        await recorded.add(handle, Trip)


async def test_a_cancelled_run_undoes_what_it_did(recorded: Recorded) -> None:
    async with engine() as client, worker(client, [Trip], [book, cancel_booking]):
        handle = await _run(client, [("hotel", "works"), ("flight", "slow"), ("car", "works")])
        await eventually(lambda: "book flight" in service.calls, "the flight's step takes effect")
        await handle.cancel()
        error = await settled(handle)
        assert isinstance(error, WorkflowFailureError)
        assert service.undone == ["trip/flight", "trip/hotel"]
        assert service.bookings == {}
        await recorded.add(handle, Trip)
