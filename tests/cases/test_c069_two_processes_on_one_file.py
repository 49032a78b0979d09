"""C069: two processes never dequeue the same row: further processes on a SQLite file join the first one.

Each run is executed once, however many processes and workers there are.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections import Counter
from pathlib import Path

from clew import activity, workflow
from clew.client import Client
from tests.cases.harness import ACTIVITY, QUEUE, Process, on_files, within, worker

pytestmark = on_files

RUNS = 1_000
OTHERS = 3


@activity.defn
async def count(folder: str, name: str) -> None:
    with open(Path(folder) / str(os.getpid()), "a", encoding="utf-8") as file:
        file.write(f"{name}\n")


@workflow.defn
class CountsOnce:
    @workflow.run
    async def run(self, folder: str, name: str) -> None:
        await workflow.execute_activity(count, args=[folder, name], **ACTIVITY)


async def serve(database: str) -> None:
    """Another process on the same file, with a worker."""
    async with await Client.connect(f"sqlite:{database}") as client, worker(client, [CountsOnce], [count]):
        print("serves")
        await asyncio.Event().wait()


async def test_each_run_is_executed_once_by_four_processes_on_one_file(tmp_path: Path) -> None:
    database, folder = tmp_path / "clew.db", tmp_path / "counted"
    folder.mkdir()
    async with await Client.connect(f"sqlite:{database}") as client, worker(client, [CountsOnce], [count]):
        with contextlib.ExitStack() as stack:
            others = [stack.enter_context(Process(serve, str(database))) for _ in range(OTHERS)]
            for other in others:
                await other.says("serves")
            handles = await asyncio.gather(
                *(
                    client.start_workflow(
                        CountsOnce.run, args=[str(folder), f"run-{n}"], id=f"run-{n}", task_queue=QUEUE
                    )
                    for n in range(RUNS)
                )
            )
            await within(asyncio.gather(*(handle.result() for handle in handles)), 60)
    counted = Counter(name for path in folder.iterdir() for name in path.read_text().split())
    assert counted == {f"run-{n}": 1 for n in range(RUNS)}
    assert {path.name for path in folder.iterdir()} == {str(pid) for pid in (os.getpid(), *(o.pid for o in others))}


async def test_the_file_is_free_again_when_its_owner_was_killed(tmp_path: Path) -> None:
    database = tmp_path / "clew.db"
    with Process(own, str(database)) as owner:
        await owner.says("open")
        owner.kill()
        async with await Client.connect(f"sqlite:{database}") as client:
            await client.start_workflow(CountsOnce.run, args=["", "after"], id="after", task_queue=QUEUE)


async def own(database: str) -> None:
    """Hold the file until killed."""
    async with await Client.connect(f"sqlite:{database}"):
        print("open")
        await asyncio.Event().wait()
