"""A small mixed workload for programs that are killed: the workflows, and the worker as a program.

Usage: python -m tests.crash.mixed ADDRESS LEDGER. The worker reaches the server at ADDRESS; each effect of an activity
is one line of the file LEDGER: workflow id, step, attempt, idempotency key.
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
from clew.worker import Worker

QUEUE = "mixed"
OPTIONS: dict[str, Any] = {
    "start_to_close_timeout": timedelta(seconds=60),
    "retry_policy": RetryPolicy(initial_interval=timedelta(milliseconds=50), maximum_interval=timedelta(seconds=1)),
}
SIGNALS = (1, 2)
STEPS = ("first", "flaky", "second")
"""Activities of one `Mixed`, in the ledger under its id; `CHILD_STEPS` under that of its child."""

CHILD_STEPS = ("child",)
HELD_STEPS = ("undo",)


@activity.defn
async def act(step: str) -> str:
    """One effect; the flaky step fails once its first attempt has acted."""
    info = activity.info()
    line = f"{info.workflow_id} {step} {info.attempt} {info.idempotency_key}\n"
    descriptor = os.open(sys.argv[2], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(descriptor, line.encode())
    os.close(descriptor)
    if step == "flaky" and info.attempt == 1:
        raise RuntimeError("the first attempt fails")
    return step


@activity.defn
async def local(step: str) -> str:
    """Has no effect."""
    return step


@workflow.defn
class Part:
    """The child of `Mixed`."""

    @workflow.run
    async def run(self) -> str:
        return await workflow.execute_activity(act, "child", **OPTIONS)


@workflow.defn
class Mixed:
    """An activity, a timer, an update and two signals; then, as new, a retry, a child, a local activity."""

    def __init__(self) -> None:
        self.signals: list[int] = []
        self.updates: list[int] = []

    @workflow.run
    async def run(self, so_far: dict[str, list[Any]] | None = None) -> dict[str, list[Any]]:
        if so_far is None:
            done = [await workflow.execute_activity(act, "first", **OPTIONS)]
            await asyncio.sleep(0.03)
            await workflow.wait_condition(lambda: set(self.signals) >= set(SIGNALS) and bool(self.updates))
            workflow.continue_as_new({"done": done, "signals": sorted(set(self.signals)), "updates": self.updates})
        done = [*so_far["done"], await workflow.execute_activity(act, "flaky", **OPTIONS)]
        done.append(await workflow.execute_child_workflow(Part.run, id=f"{workflow.info().workflow_id}-part"))
        done.append(await workflow.execute_local_activity(local, "local", **OPTIONS))
        done.append(await workflow.execute_activity(act, "second", **OPTIONS))
        return {**so_far, "done": done}

    @workflow.signal
    def note(self, number: int) -> None:
        self.signals.append(number)

    @workflow.update
    async def add(self, number: int) -> int:
        await asyncio.sleep(0.01)
        self.updates.append(number)
        return number + 1


@workflow.defn
class Held:
    """Waits for its cancellation, and undoes."""

    @workflow.run
    async def run(self) -> None:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            await asyncio.shield(workflow.execute_activity(act, "undo", **OPTIONS))
            raise


RESULT: dict[str, list[Any]] = {
    "done": ["first", "flaky", "child", "local", "second"],
    "signals": list(SIGNALS),
    "updates": [5],
}
"""What each `Mixed` comes to."""


async def main() -> None:
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    client = await Client.connect(sys.argv[1])
    async with Worker(client, task_queue=QUEUE, workflows=[Mixed, Part, Held], activities=[act, local]):
        print("ready", flush=True)
        await stopped.wait()
    await client.close()


if __name__ == "__main__":
    asyncio.run(main())
