"""Who owns a SQLite file that several programs use, told to whoever wants to own it too; and a worker's log as JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.e2e.server.processes import PROGRAM, Process, until

pytestmark = pytest.mark.e2e


@pytest.mark.timeout(300)
def test_dev_names_the_program_that_took_its_file_over_and_the_way_out(tmp_path: Path) -> None:
    (tmp_path / "greetings.py").write_text(PROGRAM, "utf-8")
    with Process(tmp_path, "dev", "--port", "0", "--store", "sqlite:claims.db") as first:
        first.wait_said("Clew answers at")
        with Process(tmp_path, "worker", "run", "greetings", "--address", "sqlite:claims.db") as worker:
            worker.wait_said("Working for")
            first.kill()
            # The link to the dead server breaks, and the worker's process becomes the owner.
            until(lambda: f'"pid": {worker.child.pid}' in _owner(tmp_path), "the worker owns the file")
            with Process(tmp_path, "dev", "--port", "0", "--store", "sqlite:claims.db") as second:
                assert second.child.wait(90) != 0
                said = " ".join(second.said.split())
                assert f"in use by process {worker.child.pid}" in said
                assert "stop that program, start the server, and start the program again" in said
                assert "--store sqlite:claims.db" in said
            assert worker.stop() == 0
        with Process(tmp_path, "dev", "--port", "0", "--store", "sqlite:claims.db") as third:
            third.wait_said("Clew answers at")
            assert third.stop() == 0


def _owner(folder: Path) -> str:
    return "".join(path.read_text("utf-8") for path in folder.glob("claims.db*owner*"))


@pytest.mark.timeout(200)
def test_a_worker_logs_json_when_asked_to(tmp_path: Path) -> None:
    (tmp_path / "fails.py").write_text(PROGRAM.replace("self.is_approved = False", "raise KeyError('no')"), "utf-8")
    with Process(tmp_path, "worker", "run", "fails", "--store", "sqlite:w.db", "--log-format", "json") as worker:
        worker.wait_said("Working for")
        with Process(
            tmp_path, "workflow", "start", "g1", "--type", "Greeting", "--task-queue", "default", "-i", '"Ada"',
            "--store", "sqlite:w.db",
        ) as start:  # fmt: skip
            assert start.child.wait(90) == 0, start.said
        worker.wait_said("workflow.task_failed")
        line = next(line for line in worker.said.splitlines() if "workflow.task_failed" in line)
        told = json.loads(line)
        assert (told["event"], told["level"], told["workflow_id"]) == ("workflow.task_failed", "warning", "g1")
        assert worker.stop() == 0
