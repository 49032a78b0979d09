"""Get or create: an update that starts its workflow when there is none yet."""

from __future__ import annotations

from temporalio import common, workflow
from temporalio.client import Client, WithStartWorkflowOperation, WorkflowUpdateStage
from temporalio.worker import Worker


@workflow.defn
class Account:
    def __init__(self) -> None:
        self.balance = 0
        self.closed = False

    @workflow.run
    async def run(self) -> int:
        await workflow.wait_condition(lambda: self.closed)
        return self.balance

    @workflow.update
    async def deposit(self, amount: int) -> int:
        self.balance += amount
        return self.balance

    @workflow.signal
    def close(self) -> None:
        self.closed = True


def opening() -> WithStartWorkflowOperation[Account, int]:
    return WithStartWorkflowOperation(
        Account.run,
        id="account-1",
        task_queue="accounts",
        id_conflict_policy=common.WorkflowIDConflictPolicy.USE_EXISTING,
    )


async def main(address: str) -> list[int]:
    client = await Client.connect(address)
    async with Worker(client, task_queue="accounts", workflows=[Account]):
        first = await client.execute_update_with_start_workflow(Account.deposit, 10, start_workflow_operation=opening())
        start = opening()
        update = await client.start_update_with_start_workflow(
            Account.deposit, 5, start_workflow_operation=start, wait_for_stage=WorkflowUpdateStage.COMPLETED
        )
        second = await update.result()
        handle = await start.workflow_handle()
        await handle.signal(Account.close)
        return [first, second, await handle.result()]


EXPECTED = [10, 15, 15]
