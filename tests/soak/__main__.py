"""The soak as a command: kills for one half of the time, calm for the other, then everything is looked at.

    python -m tests.soak --seconds 3600 --kill-every 5

How it works: a process with engine, worker and client is started again and again and killed after a few seconds; what
it was told of its starts is kept. Then one is left alone for as long, which tells about memory and file handles. At the
end every start that was acknowledged must have led to its result, nothing may be open, and the file may be only so much
larger than the histories in it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import sqlite3
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from clew.client import Client
from clew.common import WorkflowExecutionStatus

ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
WARM_SHARE = 0.4
"""Of the calm time, before memory is compared: caches fill up first."""

RSS_GROWTH_MAX = 1.25
FILES_GROWTH_MAX = 4
DRAIN_SECONDS_MAX = 120.0
STORE_FACTOR_MAX = 6.0
"""Bytes of the file for each byte of history, at most: snapshots, indexes and visibility are small besides."""


async def start(folder: Path, prefix: str, seconds: float, width: int) -> asyncio.subprocess.Process:
    """One process of the load."""
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.soak.program", str(folder / "soak.db"), str(folder / "told"), prefix,
        str(seconds), str(width), stdout=asyncio.subprocess.PIPE, env=ENVIRONMENT,
    )  # fmt: skip


async def read_reports(process: asyncio.subprocess.Process) -> list[dict[str, Any]]:
    """What the process says of itself, to its end."""
    assert process.stdout is not None
    return [json.loads(line) async for line in process.stdout if line.endswith(b"\n")]


async def soak(folder: Path, seconds: float, kill_every: float, width: int) -> dict[str, Any]:
    """Run it all.

    Raises:
        AssertionError: Something is lost, stuck, or grows.
    """
    chance = random.Random(5)
    kills, until = 0, time.monotonic() + seconds / 2
    while time.monotonic() < until:
        process = await start(folder, f"k{kills}", 1e9, width)
        reading = asyncio.create_task(read_reports(process))
        await asyncio.sleep(kill_every * (0.5 + chance.random()))
        assert process.returncode is None, "the program ended by itself"
        process.kill()
        await process.wait()
        await reading
        kills += 1
    calm = await start(folder, "calm", seconds / 2, width)
    reports = await read_reports(calm)
    assert await calm.wait() == 0, "the calm program failed"
    told = {"kills": kills, "calm_runs": reports[-1]["done"], **compare(reports)}
    return {**told, **await look(folder)}


def compare(reports: list[dict[str, Any]]) -> dict[str, Any]:
    """Memory and files at the beginning (once warm) and at the end of the calm time."""
    warm = reports[int(len(reports) * WARM_SHARE) :]
    third = max(len(warm) // 3, 1)
    early, late = warm[:third], warm[-third:]
    rss = [max(report["rss_kib"] for report in part) for part in (early, late)]
    files = [max(report["files"] for report in part) for part in (early, late)]
    assert rss[1] <= rss[0] * RSS_GROWTH_MAX, f"memory grew from {rss[0]} to {rss[1]} KiB"
    assert files[1] <= files[0] + FILES_GROWTH_MAX, f"open files grew from {files[0]} to {files[1]}"
    return {"rss_kib": rss, "files": files}


async def look(folder: Path) -> dict[str, Any]:
    """Whether what was acknowledged is there, done, and nothing is open; how large the file is."""
    path = folder / "soak.db"
    started = dict(line.split()[1:] for line in (folder / "told").read_text().splitlines())
    # What was open when its process was killed is taken up by a worker, and done.
    last = await start(folder, "last", DRAIN_SECONDS_MAX, 0)
    await read_reports(last)
    assert await last.wait() == 0, f"runs are still open after {DRAIN_SECONDS_MAX} s, or the last program failed"
    runs = 0
    async with await Client.connect(f"sqlite:{path}") as client:
        async for run in client.list_workflows():
            runs += 1
            assert run.status in (WorkflowExecutionStatus.COMPLETED, WorkflowExecutionStatus.CONTINUED_AS_NEW), run
        for workflow_id, number in started.items():
            assert await client.get_workflow_handle(workflow_id).result() == 4 * int(number), workflow_id
    connection = sqlite3.connect(path)
    (history_bytes,) = connection.execute("SELECT sum(length(events)) FROM history").fetchone()
    (pages,), (page_bytes,) = (connection.execute(f"PRAGMA {name}").fetchone() for name in ("page_count", "page_size"))
    assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    connection.close()
    factor = pages * page_bytes / history_bytes
    assert factor <= STORE_FACTOR_MAX, f"the file has {factor:.1f} bytes for each byte of history"
    return {"acknowledged": len(started), "runs": runs, "bytes_for_each_of_history": round(factor, 2)}


def main() -> int:
    """Run, print the figures, and answer with the exit code."""
    parser = argparse.ArgumentParser(prog="soak", description=__doc__)
    parser.add_argument("--seconds", type=float, default=3600.0)
    parser.add_argument("--kill-every", type=float, default=5.0)
    parser.add_argument("--width", type=int, default=30, help="runs under way at a time")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        told = asyncio.run(soak(Path(folder), options.seconds, options.kill_every, options.width))
    sys.stdout.write(f"{json.dumps(told)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
