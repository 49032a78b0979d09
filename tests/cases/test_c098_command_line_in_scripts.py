"""C098: the command line in scripts."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from clew import workflow
from clew.cli import main
from clew.client import Client
from clew.exceptions import ApplicationError
from clew.worker import Worker
from tests.cases.harness import address

RUNS = 300
"""The case says 5 000; this is the same path (three pages of a list) within the time of a fast suite."""


@workflow.defn
class Answers:
    @workflow.run
    async def run(self, how: str) -> Any:
        if how == "fail":
            raise ApplicationError("no money", type="Refused")
        if how == "wait":
            await workflow.wait_condition(lambda: False)
        return {"how": how, "big": 2**53 + 1}

    @workflow.query
    def state(self, kind: str) -> Any:
        return {"list": [1, "two"], "dict": {"a": None}, "null": None, "text": "x", "nan": float("nan")}[kind]


def make_worker(client: Client) -> Worker:
    """What ``--worker`` names."""
    return Worker(client, task_queue="q", workflows=[Answers])


@dataclass
class Shell:
    store: Path
    capsys: pytest.CaptureFixture[str]
    out: str = ""
    err: str = ""

    def __call__(self, *args: str) -> int:
        code = main(["workflow", *args, "--store", address(self.store)])
        self.out, self.err = self.capsys.readouterr()
        return code

    def prepare(self, do: Callable[[Client], Awaitable[None]]) -> None:
        async def prepare() -> None:
            async with await Client.connect(address(self.store)) as client:
                await do(client)

        asyncio.run(prepare())
        self.capsys.readouterr()

    def counts(self) -> dict[str, int]:
        assert self("count", "-o", "json") == 0
        groups: dict[str, int] = json.loads(self.out)["groups"]
        return groups


@pytest.fixture
def shell(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Shell:
    return Shell(tmp_path / "s.db", capsys)


def strict_json(text: str) -> Any:
    """Parse one document, refusing what is not JSON by the standard."""

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    return json.loads(text, parse_constant=refuse)


@pytest.mark.parametrize("query", ["()", "", "WorkflowTyp = 'Answers'", "ExecutionStatus = 'Runing'"])
@pytest.mark.parametrize("command", [["terminate"], ["cancel"], ["signal", "--name", "s"]])
def test_a_malformed_query_changes_nothing_and_says_so(shell: Shell, command: list[str], query: str) -> None:
    shell.prepare(start_many(3))
    assert shell(*command, "--query", query, "--yes", "-o", "json") == 2
    assert strict_json(shell.out)["error"]["message"]
    assert shell.err.startswith("Error: ")
    assert shell.counts() == {"Running": 3}


def test_a_destructive_batch_needs_a_yes_and_then_reaches_every_run(shell: Shell) -> None:
    shell.prepare(start_many(RUNS))
    assert shell("terminate", "--query", "WorkflowType = 'Answers'") == 2
    assert f"{RUNS} runs fit" in shell.err
    assert shell.counts() == {"Running": RUNS}
    assert shell("terminate", "--query", "WorkflowType = 'Answers'", "--yes", "-o", "json") == 0
    assert len(strict_json(shell.out)["workflow_ids"]) == RUNS
    assert shell.counts() == {"Terminated": RUNS}


def test_the_result_of_each_kind_of_end_has_its_own_code_with_and_without_json(shell: Shell) -> None:
    async def run_all(client: Client) -> None:
        async with make_worker(client):
            await asyncio.wait_for(client.execute_workflow(Answers.run, "complete", id="complete", task_queue="q"), 30)
            failing = await client.start_workflow(Answers.run, "fail", id="fail", task_queue="q")
            with pytest.raises(Exception, match="failed"):
                await asyncio.wait_for(failing.result(), 30)
            for workflow_id in ("cancelled", "terminated", "running"):
                handle = await client.start_workflow(Answers.run, "wait", id=workflow_id, task_queue="q")
                if workflow_id == "cancelled":
                    await handle.cancel()
                    with pytest.raises(Exception, match="failed"):
                        await asyncio.wait_for(handle.result(), 30)
            await client.get_workflow_handle("terminated").terminate(reason="enough")

    shell.prepare(run_all)
    expected = {"complete": 0, "fail": 11, "cancelled": 12, "terminated": 13, "running": 9, "missing": 4}
    for output in ("table", "json", "jsonl"):
        codes = {name: shell("result", name, "--timeout", "0.2", "-o", output) for name in expected}
        assert codes == expected
    assert shell("result", "complete", "-o", "json") == 0
    assert strict_json(shell.out) == {"how": "complete", "big": 9007199254740993}
    assert shell("result", "fail", "-o", "json") == 11
    failure = strict_json(shell.out)["error"]["details"]["failure"]
    assert (failure[0]["type"], failure[0]["message"]) == ("Refused", "Refused: no money")


@pytest.mark.parametrize(
    ("kind", "answer"), [("list", [1, "two"]), ("dict", {"a": None}), ("null", None), ("text", "x")]
)
def test_the_answer_of_a_query_is_one_json_document(shell: Shell, kind: str, answer: Any) -> None:
    shell.prepare(start_many(1))
    named = f"{__name__}:make_worker"
    assert shell("query", "run-0", "--name", "state", "--input", json.dumps(kind), "--worker", named) == 0, shell.err
    assert strict_json(shell.out) == answer


def test_a_query_whose_answer_is_no_json_is_an_error_in_json(shell: Shell) -> None:
    shell.prepare(start_many(1))
    named = f"{__name__}:make_worker"
    code = shell("query", "run-0", "--name", "state", "--input", '"nan"', "--worker", named, "-o", "json")
    document = strict_json(shell.out)
    assert code == 8
    assert "nan has no form in JSON" in document["error"]["message"]


def start_many(count: int) -> Callable[[Client], Awaitable[None]]:
    """Start `count` runs that wait."""

    async def start(client: Client) -> None:
        await asyncio.gather(
            *(client.start_workflow(Answers.run, "wait", id=f"run-{n}", task_queue="q") for n in range(count))
        )

    return start
