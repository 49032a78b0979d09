"""A long activity that heartbeats, is cancelled with its workflow, and is cleaned up after."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import NoReturn

from temporalio import activity, workflow
from temporalio.client import Client, WorkflowFailureError
from temporalio.exceptions import CancelledError, is_cancelled_exception
from temporalio.worker import Worker


class Plant:
    def __init__(self) -> None:
        self.running = asyncio.Event()
        self.log: list[str] = []

    @activity.defn
    async def produce(self) -> NoReturn:
        try:
            while True:
                activity.heartbeat("still here")
                self.running.set()
                await asyncio.sleep(0.05)
        except asyncio.CancelledError:
            self.log.append("stopped")
            raise

    @activity.defn
    async def clean(self) -> None:
        self.log.append("cleaned")


@workflow.defn
class Production:
    @workflow.run
    async def run(self) -> None:
        try:
            await workflow.execute_activity_method(
                Plant.produce,
                start_to_close_timeout=timedelta(minutes=5),
                heartbeat_timeout=timedelta(seconds=2),
                cancellation_type=workflow.ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
            )
        except Exception as error:
            assert is_cancelled_exception(error)
            raise
        finally:
            await asyncio.shield(
                workflow.execute_activity_method(Plant.clean, start_to_close_timeout=timedelta(seconds=5))
            )


@workflow.defn
class Patient:
    """Cancels a timer of its own and goes on."""

    @workflow.run
    async def run(self) -> str:
        sleeping = asyncio.create_task(asyncio.sleep(3600))
        await asyncio.sleep(0.01)
        sleeping.cancel()
        try:
            await sleeping
        except asyncio.CancelledError:
            return "woken"
        return "slept"


async def main(address: str) -> dict[str, object]:
    client = await Client.connect(address)
    plant = Plant()
    async with Worker(
        client,
        task_queue="plant",
        workflows=[Production, Patient],
        activities=[plant.produce, plant.clean],
        default_heartbeat_throttle_interval=timedelta(milliseconds=50),
        max_heartbeat_throttle_interval=timedelta(milliseconds=50),
    ):
        handle = await client.start_workflow(Production.run, id="production", task_queue="plant")
        await plant.running.wait()
        await handle.cancel()
        try:
            await handle.result()
        except WorkflowFailureError as error:
            outcome = type(error.cause).__name__
            assert isinstance(error.cause, CancelledError)
        woken = await client.execute_workflow(Patient.run, id="patient", task_queue="plant")
    return {"outcome": outcome, "log": plant.log, "woken": woken}


EXPECTED = {"outcome": "CancelledError", "log": ["stopped", "cleaned"], "woken": "woken"}
