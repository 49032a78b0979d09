"""`clew lint` as people, scripts and pre-commit run it."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest

from clew.cli import main

ROOT = Path(__file__).parents[3]

BAD = """\
import time
from clew import workflow
from helpers import stamp

@workflow.defn
class Flow:
    @workflow.run
    async def run(self) -> float:
        return stamp()
"""
HELPERS = "import time\n\ndef stamp() -> float:\n    return time.time()\n"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "flow.py").write_text(BAD, encoding="utf-8")
    (tmp_path / "helpers.py").write_text(HELPERS, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_finding_names_place_rule_reason_remedy_and_way(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lint"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(
        "helpers.py:4:12: CLW101 time.time() in workflow Flow: a replay would read another time."
    )
    assert "workflow.now()" in lines[0]
    assert lines[1].strip() == "called from Flow.run (flow.py:9)"
    assert lines[2] == "2 files checked: 1 finding."


def test_json(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lint", "flow.py", "-o", "json"]) == 1
    found = json.loads(capsys.readouterr().out)
    [finding] = found["findings"]
    assert found["files"] == 1
    assert (finding["path"], finding["line"], finding["column"], finding["code"]) == ("helpers.py", 4, 12, "CLW101")
    assert (finding["name"], finding["via"]) == ("clock", ["Flow.run (flow.py:9)"])


def test_nothing_found(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lint", "--ignore", "CLW101"]) == 0
    assert capsys.readouterr().out == "2 files checked.\n"
    assert main(["lint", "--select", "CLW2,CLW3", "flow.py"]) == 0


def test_explain(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lint", "--explain", "clw201"]) == 0
    shown = capsys.readouterr().out
    assert "CLW201 set-order" in shown
    assert "What to do:" in shown


def test_wrong_usage(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lint", "nowhere.py"]) == 2
    assert "no file or directory 'nowhere.py'" in capsys.readouterr().err
    assert main(["lint", "--select", "E501"]) == 2
    assert "There is no rule 'E501'" in capsys.readouterr().err
    assert main(["lint", "--explain", "CLW999"]) == 2


def test_the_pre_commit_hook_runs_this_command() -> None:
    lines = (ROOT / ".pre-commit-hooks.yaml").read_text(encoding="utf-8").splitlines()
    facts = dict(line.strip(" -").split(": ", 1) for line in lines if ": " in line and not line.startswith("#"))
    assert facts["entry"] == "clew lint"
    assert facts["types"] == "[python]"
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    assert facts["additional_dependencies"] == json.dumps(extras["cli"])


def test_the_examples_of_clew_are_clean(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(ROOT)
    assert main(["lint", "examples"]) == 0, capsys.readouterr().out
