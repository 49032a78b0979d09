"""A program that runs a chain of local steps, and writes down each that runs; it is killed and started again.

Arguments: the database, the file to write to, the number of steps, ``one`` or ``pairs`` (two steps at a time).
"""

from __future__ import annotations

import asyncio
import os
import sys
from datetime import timedelta

from clew import activity, workflow
from clew.client import Client
from clew.common import WorkflowIDConflictPolicy, WorkflowIDReusePolicy
from clew.worker import Worker

QUEUE = "steps"


@activity.defn
async def note(number: int) -> int:
    """Write a line in one call, so that it is there whole or not at all."""
    file = os.open(sys.argv[2], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(file, b"%d\n" % number)
    os.close(file)
    return number


@workflow.defn
class Chain:
    @workflow.run
    async def run(self, count: int, how: str) -> int:
        options = {"start_to_close_timeout": timedelta(seconds=30)}
        total = 0
        if how == "one":
            for number in range(count):
                total += await workflow.execute_local_activity(note, number, **options)
        else:
            for number in range(0, count, 2):
                both = [workflow.execute_local_activity(note, n, **options) for n in (number, number + 1)]
                total += sum(await asyncio.gather(*both))
        return total


async def main() -> None:
    count, how = int(sys.argv[3]), sys.argv[4]
    async with (
        await Client.connect(f"sqlite:{sys.argv[1]}") as client,
        Worker(client, task_queue=QUEUE, workflows=[Chain], activities=[note]),
    ):
        total = await client.execute_workflow(
            Chain.run,
            args=[count, how],
            id="chain",
            task_queue=QUEUE,
            id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
            id_reuse_policy=WorkflowIDReusePolicy.REJECT_DUPLICATE,
        )
        sys.stdout.write(f"{total}\n")


if __name__ == "__main__":
    asyncio.run(main())
