"""Several processes on one SQLite file: the first owns it, the others join it, and one takes over when it goes."""

from __future__ import annotations

import asyncio
import os
import signal
import stat
import time
from datetime import timedelta
from pathlib import Path

import pytest

from clew import activity, workflow
from clew.client import Client
from clew.common import RetryPolicy
from clew.worker import Worker
from tests.cases.harness import Process, eventually

QUEUE = "joining"
SECONDS_MAX = 30.0


@activity.defn
async def where(_: int) -> int:
    """The process that it ran in."""
    return os.getpid()


@activity.defn
async def wait_for_file(path: str) -> int:
    """Takes until there is a file, and counts how often it was begun."""
    with open(f"{path}.begun", "a", encoding="utf-8") as file:
        file.write("x")
    while not os.path.exists(path):
        await asyncio.sleep(0.02)
    return os.path.getsize(f"{path}.begun")


@workflow.defn
class Waits:
    @workflow.run
    async def run(self, path: str) -> int:
        return await workflow.execute_activity(
            wait_for_file,
            path,
            start_to_close_timeout=timedelta(minutes=5),
            retry_policy=RetryPolicy(maximum_attempts=1),
        )


@workflow.defn
class Asks:
    @workflow.run
    async def run(self, count: int) -> list[int]:
        pids = []
        for number in range(count):
            pids.append(await workflow.execute_activity(where, number, start_to_close_timeout=timedelta(seconds=30)))
        return pids


async def serve(database: str) -> None:
    """A worker until killed."""
    client = await Client.connect(f"sqlite:{database}")
    async with Worker(client, task_queue=QUEUE, workflows=[Asks, Waits], activities=[where, wait_for_file]):
        print("serves")
        await asyncio.Event().wait()


async def hold(database: str) -> None:
    """A client that does nothing, until killed."""
    async with await Client.connect(f"sqlite:{database}"):
        print("holds")
        await asyncio.Event().wait()


async def hold_until_told(database: str, until: str) -> None:
    """A client that does nothing, until a file is there; then it closes."""
    async with await Client.connect(f"sqlite:{database}"):
        print("holds")
        while not os.path.exists(until):
            await asyncio.sleep(0.02)
    print("closed")


async def hold_with_a_child(database: str, until: str) -> None:
    """As `hold`, with a forked child that lives on until a file is there."""
    async with await Client.connect(f"sqlite:{database}"):
        if not os.fork():
            while not os.path.exists(until):
                time.sleep(0.02)
            os._exit(0)
        print("holds")
        await asyncio.Event().wait()


async def run_workflow(client: Client, workflow_id: str, count: int = 3) -> list[int]:
    """Run one workflow."""
    return await asyncio.wait_for(
        client.execute_workflow(Asks.run, count, id=workflow_id, task_queue=QUEUE), SECONDS_MAX
    )


@pytest.mark.e2e
async def test_a_second_process_joins_and_its_worker_serves(tmp_path: Path) -> None:
    database = str(tmp_path / "clew.db")
    async with await Client.connect(f"sqlite:{database}") as client:
        with Process(serve, database) as other:
            await other.says("serves")
            assert await run_workflow(client, "w1") == [other.pid] * 3
        mode = stat.S_IMODE(os.stat(f"{database}.sock").st_mode)
        assert mode == 0o600
    assert not os.path.exists(f"{database}.sock")


@pytest.mark.e2e
async def test_the_others_go_on_when_the_owner_is_killed(tmp_path: Path) -> None:
    database = str(tmp_path / "clew.db")
    with Process(hold, database) as owner:
        await owner.says("holds")
        with Process(serve, database) as other:
            await other.says("serves")
            async with await Client.connect(f"sqlite:{database}") as client:
                assert await run_workflow(client, "before") == [other.pid] * 3
                many = [asyncio.create_task(run_workflow(client, f"during-{n}", 10)) for n in range(20)]
                await eventually(lambda: any(task.done() for task in many), "some have ended")
                owner.kill()
                results = await asyncio.wait_for(asyncio.gather(*many), SECONDS_MAX)
                assert results == [[other.pid] * 10] * 20
                assert await run_workflow(client, "after") == [other.pid] * 3
                assert (await client.count_workflows()).count == 22


@pytest.mark.e2e
async def test_the_others_go_on_when_the_owner_stops(tmp_path: Path) -> None:
    database, word = str(tmp_path / "clew.db"), tmp_path / "stop"
    with Process(hold_until_told, database, str(word)) as owner:
        await owner.says("holds")
        with Process(serve, database) as other:
            await other.says("serves")
            async with await Client.connect(f"sqlite:{database}") as client:
                many = [asyncio.create_task(run_workflow(client, f"during-{n}", 10)) for n in range(20)]
                await eventually(lambda: any(task.done() for task in many), "some have ended")
                word.touch()
                await owner.says("closed")
                assert owner.wait() == 0
                results = await asyncio.wait_for(asyncio.gather(*many), SECONDS_MAX)
                assert results == [[other.pid] * 10] * 20
                assert await run_workflow(client, "after") == [other.pid] * 3


@pytest.mark.e2e
async def test_what_a_worker_does_when_the_owner_is_killed_is_not_lost(tmp_path: Path) -> None:
    database, word = str(tmp_path / "clew.db"), tmp_path / "go"
    with Process(hold, database) as owner:
        await owner.says("holds")
        with Process(serve, database) as other:
            await other.says("serves")
            async with await Client.connect(f"sqlite:{database}") as client:
                handle = await client.start_workflow(Waits.run, str(word), id="busy", task_queue=QUEUE)
                await eventually(lambda: Path(f"{word}.begun").exists(), "the activity has begun", SECONDS_MAX)
                owner.kill()
                # The next owner has been at work before the activity ends.
                assert await run_workflow(client, "after") == [other.pid] * 3
                word.touch()
                assert await asyncio.wait_for(handle.result(), SECONDS_MAX) == 1, "begun once"


@pytest.mark.e2e
async def test_a_forked_child_of_a_killed_owner_is_in_nobodys_way(tmp_path: Path) -> None:
    database, word = str(tmp_path / "clew.db"), tmp_path / "end"
    try:
        with Process(hold_with_a_child, database, str(word)) as owner:
            await owner.says("holds")
            async with await Client.connect(f"sqlite:{database}") as client:
                assert (await client.count_workflows()).count == 0
                os.kill(owner.pid, signal.SIGKILL)
                assert (await asyncio.wait_for(client.count_workflows(), SECONDS_MAX)).count == 0
                async with await Client.connect(f"sqlite:{database}") as another:
                    assert (await another.count_workflows()).count == 0
            word.touch()
    finally:
        word.touch()


async def test_a_long_path_is_joined_too(tmp_path: Path) -> None:
    folder = tmp_path / ("long" * 20) / ("longer" * 10)
    folder.mkdir(parents=True)
    database = str(folder / "clew.db")
    with Process(hold, database) as owner:
        await owner.says("holds")
        async with await Client.connect(f"sqlite:{database}") as client:
            assert (await client.count_workflows()).count == 0
