"""Lives of a program with engine, worker and client on one file, which kill themselves at a file operation.

Each line of its input is JSON: ``[DATABASE, TOLD, N, HOW]``. A life is a child that is forked after all is imported,
so that it begins within a moment; its exit code is answered in a line. TOLD is the file to write down what the program
was told, N the number of the operation to die at (0: live on), HOW whether to die ``before`` it, ``after`` it, or
``within`` (half of a write is done).
"""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import NoReturn

from clew import activity, workflow
from clew.client import Client
from clew.common import WorkflowIDConflictPolicy, WorkflowIDReusePolicy
from clew.exceptions import WorkflowAlreadyStartedError
from clew.worker import Worker
from tests.crash.caller import SameIds
from tests.crash.watched_files import Step, watch

LIFE_SECONDS_MAX = 120
QUEUE = "killed"
RUNS, STEPS, SIGNALS = 3, 3, 2


class Killer:
    """Counts the operations of one life, and ends it.

    Args:
        at: The operation to die at; 0 for none.
        how: Before, within or after it.
    """

    def __init__(self, at: int, how: str) -> None:
        self.at = at
        self.how = how
        self.count = 0

    def look(self, step: Step) -> None:
        """Die if this is the operation to die at."""
        if step.kind not in ("write", "sync"):
            return
        self.count += 1
        if self.count == self.at + (self.how == "after"):
            if self.how == "within" and step.kind == "write":
                descriptor = os.open(step.path, os.O_WRONLY)
                os.pwrite(descriptor, step.data[: len(step.data) // 2], step.offset)
            os.kill(os.getpid(), signal.SIGKILL)


def write_down(path: str, line: str) -> None:
    """Write down, in one call, what this program was told."""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
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


async def see_through(client: Client, number: int, told: set[str], tell: Callable[[str], None]) -> None:
    """Start a run or find it, send what it was not told to have sent, and wait for its result.

    A signal that had been recorded, and whose answer a life did not hear, is sent again under its id: it counts once,
    and is answered even if its run has closed meanwhile.
    """
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


async def main(database: str, path: str) -> None:
    """See all runs through."""
    told = set(Path(path).read_text().splitlines()) if os.path.exists(path) else set[str]()
    async with (
        await Client.connect(f"sqlite:{database}", interceptors=[SameIds()]) as client,
        Worker(client, task_queue=QUEUE, workflows=[Sum], activities=[double]),
    ):
        await asyncio.gather(*(see_through(client, number, told, partial(write_down, path)) for number in range(RUNS)))


def live(database: str, path: str, at: int, how: str) -> NoReturn:
    """One life, in the child."""
    signal.alarm(LIFE_SECONDS_MAX)
    code = 1
    try:
        killer = Killer(at, how)
        if at:
            watch(killer.look)
        asyncio.run(main(database, path))
        write_down(path, f"operations {killer.count}")
        code = 0
    except BaseException:  # noqa: BLE001 - whatever it is, it ends this life and is told
        traceback.print_exc()
    finally:
        os._exit(code)


def breed() -> None:
    """Begin lives as they are asked for, one at a time, and tell of their ends, until the input ends."""
    importlib.import_module("clew.storage.sqlite")
    assert threading.active_count() == 1, "a process with threads must not fork"
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            live(*json.loads(line))
        _, status = os.waitpid(pid, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    breed()
