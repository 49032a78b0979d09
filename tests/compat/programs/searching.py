"""Search attributes and memo: written at the start and by the workflow, read back by lists."""

from __future__ import annotations

import asyncio
from typing import Any

from temporalio import workflow
from temporalio.client import Client
from temporalio.common import SearchAttributeKey, SearchAttributePair, TypedSearchAttributes
from temporalio.worker import Worker

CUSTOMER = SearchAttributeKey.for_keyword("Customer")
AMOUNT = SearchAttributeKey.for_int("Amount")


@workflow.defn
class Sale:
    @workflow.run
    async def run(self) -> int:
        amount = workflow.info().typed_search_attributes.get(AMOUNT, 0) * 2
        workflow.upsert_search_attributes([AMOUNT.value_set(amount)])
        workflow.upsert_memo({"doubled": True})
        return amount


async def main(address: str) -> dict[str, Any]:
    client = await Client.connect(address)
    async with Worker(client, task_queue="sales", workflows=[Sale]):
        for number, customer in enumerate(["Ada", "Bob", "Ada"]):
            await client.execute_workflow(
                Sale.run,
                id=f"sale-{number}",
                task_queue="sales",
                search_attributes=TypedSearchAttributes(
                    [SearchAttributePair(CUSTOMER, customer), SearchAttributePair(AMOUNT, number + 1)]
                ),
                memo={"number": number},
            )
        async with asyncio.timeout(10):
            while (await client.count_workflows("ExecutionStatus = 'Completed'")).count < 3:
                await asyncio.sleep(0.05)
        found = [one async for one in client.list_workflows("Customer = 'Ada' AND Amount > 3")]
        return {
            "ids": [one.id for one in found],
            "amount": found[0].typed_search_attributes[AMOUNT],
            "memo": dict(await found[0].memo()),
        }


EXPECTED = {"ids": ["sale-2"], "amount": 6, "memo": {"number": 2, "doubled": True}}
