"""C070: "database is locked" is an internal matter.

The documented bound: a lock of another program is waited for up to the store's busy timeout; after that, callers get a
retryable "unavailable".
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sqlite3
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from clew import activity, workflow
from clew.client import Client
from clew.service.errors import RPCError
from clew.storage.sqlite.connection import WAL_KEPT_BYTES
from clew.storage.sqlite.store import BUSY_TIMEOUT_DEFAULT
from tests.cases.harness import ACTIVITY, QUEUE, engine, eventually, no_errors, on_files, settled, within, worker

pytestmark = on_files

LOAD_SECONDS = 6.0
CLIENTS = 20


@activity.defn
async def step(number: int) -> int:
    return number


@workflow.defn
class Signalled:
    def __init__(self) -> None:
        self.is_told = False

    @workflow.run
    async def run(self, number: int) -> int:
        value = await workflow.execute_activity(step, number, **ACTIVITY)
        await workflow.wait_condition(lambda: self.is_told)
        return value

    @workflow.signal
    def tell(self) -> None:
        self.is_told = True


@contextlib.contextmanager
def _write_lock(database: Path) -> Iterator[None]:
    with contextlib.closing(sqlite3.connect(database, isolation_level=None, timeout=10)) as connection:
        connection.execute("begin immediate")
        yield
        connection.execute("rollback")


async def _load(client: Client, number: int, until: float, finished: list[int]) -> None:
    while time.monotonic() < until:
        value = len(finished) * 100 + number
        id_ = f"c{number}-{time.monotonic_ns()}"
        handle = await client.start_workflow(Signalled.run, value, id=id_, task_queue=QUEUE)
        await handle.signal(Signalled.tell)
        assert await handle.result() == value
        finished.append(value)
        await asyncio.sleep(0.01)


async def _list(client: Client, until: float) -> None:
    while time.monotonic() < until:
        async for _ in client.list_workflows("WorkflowType = 'Signalled'", limit=50):
            pass
        await asyncio.sleep(0.2)


async def _disturb(database: Path, until: float) -> None:
    with contextlib.closing(sqlite3.connect(database, isolation_level=None)) as reader:
        reader.execute("begin")
        reader.execute("select count(*) from executions").fetchone()
        for _ in range(2):
            await asyncio.sleep(0.5)
            with _write_lock(database):
                await asyncio.sleep(1.5)
        reader.execute("rollback")
    assert time.monotonic() < until, "the load has to outlast the disturbance"


async def test_no_lock_error_is_seen_below_the_bound(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    database = tmp_path / "clew.db"
    assert BUSY_TIMEOUT_DEFAULT.total_seconds() > 1.5
    async with engine(database=database) as client:
        async with contextlib.AsyncExitStack() as stack:
            for _ in range(4):
                await stack.enter_async_context(worker(client, [Signalled], [step]))
            finished: list[int] = []
            until = time.monotonic() + LOAD_SECONDS
            await within(
                asyncio.gather(
                    *(_load(client, number, until, finished) for number in range(CLIENTS)),
                    _list(client, until),
                    _disturb(database, until),
                ),
                60,
            )
        count = await client.count_workflows("ExecutionStatus = 'Completed'")
        assert count.count == len(finished) > CLIENTS
        assert (await client.count_workflows("ExecutionStatus = 'Running'")).count == 0
        wal = database.with_name(database.name + "-wal")
        await eventually(lambda: wal.stat().st_size <= WAL_KEPT_BYTES, "the WAL file is small again")
    no_errors(caplog)
    assert not any("locked" in r.getMessage() for r in caplog.records if r.levelno >= logging.ERROR)


@pytest.mark.slow
async def test_beyond_the_bound_callers_get_a_retryable_unavailable(tmp_path: Path) -> None:
    database = tmp_path / "clew.db"
    async with engine(database=database) as client, worker(client, [Signalled], [step]):
        locked, release = threading.Event(), threading.Event()

        def hold() -> None:
            with _write_lock(database):
                locked.set()
                release.wait(60)

        holder = threading.Thread(target=hold)
        holder.start()
        try:
            assert await asyncio.to_thread(locked.wait, 5)
            bound = BUSY_TIMEOUT_DEFAULT.total_seconds()
            with pytest.raises(RPCError) as caught:
                await within(
                    client.start_workflow(
                        Signalled.run, 7, id="late", task_queue=QUEUE, request_id="the same throughout"
                    ),
                    4 * bound + 10,
                )
            assert caught.value.is_retryable
        finally:
            release.set()
            await asyncio.to_thread(holder.join)
        # The same request again: it starts the run, or finds the one that it started.
        handle = await client.start_workflow(
            Signalled.run, 7, id="late", task_queue=QUEUE, request_id="the same throughout"
        )
        await handle.signal(Signalled.tell)
        assert await settled(handle) == 7
