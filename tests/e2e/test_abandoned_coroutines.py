"""A coroutine that a run has dropped in a cycle is closed by the collector while another run is active: what its
``finally`` asks for is nobody's command."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from datetime import timedelta

import pytest

from clew import activity, workflow
from clew.client import Client
from clew.model import events as e
from clew.worker import Worker

LONG = timedelta(seconds=100)

closed: list[str] = []


@activity.defn
async def echo(text: str) -> str:
    return text


async def section() -> None:
    try:
        await workflow.sleep(1000)
    finally:
        closed.append("in a workflow" if workflow.in_workflow() else "outside")
        await workflow.execute_local_activity(echo, "clean up", start_to_close_timeout=LONG)


@workflow.defn
class Drops:
    @workflow.run
    async def run(self) -> str:
        begun = section()
        cycle: list[object] = [begun]
        cycle.append(cycle)
        begun.send(None)
        return "dropped"


@workflow.defn
class Collects:
    @workflow.run
    async def run(self) -> str:
        gc.collect()
        return await workflow.execute_local_activity(echo, "mine", start_to_close_timeout=LONG)


@pytest.fixture
def _collected_by_hand() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("_collected_by_hand")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
async def test_what_a_dropped_coroutine_asks_for_goes_into_no_other_run() -> None:
    closed.clear()
    async with (
        await Client.connect("sqlite::memory:") as client,
        Worker(client, task_queue="drops", workflows=[Drops, Collects], activities=[echo]),
    ):
        assert await client.execute_workflow(Drops.run, id="drops", task_queue="drops") == "dropped"
        handle = await client.start_workflow(Collects.run, id="collects", task_queue="drops")
        assert await handle.result() == "mine"
        history = await handle.fetch_history()
    assert closed == ["outside"]
    assert [type(event) for event in history.events].count(e.MarkerRecorded) == 1
