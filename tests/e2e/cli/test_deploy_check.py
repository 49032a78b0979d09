"""`clew deploy check` and `clew replay --query` on a store, beside the process that owns it."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from clew import workflow
from clew.cli import main
from clew.client import Client
from clew.worker import Worker
from tests.cases.harness import parked

OPEN_COUNT = 7

CODE = """
from datetime import timedelta
from clew import workflow

@workflow.defn(name="Waiting")
class Waiting:
    @workflow.run
    async def run(self, name: str) -> str:
        {first}
        return name

@workflow.defn(name="Quick")
class Quick:
    @workflow.run
    async def run(self) -> str:
        return "other"
"""


@workflow.defn(name="Waiting")
class Waiting:
    @workflow.run
    async def run(self, name: str) -> str:
        await workflow.sleep(timedelta(hours=1))
        return name


@workflow.defn(name="Quick")
class Quick:
    @workflow.run
    async def run(self) -> str:
        return "done"


@workflow.defn(name="Forgotten")
class Forgotten:
    @workflow.run
    async def run(self) -> None:
        await workflow.wait_condition(lambda: False)


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Seven runs that wait, one that is closed; the owner lives on another thread until the test is over."""
    address = f"sqlite:{tmp_path / 'runs.db'}"
    ready, over = threading.Event(), threading.Event()
    problems: list[BaseException] = []

    async def own() -> None:
        workflows: list[type[Any]] = [Waiting, Quick, Forgotten]
        async with await Client.connect(address) as client, Worker(client, task_queue="q", workflows=workflows):
            for number in range(OPEN_COUNT):
                handle = await client.start_workflow(Waiting.run, f"w{number}", id=f"w{number}", task_queue="q")
                await parked(handle)
            await client.execute_workflow(Quick.run, id="quick", task_queue="q")
            ready.set()
            await asyncio.to_thread(over.wait, 60)

    def run() -> None:
        try:
            asyncio.run(own())
        except BaseException as error:  # noqa: BLE001 - told to the test
            problems.append(error)
            ready.set()

    thread = threading.Thread(target=run)
    thread.start()
    assert ready.wait(30)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    try:
        assert not problems, problems
        yield address
    finally:
        over.set()
        thread.join(30)


def write(name: str, first: str) -> str:
    Path(f"{name}.py").write_text(CODE.format(first=first), encoding="utf-8")
    return name


def run_json(*args: str) -> tuple[int, Any]:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        code = main([*args, "--output", "json"])
    return code, json.loads(printed.getvalue())


def test_code_that_fits_passes(store: str, capsys: pytest.CaptureFixture[str]) -> None:
    module = write("fits_all", "await workflow.sleep(timedelta(hours=1))")
    assert main(["deploy", "check", "--store", store, "--module", module]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["Waiting", str(OPEN_COUNT), str(OPEN_COUNT), "-"] in lines
    code, found = run_json("deploy", "check", "--store", store, "--module", module)
    assert (code, found["fits"], found["findings"]) == (0, True, [])


def test_what_would_break_is_told_once_with_both_sides_place_and_runs(
    store: str, capsys: pytest.CaptureFixture[str]
) -> None:
    module = write("breaks_one", "await workflow.sleep(timedelta(hours=1)) if name.startswith('x') else None")
    assert main(["deploy", "check", "--store", store, "--module", module]) == 17
    shown = capsys.readouterr().out
    assert f"Waiting would break, seen in {OPEN_COUNT} of its runs:" in shown
    assert "recorded:  TimerStarted (event 5)" in shown
    assert "attempted: CompleteWorkflowExecution" in shown
    assert "breaks_one.py:" in shown
    assert "and 2 more" in shown
    code, found = run_json("deploy", "check", "--store", store, "--module", module)
    [finding] = found["findings"]
    assert (code, finding["workflow_type"], finding["event_id"]) == (17, "Waiting", 5)
    assert {run["workflow_id"] for run in finding["runs"]} == {f"w{number}" for number in range(OPEN_COUNT)}


def test_a_request_more_beside_the_last_one_is_found(store: str) -> None:
    first = "import asyncio; await asyncio.gather(workflow.sleep(timedelta(hours=1)), workflow.sleep(9))"
    code, found = run_json("deploy", "check", "--store", store, "--module", write("asks_more", first))
    assert code == 17
    assert found["findings"][0]["recorded"].startswith("nothing")


def test_a_sample_is_no_larger_than_asked_for(store: str) -> None:
    module = write("fits_some", "await workflow.sleep(timedelta(hours=1))")
    for size in (1, 2, 3, OPEN_COUNT + 1):
        _, found = run_json("deploy", "check", "--store", store, "--module", module, "--sample", str(size))
        [workflows] = found["workflows"]
        assert workflows["open_count"] == OPEN_COUNT
        assert 1 <= workflows["replayed_count"] <= size
        assert workflows["replayed_count"] >= min(size, OPEN_COUNT) / 2


def test_a_type_without_code_would_break(store: str) -> None:
    code, found = run_json("deploy", "check", "--store", store, "--module", "tests.e2e.cli.lonely")
    assert code == 17
    assert "has: Lonely" in found["findings"][0]["problem"]


def test_no_open_runs(store: str, capsys: pytest.CaptureFixture[str]) -> None:
    module = write("fits_none", "pass")
    assert main(["deploy", "check", "--store", store, "--module", module, "--query", "WorkflowType = 'Quick'"]) == 0
    assert "There are no open runs." in capsys.readouterr().err


def test_replay_of_a_query_takes_closed_runs_too(store: str, capsys: pytest.CaptureFixture[str]) -> None:
    module = write("fits_both", "await workflow.sleep(timedelta(hours=1))")
    code, found = run_json("replay", "--store", store, "--module", module, "--query", "")
    assert code == 0
    assert {one["workflow_id"] for one in found} == {"quick", *(f"w{number}" for number in range(OPEN_COUNT))}
    assert main(["replay", "--store", store, "--module", module, "--query", "WorkflowType = 'Quick'"]) == 0
    assert "1 replayed: 1 fits, 0 do not fit." in capsys.readouterr().out


def test_replay_in_processes(store: str) -> None:
    module = write("breaks_apart", "pass")
    code, found = run_json("replay", "--store", store, "--module", module, "--query", "", "--processes", "2")
    assert code == 17
    assert [one["fits"] for one in found if one["workflow_id"] == "quick"] == [True]
    broken = [one for one in found if not one["fits"]]
    assert {one["event_id"] for one in broken} == {5}
    assert len(broken) == OPEN_COUNT


def test_wrong_usage(store: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", "--module", "json"]) == 2
    assert "Give either FILEs, or --query" in capsys.readouterr().err
    Path("raises_at_import.py").write_text("1 / 0", encoding="utf-8")
    assert main(["deploy", "check", "--store", store, "--module", "raises_at_import"]) == 2
    assert "ZeroDivisionError" in capsys.readouterr().err
    assert (
        main(["deploy", "check", "--store", store, "--module", write("ok", "pass"), "--data-converter", "json:x"]) == 2
    )
    assert "name a DataConverter" in capsys.readouterr().err
