"""A shop's basket: signals, queries, updates with a validator, and handlers that are still busy at the end."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from temporalio import workflow
from temporalio.client import Client, WorkflowHandle, WorkflowUpdateFailedError, WorkflowUpdateStage
from temporalio.common import RawValue
from temporalio.exceptions import ApplicationError
from temporalio.worker import Worker


@workflow.defn
class Basket:
    @workflow.init
    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.items: list[str] = []
        self.odd: list[str] = []
        self.checked_out = False
        self.lock = asyncio.Lock()

    @workflow.run
    async def run(self, limit: int) -> dict[str, list[str]]:
        await workflow.wait_condition(lambda: self.checked_out)
        await workflow.wait_condition(workflow.all_handlers_finished)
        return {"items": self.items, "odd": self.odd}

    @workflow.signal
    async def put(self, item: str) -> None:
        self.items.append(item)

    @workflow.signal(name="leave")
    def check_out(self) -> None:
        self.checked_out = True

    @workflow.signal(dynamic=True)
    async def anything(self, name: str, args: Sequence[RawValue]) -> None:
        values = [workflow.payload_converter().from_payload(arg.payload, str) for arg in args]
        self.odd.append(f"{name}({', '.join(values)})")

    @workflow.query
    def count(self) -> int:
        return len(self.items)

    @workflow.query(name="contains")
    def has(self, item: str) -> bool:
        return item in self.items

    @workflow.update
    async def replace(self, old: str, new: str) -> list[str]:
        async with self.lock:
            await asyncio.sleep(0.01)
            self.items[self.items.index(old)] = new
            return list(self.items)

    @replace.validator
    def check_replace(self, old: str, new: str) -> None:
        if old not in self.items:
            raise ApplicationError(f"there is no {old}")

    @workflow.update
    def room(self) -> int:
        info = workflow.current_update_info()
        assert info is not None and info.name == "room"
        return self.limit - len(self.items)


async def main(address: str) -> dict[str, Any]:
    client = await Client.connect(address)
    async with Worker(client, task_queue="baskets", workflows=[Basket]):
        handle: WorkflowHandle[Basket, dict[str, list[str]]] = await client.start_workflow(
            Basket.run, 5, id="basket-1", task_queue="baskets", start_signal="put", start_signal_args=["tea"]
        )
        await handle.signal(Basket.put, "milk")
        await handle.signal("mystery", args=["a", "b"])
        seen: dict[str, Any] = {"count": await handle.query(Basket.count), "has": await handle.query("contains", "tea")}
        seen["room"] = await handle.execute_update(Basket.room)
        try:
            await handle.execute_update(Basket.replace, args=["rum", "ale"])
        except WorkflowUpdateFailedError as error:
            seen["refused"] = str(error.cause)
        update = await handle.start_update(
            Basket.replace, args=["milk", "cream"], wait_for_stage=WorkflowUpdateStage.ACCEPTED, id="replace-milk"
        )
        await handle.signal(Basket.check_out)
        seen["replaced"] = await update.result()
        seen["again"] = await handle.get_update_handle_for(Basket.replace, "replace-milk").result()
        seen["result"] = await handle.result()
        return seen


EXPECTED = {
    "count": 2,
    "has": True,
    "room": 3,
    "refused": "there is no rum",
    "replaced": ["tea", "cream"],
    "again": ["tea", "cream"],
    "result": {"items": ["tea", "cream"], "odd": ["mystery(a, b)"]},
}
