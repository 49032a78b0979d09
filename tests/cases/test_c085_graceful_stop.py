"""C085: SIGTERM lets what runs finish, takes nothing more, and is over within the grace time."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from datetime import timedelta
from pathlib import Path

import pytest

from clew import activity, workflow
from clew.client import Client
from clew.common import RetryPolicy
from clew.model import events as e
from clew.worker import Worker
from tests.cases.harness import QUEUE, Process, address, engine, events, eventually, settled, worker

TWENTY = 20


def _mark(directory: str, what: str) -> None:
    Path(directory, f"{what}-{time.monotonic_ns()}").touch()


@activity.defn
async def takes_three_seconds(directory: str) -> str:
    _mark(directory, "once")
    await asyncio.sleep(3)
    return "finished"


@activity.defn
async def beats_for_ever(directory: str) -> str:
    _mark(directory, "beats")
    if activity.info().attempt > 1:
        return f"attempt {activity.info().attempt}"
    told = False
    try:
        while True:
            activity.heartbeat()
            if activity.is_worker_shutdown() and not told:
                told = True
                _mark(directory, "saw_stopping")
            await asyncio.sleep(0.05)
    except asyncio.CancelledError:
        details = activity.cancellation_details()
        if details is not None and details.worker_shutdown:
            _mark(directory, "cancelled_by_shutdown")
        raise


@workflow.defn
class Once:
    @workflow.run
    async def run(self, directory: str) -> str:
        return await workflow.execute_activity(
            takes_three_seconds,
            directory,
            start_to_close_timeout=timedelta(seconds=30),
            retry_policy=RetryPolicy(maximum_attempts=1),
        )


@workflow.defn
class Beats:
    @workflow.run
    async def run(self, directory: str) -> str:
        return await workflow.execute_activity(
            beats_for_ever,
            directory,
            start_to_close_timeout=timedelta(seconds=60),
            heartbeat_timeout=timedelta(seconds=20),
            retry_policy=RetryPolicy(initial_interval=timedelta(milliseconds=100)),
        )


async def serve(database: str, directory: str, *which: str) -> None:
    """A worker process with default settings, but for two slots; ends by its signals."""
    client = await Client.connect(address(database))
    serving = Worker(
        client,
        task_queue=QUEUE,
        workflows=[Once, Beats],
        activities=[takes_three_seconds, beats_for_ever],
        max_concurrent_activities=len(which),
    )
    for name in which:
        await client.start_workflow(name, directory, id=name, task_queue=QUEUE)
    running = asyncio.create_task(serving.run_until_signal())
    await eventually(lambda: len(list(Path(directory).iterdir())) >= len(which), "the activities run")
    for n in range(TWENTY):
        await client.start_workflow("Once", directory, id=f"queued-{n}", task_queue=QUEUE)
    print("ready", flush=True)
    await running
    await client.close()


def count(directory: Path, what: str) -> int:
    return len(list(directory.glob(f"{what}-*")))


@pytest.mark.slow
async def test_one_signal_lets_what_runs_finish(tmp_path: Path) -> None:
    database, marks = tmp_path / "c085.db", tmp_path / "marks"
    marks.mkdir()
    with Process(serve, str(database), str(marks), "Once", "Beats") as process:
        await process.says("ready")
        began = time.monotonic()
        os.kill(process.pid, signal.SIGTERM)
        code = await asyncio.to_thread(process.wait, 20)
        took = time.monotonic() - began
        assert code == 0, process.errors
    assert took < 12, "the grace time of 10 s and 2 s more"
    assert count(marks, "once") == 1, "none of the queued ones started"
    assert (count(marks, "saw_stopping"), count(marks, "cancelled_by_shutdown")) == (1, 1)

    async with engine(database=database) as client:
        once = client.get_workflow_handle("Once")
        assert len(await events(once, e.ActivityTaskCompleted)) == 1, "the one-attempt activity was recorded"
        async with worker(client, [Once, Beats], [takes_three_seconds, beats_for_ever]):
            assert await settled(once) == "finished"
            assert await settled(client.get_workflow_handle("Beats")) == "attempt 2"
            for n in range(TWENTY):
                assert await settled(client.get_workflow_handle(f"queued-{n}")) == "finished"
    assert count(marks, "once") == 1 + TWENTY, "each activity with one attempt ran once"


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["sigterm", "ctrl-c"])
async def test_a_second_signal_cuts_the_grace_time_short(tmp_path: Path, number: signal.Signals) -> None:
    database, marks = tmp_path / "c085.db", tmp_path / "marks"
    marks.mkdir()
    with Process(serve, str(database), str(marks), "Beats") as process:
        await process.says("ready")
        os.kill(process.pid, number)
        await eventually(lambda: count(marks, "saw_stopping"), "it stops")
        began = time.monotonic()
        os.kill(process.pid, number)
        assert await asyncio.to_thread(process.wait, 20) == 0, process.errors
        assert time.monotonic() - began < 3
    assert count(marks, "cancelled_by_shutdown") == 1
