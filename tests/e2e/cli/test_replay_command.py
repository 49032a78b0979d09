"""`clew replay` over what `clew workflow show` exported."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta
from pathlib import Path

import pytest

from clew import activity, workflow
from clew.cli import main
from clew.client import Client
from clew.worker import Worker

DEADLINE = 30.0


@activity.defn
async def double(number: int) -> int:
    return number * 2


@workflow.defn(name="Doubling")
class Doubling:
    @workflow.run
    async def run(self, number: int) -> int:
        return await workflow.execute_activity(double, number, start_to_close_timeout=timedelta(seconds=10))


CHANGED = """
from datetime import timedelta
from clew import workflow

@workflow.defn(name="Doubling")
class Doubling:
    @workflow.run
    async def run(self, number: int) -> int:
        await workflow.sleep(1)
        return number
"""


@pytest.fixture
def exported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    store = f"sqlite:{tmp_path / 'doubling.db'}"

    async def run() -> int:
        async with (
            await Client.connect(store) as client,
            Worker(client, task_queue="q", workflows=[Doubling], activities=[double]),
        ):
            return await client.execute_workflow(Doubling.run, 21, id="d", task_queue="q")

    assert asyncio.run(asyncio.wait_for(run(), DEADLINE)) == 42
    assert main(["workflow", "show", "d", "--store", store, "--output", "json"]) == 0
    path = tmp_path / "history.json"
    path.write_text(capsys.readouterr().out)
    return path


def test_code_that_fits(exported: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", str(exported), "--module", __name__]) == 0
    assert "fits" in capsys.readouterr().out


def test_code_that_no_longer_fits(
    exported: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "changed_doubling.py").write_text(CHANGED)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert main(["replay", str(exported), "--module", "changed_doubling", "-o", "json"]) == 17
    [result] = json.loads(capsys.readouterr().out)
    assert result["fits"] is False
    assert "NondeterminismError" in result["problem"]


def test_wrong_usage_is_named(exported: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", str(exported), "--module", "no_such_module"]) == 2
    assert "Cannot load module 'no_such_module'" in capsys.readouterr().err
    assert main(["replay", str(exported), "--module", "json"]) == 2
    assert "No class decorated with @workflow.defn" in capsys.readouterr().err
    bad = tmp_path / "bad.json"
    bad.write_text("{}")
    assert main(["replay", str(bad), "--module", __name__]) == 2
    assert "not an exported history" in capsys.readouterr().err
