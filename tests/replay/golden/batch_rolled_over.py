"""The second run of a batch that continued as new with an update in flight, steps in batches and a search attribute."""

from __future__ import annotations

import asyncio
from datetime import timedelta

from clew import activity, workflow
from clew.common import SearchAttributeKey

LIMIT = timedelta(seconds=30)
DONE = SearchAttributeKey.for_int("Done")


class Work:
    """Names and types alone: a replay runs no activity."""

    @activity.defn
    def count(self, n: int) -> int:
        raise NotImplementedError

    @activity.defn
    def report(self, total: int) -> None:
        raise NotImplementedError


@workflow.defn
class Batch:
    @workflow.init
    def __init__(self, first: int, total: int) -> None:
        self.next = first
        self.total = total
        self.is_pushed = False

    @workflow.run
    async def run(self, first: int, total: int) -> int:
        chance = workflow.random()
        for n in workflow.as_completed([asyncio.create_task(self.step(first + n)) for n in range(8)]):
            self.total += await n
        workflow.upsert_search_attributes([DONE.value_set(self.total)])
        workflow.upsert_memo({"chance": chance.randint(1, 1_000_000), "id": str(workflow.uuid4())})
        await workflow.sleep(chance.uniform(0.01, 0.03))
        if first == 0:
            await workflow.wait_condition(lambda: self.is_pushed and workflow.all_handlers_finished())
            workflow.continue_as_new(args=[8, self.total])
        await workflow.wait_condition(lambda: self.is_pushed)
        await workflow.execute_activity_method(Work.report, self.total, start_to_close_timeout=LIMIT)
        await workflow.wait_condition(workflow.all_handlers_finished)
        return self.total

    async def step(self, n: int) -> int:
        return await workflow.execute_local_activity_method(
            Work.count, n, start_to_close_timeout=LIMIT, durable="batch" if n % 2 else "step"
        )

    @workflow.update
    async def push(self, by: int) -> int:
        self.is_pushed = True
        await workflow.sleep(timedelta(milliseconds=20))
        self.total += by
        return self.total


WORKFLOWS = [Batch]
