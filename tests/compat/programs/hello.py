"""A workflow that calls one activity: dataclass in, text out."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import timedelta

from temporalio import activity, workflow
from temporalio.client import Client
from temporalio.worker import Worker


@dataclass
class Guest:
    title: str
    name: str


@activity.defn
async def compose(guest: Guest) -> str:
    activity.logger.info("composing for %s", guest.name)
    return f"Good morning, {guest.title} {guest.name}"


@workflow.defn
class Greet:
    @workflow.run
    async def run(self, name: str) -> str:
        workflow.logger.info("greeting %s", name)
        return await workflow.execute_activity(
            compose, Guest("Dr.", name), start_to_close_timeout=timedelta(seconds=10)
        )


async def main(address: str) -> str:
    client = await Client.connect(address)
    async with Worker(client, task_queue="hello", workflows=[Greet], activities=[compose]):
        return await client.execute_workflow(Greet.run, "Lovelace", id="hello-1", task_queue="hello")


EXPECTED = "Good morning, Dr. Lovelace"

if __name__ == "__main__":
    print(asyncio.run(main("localhost:7233")))
