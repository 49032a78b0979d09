"""C077: state that was saved has its wake-up, however often the process is killed."""

from __future__ import annotations

import asyncio
import contextlib
import random
import sqlite3
import time
from collections import Counter
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from clew import activity, workflow
from clew.client import Client
from clew.common import RetryPolicy
from clew.engine.keeping import SWEEP_INTERVAL
from clew.exceptions import WorkflowAlreadyStartedError
from clew.model import events as e
from clew.model.rejection import RejectionCode
from clew.service.errors import RPCError
from clew.testing import ManualClock
from tests.cases.harness import (
    QUEUE,
    Process,
    address,
    engine,
    events,
    eventually,
    on_files,
    replay_check,
    settled,
    within,
    worker,
)

RUNS = 120
KILLS = 10


@activity.defn
async def flaky(number: int) -> int:
    if activity.info().attempt == 1 and number % 5 == 0:
        raise ValueError("the first attempt fails")
    return number


@workflow.defn
class Busy:
    def __init__(self) -> None:
        self.told: set[int] = set()

    @workflow.run
    async def run(self, number: int) -> list[int]:
        retry = RetryPolicy(initial_interval=timedelta(milliseconds=50))
        found = []
        for step in range(3):
            found.append(
                await workflow.execute_activity(
                    flaky, number + step, start_to_close_timeout=timedelta(seconds=20), retry_policy=retry
                )
            )
            await workflow.sleep(0.1)
        with contextlib.suppress(TimeoutError):
            await workflow.wait_condition(lambda: bool(self.told), timeout=timedelta(seconds=0.5 + number % 3))
        return found

    @workflow.signal
    def tell(self, number: int) -> None:
        self.told.add(number)


@workflow.defn
class OneStep:
    @workflow.run
    async def run(self) -> int:
        return await workflow.execute_activity(flaky, 1, start_to_close_timeout=timedelta(seconds=20))


async def serve(database: str) -> None:
    """The process that is killed: starts what is not started, signals at random, runs all."""
    async with await Client.connect(address(database)) as client, worker(client, [Busy], [flaky]):
        print("ready")
        for number in range(RUNS):
            try:
                handle: Any = await client.start_workflow(Busy.run, number, id=f"run-{number}", task_queue=QUEUE)
            except WorkflowAlreadyStartedError:
                handle = client.get_workflow_handle(f"run-{number}")
                if random.random() < 0.2:
                    await _tell(handle, number)
        print("started")
        await asyncio.Event().wait()


async def _tell(handle: Any, number: int) -> None:
    """Signal a run; one that has closed needs it no more."""
    try:
        await handle.signal(Busy.tell, number)
    except RPCError as error:
        if error.code is not RejectionCode.WORKFLOW_ALREADY_COMPLETED:
            raise


@pytest.mark.slow
async def test_all_complete_after_kills_at_random_moments(tmp_path: Path) -> None:
    database = tmp_path / "clew.db"
    dice = random.Random(77)
    for _ in range(KILLS):
        with Process(serve, str(database)) as process:
            await process.says("ready")
            moment = time.monotonic() + dice.uniform(0.0, 1.2)
            await eventually(lambda moment=moment: time.monotonic() >= moment)  # type: ignore[misc]
            process.kill()
    with Process(serve, str(database)) as process:
        await process.says("started", 40)
        process.kill()
    async with engine(database=database) as client, worker(client, [Busy], [flaky]):
        handles = [client.get_workflow_handle_for(Busy.run, f"run-{number}") for number in range(RUNS)]
        results = await within(asyncio.gather(*(handle.result() for handle in handles)), 60)
        assert results == [[number, number + 1, number + 2] for number in range(RUNS)]
        for handle in handles:
            found = await events(handle)
            assert [event.event_id for event in found] == list(range(1, len(found) + 1))
            closed = Counter(event.scheduled_event_id for event in found if isinstance(event, e.ActivityTaskCompleted))
            assert sorted(closed.values()) == [1, 1, 1]
        await replay_check(handles[0], Busy)


@on_files
async def test_a_lost_task_row_is_made_again_and_an_orphan_is_dropped(tmp_path: Path) -> None:
    database, clock = tmp_path / "clew.db", ManualClock()
    async with engine(clock, database=database) as client:
        for name in ("lost", "orphan"):
            await client.start_workflow(OneStep.run, id=name, task_queue=QUEUE)
    with closing(sqlite3.connect(database, isolation_level=None)) as connection:
        key = {
            name: connection.execute("select run_key from executions where workflow_id = ?", (name,)).fetchone()[0]
            for name in ("lost", "orphan")
        }
        assert connection.execute("select count(*) from tasks").fetchone() == (2,)
        connection.execute("delete from tasks where run_key = ?", (key["lost"],))
        connection.execute("delete from executions where run_key = ?", (key["orphan"],))
        connection.execute("delete from history where run_key = ?", (key["orphan"],))
    async with engine(clock, database=database) as client, worker(client, [OneStep], [flaky]):
        await eventually(lambda: _tasks_count(database) == 0, "the orphaned task is dropped")
        # The documented time within which a missing wake-up is made again.
        clock.advance(SWEEP_INTERVAL)
        assert await settled(client.get_workflow_handle("lost")) == 1


def _tasks_count(database: Path) -> int:
    with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as connection:
        return int(connection.execute("select count(*) from tasks").fetchone()[0])
