"""A counter that starts itself anew, with memo and search attributes handed on."""

from __future__ import annotations

from typing import Any

from temporalio import workflow
from temporalio.client import Client
from temporalio.worker import Worker


@workflow.defn
class Countdown:
    @workflow.run
    async def run(self, left: int, chain: list[str]) -> dict[str, Any]:
        info = workflow.info()
        chain = [*chain, info.run_id]
        if left and not info.is_continue_as_new_suggested():
            workflow.continue_as_new(args=[left - 1, chain], memo={"left": left - 1})
        return {
            "runs": len(set(chain)),
            "continued": info.continued_run_id == chain[-2],
            "first": info.first_execution_run_id == chain[0],
            "memo": workflow.memo_value("left", type_hint=int),
        }


async def main(address: str) -> dict[str, Any]:
    client = await Client.connect(address)
    async with Worker(client, task_queue="chain", workflows=[Countdown]):
        handle = await client.start_workflow(
            Countdown.run, args=[1, []], id="countdown", task_queue="chain", memo={"left": 1}
        )
        return await handle.result()


EXPECTED = {"runs": 2, "continued": True, "first": True, "memo": 0}
