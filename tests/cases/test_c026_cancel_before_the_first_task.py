"""C026: a cancel that is requested before the first task reaches `run` at its first await."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from clew import activity, workflow
from clew.client import WorkflowFailureError
from clew.common import WorkflowExecutionStatus
from clew.exceptions import ActivityError, CancelledError, is_cancelled_exception
from clew.model import events as e
from tests.cases.conftest import Recorded
from tests.cases.harness import ACTIVITY, QUEUE, engine, events, eventually, settled, within, worker

cleanups: list[str] = []


@pytest.fixture(autouse=True)
def _clear() -> None:
    cleanups.clear()


@activity.defn
async def work() -> None:
    await asyncio.sleep(30)


@activity.defn
async def clean_up(what: str) -> None:
    cleanups.append(what)


@workflow.defn
class Cleans:
    def __init__(self) -> None:
        self.log: list[str] = []

    @workflow.run
    async def run(self) -> None:
        self.log.append("entered")
        try:
            await workflow.execute_activity(work, **ACTIVITY)
        except ActivityError as error:
            self.log.append("cancelled" if is_cancelled_exception(error) else repr(error))
            await workflow.execute_activity(clean_up, ",".join(self.log), **ACTIVITY)
            raise

    @workflow.signal
    def note(self, text: str) -> None:
        self.log.append(text)

    @workflow.update
    def count(self) -> int:
        self.log.append("update")
        return len(self.log)


@workflow.defn
class CleansPlainly:
    """As the case has it: `except CancelledError` of asyncio."""

    @workflow.run
    async def run(self) -> None:
        try:
            await workflow.sleep(30)
        except asyncio.CancelledError:
            await workflow.execute_activity(clean_up, "plainly", **ACTIVITY)
            raise


async def _is_cancelled(handle: Any) -> None:
    error = await settled(handle)
    assert isinstance(error, WorkflowFailureError), error
    assert isinstance(error.cause, CancelledError)
    assert (await handle.describe()).status is WorkflowExecutionStatus.CANCELED


@pytest.mark.parametrize("cache", [0, 100], ids=["cold", "warm"])
@pytest.mark.parametrize(("kind", "noted"), [(Cleans, "entered,cancelled"), (CleansPlainly, "plainly")])
async def test_run_is_entered_and_cleans_up_once(kind: Any, noted: str, cache: int, recorded: Recorded) -> None:
    async with engine() as client:
        handle = await client.start_workflow(kind.run, id="early", task_queue=QUEUE)
        await handle.cancel()
        async with worker(client, [kind], [work, clean_up], cache=cache):
            await _is_cancelled(handle)
        assert cleanups == [noted]
        await recorded.add(handle, kind)


async def test_signal_cancel_and_update_in_one_task_with_the_start(recorded: Recorded) -> None:
    async with engine() as client:
        handle = await client.start_workflow(Cleans.run, id="early", task_queue=QUEUE)
        await handle.signal(Cleans.note, "signal")
        await handle.cancel()
        update = asyncio.create_task(handle.execute_update(Cleans.count))
        await eventually(lambda: _has_update(handle), "the update is admitted")
        async with worker(client, [Cleans], [work, clean_up]):
            assert await within(update) == 2
            await _is_cancelled(handle)
        assert cleanups == ["signal,update,entered,cancelled"]
        assert len(await events(handle, e.WorkflowExecutionCancelRequested)) == 1
        await recorded.add(handle, Cleans)


async def _has_update(handle: Any) -> bool:
    return any("update" in line for line in (await handle.describe()).waiting_for)
