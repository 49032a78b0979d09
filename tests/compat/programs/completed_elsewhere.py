"""An activity that somebody else completes, by its token or by its ids."""

from __future__ import annotations

import asyncio
from datetime import timedelta

from temporalio import activity, workflow
from temporalio.client import Client
from temporalio.worker import Worker


class Desk:
    def __init__(self, client: Client) -> None:
        self.client = client
        self.answers: list[asyncio.Task[None]] = []

    @activity.defn
    async def ask(self, how: str) -> str:
        info = activity.info()
        if how == "token":
            handle = self.client.get_async_activity_handle(task_token=info.task_token)
        else:
            handle = self.client.get_async_activity_handle(
                workflow_id=info.workflow_id, run_id=info.workflow_run_id, activity_id=info.activity_id
            )
        self.answers.append(asyncio.create_task(self.answer(handle, how)))
        activity.raise_complete_async()

    async def answer(self, handle, how: str) -> None:
        await handle.heartbeat("thinking")
        await handle.complete(f"answered by {how}")


@workflow.defn
class Question:
    @workflow.run
    async def run(self) -> list[str]:
        return [
            await workflow.execute_activity_method(Desk.ask, how, start_to_close_timeout=timedelta(seconds=20))
            for how in ("token", "ids")
        ]


async def main(address: str) -> list[str]:
    client = await Client.connect(address)
    desk = Desk(client)
    async with Worker(client, task_queue="desk", workflows=[Question], activities=[desk.ask]):
        result = await client.execute_workflow(Question.run, id="question", task_queue="desk")
        await asyncio.gather(*desk.answers)
        return result


EXPECTED = ["answered by token", "answered by ids"]
