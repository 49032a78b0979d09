"""A program with engine, worker and client on one file, which kills itself at a file operation.

Arguments: the database, the file to write down what it was told, the number of the operation to die at (0: live on),
and whether to die ``before`` it, ``after`` it, or ``within`` (half of a write is done).
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from datetime import timedelta
from pathlib import Path

from tests.crash.watched_files import Step, watch

PATH, TOLD, AT, HOW = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]
_count = 0


def die_at(step: Step) -> None:
    """Die at the operation that was asked for."""
    global _count
    if step.kind not in ("write", "sync"):
        return
    _count += 1
    if _count == AT + (HOW == "after"):
        if HOW == "within" and step.kind == "write":
            descriptor = os.open(step.path, os.O_WRONLY)
            os.pwrite(descriptor, step.data[: len(step.data) // 2], step.offset)
        os.kill(os.getpid(), signal.SIGKILL)


if AT:
    watch(die_at)

from clew import activity, workflow  # noqa: E402 - SQLite is watched before anything opens a file
from clew.client import Client  # noqa: E402
from clew.common import WorkflowIDConflictPolicy, WorkflowIDReusePolicy  # noqa: E402
from clew.exceptions import WorkflowAlreadyStartedError  # noqa: E402
from clew.worker import Worker  # noqa: E402

QUEUE = "killed"
RUNS, STEPS, SIGNALS = 3, 3, 2


def tell(line: str) -> None:
    """Write down, in one call, what this program was told."""
    descriptor = os.open(TOLD, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(descriptor, f"{line}\n".encode())
    os.close(descriptor)


@activity.defn
async def double(number: int) -> int:
    return 2 * number


@workflow.defn
class Sum:
    def __init__(self) -> None:
        self.signals: set[int] = set()

    @workflow.run
    async def run(self, first: int) -> int:
        total = 0
        for number in range(first, first + STEPS):
            total += await workflow.execute_activity(double, number, start_to_close_timeout=timedelta(seconds=20))
        await workflow.wait_condition(lambda: len(self.signals) == SIGNALS)
        return total

    @workflow.signal
    def note(self, number: int) -> None:
        self.signals.add(number)


async def see_through(client: Client, number: int, told: set[str]) -> None:
    """Start a run or find it, send what it has not been sent, and wait for its result."""
    try:
        handle = await client.start_workflow(
            Sum.run, number, id=f"sum-{number}", task_queue=QUEUE,
            id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
            id_reuse_policy=WorkflowIDReusePolicy.REJECT_DUPLICATE,
        )  # fmt: skip
    except WorkflowAlreadyStartedError:
        handle = client.get_workflow_handle_for(Sum.run, f"sum-{number}")
    tell(f"started {number}")
    for value in range(SIGNALS):
        if f"signalled {number} {value}" not in told and f"result {number}" not in " ".join(told):
            await handle.signal(Sum.note, value)
            tell(f"signalled {number} {value}")
    tell(f"result {number} {await handle.result()}")


async def main() -> None:
    told = set(Path(TOLD).read_text().splitlines()) if os.path.exists(TOLD) else set[str]()
    async with (
        await Client.connect(f"sqlite:{PATH}") as client,
        Worker(client, task_queue=QUEUE, workflows=[Sum], activities=[double]),
    ):
        await asyncio.gather(*(see_through(client, number, told) for number in range(RUNS)))
    tell(f"operations {_count}")


if __name__ == "__main__":
    asyncio.run(main())
