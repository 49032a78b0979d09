"""`clew workflow …` against a real file, in this process; those that need another process are in test_processes.py."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from clew.cli import main
from clew.cli._errors import problem_of
from clew.cli._watching import watch_option
from clew.client import WorkflowHistory
from clew.exceptions import ApplicationError, WorkflowUpdateFailedError


class Cli:
    """Runs commands and keeps what they printed."""

    def __init__(self, store: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.store = store
        self._capsys = capsys
        self.out = ""
        self.err = ""

    def __call__(self, *args: str) -> int:
        code = main([*args, "--store", f"sqlite:{self.store}"])
        self.out, self.err = self._capsys.readouterr()
        return code

    def json(self, *args: str) -> Any:
        assert self(*args, "--output", "json") == 0, self.err
        return json.loads(self.out)

    def start(self, workflow_id: str, *args: str) -> None:
        assert self("workflow", "start", workflow_id, "--type", "Claim", "--task-queue", "claims", *args) == 0, self.err


@pytest.fixture
def cli(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Cli:
    monkeypatch.delenv("CLEW_ADDRESS", raising=False)
    return Cli(tmp_path / "claims.db", capsys)


def test_a_run_from_start_to_end(cli: Cli) -> None:
    cli.start("claim-1", "--input", '{"amount": 9007199254740993}')
    assert "Started workflow 'claim-1'" in cli.out
    assert cli("workflow", "list") == 0
    assert "Running" in cli.out
    assert cli("workflow", "signal", "claim-1", "--name", "photos", "--input", "[1, 2]") == 0
    assert cli("workflow", "describe", "claim-1") == 0
    assert "Waiting for:" in cli.out
    assert "workflow task" in cli.out
    assert cli("workflow", "terminate", "claim-1", "--reason", "enough") == 0
    assert cli("workflow", "show", "claim-1") == 0
    assert [line.split()[2:5] for line in cli.out.splitlines()] == [
        ["workflow", "Claim", "started"],
        ["signal", "photos", "received"],
        ["workflow", "terminated", "enough"],
    ]
    assert "9007199254740993" in cli.out
    assert cli("workflow", "show", "claim-1", "--full") == 0
    assert "WorkflowTaskScheduled" in cli.out


def test_json_output_is_one_document_and_an_export_can_be_read_back(cli: Cli) -> None:
    cli.start("claim-1", "--input", "1")
    exported = cli.json("workflow", "show", "claim-1")
    history = WorkflowHistory.from_json(None, exported)
    assert (history.workflow_id, len(history)) == ("claim-1", 2)
    [listed] = cli.json("workflow", "list")
    assert (listed["workflow_id"], listed["status"], listed["run_id"]) == ("claim-1", "Running", history.run_id)
    assert cli.json("workflow", "describe", "claim-1")["info"]["workflow_type"] == "Claim"
    assert cli.json("workflow", "count") == {"count": 1, "groups": {"Running": 1}}
    assert cli("workflow", "show", "claim-1", "-o", "jsonl") == 0
    assert [json.loads(line)["event_id"] for line in cli.out.splitlines()] == [1, 2]


def test_a_signal_and_a_cancel_of_a_missing_run_have_the_exit_code_of_not_found(cli: Cli) -> None:
    cli.start("claim-1")
    for command in (["signal", "nope", "--name", "x"], ["cancel", "nope"], ["terminate", "nope"], ["describe", "nope"]):
        assert cli("workflow", *command) == 4, command
        assert "nope" in cli.err
        assert cli.out == ""


def test_an_id_that_is_taken_has_its_own_exit_code(cli: Cli) -> None:
    cli.start("claim-1")
    assert cli("workflow", "start", "claim-1", "--type", "Claim", "--task-queue", "q") == 5
    assert "already started" in cli.err


def test_errors_are_json_too_when_json_was_asked_for(cli: Cli) -> None:
    cli.start("claim-1")
    assert cli("workflow", "show", "nope", "--output", "json") == 4
    error = json.loads(cli.out)["error"]
    assert (error["code"], error["exit_code"]) == ("workflow_not_found", 4)
    assert cli.err.startswith("Error: ")
    assert cli("workflow", "lst", "--output=json") == 2
    assert json.loads(cli.out)["error"]["code"] == "usage"
    assert cli("workflow", "list", "--output", "json", "--query", "WorkflowTyp = 'Claim'") == 2
    assert "WorkflowType" in json.loads(cli.out)["error"]["message"]


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["workflow", "lst"], "Did you mean 'list'?"),
        (["workflwo", "list"], "Did you mean 'workflow'?"),
        (["workflow", "list", "--limt", "3"], "--limit"),
        (["workflow", "start", "w", "--type", "T"], "--task-queue"),
        (["workflow", "list", "--limit", "x"], "not a valid integer"),
        (["--store", "sqlite:x.db", "workflow", "list"], "comes after it: `clew workflow list --store …`"),
        (["workflow", "-s", "sqlite:x.db", "list"], "-s is an option of `clew workflow list`"),
        (["--nope", "workflow", "list"], "No such option '--nope'"),
        (["workflow", "cancel"], "Give either a WORKFLOW_ID"),
        (["workflow", "cancel", "w", "--query", "q"], "Give either a WORKFLOW_ID"),
    ],
)
def test_wrong_usage_names_what_was_meant(cli: Cli, args: list[str], says: str) -> None:
    assert cli(*args) == 2
    assert says in cli.err
    assert cli.out == ""


def test_a_store_must_be_given_and_be_there(
    cli: Cli, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["workflow", "list"]) == 2
    assert "CLEW_ADDRESS" in capsys.readouterr().err
    assert cli("workflow", "list") == 4
    assert "There is no store at" in cli.err
    assert cli("workflow", "signal", "w", "--name", "s") == 4
    assert not cli.store.exists()
    monkeypatch.setenv("CLEW_ADDRESS", f"sqlite:{cli.store}")
    cli.start("claim-1")
    assert main(["workflow", "list"]) == 0
    assert "claim-1" in capsys.readouterr().out
    assert main(["workflow", "list", "--store", "mysql://db/clew"]) == 2
    assert "Nothing here speaks 'mysql'" in capsys.readouterr().err


def test_what_is_not_a_store_is_refused_and_left_alone(cli: Cli) -> None:
    cli.store.write_text("just a text")
    assert cli("workflow", "list") == 2
    assert cli("workflow", "start", "w", "--type", "T", "--task-queue", "q") == 2
    assert cli.store.read_text() == "just a text"


@pytest.mark.parametrize("text", ["hello", "{", "", "NaN", "1 2", "'x'"])
def test_input_that_is_not_json_is_refused_before_anything_happens(cli: Cli, text: str) -> None:
    assert cli("workflow", "start", "w", "--type", "T", "--task-queue", "q", "--input", text) == 2
    assert "--input number 1 is not JSON" in cli.err
    assert not cli.store.exists()


def test_arguments_come_from_files_too(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "argument.json"
    path.write_text('{\n  "n": 1\n}\n')
    cli.start("claim-1", "--input", '"first"', "--input-file", str(path))
    [started, _] = cli.json("workflow", "show", "claim-1")["events"]
    assert started["input"] == ["first", {"n": 1}]
    assert cli("workflow", "signal", "claim-1", "--name", "s", "--input-file", str(tmp_path / "none")) == 2
    assert "Cannot read --input-file" in cli.err


def test_the_result_of_a_run_that_ended_badly_has_its_own_exit_code(cli: Cli) -> None:
    cli.start("claim-1")
    assert cli("workflow", "result", "claim-1", "--timeout", "0.3") == 9
    assert "did not close within 0.3 s" in cli.err
    assert cli("workflow", "terminate", "claim-1", "--reason", "enough") == 0
    assert cli("workflow", "result", "claim-1") == 13
    assert "terminated: enough" in cli.err
    assert cli("workflow", "result", "claim-1", "-o", "json") == 13
    assert json.loads(cli.out)["error"]["code"] == "terminated"


def test_a_query_without_a_worker_says_what_to_do(cli: Cli) -> None:
    cli.start("claim-1")
    assert cli("workflow", "query", "claim-1", "--name", "state", "--timeout", "5") == 9
    assert "no worker" in cli.err


def test_many_runs_are_changed_only_when_told_so(cli: Cli) -> None:
    for number in range(3):
        cli.start(f"claim-{number}")
    which = ["--query", "WorkflowType = 'Claim'"]
    assert cli("workflow", "terminate", *which) == 2
    assert "3 runs fit. Add --yes" in cli.err
    assert cli.json("workflow", "count") == {"count": 3, "groups": {"Running": 3}}
    assert cli("workflow", "signal", *which, "--name", "s", "--yes") == 0
    assert cli("workflow", "terminate", *which, "--yes") == 0
    assert cli.json("workflow", "count") == {"count": 3, "groups": {"Terminated": 3}}


def test_closed_runs_are_deleted_one_or_many_and_open_ones_never(cli: Cli) -> None:
    for number in range(4):
        cli.start(f"claim-{number}")
    assert cli("workflow", "delete", "claim-0") == 6
    assert "is open" in cli.err
    for number in range(3):
        assert cli("workflow", "terminate", f"claim-{number}") == 0
    assert cli("workflow", "delete", "claim-0") == 0
    assert cli.out.strip() == "Deleted claim-0."
    assert cli("workflow", "describe", "claim-0") == 4
    which = ["--query", "WorkflowType = 'Claim'"]
    assert cli("workflow", "delete", *which) == 2
    assert "2 runs fit. Add --yes" in cli.err
    assert sorted(cli.json("workflow", "delete", *which, "--yes")["workflow_ids"]) == ["claim-1", "claim-2"]
    assert cli.json("workflow", "count") == {"count": 1, "groups": {"Running": 1}}


@pytest.mark.parametrize("query", ["", "()", "WorkflowTyp = 'Claim'", "WorkflowType ="])
def test_a_bad_query_is_refused_before_anything_starts(cli: Cli, query: str) -> None:
    cli.start("claim-1")
    assert cli("workflow", "terminate", "--query", query, "--yes") == 2
    assert cli.json("workflow", "count")["groups"] == {"Running": 1}


def test_what_is_wrong_with_a_query_is_told_by_its_own_positions(cli: Cli) -> None:
    cli.start("claim-1")
    query = "WorkflowType = 'Claim' AND Nope @ 1"
    assert cli("workflow", "list", "--query", query) == 2
    told = re.search(r"at character (\d+)", cli.err)
    assert told is not None
    assert cli("workflow", "terminate", "--query", query, "--yes") == 2
    assert told[0] in cli.err


def test_an_unknown_namespace_names_those_there_are(cli: Cli) -> None:
    cli.start("claim-1")
    assert cli("workflow", "list", "--namespace", "nope") == 4
    assert "default" in cli.err
    assert cli("workflow", "start", "w", "--type", "T", "--task-queue", "q", "-n", "nope") == 4


def test_no_colour_where_nobody_sees_it(cli: Cli) -> None:
    cli.start("claim-1")
    assert cli("workflow", "list") == 0
    assert "\x1b[" not in cli.out


def test_an_update_that_fails_has_an_exit_code_of_its_own_and_one_of_nobody_is_not_found(cli: Cli) -> None:
    problem = problem_of(WorkflowUpdateFailedError(ApplicationError("the limit is 5", type="TooMany")))
    assert (problem.exit_code, problem.message) == (11, "The update failed: TooMany: the limit is 5")
    cli.start("claim-1")
    assert cli("workflow", "update", "claim-2", "--name", "add") == 4
    assert cli("workflow", "update", "claim-1", "--name", "add", "--timeout", "0.2") == 9
    assert "may still happen" in cli.err


@pytest.mark.parametrize(("words", "seconds"), [([], None), (["--watch"], 2.0), (["-w", "0.5"], 0.5)])
def test_watching_needs_no_number(words: list[str], seconds: float | None) -> None:
    @click.command
    @watch_option
    def look(watch: float | None) -> None:
        click.echo(repr(watch))

    assert CliRunner().invoke(look, words).output == f"{seconds!r}\n"


def test_help_and_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    assert "Exit codes" in capsys.readouterr().out
    assert main(["workflow", "start", "--help"]) == 0
    assert "--task-queue" in capsys.readouterr().out
    assert main([]) == 2
    assert "Commands:" in capsys.readouterr().err
