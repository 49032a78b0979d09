"""Clew beside the peers that are installed: ``python -m benchmarks.beside [W1 …] [--runs 3] [--page]``.

Owns: whose turn it is, the floor's turn beside them, and the table and page of what was found. Never: what is measured
(``benchmarks.peers``, and ``benchmarks.floor`` for the least work that an engine of this shape can do in Python).

How it works: within a run each engine has its turn on a new store, so that a slow minute of the machine meets all, and
the next run begins with another. Figures are added to a file of lines, so a long measurement can be made in parts; the
table has the medians of what is there. The same on one PostgreSQL server is ``benchmarks.postgres``.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import sqlite3
import statistics
import sys
import time
from pathlib import Path
from typing import Any, Final

from benchmarks import floor, peers
from benchmarks.peers import ROOT, SHOWN, SIZES, Peer, Shown
from benchmarks.postgres import OURS, TITLES, read

RESULTS: Final = ROOT / "build" / "bench.jsonl"
PAGE: Final = ROOT / "docs" / "reference" / "benchmarks.md"
FLOOR: Final = "floor"

BASE: Final = {"W1-LOCAL": "W1", "W2-LOCAL": "W2", "W6-LOCAL": "W6"}
"""What stands in the line of local steps for an engine that has one kind of step."""

INTRODUCTION: Final = """\
Written by `make bench`; do not edit. Each engine with what it brings along itself as a store (Clew: SQLite), by turns
on one machine, load, worker and engine sharing its processors. Figures are medians. What a workload does is in
`benchmarks/peers`; a peer is measured where it is installed (`make bench-peers`). The floor is the least work that an
engine which records the same can do in Python (`benchmarks/floor.py`). Restate and DBOS have one kind of step, which
runs in the process of the workflow, as a local step of Clew does; an activity of Clew goes through a task queue to any
worker. Their figures stand in both lines. The same on one PostgreSQL server: `make bench-postgres`."""

REMARKS: Final = """\
The round trip of W7 is an update (Clew, Temporal), a durable promise resolved and another awaited (Restate), or a
message and an event (DBOS, which polls once a second on SQLite by default). In W4 memory is what sleepers add to all
processes of an engine and its worker, fresh ones, so growing into their working size is part of it. In W5 worker and
engine die together where they are one process, else the worker dies alone."""

Record = dict[str, Any]


def main() -> int:
    """Measure what was asked for, and show what there is."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.beside", description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="W", help=f"workloads, of {' '.join(SIZES)}; all by default")
    parser.add_argument("--runs", type=int, default=3, help="measurements of each; 0 shows what was measured before")
    parser.add_argument("--only", nargs="+", help="engines; Clew, the floor and all that are installed by default")
    parser.add_argument("--results", type=Path, default=RESULTS, help="the file of lines that figures are added to")
    parser.add_argument("--page", action="store_true", help=f"write {PAGE.relative_to(ROOT)}")
    options = parser.parse_args()
    names = [name.upper() for name in options.names] or list(SIZES)
    if unknown := set(names) - set(SIZES):
        parser.error(f"no such workload: {', '.join(sorted(unknown))}; there are {', '.join(SIZES)}")
    os.environ.setdefault(OURS.variable, sys.executable)
    wanted = options.only or [OURS.name, FLOOR, *(peer.name for peer in peers.PEERS)]
    for peer in peers.missing("sqlite"):
        print(f"{peer.title} is not installed (make bench-peers, or {peer.variable}); it is left out")
    engines = [engine for engine in (OURS, *peers.installed("sqlite")) if engine.name in wanted]
    if options.runs:
        measure_in_turns(names, engines, options.runs, options.results, with_floor=FLOOR in wanted)
    records = read(options.results)
    print("\n".join(table(records)))
    if options.page:
        PAGE.write_text(page(records), encoding="utf-8")
    return 0


# --- measuring --------------------------------------------------------------------------------------------------------


def measure_in_turns(
    names: list[str],
    engines: list[Peer],
    runs: int,
    results: Path,
    *,
    with_floor: bool = False,
    our_store: str = "sqlite",
) -> None:
    """Add figures to a file: each engine has its turn at each workload, as often as there are runs.

    Args:
        names: The workloads.
        engines: Clew may be one of them.
        runs: How often.
        results: The file.
        with_floor: Whether the floor has its turn beside W2.
        our_store: What Clew is measured on, see ``benchmarks.peers.clew``.
    """
    results.parent.mkdir(parents=True, exist_ok=True)
    versions = {engine.name: peers.version_of(engine) if engine.name != OURS.name else "" for engine in engines}
    for turn in range(runs):
        for name in names:
            able = [engine for engine in engines if name in engine.workloads]
            start = turn % max(1, len(able))
            for engine in able[start:] + able[:start]:
                store = our_store if engine.name == OURS.name else "sqlite"
                _note(results, name, engine.name, versions[engine.name], _measure_one(engine, name, store))
            if with_floor and name == "W2":
                _note(results, name, FLOOR, "", _floor())


