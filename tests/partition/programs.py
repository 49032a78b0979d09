"""What runs under partitions: a register for linearizability, and jobs with effects; the worker as a program.

Usage: python -m tests.partition.programs ADDRESS LEDGER. Each effect is a line of the file LEDGER: workflow id, step,
idempotency key.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from datetime import timedelta
from typing import Any

from clew import activity, workflow
from clew.client import Client
from clew.common import RetryPolicy
from clew.service.errors import RPCError
from clew.worker import Worker

QUEUE = "partition"
STEPS = 3
OPTIONS: dict[str, Any] = {
    "start_to_close_timeout": timedelta(seconds=20),
    "retry_policy": RetryPolicy(initial_interval=timedelta(milliseconds=200), maximum_interval=timedelta(seconds=2)),
}


@activity.defn
async def act(step: int) -> int:
    """One effect."""
    info = activity.info()
    descriptor = os.open(sys.argv[2], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(descriptor, f"{info.workflow_id} {step} {info.idempotency_key}\n".encode())
    os.close(descriptor)
    return step


@workflow.defn
class Register:
    """One number, changed by updates and read by queries, until it is told to close; signals are counted."""

    def __init__(self) -> None:
        self.value = 0
        self.signals: list[str] = []
        self.is_closing = False

    @workflow.run
    async def run(self) -> tuple[int, list[str]]:
        await workflow.wait_condition(lambda: self.is_closing)
        await workflow.wait_condition(workflow.all_handlers_finished)
        return self.value, self.signals

    @workflow.update
    def write(self, value: int) -> int:
        """Gives what was there before."""
        before, self.value = self.value, value
        return before

    @workflow.update
    def swap(self, wanted: int, value: int) -> bool:
        """Only if the wanted value is there; gives whether it was."""
        if self.value != wanted:
            return False
        self.value = value
        return True

    @workflow.update
    async def add(self, count: int) -> int:
        """Gives the sum. It takes a timer and a moment in between."""
        await asyncio.sleep(0.01)
        self.value += count
        return self.value

    @workflow.query
    def read(self) -> int:
        return self.value

    @workflow.signal
    def note(self, name: str) -> None:
        self.signals.append(name)

    @workflow.signal
    def close(self) -> None:
        self.is_closing = True


@workflow.defn
class Part:
    """The child of a `Job`."""

    @workflow.run
    async def run(self) -> int:
        return await workflow.execute_activity(act, STEPS, **OPTIONS)


@workflow.defn
class Job:
    """Effects one after the other, a timer, a child; one that is held waits to be cancelled."""

    @workflow.run
    async def run(self, is_held: bool) -> int:
        total = 0
        for step in range(STEPS):
            total += await workflow.execute_activity(act, step, **OPTIONS)
        if is_held:
            await asyncio.sleep(86400)
        await asyncio.sleep(0.1)
        return total + await workflow.execute_child_workflow(Part.run, id=f"{workflow.info().workflow_id}-part")


async def main() -> None:
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    client = await connect(sys.argv[1])
    async with Worker(client, task_queue=QUEUE, workflows=[Register, Job, Part], activities=[act]):
        print("ready", flush=True)
        await stopped.wait()
    await client.close()


async def connect(address: str) -> Client:
    """Connect, however long it takes until somebody answers."""
    while True:
        try:
            return await Client.connect(address)
        except RPCError as error:
            if not error.is_retryable:
                raise
            print(f"not yet connected: {error}", flush=True)


if __name__ == "__main__":
    asyncio.run(main())
