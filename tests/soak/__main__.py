"""The soak as a command: an hour of mixed load with kills every few seconds, then everything is looked at.

    python -m tests.soak --seconds 3600 --kill-every 5 --record tests/soak/record.json

How it works: in the first half a process with engine, worker and client is started again and again and killed after a
few seconds; what it was told of its starts is kept. In the second half one such process, the survivor, is left alone,
which tells about memory and file handles, while guests (processes that join it, with workers and clients of their own)
are killed in its place. At the end every start that was acknowledged must have led to its result, nothing may be open,
and the file may be only so much larger than the histories in it.

    python -m tests.soak --leaks 0 600 --seconds 600 --record tests/soak/leaks.json

tries the check of memory itself: processes that are left alone keep so many bytes of each run for ever, on purpose, and
it has to tell those that keep something from one that keeps nothing.
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
from collections.abc import Sequence
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
"""Of memory for each run done in the second half of the survivor's time, at most: of what the process has from the
system, and of what the C library has given out. Each of these runs is three, with sixty events: whoever forgets to
forget anything of it keeps more. What remains of warming up is less."""

KEPT_BLOCKS_MAX = 4.0
"""Python objects, likewise: more than one of each of the three runs. Memory moves in pages and arenas, and may hide the
loss of small objects for a while; this does not. What is under way makes it come out one or two higher or lower."""

RUNS_COMPARED_MIN = 1_000
"""Fewer runs in the second half tell nothing: caches are filling up."""

RUNS_COMPARED_PAGES_MIN = 3_000
"""Likewise for what the process has from the system, which comes in pages and arenas."""

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


async def start(
    folder: Path, prefix: str, seconds: float, load: Load, *, leak_bytes: int = 0
) -> asyncio.subprocess.Process:
    """One process of the load; it keeps `leak_bytes` of each run for ever."""
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.soak.program", str(folder / "soak.db"), str(folder / "told"), prefix,
        str(seconds), str(load.width), str(load.rate), stdout=asyncio.subprocess.PIPE,
        env={**ENVIRONMENT, "CLEW_SOAK_LEAK": str(leak_bytes)},
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
    if told["runs_compared"] >= RUNS_COMPARED_PAGES_MIN:
        assert told["kept_bytes"] <= KEPT_BYTES_MAX, f"{told['kept_bytes']} bytes of memory stay of each run"
    if told["runs_compared"] >= RUNS_COMPARED_MIN:
        given_out = told.get("kept_given_out", 0.0)
        assert given_out <= KEPT_BYTES_MAX, f"{given_out} bytes that the C library gave out stay of each run"
        assert told["kept_blocks"] <= KEPT_BLOCKS_MAX, f"{told['kept_blocks']} Python objects stay of each run"
    return told


def kept(reports: list[dict[str, Any]]) -> dict[str, Any]:
    """What stays of each run that was done in the second half of the reports: bytes of the process, bytes that the C
    library has given out (where it says so), and Python objects.

    Compared are the middle values of the third and of the last quarter, half of that time apart; a run that is under
    way, or a collection of garbage that is due, does not move them.
    """
    quarter = max(len(reports) // 4, 1)
    parts = reports[-2 * quarter : -quarter] or reports[:1], reports[-quarter:]
    middle = {
        name: [statistics.median(report[name] for report in part) for part in parts]
        for name in ("done", "rss_kib", "malloc_kib", "blocks")
    }
    done, rss, given_out, blocks = (late - early for early, late in middle.values())
    told = {
        "runs_compared": int(done),
        "kept_bytes": round(rss * 1024 / max(done, 1), 1),
        "kept_blocks": round(blocks / max(done, 1), 3),
    }
    if min(middle["malloc_kib"]) > 0:
        told["kept_given_out"] = round(given_out * 1024 / max(done, 1), 1)
    return told


async def try_leaks(folder: Path, load: Load, leaks: Sequence[int]) -> list[dict[str, Any]]:
    """What the check of memory says of processes that keep so many bytes of each run, side by side."""
    reports: list[list[dict[str, Any]]] = [[] for _ in leaks]

    async def run(number: int, leak_bytes: int) -> None:
        (own := folder / str(number)).mkdir()
        process = await start(own, "survivor", load.seconds, load, leak_bytes=leak_bytes)
        reports[number] = await read_reports(process)
        assert await process.wait() == 0, "it failed"

    await asyncio.gather(*(run(number, leak_bytes) for number, leak_bytes in enumerate(leaks)))
    told: list[dict[str, Any]] = []
    for leak_bytes, of_process in zip(leaks, reports, strict=True):
        said = ""
        try:
            compare(of_process)
        except AssertionError as error:
            said = str(error)
        told.append({"leak_bytes": leak_bytes, **kept(of_process), "said": said})
    return told


def wrong_of_leaks(tries: Sequence[dict[str, Any]]) -> list[str]:
    """What is wrong with the check, by what it said of each process; empty when nothing is."""
    wrong: list[str] = []
    for told in tries:
        if told["runs_compared"] < RUNS_COMPARED_MIN:
            wrong.append(f"{told['runs_compared']} runs are too few to tell anything; give it more seconds")
        elif bool(told["leak_bytes"]) != (" of each run" in told["said"]):
            wrong.append(f"of a process that keeps {told['leak_bytes']} bytes of each run it says {told['said']!r}")
    return wrong


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


def tell_leaks(tries: list[dict[str, Any]], header: dict[str, Any], record: Path | None) -> int:
    """Print what came of the tries, and keep it if the check told all of them apart; the exit code."""
    told = {**{name: header[name] for name in ("date", "commit", "python", "seconds", "width")}, "tries": tries}
    sys.stdout.write(f"{json.dumps(told)}\n")
    if wrong := wrong_of_leaks(tries):
        sys.stdout.write("".join(f"{line}\n" for line in wrong))
        return 1
    if record:
        record.write_text(f"{json.dumps(told, indent=1)}\n")
    return 0


def main() -> int:
    """Run, print the figures, and answer with the exit code."""
    parser = argparse.ArgumentParser(prog="soak", description=__doc__)
    parser.add_argument("--seconds", type=float, default=3600.0)
    parser.add_argument("--kill-every", type=float, default=5.0)
    parser.add_argument("--width", type=int, default=30, help="runs under way at a time, in each process")
    parser.add_argument("--rate", type=float, default=0.0, help="starts a second in each process; 0: all it can")
    parser.add_argument("--record", type=Path, help="write the figures to this file")
    parser.add_argument("--leaks", type=int, nargs="+", help="try the check of memory with so many bytes kept")
    options = parser.parse_args()
    load = Load(options.seconds, options.kill_every, options.width, options.rate)
    header = described(load)
    with tempfile.TemporaryDirectory() as folder:
        if options.leaks:
            return tell_leaks(asyncio.run(try_leaks(Path(folder), load, options.leaks)), header, options.record)
        told = asyncio.run(soak(Path(folder), load))
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    told = {**header, **told, "cpu_seconds": round(usage.ru_utime + usage.ru_stime, 1)}
    sys.stdout.write(f"{json.dumps(told)}\n")
    if options.record:
        options.record.write_text(f"{json.dumps(told, indent=1)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
