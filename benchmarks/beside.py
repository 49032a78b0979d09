"""Clew beside the peers that are installed: ``python -m benchmarks.beside [W1 …] [--runs 3] [--page]``.

Owns: whose turn it is, and the floor's turn beside them. Never: what is measured (``benchmarks.peers``, and
``benchmarks.floor`` for the least work that an engine of this shape can do in Python), or how a table is made
(``benchmarks.records``).

How it works: within a run each engine has its turn on a new store, so that a slow minute of the machine meets all, and
the next run begins with another. The same on one PostgreSQL server is ``benchmarks.postgres``.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import sqlite3
import sys
from pathlib import Path
from typing import Final

from benchmarks import floor, peers
from benchmarks import records as found
from benchmarks.peers import ROOT, SIZES, Peer
from benchmarks.records import FLOOR, OURS, Record, add, in_turn

RESULTS: Final = ROOT / "build" / "bench.jsonl"
PAGE: Final = ROOT / "docs" / "reference" / "benchmarks.md"

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
    records = found.read(options.results)
    print("\n".join(found.table(records, peers.PEERS, has_floor=True)))
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
    versions = {engine.name: peers.version_of(engine) if engine.name != OURS.name else "" for engine in engines}
    for turn in range(runs):
        for name in names:
            for engine in in_turn([engine for engine in engines if name in engine.workloads], turn):
                store, load = our_store if engine.name == OURS.name else "sqlite", os.getloadavg()[0]
                figures = _measure_one(engine, name, store)
                add(results, name, engine.name, figures, load=load, version=versions[engine.name])
            if with_floor and name == "W2":
                load = os.getloadavg()[0]
                add(results, name, FLOOR, _floor(), load=load)


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


# --- showing ----------------------------------------------------------------------------------------------------------


def machine() -> str:
    """A point about the machine."""
    return (
        f"- {platform.machine()}, {os.cpu_count()} processors, {platform.system()}; Python "
        f"{platform.python_version()}, SQLite {sqlite3.sqlite_version} (WAL, `synchronous=FULL`)."
    )


def page(records: list[Record]) -> str:
    """The page of the documentation."""
    measured = {record["engine"] for record in records}
    others = [peer for peer in peers.PEERS if peer.name in measured]
    settings = [machine(), *(f"- **{engine.title}**: {engine.settings}." for engine in (OURS, *others))]
    shown = found.table(records, others, has_floor=True)
    return found.page("Beside other engines", INTRODUCTION, shown, REMARKS, records, settings)


if __name__ == "__main__":
    sys.exit(main())
