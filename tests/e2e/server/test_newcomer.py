"""A newcomer's path: a server, a worker in another process, start, watch, kill, resume."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from tests.e2e.server.processes import PROGRAM, Process, run, until

pytestmark = pytest.mark.e2e


@pytest.mark.timeout(300)
def test_a_run_outlives_its_worker_and_its_server(tmp_path: Path) -> None:
    (tmp_path / "greetings.py").write_text(PROGRAM, "utf-8")
    with Process(tmp_path, "dev", "--port", "0") as server:
        url = server.wait_said(r"Clew answers at (http://[\d.:]+)")[1]
        address = url.removeprefix("http://")
        port = address.rpartition(":")[2]
        with Process(tmp_path, "worker", "run", "greetings", "--address", address) as worker:
            run(address, "workflow", "start", "g1", "--type", "Greeting", "--task-queue", "default", "-i", '"Ada"')
            until(lambda: waits_for_signal(address), "the workflow waits for its signal")
            assert run(address, "workflow", "query", "g1", "--name", "state") == "waiting"
            assert run(address, "workflow", "update", "g1", "--name", "count", "-i", '"Ada"') == 3
            known = ("workflow", "update", "g1", "--name", "count", "--update-id", "u1", "-i")
            assert run(address, *known, '"Ada"', "--no-wait")["update_id"] == "u1"
            assert run(address, *known, '"somebody else"') == 3, "a repeat gets the first one's result"
            with httpx.Client(base_url=url) as http:
                assert http.get("/readyz").text == "ready\n"
                told = http.get("/api/v1/namespaces/default/workflows/g1/history").json()["events"]
                assert "ActivityTaskCompleted" in [event["type"] for event in told]
            worker.kill()
        server.kill()
    with (
        Process(tmp_path, "dev", "--port", port) as server,
        Process(tmp_path, "worker", "run", "greetings", "--address", address) as worker,
    ):
        server.wait_said("Clew answers at")
        run(address, "workflow", "signal", "g1", "--name", "approve")
        assert run(address, "workflow", "result", "g1") == "Hello Ada"
        assert worker.stop() == 0
        assert server.stop() == 0


def waits_for_signal(address: str) -> bool:
    """Whether the greeting is made and the workflow waits."""
    described = run(address, "workflow", "describe", "g1")
    return any("wait_condition" in line for line in described["waiting_for"])


@pytest.mark.timeout(200)
def test_the_worker_of_dev_is_started_anew_when_its_code_changes(tmp_path: Path) -> None:
    program = tmp_path / "greetings.py"
    program.write_text(PROGRAM, "utf-8")
    with Process(tmp_path, "dev", "greetings", "--port", "0", "--store", "sqlite::memory:") as server:
        address = server.wait_said(r"Clew answers at http://([\d.:]+)")[1]
        server.wait_said("Working for")
        program.write_text(PROGRAM.replace("Hello", "Good day"), "utf-8")
        server.wait_said("greetings.py changed")
        until(lambda: server.said.count("Working for") == 2, "the second worker is there")
        run(address, "workflow", "start", "g1", "--type", "Greeting", "--task-queue", "default", "-i", '"Ada"')
        run(address, "workflow", "signal", "g1", "--name", "approve")
        assert run(address, "workflow", "result", "g1") == "Good day Ada"
        assert server.stop() == 0
