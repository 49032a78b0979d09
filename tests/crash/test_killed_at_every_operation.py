"""Engine, worker and client in one process, killed at operations on the database's files (laws 1, 2, 3, 6).

The number of operations of an undisturbed run is found first. Then programs are killed before, within and behind
operations spread over all of them, in the long form at each of them in each way, and started again: that one lives to
the end.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from clew.client import Client
from clew.model import events as e
from tests.crash.records import record
from tests.crash.sweep import spread

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks at SQLite through ldd")

ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
KILLS = int(os.environ.get("CLEW_KILLS", "6"))
"""How many times to die; as many as there are operations and ways, or more, is at each in each way (`make crash-soak`).
"""

LANES = int(os.environ.get("CLEW_KILL_LANES", "1"))
"""How many programs run side by side, each on a file of its own."""

WAYS = ("before", "within", "after")
KILL_SECONDS = 20
"""Allowed for each on a very busy machine."""

RUNS, SIGNALS = 3, 2


class Programs:
    """The process that forks programs (``tests.crash.killed_program``).

    Args:
        log: What they complain of.
    """

    def __init__(self, log: Path) -> None:
        self._log = log
        with log.open("wb") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.crash.killed_program"],
                env=ENVIRONMENT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True,
            )  # fmt: skip

    def run(self, folder: Path, at: int, how: str) -> int:
        """Run one to its end; its exit code."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        asked = [str(folder / "sums.db"), str(folder / "told"), at, how]
        self._process.stdin.write(f"{json.dumps(asked)}\n")
        self._process.stdin.flush()
        code = self._process.stdout.readline().strip()
        assert code in ("0", "-9"), f"{how} {at} ended with {code!r}: {self._log.read_text()[-3000:]}"
        return int(code)

    def end(self) -> None:
        """No more are run."""
        self._process.communicate()


@pytest.fixture
def programs(tmp_path: Path) -> Iterator[list[Programs]]:
    """Run programs, each one at a time."""
    made = [Programs(tmp_path / f"programs{number}.log") for number in range(LANES)]
    yield made
    for one in made:
        one.end()


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
            assert len(signals) == SIGNALS, "each is recorded once, however often it was sent"
            assert isinstance(events[-1], e.WorkflowExecutionCompleted)


@pytest.mark.timeout(240 + min(KILLS, 1_000) * KILL_SECONDS)
async def test_killed_before_within_and_after_operations(programs: list[Programs], tmp_path: Path) -> None:
    quiet = tmp_path / "quiet"
    quiet.mkdir()
    assert programs[0].run(quiet, 1_000_000, "before") == 0
    count = int(told(quiet)[-1].split()[1])
    assert count > 20, "the program wrote to its files"
    began = time.monotonic()
    kills: Counter[str] = Counter()
    points = spread(WAYS, count, KILLS)
    left = list(reversed(points))

    async def take(lane: Programs) -> None:
        while left:
            point = left.pop()
            folder = tmp_path / f"kill{len(left)}"
            folder.mkdir()
            if await asyncio.to_thread(lane.run, folder, point.at, point.how) == -9:
                kills[point.how] += 1
            else:
                lived = int(told(folder)[-1].split()[1])
                assert lived < point.at + (point.how == "after"), f"it lived on behind {point}"
            assert await asyncio.to_thread(lane.run, folder, 0, point.how) == 0
            await check(folder)
            shutil.rmtree(folder)

    async with asyncio.TaskGroup() as group:
        for lane in programs:
            group.create_task(take(lane))
    # The busier the machine, the more goes into one commit: some lives are over before they come to a late operation.
    assert kills.total() >= len(points) // 3, "many of the programs were really killed"
    record(
        "embedded_sqlite",
        began,
        kills=dict(kills),
        operations=count,
        ways=len(WAYS),
        programs=len(points),
        over_before=len(points) - kills.total(),
        runs=RUNS * len(points),
    )
