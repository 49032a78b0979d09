"""Engine, worker and client in one process, killed at operations on the database's files (laws 1, 2, 3, 6).

The number of operations of an undisturbed run is found first. Then programs are killed before, within and behind
operations spread over all of them, and started again until one lives to the end.
"""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from clew.client import Client
from clew.model import events as e
from tests.crash.records import record

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks at SQLite through ldd")

ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
KILLS = int(os.environ.get("CLEW_KILLS", "6"))
"""How many operations to die at; the long form is `make crash-soak`."""

RUNS, SIGNALS = 3, 2


def run_program(folder: Path, at: int, how: str) -> int:
    """Run the program; its exit code."""
    command = [sys.executable, "-m", "tests.crash.killed_program", str(folder / "sums.db"), str(folder / "told")]
    done = subprocess.run([*command, str(at), how], env=ENVIRONMENT, timeout=120, capture_output=True, text=True)
    assert done.returncode in (0, -9), done.stderr
    return done.returncode


def told(folder: Path) -> list[str]:
    """What the programs in this folder were told, in order."""
    path = folder / "told"
    return path.read_text().splitlines() if path.exists() else []


async def check(folder: Path) -> None:
    """All that was told is so, and everything has come to its end."""
    lines = told(folder)
    with sqlite3.connect(folder / "sums.db") as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    connection.close()
    async with await Client.connect(f"sqlite:{folder / 'sums.db'}") as client:
        for number in range(RUNS):
            results = {line for line in lines if line.startswith(f"result {number} ")}
            assert results == {f"result {number} {sum(2 * n for n in range(number, number + 3))}"}
            history = await client.get_workflow_handle(f"sum-{number}").fetch_history()
            events = list(history.events)
            assert [event.event_id for event in events] == list(range(1, len(events) + 1))
            completed = [event for event in events if isinstance(event, e.ActivityTaskCompleted)]
            assert len(completed) == 3, "each outcome is recorded once"
            signals = [event for event in events if isinstance(event, e.WorkflowExecutionSignaled)]
            assert len(signals) >= SIGNALS
            assert isinstance(events[-1], e.WorkflowExecutionCompleted)


async def test_killed_before_within_and_after_operations(tmp_path: Path) -> None:
    quiet = tmp_path / "quiet"
    quiet.mkdir()
    assert run_program(quiet, 1_000_000, "before") == 0
    count = int(told(quiet)[-1].split()[1])
    assert count > 20, "the program wrote to its files"
    began = time.monotonic()
    kills: Counter[str] = Counter()
    for number in range(KILLS):
        folder = tmp_path / f"kill{number}"
        folder.mkdir()
        at = 1 + number * (count - 1) // max(KILLS - 1, 1)
        how = ("before", "within", "after")[number % 3]
        kills[how] += run_program(folder, at, how) == -9
        assert run_program(folder, 0, how) == 0
        await check(folder)
    assert kills.total() >= KILLS * 2 // 3, "most of the programs were really killed"
    record("embedded_sqlite", began, kills=dict(kills), operations=count, runs=RUNS * KILLS)
