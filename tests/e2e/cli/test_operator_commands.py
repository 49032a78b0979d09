"""`clew namespace`, `clew queue`, `clew activity` against a real file, in this process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from clew.cli import main


class Cli:
    """Runs commands and keeps what they printed."""

    def __init__(self, store: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self._store = store
        self._capsys = capsys
        self.out = ""
        self.err = ""

    def __call__(self, *args: str) -> int:
        code = main([*args, "--store", f"sqlite:{self._store}"])
        self.out, self.err = self._capsys.readouterr()
        return code

    def json(self, *args: str) -> Any:
        assert self(*args, "--output", "json") == 0, self.err
        return json.loads(self.out)


@pytest.fixture
def cli(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Cli:
    monkeypatch.setenv("CLEW_CONFIG_FILE", str(tmp_path / "none.toml"))
    return Cli(tmp_path / "claims.db", capsys)


def test_namespaces_are_made_listed_and_described(cli: Cli) -> None:
    made = cli.json("namespace", "create", "claims", "--retention-days", "3", "--limit", "signals_per_run_max=5")
    assert made == {"name": "claims", "retention": "P3D", "limits": {"signals_per_run_max": 5}}
    assert [one["name"] for one in cli.json("namespace", "list")] == ["claims", "default"]
    assert cli.json("namespace", "describe", "claims") == made
    assert cli("namespace", "list") == 0
    assert "3 days" in cli.out
    assert cli("namespace", "create", "claims") == 5
    assert cli("namespace", "create", "a b") == 2
    assert cli("namespace", "create", "x", "--limit", "signals") == 2
    assert "NAME=NUMBER" in cli.err
    assert cli("namespace", "describe", "clams") == 4
    assert "did you mean 'claims'" in cli.err


def test_queues_tell_what_waits(cli: Cli) -> None:
    assert cli("workflow", "start", "w1", "--type", "W", "--task-queue", "shop") == 0
    found = cli.json("queue", "list")
    assert [(one["task_queue"], one["workflow_backlog"]) for one in found] == [("shop", 1)]
    assert cli("queue", "describe", "shop") == 0
    assert "No worker takes tasks of this queue." in cli.err
    assert cli("queue", "list") == 0
    assert "WORKFLOW TASKS" in cli.out


def test_an_activity_that_is_not_there_is_told(cli: Cli) -> None:
    assert cli("workflow", "start", "w1", "--type", "W", "--task-queue", "shop") == 0
    more = {"complete": ("-i", "1"), "fail": ("--message", "no")}
    for verb in ("complete", "fail", "cancel", "heartbeat", "callback"):
        assert cli("activity", verb, "w1", "approve", *more.get(verb, ()), "-o", "json") == 4, verb
        assert json.loads(cli.out)["error"]["code"] == "activity_not_found", verb


def test_a_typo_names_what_was_probably_meant(cli: Cli) -> None:
    assert cli("namespac", "list") == 2
    assert "Did you mean 'namespace'" in cli.err
    assert cli("queue", "lst") == 2
    assert "Did you mean 'list'" in cli.err
