"""Runs that are reset, through the client, the blocking client and the command, with real workers."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from clew import activity, workflow
from clew.cli import main
from clew.client import BlockingClient, Client, ResetReapplyExcludeType, ResetType, RPCError, WorkflowFailureError
from clew.exceptions import ApplicationError
from clew.model import events as e
from clew.worker import Worker

QUEUE = "resets"
WAIT_SECONDS = 60
keys: list[str] = []


@activity.defn
async def step(number: int) -> int:
    keys.append(activity.info().idempotency_key)
    return number


def process(*, is_mended: bool) -> type[Any]:
    @workflow.defn(name="Process")
    class Process:
        def __init__(self) -> None:
            self.notes: list[str] = []

        @workflow.run
        async def run(self) -> list[Any]:
            numbers = [
                await workflow.execute_activity(step, n, start_to_close_timeout=timedelta(minutes=1)) for n in (1, 2)
            ]
            await workflow.wait_condition(lambda: len(self.notes) == 2)
            if not is_mended:
                raise ApplicationError("a bug")
            return [*numbers, *self.notes]

        @workflow.signal
        def note(self, text: str) -> None:
            self.notes.append(text)

        @workflow.update
        async def add(self, text: str) -> int:
            self.notes.append(text)
            return len(self.notes)

    return Process


@pytest.fixture(autouse=True)
def no_keys() -> None:
    keys.clear()


async def _failed(client: Client) -> Any:
    """A run that took a signal and an update, and failed by a bug."""
    async with Worker(client, task_queue=QUEUE, workflows=[process(is_mended=False)], activities=[step]):
        handle = await client.start_workflow("Process", id="w", task_queue=QUEUE)
        await handle.signal("note", "first")
        assert await handle.execute_update("add", "second") == 2
        with pytest.raises(WorkflowFailureError):
            await handle.result()
    return handle


@pytest.mark.parametrize("point", ["first", "last"])
async def test_a_failed_run_goes_on_with_mended_code(tmp_path: Path, point: str) -> None:
    async with asyncio.timeout(WAIT_SECONDS):
        client = await Client.connect(f"sqlite:{tmp_path / 'r.db'}")
        handle = await _failed(client)
        before = len(keys)
        async with Worker(client, task_queue=QUEUE, workflows=[process(is_mended=True)], activities=[step]):
            made = await handle.reset(
                reason="mended",
                reset_type=ResetType.FIRST_WORKFLOW_TASK if point == "first" else ResetType.LAST_WORKFLOW_TASK,
            )
            assert made.run_id != handle.result_run_id
            assert sorted(map(str, await made.result())) == ["1", "2", "first", "second"]
        assert len(set(keys)) == 2
        assert (len(keys) > before) is (point == "first")
        description = await client.get_workflow_handle("w").describe()
        assert (description.run_id, description.status.name) == (made.run_id, "COMPLETED")
        await client.close()


async def test_what_came_after_the_point_can_be_left_out(tmp_path: Path) -> None:
    async with asyncio.timeout(WAIT_SECONDS):
        client = await Client.connect(f"sqlite:{tmp_path / 'r.db'}")
        handle = await _failed(client)
        made = await handle.reset(
            reason="mended",
            reset_type=ResetType.FIRST_WORKFLOW_TASK,
            reapply_exclude=[ResetReapplyExcludeType.SIGNAL, ResetReapplyExcludeType.UPDATE],
        )
        history = [event async for event in made.fetch_history_events()]
        seam = next(event.event_id for event in history if isinstance(event, e.WorkflowTaskFailed))
        kinds = (e.WorkflowExecutionSignaled, e.WorkflowExecutionUpdateAdmitted)
        assert not [event for event in history[seam:] if isinstance(event, kinds)]
        with pytest.raises(RPCError, match="No point to reset to"):
            await handle.reset(reason="where to?")
        await client.close()


def test_the_blocking_client_and_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    address = f"sqlite:{tmp_path / 'r.db'}"

    async def fail() -> None:
        client = await Client.connect(address)
        await _failed(client)
        await client.close()

    asyncio.run(asyncio.wait_for(fail(), WAIT_SECONDS))
    with BlockingClient.connect(address) as client:
        made = client.get_workflow_handle("w").reset(reason="once", reset_type=ResetType.LAST_WORKFLOW_TASK)
        assert made.describe().run_id == made.run_id
    place = ["--store", address]
    args = ["workflow", "reset", "w", "--type", "first", "--reason", "twice", "--exclude", "signals", *place]
    assert main([*args, "--output", "json"]) == 0, capsys.readouterr().err
    answer = json.loads(capsys.readouterr().out)
    assert answer["workflow_id"] == "w"
    assert main(["workflow", "describe", "w", "--output", "json", *place]) == 0
    described = json.loads(capsys.readouterr().out)
    assert described["info"]["run_id"] == answer["run_id"] != made.run_id
    assert main(["workflow", "reset", "w", "--event-id", "999", "--reason", "x", *place]) == 2
    assert "is not in the history" in capsys.readouterr().err
    assert main(["workflow", "reset", "nobody", "--type", "last", "--reason", "x", *place]) == 4
