"""One process of the soak: engine, worker and client on one file, under a mixed load, until it is killed or told to
end.

Arguments: the database, the file for what was acknowledged, a prefix for workflow ids, seconds (then it ends in order),
how many runs are under way at a time (0: none are started; it ends when no run is open, and fails if that takes longer
than the seconds), how many are started a second at most (0: as many as it can). Every second it writes a line of JSON
about itself to its output. A process that finds the file owned joins its owner.
"""

from __future__ import annotations

import asyncio
import ctypes
import itertools
import json
import logging
import os
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

from clew import activity, workflow
from clew.client import Client
from clew.common import RetryPolicy
from clew.worker import Worker

QUEUE = "soak"
PATH, TOLD, PREFIX, SECONDS, WIDTH = sys.argv[1], sys.argv[2], sys.argv[3], float(sys.argv[4]), int(sys.argv[5])
RATE = float(sys.argv[6])
LEAK_BYTES = int(os.environ.get("CLEW_SOAK_LEAK", "0"))
"""Kept of each run for ever, on purpose: a check of memory that does not notice is no check."""


@activity.defn
async def work(number: int) -> int:
    return number


@activity.defn
async def flaky(number: int) -> int:
    if activity.info().attempt == 1:
        raise RuntimeError("the first attempt fails")
    return number


@workflow.defn
class Part:
    @workflow.run
    async def run(self, number: int) -> int:
        result: int = await workflow.execute_local_activity(work, number, start_to_close_timeout=timedelta(seconds=20))
        return result


@workflow.defn
class Mixed:
    """Some of everything; gives `number` four times over, however often it is interrupted."""

    def __init__(self) -> None:
        self.signals: set[int] = set()

    @workflow.run
    async def run(self, number: int, is_second: bool) -> int:
        options: dict[str, Any] = {"start_to_close_timeout": timedelta(seconds=20)}
        if not is_second:
            await workflow.execute_activity(work, number, **options)
            workflow.continue_as_new(args=[number, True])
        total = sum(await asyncio.gather(*(workflow.execute_activity(work, number, **options) for _ in range(2))))
        retry = RetryPolicy(initial_interval=timedelta(seconds=0.02))
        total += await workflow.execute_activity(flaky, number, retry_policy=retry, **options)
        await asyncio.sleep(0.05)
        total += await workflow.execute_child_workflow(Part.run, number, id=f"{workflow.info().workflow_id}/part")
        return total

    @workflow.signal
    def note(self, number: int) -> None:
        self.signals.add(number)

    @workflow.update
    def ask(self, number: int) -> int:
        return number + 1


def tell(line: str) -> None:
    """Write down what was acknowledged, in one call."""
    descriptor = os.open(TOLD, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(descriptor, f"{line}\n".encode())
    os.close(descriptor)


class Load:
    """Keeps so many runs under way."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.done_count = 0
        self.numbers = itertools.count()
        self.next_at = 0.0
        self.leaked: list[bytes] = []

    async def pace(self) -> None:
        """Until the next run may be started."""
        if RATE:
            now = time.monotonic()
            self.next_at = max(self.next_at + 1 / RATE, now)
            await asyncio.sleep(self.next_at - now)

    async def go_on(self, until: float) -> None:
        """One run after the other."""
        while time.monotonic() < until:
            await self.pace()
            number = next(self.numbers)
            handle = await self.client.start_workflow(
                Mixed.run, args=[number, False], id=f"{PREFIX}-{number}", task_queue=QUEUE
            )
            tell(f"started {PREFIX}-{number} {number}")
            await handle.signal(Mixed.note, number)
            if number % 5 == 0:
                assert await handle.execute_update(Mixed.ask, number) == number + 1
            assert await handle.result() == 4 * number
            self.done_count += 1
            if LEAK_BYTES:
                self.leaked.append(bytes(LEAK_BYTES))

    async def report(self) -> None:
        """What this process takes, every second."""
        while True:
            await asyncio.sleep(1)
            pages = int(Path("/proc/self/statm").read_text().split()[1])
            line = {
                "done": self.done_count,
                "rss_kib": pages * os.sysconf("SC_PAGE_SIZE") // 1024,
                "blocks": sys.getallocatedblocks(),
                "malloc_kib": malloc_used_kib(),
                "files": len(os.listdir("/proc/self/fd")),
            }
            sys.stdout.write(f"{json.dumps(line)}\n")
            sys.stdout.flush()


class _MallocInfo(ctypes.Structure):
    """``struct mallinfo2`` of the GNU C library."""

    _names = ("arena", "parts", "fast", "maps", "mapped", "most", "fast_free", "used", "free", "top")
    _fields_ = tuple((name, ctypes.c_size_t) for name in _names)


def malloc_used_kib() -> int:
    """What the C library has given out, to SQLite above all, since Python takes its small objects elsewhere; -1 where
    the library does not say."""
    told = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if told is None:
        return -1
    told.restype = _MallocInfo
    info = told()
    return int(info.used + info.mapped) // 1024


async def main() -> None:
    logging.getLogger("clew").setLevel(logging.ERROR)  # Attempts fail here on purpose.
    until = time.monotonic() + SECONDS
    async with (
        await Client.connect(f"sqlite:{PATH}") as client,
        Worker(client, task_queue=QUEUE, workflows=[Mixed, Part], activities=[work, flaky]),
    ):
        load = Load(client)
        reports = asyncio.create_task(load.report())
        await asyncio.gather(*(load.go_on(until) for _ in range(WIDTH)))
        while WIDTH == 0 and (await client.count_workflows("ExecutionStatus = 'Running'")).count:
            assert time.monotonic() < until, "runs are still open"
            await asyncio.sleep(0.1)
        reports.cancel()


if __name__ == "__main__":
    asyncio.run(main())