def _measure_one(engine: Peer, name: str, store: str) -> peers.Figures | None:
    """The figures; None when the engine failed, which is said."""
    try:
        return peers.measure(engine, name, SIZES[name], store)
    except peers.PeerFailed as error:
        print(error, flush=True)
        return None


def _floor() -> peers.Figures:
    found = asyncio.run(floor.measure(SIZES["W2"], SIZES["W1"]))
    return {"workflows/s": found.workflows_per_second, "CPU ms/workflow": found.cpu_ms_per_workflow}


def _note(results: Path, name: str, engine: str, version: str, figures: peers.Figures | None) -> None:
    print(f"{name} {engine}: {json.dumps(figures)}", flush=True)
    record = {
        "workload": name,
        "engine": engine,
        "figures": figures,
        "at": time.strftime("%Y-%m-%d %H:%M"),
        "load": round(os.getloadavg()[0], 1),
        "version": version,
    }
    with results.open("a", encoding="utf-8") as file:
        file.write(json.dumps(record) + "\n")


# --- showing ----------------------------------------------------------------------------------------------------------


def table(records: list[Record]) -> list[str]:
    """Lines of Markdown: the medians of all, the best of the peers to Clew, and the share of the floor."""
    found = {record["engine"] for record in records}
    others = [peer for peer in peers.PEERS if peer.name in found]
    columns = [
        "workload",
        "figure",
        "Clew",
        *(peer.title for peer in others),
        "Clew to the best of them",
        "floor",
        "runs",
    ]
    lines = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    for name in SIZES:
        for shown in SHOWN[name]:
            ours = median(records, OURS.name, name, shown.key)
            if ours is None:
                continue
            theirs = [median(records, peer.name, name, shown.key) for peer in others]
            cells = [f"{name}: {TITLES[name]}", shown.key, number(ours), *map(number, theirs)]
            cells += [standing(shown, ours, theirs), number(median(records, FLOOR, name, shown.key))]
            cells.append(runs_of(records, name, [OURS.name, *(peer.name for peer in others)]))
            lines.append(f"| {' | '.join(cells)} |")
    return lines


def values(records: list[Record], engine: str, name: str, key: str) -> list[float]:
    """What was found of one figure; of the kind of step that the engine has, when it has one."""
    stands_in = BASE.get(name) if engine in {"restate", "dbos"} else None
    wanted = stands_in or name
    return [
        record["figures"][key]
        for record in records
        if record["engine"] == engine
        and record["workload"] == wanted
        and record["figures"]
        and key in record["figures"]
    ]


def median(records: list[Record], engine: str, name: str, key: str) -> float | None:
    """The median of one figure; None without any."""
    found = values(records, engine, name, key)
    return statistics.median(found) if found else None


def runs_of(records: list[Record], name: str, engines: list[str]) -> str:
    """How often it was measured; a range when not all were equally often."""
    counts = {len(values(records, engine, name, SHOWN[name][0].key)) for engine in engines} - {0}
    return str(min(counts)) if len(counts) == 1 else f"{min(counts)}-{max(counts)}"


def number(value: float | None) -> str:
    """As a table shows it."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def standing(shown: Shown, ours: float, theirs: list[float | None]) -> str:
    """How many times as good as the best of the others."""
    known = [value for value in theirs if value is not None]
    if not known:
        return "-"
    best = max(known) if shown.is_rate else min(known)
    if ours <= 0 or best <= 0:
        return "-"
    times = ours / best if shown.is_rate else best / ours
    return f"{times:.1f} times as good" if times >= 1 else f"**{1 / times:.1f} times as bad**"


def page(records: list[Record]) -> str:
    """The page of the documentation."""
    found = {record["engine"] for record in records}
    engines = [OURS, *(peer for peer in peers.PEERS if peer.name in found)]
    versions = sorted({record["version"] for record in records if record["version"]})
    first, last = (f(record["at"] for record in records) for f in (min, max))
    loads = [record["load"] for record in records]
    machine = f"{platform.machine()}, {os.cpu_count()} processors, {platform.system()}"
    lines = [
        "# Beside other engines",
        "",
        INTRODUCTION,
        "",
        *table(records),
        "",
        REMARKS,
        "",
        "## Machine and settings",
        "",
        f"- {machine}; Python {platform.python_version()}, SQLite {sqlite3.sqlite_version} (WAL, `synchronous=FULL`).",
        f"- Measured from {first} to {last} UTC on a machine that did other work (load {min(loads)} to {max(loads)}).",
        "  Ratios within a line travel better than figures. Where the load is far above the number of processors,",
        "  waiting times (W1, W5, W7) are the machine's as much as an engine's: compare CPU.",
        *([f"- Versions: {'; '.join(versions)}."] if versions else []),
        *(f"- **{engine.title}**: {engine.settings}." for engine in engines),
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
