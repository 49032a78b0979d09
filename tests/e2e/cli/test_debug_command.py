"""`clew workflow debug` and `clew workflow stack`, on a store and on an exported history."""

from __future__ import annotations

import asyncio
import io
import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from clew import activity, workflow
from clew.cli import main
from clew.client import Client
from clew.worker import Worker
from tests.cases.harness import ACTIVITY, eventually, parked

DEADLINE = 30.0


@activity.defn
async def double(number: int) -> int:
    return number * 2


async def doubled(number: int) -> int:
    return await workflow.execute_activity(double, number, **ACTIVITY)  # the helper's line


@workflow.defn(name="Doubling")
class Doubling:
    def __init__(self) -> None:
        self.steps: list[int] = []

    @workflow.run
    async def run(self, number: int) -> int:
        total = number
        total = await doubled(total)
        self.steps.append(total)
        beside = asyncio.create_task(self.wait_beside("other"), name="beside")
        await workflow.sleep(timedelta(hours=1))  # the waiting line
        await beside
        return total

    async def wait_beside(self, what: str) -> None:
        await workflow.wait_condition(lambda: what == "never")


@workflow.defn(name="Raising")
class Raising:
    @workflow.run
    async def run(self, number: int) -> int:
        half = number // 2
        return self.divide(half)

    def divide(self, half: int) -> int:
        return half // 0  # the raising line


@pytest.fixture
def store(tmp_path: Path) -> str:
    address = f"sqlite:{tmp_path / 'runs.db'}"

    async def run() -> None:
        workflows: list[type[Any]] = [Doubling, Raising]
        async with (
            await Client.connect(address) as client,
            Worker(client, task_queue="q", workflows=workflows, activities=[double]),
        ):
            handle = await client.start_workflow(Doubling.run, 21, id="d", task_queue="q")
            await eventually(lambda: _has(handle, "TimerStarted"))
            raising = await client.start_workflow(Raising.run, 9, id="r", task_queue="q")
            await eventually(lambda: _has(raising, "WorkflowTaskFailed"))
            await parked(handle)

    asyncio.run(asyncio.wait_for(run(), DEADLINE))
    return address


async def _has(handle: Any, name: str) -> bool:
    return any(type(event).__name__ == name for event in (await handle.fetch_history()).events)


def debug(monkeypatch: pytest.MonkeyPatch, typed: str, *args: str) -> int:
    monkeypatch.setattr("sys.stdin", io.StringIO(typed))
    return main(["workflow", "debug", *args, "--module", __name__])


def test_stack_names_every_waiting_line(store: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["workflow", "stack", "d", "--store", store, "--module", __name__]) == 0
    shown = capsys.readouterr().out
    assert "await workflow.sleep(timedelta(hours=1))  # the waiting line" in shown
    assert "beside (most recent call last):" in shown
    assert "total = " not in shown


def test_stack_with_locals(store: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["workflow", "stack", "d", "--locals", "--store", store, "--module", __name__]) == 0
    shown = capsys.readouterr().out
    assert "total = 42" in shown
    assert "what = 'other'" in shown
    assert "self = <Doubling steps=[42]>" in shown


def test_stack_as_json(store: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["workflow", "stack", "d", "--locals", "--store", store, "--module", __name__, "-o", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [one["task"] for one in found["stacks"]] == ["run", "beside"]
    frame = found["stacks"][0]["frames"][-1]
    assert (frame["file"], frame["function"], frame["locals"]["total"]) == (__file__, "Doubling.run", "42")


def test_print_at_an_earlier_event(store: str, capsys: pytest.CaptureFixture[str]) -> None:
    args = ["workflow", "debug", "d", "--store", store, "--module", __name__, "--print", "--at", "5"]
    assert main(args) == 0
    shown = capsys.readouterr().out
    assert "Doubling d, at event 5 of" in shown
    assert "ActivityTaskScheduled double" in shown
    assert "# the helper's line" in shown
    assert "number = 21" in shown
    assert "total = 21" in shown


def test_the_debugger_looks_at_frames_and_walks_along_the_history(
    store: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    typed = (
        "p number\nup\np total\nnext\np total\np self.steps\ntasks\ntask 1\np what\nprev\np number\nstep\nevents\nq\n"
    )
    assert debug(monkeypatch, typed, "d", "--store", store, "--at", "5") == 0
    shown = capsys.readouterr().out
    told = [line.removeprefix("(clew) ") for line in shown.splitlines()]
    values = [line for line in told if line in ("21", "42", "[42]", "'other'")]
    assert values == ["21", "21", "42", "[42]", "'other'", "21"]
    assert "Nothing runs here" in shown
    assert "beside: " in shown
    assert "-> " in shown


def test_a_failed_workflow_task_stands_on_the_line_that_raised(
    store: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert debug(monkeypatch, "p half\nup\np number\n", "r", "--store", store, "--at", "4") == 0
    shown = capsys.readouterr().out
    assert "ZeroDivisionError" in shown
    assert "# the raising line" in shown
    told = [line.removeprefix("(clew) ") for line in shown.splitlines()]
    assert [line for line in told if line in ("4", "9")] == ["4", "9"]


def test_an_exported_history(store: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["workflow", "show", "d", "--store", store, "--output", "json"]) == 0
    exported = tmp_path / "d.json"
    exported.write_text(capsys.readouterr().out, encoding="utf-8")
    assert main(["workflow", "debug", "--file", str(exported), "--module", __name__, "--print"]) == 0
    assert "# the waiting line" in capsys.readouterr().out


def test_wrong_usage(store: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["workflow", "debug", "--module", __name__]) == 2
    assert "Give either a WORKFLOW_ID" in capsys.readouterr().err
    assert main(["workflow", "debug", "d", "--store", store, "--module", __name__, "--at", "999"]) == 2
    assert "There is no event 999: the history ends with event" in capsys.readouterr().err
    assert main(["workflow", "stack", "nope", "--store", store, "--module", __name__]) == 4
