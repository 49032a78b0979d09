"""A trip that is booked step by step, and undone from behind when a step fails."""

from __future__ import annotations

from datetime import timedelta

from temporalio import activity, workflow
from temporalio.client import Client, WorkflowFailureError
from temporalio.common import RetryPolicy
from temporalio.exceptions import ActivityError, ApplicationError
from temporalio.worker import Worker


class Bookings:
    def __init__(self) -> None:
        self.log: list[str] = []

    @activity.defn
    async def book(self, what: str) -> str:
        if what == "train":
            raise ApplicationError("no seats", non_retryable=True)
        self.log.append(f"book {what}")
        return f"{what}-1"

    @activity.defn(name="cancel_booking")
    async def cancel(self, reference: str) -> None:
        self.log.append(f"cancel {reference}")


@workflow.defn
class Trip:
    @workflow.run
    async def run(self, steps: list[str]) -> list[str]:
        booked: list[str] = []
        try:
            for step in steps:
                reference = await workflow.execute_activity_method(
                    Bookings.book,
                    step,
                    start_to_close_timeout=timedelta(seconds=5),
                    retry_policy=RetryPolicy(maximum_attempts=2),
                )
                booked.append(reference)
        except ActivityError:
            for reference in reversed(booked):
                await workflow.execute_activity(
                    "cancel_booking", reference, schedule_to_close_timeout=timedelta(seconds=30)
                )
            raise
        return booked


async def main(address: str) -> dict[str, object]:
    client = await Client.connect(address)
    bookings = Bookings()
    async with Worker(
        client,
        task_queue="trips",
        workflows=[Trip],
        activities=[bookings.book, bookings.cancel],
        max_cached_workflows=0,
    ):
        good = await client.execute_workflow(Trip.run, ["flight", "hotel"], id="trip-1", task_queue="trips")
        try:
            await client.execute_workflow(Trip.run, ["flight", "hotel", "train"], id="trip-2", task_queue="trips")
        except WorkflowFailureError as error:
            assert isinstance(error.cause, ActivityError)
            cause = f"{error.cause.activity_type}: {error.cause.cause}"
    return {"good": good, "cause": cause, "log": bookings.log}


EXPECTED = {
    "good": ["flight-1", "hotel-1"],
    "cause": "book: no seats",
    "log": ["book flight", "book hotel", "book flight", "book hotel", "cancel hotel-1", "cancel flight-1"],
}
