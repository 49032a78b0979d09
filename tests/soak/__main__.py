"""The soak as a command: an hour of mixed load with kills every few seconds, then everything is looked at.

    python -m tests.soak --seconds 3600 --kill-every 5 --record tests/soak/record.json

How it works: in the first half a process with engine, worker and client is started again and again and killed after a
few seconds; what it was told of its starts is kept. In the second half one such process, the survivor, is left alone,
which tells about memory and file handles, while guests (processes that join it, with workers and clients of their own)
are killed in its place. At the end every start that was acknowledged must have led to its result, nothing may be open,
and the file may be only so much larger than the histories in it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import random
import resource
import sqlite3
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

from clew.client import Client
from clew.common import WorkflowExecutionStatus
from tests.which_code import commit_now

ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
WARM_SHARE = 0.4
"""Of the survivor's time, before memory is compared: caches fill up first."""

RSS_GROWTH_MAX = 1.25

KEPT_BYTES_MAX = 512
"""Of memory for each run done in the second half of the survivor's time, at most. Each of these runs is three, with
sixty events: whoever forgets to forget anything of it keeps more. What remains of warming up is less."""

KEPT_BLOCKS_MAX = 4.0
"""Python objects, likewise: more than one of each of the three runs. Memory moves in pages and arenas, and may hide the
loss of small objects for a while; this does not. What is under way makes it come out one or two higher or lower."""

RUNS_COMPARED_MIN = 1_000
"""Fewer runs in the second half tell nothing: caches are filling up."""

FILES_GROWTH_MAX = 4
DRAIN_SECONDS_MAX = 120.0
STORE_FACTOR_MAX = 6.0
"""Bytes of the file for each byte of history, at most: snapshots, indexes and visibility are small besides."""

SAMPLES = 30
"""How many of the survivor's reports are kept in the record."""


class Load(NamedTuple):
    """What is asked of the processes.

    Args:
        seconds: In all, apart from the look at the end.
        kill_every: Seconds from a start to its kill, half to one and a half times that.
        width: Runs under way at a time, in each process.
        rate: Starts a second in each process at most; 0 for as many as it can.
    """

    seconds: float
    kill_every: float
    width: int
    rate: float = 0.0


async def start(folder: Path, prefix: str, seconds: float, load: Load) -> asyncio.subprocess.Process:
    """One process of the load."""
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.soak.program", str(folder / "soak.db"), str(folder / "told"), prefix,
        str(seconds), str(load.width), str(load.rate), stdout=asyncio.subprocess.PIPE, env=ENVIRONMENT,
    )  # fmt: skip


async def read_reports(process: asyncio.subprocess.Process) -> list[dict[str, Any]]:
    """What the process says of itself, to its end."""
    assert process.stdout is not None
    return [json.loads(line) async for line in process.stdout if line.endswith(b"\n")]


async def soak(folder: Path, load: Load) -> dict[str, Any]:
    """Run it all.

    Raises:
        AssertionError: Something is lost, stuck, or grows.
    """
    chance = random.Random(5)
    half = load.seconds / 2
    kills = await kill_again_and_again(folder, "owner", load, time.monotonic() + half, chance)
    survivor = await start(folder, "survivor", half, load)
    reading = asyncio.create_task(read_reports(survivor))
    guest_kills = await kill_again_and_again(folder, "guest", load, time.monotonic() + half * 0.95, chance)
    reports = await reading
    assert await survivor.wait() == 0, "the survivor failed"
    told = {"kills": kills, "guest_kills": guest_kills, "survivor_runs": reports[-1]["done"], **compare(reports)}
    return {**told, **await look(folder)}


async def kill_again_and_again(folder: Path, name: str, load: Load, until: float, chance: random.Random) -> int:
    """Start a process and kill it after some seconds, until the time is over; how often."""
    kills = 0
    while time.monotonic() < until:
        process = await start(folder, f"{name}{kills}", 1e9, load)
        reading = asyncio.create_task(read_reports(process))
        await asyncio.sleep(load.kill_every * (0.5 + chance.random()))
        assert process.returncode is None, f"{name} {kills} ended by itself"
        process.kill()
        await process.wait()
        await reading
        kills += 1
    return kills


