"""One process of a fleet: an engine node with a worker, until it is told to end.

Usage: node_program.py DSN LEDGER. Each step of each run adds a line to the file LEDGER: run, step, attempt, key.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from datetime import timedelta

from clew import activity, workflow
from clew.client import Client
from clew.worker import Worker

TASK_QUEUE = "fleet"
STEPS = 4
STEP_TIMEOUT = timedelta(seconds=60)


@activity.defn
async def post(step: int) -> int:
    """Write down that the step was done, and take a moment."""
    info = activity.info()
    line = f"{info.workflow_id} {step} {info.attempt} {info.idempotency_key}\n"
    descriptor = os.open(sys.argv[2], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(descriptor, line.encode())
    os.close(descriptor)
    await asyncio.sleep(0.1)
    return step


@workflow.defn
class Ledger:
    """Steps, a timer, a signal that is waited for, a child, and more steps."""

    def __init__(self) -> None:
        self._signals: list[int] = []
        self._done: list[int] = []

    @workflow.run
    async def run(self, is_child: bool = False) -> int:
        """The sum of what the steps gave, and of the signals."""
        for step in range(STEPS // 2):
            self._done.append(await workflow.execute_activity(post, step, start_to_close_timeout=STEP_TIMEOUT))
        if is_child:
            return sum(self._done)
        await asyncio.sleep(0.5)
        await workflow.wait_condition(lambda: len(self._signals) >= 2)
        child = await workflow.execute_child_workflow(Ledger.run, True, id=f"{workflow.info().workflow_id}-child")
        for step in range(STEPS // 2, STEPS):
            self._done.append(await workflow.execute_activity(post, step, start_to_close_timeout=STEP_TIMEOUT))
        return sum(self._done) + sum(self._signals) + child

    @workflow.signal
    def add(self, number: int) -> None:
        """A number for the sum."""
        self._signals.append(number)

    @workflow.query
    def done_count(self) -> int:
        """How many steps are done."""
        return len(self._done)

    @workflow.update
    def rename(self, name: str) -> str:
        """Answers at once."""
        return name.upper()


async def main() -> None:
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    client = await Client.connect(sys.argv[1])
    async with Worker(client, task_queue=TASK_QUEUE, workflows=[Ledger], activities=[post]):
        print("ready", flush=True)
        await stopped.wait()
    await client.close()


if __name__ == "__main__":
    asyncio.run(main())
