"""C038: an activity that takes long runs once, and is taken over soon when its worker is killed.

In the embedded shape an attempt is leased to the session of its worker, for as long as that lives; there is no lease to
renew. A killed process takes the session with it, and its successor on the file starts the next attempt at once.
"""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from clew import activity, workflow
from clew.client import Client
from tests.cases.harness import ON_POSTGRES, QUEUE, Process, address, engine, eventually, replay_check, settled, worker

SECONDS = 2.0


def _note_start(file: str) -> None:
    with Path(file).open("a") as stream:
        stream.write(f"{activity.info().attempt} {time.time()}\n")


def _starts(file: Path) -> list[str]:
    return file.read_text().splitlines() if file.exists() else []


@activity.defn
def blocking(file: str) -> str:
    _note_start(file)
    time.sleep(SECONDS)
    return "done"


@activity.defn
async def awaiting(file: str) -> str:
    _note_start(file)
    for _ in range(20):
        await asyncio.sleep(SECONDS / 20)
    return "done"


@workflow.defn
class Long:
    @workflow.run
    async def run(self, name: str, file: str) -> str:
        return await workflow.execute_activity(name, file, start_to_close_timeout=timedelta(seconds=20))


@pytest.mark.parametrize("name", ["blocking", "awaiting"])
async def test_exactly_one_start(name: str, tmp_path: Path) -> None:
    file = tmp_path / "starts"
    async with engine() as client:
        one, two = (worker(client, [Long], [blocking, awaiting]) for _ in range(2))
        async with one, two:
            clock = time.monotonic()
            handle = await client.start_workflow(Long.run, args=[name, str(file)], id="long", task_queue=QUEUE)
            assert await settled(handle) == "done"
            assert time.monotonic() - clock < SECONDS + 1.5
            assert len(_starts(file)) == 1
            await replay_check(handle, Long)


async def serve(database: str, file: str) -> None:
    """The process that is killed."""
    async with await Client.connect(address(database)) as client, worker(client, [Long], [blocking, awaiting]):
        await client.start_workflow(Long.run, args=["awaiting", file], id="long", task_queue=QUEUE)
        await asyncio.Event().wait()


async def test_a_killed_worker_is_followed_within_a_second(tmp_path: Path) -> None:
    database, file = tmp_path / "clew.db", tmp_path / "starts"
    with Process(serve, str(database), str(file)) as process:
        await eventually(lambda: _starts(file), "the first attempt has started", 20)
        process.kill()
        async with engine(database=database) as client, worker(client, [Long], [blocking, awaiting]):
            taken_over_at = time.time()
            await eventually(lambda: len(_starts(file)) == 2, "the second attempt has started")
            attempt, started_at = _starts(file)[1].split()
            assert attempt == "2"
            # On a file nobody else can be there; of a fleet a node counts as dead when its lease is over.
            assert float(started_at) - taken_over_at < (20.0 if ON_POSTGRES else 1.0)
            handle: Any = client.get_workflow_handle("long")
            assert await settled(handle) == "done"
            assert len(_starts(file)) == 2
            await replay_check(handle, Long)
