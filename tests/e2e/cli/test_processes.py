"""The command beside a running owner, in pipes, and without its library."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.e2e

DEADLINE = 60.0

OWNER = """
import asyncio, sys
from clew.client import Client

async def main():
    async with await Client.connect(sys.argv[1]) as client:
        for number in range(3):
            await client.start_workflow("Claim", id=f"claim-{number}", task_queue="claims")
        print("ready", flush=True)
        for line in sys.stdin:
            if line.strip() == "terminate":
                await client.get_workflow_handle("claim-0").terminate(reason="asked")
                print("terminated", flush=True)

asyncio.run(main())
"""


def clew(*args: str, store: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "clew.cli", *args, "--store", f"sqlite:{store}"],
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        env={**os.environ, **environment},
        check=False,
    )


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "claims.db"


@pytest.fixture
def owner(store: Path) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", OWNER, f"sqlite:{store}"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdin is not None
    assert process.stdout.readline() == "ready\n"
    yield process
    process.stdin.close()
    process.wait(DEADLINE)
    process.stdout.close()


def test_reading_commands_work_beside_the_owner(owner: subprocess.Popen[str], store: Path) -> None:
    listed = clew("workflow", "list", "-o", "json", store=store)
    assert [run["workflow_id"] for run in json.loads(listed.stdout)] == ["claim-2", "claim-1", "claim-0"]
    assert "started" in clew("workflow", "show", "claim-1", store=store).stdout
    assert "Waiting for:" in clew("workflow", "describe", "claim-1", store=store).stdout


def test_changing_commands_join_the_owner(owner: subprocess.Popen[str], store: Path) -> None:
    for command in (["signal", "claim-1", "--name", "s"], ["cancel", "claim-1"]):
        done = clew("workflow", *command, "-o", "json", store=store)
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["workflow_ids"] == ["claim-1"]
    assert "cancel" in clew("workflow", "show", "claim-1", store=store).stdout
    assert owner.poll() is None


def test_changing_commands_say_who_owns_a_store_that_cannot_be_joined(
    owner: subprocess.Popen[str], store: Path
) -> None:
    os.unlink(f"{store}.sock")
    refused = clew("workflow", "cancel", "claim-1", "-o", "json", store=store)
    assert refused.returncode == 9
    assert json.loads(refused.stdout)["error"]["code"] == "unavailable"
    assert str(owner.pid) in refused.stderr
    assert "stop it first" in refused.stderr


def test_waiting_for_a_result_beside_the_owner_ends_with_the_run(owner: subprocess.Popen[str], store: Path) -> None:
    waiting = subprocess.Popen(
        [sys.executable, "-m", "clew.cli", "workflow", "result", "claim-0", "--store", f"sqlite:{store}"],
        stderr=subprocess.PIPE,
        text=True,
    )
    assert owner.stdin is not None
    assert owner.stdout is not None
    owner.stdin.write("terminate\n")
    owner.stdin.flush()
    assert owner.stdout.readline() == "terminated\n"
    _, err = waiting.communicate(timeout=DEADLINE)
    assert waiting.returncode == 13
    assert "asked" in err


def test_the_store_is_free_again_when_its_owner_was_killed(owner: subprocess.Popen[str], store: Path) -> None:
    owner.kill()
    owner.wait(DEADLINE)
    assert clew("workflow", "signal", "claim-1", "--name", "s", store=store).returncode == 0
    assert "signal s" in clew("workflow", "show", "claim-1", store=store).stdout


def test_a_pipe_that_closes_early_is_no_error(owner: subprocess.Popen[str], store: Path) -> None:
    piped = subprocess.run(
        f"{sys.executable} -m clew.cli workflow list --store sqlite:{store} -o json | head -n 1; "
        "exit ${PIPESTATUS[0]}",
        shell=True,
        executable="/bin/bash",
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        check=False,
    )
    assert piped.stdout == "[\n"
    assert piped.stderr == ""
    assert piped.returncode in (0, 141)


def test_input_from_stdin(store: Path) -> None:
    started = subprocess.run(
        [
            *[sys.executable, "-m", "clew.cli", "workflow", "start", "w", "--type", "T", "--task-queue", "q"],
            *["--input-file", "-", "--store", f"sqlite:{store}"],
        ],
        input='{"from": "stdin"}',
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        check=False,
    )
    assert started.returncode == 0, started.stderr
    assert '{"from": "stdin"}' in clew("workflow", "show", "w", store=store).stdout


def test_without_its_library_the_command_says_what_to_install() -> None:
    code = "import sys; sys.modules['click'] = None; from clew.cli import main; sys.exit(main(['workflow', 'list']))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=DEADLINE, check=False)
    assert done.returncode == 2
    assert "pip install 'clew[cli]'" in done.stderr


def test_importing_clew_is_cheap_and_loads_no_engine() -> None:
    code = (
        "import clew, sys; print([m for m in sys.modules if m.startswith(('clew.engine', 'clew.client', 'sqlite3'))])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=DEADLINE, check=True)
    assert done.stdout.strip() == "[]"
