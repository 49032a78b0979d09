"""The example in the README runs as it stands, and survives what the README says it survives."""

from __future__ import annotations

import contextlib
import os
import re
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
OUTPUT = re.compile(r"to ada@example.com, under key [0-9a-f]{8}\nsent\n")


@pytest.fixture
def program(tmp_path: Path) -> Path:
    (text,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    path = tmp_path / "reminder.py"
    path.write_text(text, encoding="utf-8")
    return path


def start(*arguments: str, cwd: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-W", "error", *arguments],
        cwd=cwd,
        env=os.environ | {"PYTHONPATH": str(ROOT / "src")},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def output_of(process: subprocess.Popen[str]) -> str:
    with process:
        stdout, stderr = process.communicate(timeout=60)
    assert (process.returncode, stderr) == (0, "")
    return stdout


def wait_event(database: Path, event_type: str) -> None:
    """Wait until the history has such an event."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        with contextlib.suppress(sqlite3.OperationalError), contextlib.closing(sqlite3.connect(database)) as db:
            if db.execute("SELECT 1 FROM clew_events WHERE event_type = ?", (event_type,)).fetchone():
                return
        time.sleep(0.02)
    pytest.fail(f"no {event_type} within 30 s")


def test_first_workflow_runs(program: Path) -> None:
    assert OUTPUT.fullmatch(output_of(start(program.name, cwd=program.parent)))
    assert program.with_name("reminders.db").exists()


def test_first_workflow_goes_on_after_a_kill(program: Path) -> None:
    with start(program.name, cwd=program.parent) as first:
        wait_event(program.with_name("reminders.db"), "TimerStarted")
        first.kill()
        assert first.communicate()[0] == ""
    assert OUTPUT.fullmatch(output_of(start(program.name, cwd=program.parent)))
    with contextlib.closing(sqlite3.connect(program.with_name("reminders.db"))) as db:
        (timer_count,) = db.execute("SELECT COUNT(*) FROM clew_events WHERE event_type = 'TimerStarted'").fetchone()
    assert timer_count == 1


def test_tour_prints_everything_and_replays() -> None:
    output = output_of(start("-m", "examples.tour", cwd=ROOT))
    after_the_worker_left = output[output.index("# Another worker attaches") :]
    assert "whole history: WorkflowExecutionStarted" in after_the_worker_left
    assert "# The result is ['Hello, Ariadne!', 'Hello, Theseus!']." in output
