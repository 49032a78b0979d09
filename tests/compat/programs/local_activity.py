"""Small steps in the worker itself: local activities, with a retry."""

from __future__ import annotations

from datetime import timedelta

from temporalio import activity, workflow
from temporalio.client import Client
from temporalio.common import RetryPolicy
from temporalio.worker import Worker


@activity.defn
async def price(article: str) -> int:
    info = activity.info()
    assert info.is_local
    if article == "fragile" and info.attempt < 3:
        raise RuntimeError("the price list is being printed")
    return len(article) * info.attempt


@workflow.defn
class Total:
    @workflow.run
    async def run(self, articles: list[str]) -> int:
        total = 0
        for article in articles:
            total += await workflow.execute_local_activity(
                price,
                article,
                start_to_close_timeout=timedelta(seconds=5),
                retry_policy=RetryPolicy(initial_interval=timedelta(milliseconds=1)),
            )
        return total


async def main(address: str) -> int:
    client = await Client.connect(address)
    async with Worker(client, task_queue="prices", workflows=[Total], activities=[price]):
        return await client.execute_workflow(Total.run, ["tea", "fragile"], id="total", task_queue="prices")


EXPECTED = 24
