"""Plain functions of local activities that the service loop runs itself, and those that it must not hold on to."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from datetime import timedelta

import pytest

from clew import activity, workflow
from clew.client import Client
from clew.testing import WorkflowEnvironment
from clew.worker import Worker

QUEUE = "quick"
SECONDS_MAX = 20.0

threads: list[str] = []
entered = threading.Event()
release = threading.Event()


@pytest.fixture(autouse=True)
def _clear() -> Iterator[None]:
    threads.clear()
    entered.clear()
    release.clear()
    yield
    release.set()


@activity.defn
def note(what: str) -> str:
    threads.append(threading.current_thread().name)
    if what == "block":
        entered.set()
        release.wait(SECONDS_MAX)
    elif what == "run":
        return asyncio.run(_double(what))
    return activity.info().activity_type + what


async def _double(what: str) -> str:
    return what * 2


@workflow.defn
class Notes:
    @workflow.run
    async def run(self, whats: list[str]) -> list[str]:
        timeout = timedelta(seconds=SECONDS_MAX)
        return [await workflow.execute_local_activity(note, what, start_to_close_timeout=timeout) for what in whats]


@workflow.defn
class Other:
    @workflow.run
    async def run(self) -> str:
        await workflow.sleep(timedelta(milliseconds=10))
        return "done"


async def run(client: Client, key: str, whats: list[str]) -> list[str]:
    async with asyncio.timeout(SECONDS_MAX):
        return await client.execute_workflow(Notes.run, whats, id=key, task_queue=QUEUE)


async def until_lent(client: Client) -> None:
    """Quick ones get to the service loop once they have been measured, on whatever machine this is."""
    deadline = time.monotonic() + SECONDS_MAX
    for number in range(1_000_000):
        await run(client, f"warm-{number}", ["a"] * 10)
        if threads[-1].startswith("clew-service"):
            return
        assert time.monotonic() < deadline, "not once was a call quick"


async def test_quick_ones_run_on_the_service_loop_and_have_no_loop_there() -> None:
    async with await WorkflowEnvironment.start_local() as environment:
        client = environment.client
        async with Worker(client, task_queue=QUEUE, workflows=[Notes, Other], activities=[note]):
            await until_lent(client)
            assert await run(client, "runs", ["a", "run", "b"]) == ["notea", "runrun", "noteb"]


async def test_one_that_blocks_holds_up_nobody_else() -> None:
    async with await WorkflowEnvironment.start_local() as environment:
        client = environment.client
        async with Worker(client, task_queue=QUEUE, workflows=[Notes, Other], activities=[note]):
            await until_lent(client)
            blocked = await client.start_workflow(Notes.run, ["block", "a"], id="blocks", task_queue=QUEUE)
            async with asyncio.timeout(SECONDS_MAX):
                while not entered.is_set():
                    await asyncio.sleep(0.005)
                others = [await client.execute_workflow(Other.run, id=f"other-{n}", task_queue=QUEUE) for n in range(3)]
                assert others == ["done"] * 3
                release.set()
                assert await blocked.result() == ["noteblock", "notea"]
