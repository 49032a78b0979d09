"""C025: a stuck run says why, where people look.

The metric of failing workflow tasks belongs to telemetry, and the page to the web UI; both show what is checked here.
"""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from clew import activity, workflow
from clew.cli import main
from clew.model import events as e
from clew.testing import ManualClock
from tests.cases.conftest import Recorded
from tests.cases.harness import ACTIVITY, QUEUE, address, engine, events, eventually, parked, settled, within, worker

ATTEMPTS_MAX = 10
"""In 30 seconds, says the case."""


@activity.defn
async def one() -> str:
    return "one"


@activity.defn
async def other() -> str:
    return "other"


class _Waits:
    def __init__(self) -> None:
        self.is_told = False

    async def until_told(self) -> None:
        await workflow.wait_condition(lambda: self.is_told)

    @workflow.signal
    def tell(self) -> None:
        self.is_told = True


@workflow.defn(name="Deployed")
class Before(_Waits):
    @workflow.run
    async def run(self) -> str:
        answer = await workflow.execute_activity(one, **ACTIVITY)
        await self.until_told()
        return answer


@workflow.defn(name="Deployed")
class Incompatible(_Waits):
    @workflow.run
    async def run(self) -> str:
        answer = await workflow.execute_activity(other, **ACTIVITY)
        await self.until_told()
        return answer


async def test_a_mismatch_is_told_everywhere_and_the_old_code_heals_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], recorded: Recorded
) -> None:
    clock, database = ManualClock(), tmp_path / "clew.db"
    async with engine(clock, database=database) as client:
        async with worker(client, [Before], [one]):
            handle = await client.start_workflow(Before.run, id="stuck", task_queue=QUEUE)
            healthy = await client.start_workflow(Before.run, id="healthy", task_queue=QUEUE)
            await parked(handle)
            await parked(healthy)
        [scheduled] = await events(handle, e.ActivityTaskScheduled)
        async with worker(client, [Incompatible], [one, other]):
            await handle.signal(Incompatible.tell)
            waiting = await eventually(lambda: _failing(handle), "the failing task is told")

            # describe: that it fails, how often, and the event where code and history part.
            assert f"Event {scheduled.event_id}" in waiting or f"event {scheduled.event_id}" in waiting
            assert "NonDeterministicError" in waiting
            assert "attempt" in waiting
            pending = (await handle.describe()).pending_workflow_task
            assert pending is not None
            assert pending.last_failure is not None
            assert "'other'" in pending.last_failure.message
            assert "'one'" in pending.last_failure.message

            # Lists find it, and only it; by cause as well.
            for query in (
                "TemporalReportedProblems = 'category=WorkflowTaskFailed'",
                "ExecutionStatus = 'Running' AND TemporalReportedProblems IS NOT NULL",
                "TemporalReportedProblems = 'cause=WorkflowTaskFailedCauseNonDeterministicError'",
            ):
                assert [run.id async for run in client.list_workflows(query)] == ["stuck"]

            # The command line, beside the process that owns the file.
            text = await asyncio.to_thread(_clew, capsys, database, "describe", "stuck")
            assert "workflow task failing" in text
            assert f"vent {scheduled.event_id}" in text
            listed = await asyncio.to_thread(
                _clew, capsys, database, "list", "--query", "TemporalReportedProblems IS NOT NULL", "--output", "json"
            )
            assert [run["workflow_id"] for run in json.loads(listed)] == ["stuck"]

            # Whoever waits for the result is not told a lie: it has none yet.
            with pytest.raises(AssertionError, match="not done within"):
                await within(handle.result(), 0.2)

            # Tries back off.
            for _ in range(300):
                clock.advance(timedelta(milliseconds=100))
                await asyncio.sleep(0)
            pending = (await handle.describe()).pending_workflow_task
            assert pending is not None
            assert pending.attempt <= ATTEMPTS_MAX
        async with worker(client, [Before], [one]):
            # The next try is due within the longest back-off.
            clock.advance(timedelta(minutes=10))
            assert await settled(handle) == "one"
            assert [run.id async for run in client.list_workflows("TemporalReportedProblems IS NOT NULL")] == []
            await healthy.signal(Before.tell)
            assert await settled(healthy) == "one"
        await recorded.add(handle, Before)


@workflow.defn
class Broken:
    @workflow.run
    async def run(self) -> None:
        raise ValueError("a bug in the code")


async def test_any_error_of_the_code_is_told_and_gone_when_the_run_is_ended() -> None:
    async with engine() as client, worker(client, [Broken]):
        handle = await client.start_workflow(Broken.run, id="broken", task_queue=QUEUE)
        waiting = await eventually(lambda: _failing(handle), "the failing task is told")
        assert "a bug in the code" in waiting
        await eventually(lambda: _waiting_for(handle, "backing off since"), "the wait for the next attempt is told")
        found = [run.id async for run in client.list_workflows("TemporalReportedProblems IS NOT NULL")]
        assert found == ["broken"]
        await handle.terminate()
        assert [run.id async for run in client.list_workflows("TemporalReportedProblems IS NOT NULL")] == []


async def _failing(handle: Any) -> str:
    return await _waiting_for(handle, "workflow task failing")


async def _waiting_for(handle: Any, text: str) -> str:
    lines = (await handle.describe()).waiting_for
    return next((line for line in lines if text in line), "")


def _clew(capsys: pytest.CaptureFixture[str], database: Path, *args: str) -> str:
    code = main(["workflow", *args, "--store", address(database)])
    out, err = capsys.readouterr()
    assert code == 0, err
    return out
