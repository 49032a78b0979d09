"""Runs one process activity, prints the child's process id, then dies of SIGKILL. Arguments: start method, how busy."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from datetime import timedelta

from clew import activity, workflow
from clew.client import Client
from clew.worker import Worker


@activity.defn
def work(is_busy: bool) -> int:
    print(os.getpid(), flush=True)
    if is_busy:
        time.sleep(60)
    return os.getpid()


@workflow.defn
class Works:
    @workflow.run
    async def run(self, is_busy: bool) -> int:
        return await workflow.execute_activity(work, is_busy, start_to_close_timeout=timedelta(minutes=5))


async def main() -> None:
    context = multiprocessing.get_context(sys.argv[1])
    client = await Client.connect("sqlite::memory:")
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        async with Worker(
            client, task_queue="q", workflows=[Works], activities=[work], activity_executor=pool,
            max_concurrent_activities=1,
        ):  # fmt: skip
            is_busy = sys.argv[2] == "busy"
            handle = await client.start_workflow(Works.run, is_busy, id="works", task_queue="q")
            if is_busy:
                await asyncio.sleep(60)
            await handle.result()
            os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    asyncio.run(main())
