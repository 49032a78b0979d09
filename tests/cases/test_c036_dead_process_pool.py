"""C036: a dead process pool does not drain the queue into failure, and a stubborn child does not hold up the end."""

from __future__ import annotations

import asyncio
import concurrent.futures
import multiprocessing
import os
import signal
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

from clew import activity, workflow
from clew.common import RetryPolicy
from clew.model import events as e
from tests.cases.harness import QUEUE, engine, events, eventually, replay_check, settled, worker

JOBS = 20


def _note(folder: str, name: str) -> int:
    path = Path(folder) / name
    with path.open("a") as file:
        file.write("x")
    return path.stat().st_size


@activity.defn
def job(number: int, folder: str) -> int:
    times = _note(folder, f"job-{number}")
    if number == 5 and times == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.02)
    return number


@activity.defn
def stubborn(folder: str) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    _note(folder, f"pid-{os.getpid()}")
    until = time.monotonic() + 30
    while time.monotonic() < until:
        try:
            time.sleep(0.1)
        except BaseException:  # noqa: BLE001 - the case
            continue


@workflow.defn
class TwentyJobs:
    @workflow.run
    async def run(self, folder: str) -> list[int]:
        steps = [
            workflow.execute_activity(
                job,
                args=[number, folder],
                start_to_close_timeout=timedelta(seconds=20),
                retry_policy=RetryPolicy(initial_interval=timedelta(milliseconds=100), maximum_attempts=5),
            )
            for number in range(JOBS)
        ]
        return await asyncio.gather(*steps)


@workflow.defn
class Stubborn:
    @workflow.run
    async def run(self, folder: str) -> None:
        await workflow.execute_activity(
            stubborn,
            folder,
            start_to_close_timeout=timedelta(seconds=60),
            heartbeat_timeout=timedelta(seconds=5),
            retry_policy=RetryPolicy(maximum_attempts=1),
            cancellation_type=workflow.ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
        )


def _pool() -> concurrent.futures.ProcessPoolExecutor:
    return concurrent.futures.ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn"))


async def test_the_other_jobs_do_not_fail(tmp_path: Path) -> None:
    pool = _pool()
    try:
        async with (
            engine() as client,
            worker(client, [TwentyJobs], [job], activity_executor=pool, max_concurrent_activities=2),
        ):
            handle = await client.start_workflow(TwentyJobs.run, str(tmp_path), id="jobs", task_queue=QUEUE)
            assert await settled(handle, 60) == list(range(JOBS))
            attempts = sum(path.stat().st_size for path in tmp_path.glob("job-*"))
            assert attempts <= JOBS + 4
            await replay_check(handle, TwentyJobs)
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


async def test_a_stubborn_job_does_not_prevent_the_end(tmp_path: Path) -> None:
    pool = _pool()
    try:
        async with engine() as client:
            async with worker(client, [Stubborn], [stubborn], activity_executor=pool, max_concurrent_activities=2):
                handle = await client.start_workflow(Stubborn.run, str(tmp_path), id="stubborn", task_queue=QUEUE)
                await eventually(lambda: list(tmp_path.glob("pid-*")), seconds_max=30)
                await handle.cancel()
                clock = time.monotonic()
            assert time.monotonic() - clock < 5
            (path,) = tmp_path.glob("pid-*")
            await eventually(lambda: not _is_alive(int(path.name.removeprefix("pid-"))), "the child is gone")
            async with worker(client, [Stubborn]):
                await settled(handle)
            closed = await events(handle, e.ActivityTaskFailed, e.ActivityTaskCanceled, e.ActivityTaskTimedOut)
            assert len(closed) == 1
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        state: Any = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except (ProcessLookupError, FileNotFoundError):
        return False
    return state != "Z"
