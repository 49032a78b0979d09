"""C069: two processes never dequeue the same row: the second one on a SQLite file is refused, and workers share fairly.

Joining the owner of the file comes with the link; until then a second process gets a clear error.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from pathlib import Path

import pytest

from clew import activity, workflow
from clew.client import Client
from clew.service.errors import RPCError
from tests.cases.harness import ACTIVITY, QUEUE, Process, engine, within, worker

RUNS = 1_000

counted: Counter[str] = Counter()


@activity.defn
async def count(name: str) -> None:
    counted[name] += 1


@workflow.defn
class CountsOnce:
    @workflow.run
    async def run(self, name: str) -> None:
        await workflow.execute_activity(count, name, **ACTIVITY)


async def intrude(database: str) -> None:
    """Another process on the same file."""
    try:
        await Client.connect(f"sqlite:{database}")
    except RPCError as error:
        print(f"refused: {error}".replace("\n", " "))
        print("over")
    else:
        print("let in")
        print("over")


async def test_each_run_is_executed_once_and_intruders_are_refused(tmp_path: Path) -> None:
    database = tmp_path / "clew.db"
    async with engine(database=database) as client:
        with Process(intrude, str(database)) as first, Process(intrude, str(database)) as second:
            async with contextlib.AsyncExitStack() as stack:
                for _ in range(4):
                    await stack.enter_async_context(worker(client, [CountsOnce], [count]))
                handles = await asyncio.gather(
                    *(
                        client.start_workflow(CountsOnce.run, f"run-{n}", id=f"run-{n}", task_queue=QUEUE)
                        for n in range(RUNS)
                    )
                )
                await within(asyncio.gather(*(handle.result() for handle in handles)), 60)
            for process in (first, second):
                await process.says("over")
                (line,) = [line for line in process.lines if line != "over"]
                assert line.startswith("refused: ")
                assert str(database) in line
                assert "process" in line
    assert counted == {f"run-{n}": 1 for n in range(RUNS)}


async def test_the_file_is_free_again_when_its_owner_was_killed(tmp_path: Path) -> None:
    database = tmp_path / "clew.db"
    with Process(own, str(database)) as owner:
        await owner.says("open")
        with pytest.raises(RPCError):
            await Client.connect(f"sqlite:{database}")
        owner.kill()
        async with await Client.connect(f"sqlite:{database}") as client:
            await client.start_workflow(CountsOnce.run, "after", id="after", task_queue=QUEUE)


async def own(database: str) -> None:
    """Hold the file until killed."""
    async with await Client.connect(f"sqlite:{database}"):
        print("open")
        await asyncio.Event().wait()
