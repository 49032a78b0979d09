"""Time in a workflow: sleeping, racing a condition against a timeout, asyncio's own tools."""

from __future__ import annotations

import asyncio
from datetime import timedelta

from temporalio import workflow
from temporalio.client import Client
from temporalio.worker import Worker


@workflow.defn
class Clock:
    def __init__(self) -> None:
        self.rung = False

    @workflow.run
    async def run(self) -> list[str]:
        seen: list[str] = []
        began = workflow.now()
        await workflow.sleep(timedelta(milliseconds=20))
        await asyncio.sleep(0.02)
        if workflow.now() - began >= timedelta(milliseconds=40):
            seen.append("slept")
        try:
            await workflow.wait_condition(lambda: self.rung, timeout=0.02)
        except TimeoutError:
            seen.append("not rung")
        try:
            await asyncio.wait_for(asyncio.sleep(60), 0.02)
        except TimeoutError:
            seen.append("timed out")
        slow, fast = asyncio.create_task(self.later(30, "slow")), asyncio.create_task(self.later(0.01, "fast"))
        done, pending = await workflow.wait([slow, fast], return_when=asyncio.FIRST_COMPLETED)
        seen += [task.result() for task in done]
        for task in pending:
            task.cancel()
        for next_one in workflow.as_completed([self.later(0.03, "second"), self.later(0.01, "first")]):
            seen.append(await next_one)
        seen.append(str(len(str(workflow.uuid4()))))
        assert 0 <= workflow.random().random() < 1
        return seen

    async def later(self, seconds: float, text: str) -> str:
        await asyncio.sleep(seconds)
        return text


async def main(address: str) -> list[str]:
    client = await Client.connect(address)
    async with Worker(client, task_queue="clocks", workflows=[Clock]):
        return await client.execute_workflow(Clock.run, id="clock", task_queue="clocks")


EXPECTED = ["slept", "not rung", "timed out", "fast", "first", "second", "36"]