def compare(reports: list[dict[str, Any]]) -> dict[str, Any]:
    """Memory and files at the beginning (once warm) and at the end of the survivor's time.

    Raises:
        AssertionError: One of them grows.
    """
    warm = reports[int(len(reports) * WARM_SHARE) :]
    third = max(len(warm) // 3, 1)
    early, late = warm[:third], warm[-third:]
    rss = [max(report["rss_kib"] for report in part) for part in (early, late)]
    files = [max(report["files"] for report in part) for part in (early, late)]
    samples = reports[:: max(len(reports) // SAMPLES, 1)]
    told = {"rss_kib": rss, "files": files, **kept(reports), "samples": samples}
    sys.stderr.write(f"{json.dumps(told)}\n")
    assert rss[1] <= rss[0] * RSS_GROWTH_MAX, f"memory grew from {rss[0]} to {rss[1]} KiB"
    assert files[1] <= files[0] + FILES_GROWTH_MAX, f"open files grew from {files[0]} to {files[1]}"
    if told["runs_compared"] >= RUNS_COMPARED_MIN:
        assert told["kept_bytes"] <= KEPT_BYTES_MAX, f"{told['kept_bytes']} bytes of memory stay of each run"
        assert told["kept_blocks"] <= KEPT_BLOCKS_MAX, f"{told['kept_blocks']} Python objects stay of each run"
    return told


def kept(reports: list[dict[str, Any]]) -> dict[str, Any]:
    """What stays of each run that was done in the second half of the reports: bytes, and Python objects.

    Compared are the middle values of the third and of the last quarter, half of that time apart; a run that is under
    way, or a collection of garbage that is due, does not move them.
    """
    quarter = max(len(reports) // 4, 1)
    parts = reports[-2 * quarter : -quarter] or reports[:1], reports[-quarter:]
    middle = {
        name: [statistics.median(report[name] for report in part) for part in parts]
        for name in ("done", "rss_kib", "blocks")
    }
    done, rss, blocks = (late - early for early, late in middle.values())
    return {
        "runs_compared": int(done),
        "kept_bytes": round(rss * 1024 / max(done, 1), 1),
        "kept_blocks": round(blocks / max(done, 1), 3),
    }


async def look(folder: Path) -> dict[str, Any]:
    """Whether what was acknowledged is there, done, and nothing is open; how large the file is."""
    path = folder / "soak.db"
    started = dict(line.split()[1:] for line in (folder / "told").read_text().splitlines())
    # What was open when its process was killed is taken up by a worker, and done.
    last = await start(folder, "last", DRAIN_SECONDS_MAX, Load(DRAIN_SECONDS_MAX, 0, 0))
    await read_reports(last)
    assert await last.wait() == 0, f"runs are still open after {DRAIN_SECONDS_MAX} s, or the last program failed"
    runs = 0
    async with await Client.connect(f"sqlite:{path}") as client:
        async for run in client.list_workflows():
            runs += 1
            assert run.status in (WorkflowExecutionStatus.COMPLETED, WorkflowExecutionStatus.CONTINUED_AS_NEW), run
        for workflow_id, number in started.items():
            assert await client.get_workflow_handle(workflow_id).result() == 4 * int(number), workflow_id
    return {"acknowledged": len(started), "runs": runs, "open": 0, **measure(path)}


def measure(path: Path) -> dict[str, Any]:
    """The size of the store, beside what is in it."""
    connection = sqlite3.connect(path)
    (history_bytes,) = connection.execute("SELECT sum(length(events)) FROM history").fetchone()
    (events,) = connection.execute("SELECT count(*) FROM clew_events").fetchone()
    (pages,), (page_bytes,) = (connection.execute(f"PRAGMA {name}").fetchone() for name in ("page_count", "page_size"))
    assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    connection.close()
    factor = pages * page_bytes / history_bytes
    assert factor <= STORE_FACTOR_MAX, f"the file has {factor:.1f} bytes for each byte of history"
    return {
        "events": events,
        "store_bytes": pages * page_bytes,
        "store_bytes_per_event": round(pages * page_bytes / events, 1),
        "bytes_for_each_of_history": round(factor, 2),
    }


def described(load: Load) -> dict[str, Any]:
    """What was run, on what."""
    return {
        "date": time.strftime("%Y-%m-%d"),
        "commit": commit_now(),
        "python": platform.python_version(),
        **load._asdict(),
    }


def main() -> int:
    """Run, print the figures, and answer with the exit code."""
    parser = argparse.ArgumentParser(prog="soak", description=__doc__)
    parser.add_argument("--seconds", type=float, default=3600.0)
    parser.add_argument("--kill-every", type=float, default=5.0)
    parser.add_argument("--width", type=int, default=30, help="runs under way at a time, in each process")
    parser.add_argument("--rate", type=float, default=0.0, help="starts a second in each process; 0: all it can")
    parser.add_argument("--record", type=Path, help="write the figures to this file")
    options = parser.parse_args()
    load = Load(options.seconds, options.kill_every, options.width, options.rate)
    header = described(load)
    with tempfile.TemporaryDirectory() as folder:
        told = asyncio.run(soak(Path(folder), load))
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    told = {**header, **told, "cpu_seconds": round(usage.ru_utime + usage.ru_stime, 1)}
    sys.stdout.write(f"{json.dumps(told)}\n")
    if options.record:
        options.record.write_text(f"{json.dumps(told, indent=1)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
