"""Clew beside DBOS and Absurd on one PostgreSQL server: ``python -m benchmarks.postgres [W1 …] [--runs 3] [--page]``.

Owns: the server that all three use, and whose turn it is. Never: what is measured (``benchmarks.peers``), or how a
table is made (``benchmarks.records``).

How it works: each measurement gets a database of its own on the same server, with ``fsync`` and ``synchronous_commit``
on, after a checkpoint; the engines take turns within a run, so that a slow minute of the machine meets all. Figures are
added to a file of lines, so a long measurement can be made in parts; the table shows the medians of what is there.
CPU is that of the engine's processes and of the database server together.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import sys
from pathlib import Path
from typing import Final

from benchmarks import peers
from benchmarks import records as found
from benchmarks.peers import ROOT, SIZES, Peer
from benchmarks.records import OURS, Record, add, in_turn
from tests.postgres.databases import execute
from tests.postgres.server import PostgresServer, running

RESULTS: Final = ROOT / "build" / "bench-postgres.jsonl"
PAGE: Final = ROOT / "docs" / "reference" / "benchmarks-postgres.md"

OTHERS: Final = ("dbos", "absurd")

SERVER: Final = {"shared_buffers": "256MB", "max_wal_size": "1GB"}

INTRODUCTION: Final = """\
Written by `make bench-postgres`; do not edit. The three engines on the same server, by turns, each time on a new
database. Figures are medians; what each workload does is in `benchmarks/peers`. CPU is that of the engine's processes
and the database server together. DBOS and Absurd have one kind of step, which runs in the process of the workflow, as a
local step of Clew does; an activity of Clew goes through a task queue to any worker. Their figures stand in both
lines."""

REMARKS: Final = """\
Clew aims at five times the throughput of the better of the two and a latency that is no worse; where a cell of the last
columns is bold, it misses even the latter.

What is timed in W6: *to the next step* begins when the code of the workflow is entered again. By then Absurd and Clew
have loaded what is recorded, Absurd with one query; DBOS reads each step as it comes to it. The next step is a local
one in W6-LOCAL, as theirs are, and an activity in W6, which takes a commit before it begins. *From the start* begins
when the process that was killed is started again, on the same machine; Absurd then waits for a claim to run out, after
10 s here and 120 by default. In W4 *starts* counts until the last start is answered, *asleep* until the last workflow
has come to its sleep: Absurd's worker begins what was spawned later, while Clew as a rule records start and sleep in
one commit, and answers then. Memory is looked at 10 s after that. *Added* has the server's cache in it, whose size is
a setting and which whatever is read or written first fills; *held* is what the processes of the engine and the server
have for themselves; *stored* is how much the database grew, empty tables included. In W1 every engine makes one
durable commit a step. A bare commit of one row takes 0.2 to 4 ms on that disk, as its neighbours write, so W1 says
more about the disk than about the engines; CPU does not."""


def main() -> int:
    """Measure what was asked for, and show what there is."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.postgres", description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="W", help=f"workloads, of {' '.join(SIZES)}; all by default")
    parser.add_argument("--runs", type=int, default=3, help="measurements of each; 0 shows what was measured before")
    parser.add_argument("--only", nargs="+", default=["clew", *OTHERS], help="engines; all by default")
    parser.add_argument("--results", type=Path, default=RESULTS, help="the file of lines that figures are added to")
    parser.add_argument("--page", action="store_true", help=f"write {PAGE.relative_to(ROOT)}")
    options = parser.parse_args()
    names = [name.upper() for name in options.names] or list(SIZES)
    os.environ.setdefault(OURS.variable, sys.executable)
    engines = [engine for engine in _engines() if engine.name in options.only]
    for absent in [peer for peer in peers.missing("postgres") if peer.name in OTHERS]:
        print(f"{absent.title} is not installed (make bench-peers, or {absent.variable}); it is left out")
    if options.runs:
        _measure(names, engines, options.runs, options.results)
    records = found.read(options.results)
    print("\n".join(found.table(records, [peers.peer_named(name) for name in OTHERS])))
    if options.page:
        PAGE.write_text(page(records), encoding="utf-8")
    return 0


def _engines() -> list[Peer]:
    return [OURS, *[peer for peer in peers.installed("postgres") if peer.name in OTHERS]]


# --- measuring --------------------------------------------------------------------------------------------------------


def _measure(names: list[str], engines: list[Peer], runs: int, results: Path) -> None:
    versions = {engine.name: peers.version_of(engine) if engine is not OURS else "" for engine in engines}
    server = running(SERVER)
    os.environ["CLEW_PEER_SERVER_PID"] = (server.data / "postmaster.pid").read_text().split("\n", 1)[0]
    try:
        [release] = asyncio.run(execute(server.dsn, "SELECT current_setting('server_version')"))
        for name in names:
            for turn in range(runs):
                for engine in in_turn([engine for engine in engines if name in engine.workloads], turn):
                    load = os.getloadavg()[0]
                    figures = _measure_one(server, engine, name)
                    version = versions[engine.name]
                    add(results, name, engine.name, figures, load=load, version=version, server=release)
    finally:
        server.remove()


def _measure_one(server: PostgresServer, engine: Peer, name: str) -> peers.Figures | None:
    """The figures; None when the engine failed, which is said."""
    asyncio.run(execute(server.dsn, "CREATE DATABASE bench", "CHECKPOINT"))
    size = "SELECT pg_database_size('bench')::text"
    try:
        [empty] = asyncio.run(execute(server.dsn, size))
        figures = peers.measure(engine, name, SIZES[name], server.dsn_of("bench"))
        [full] = asyncio.run(execute(server.dsn, size))
        return {**figures, "MB stored": (int(full) - int(empty)) / 1e6}
    except peers.PeerFailed as error:
        print(error, flush=True)
        return None
    finally:
        asyncio.run(execute(server.dsn, "DROP DATABASE IF EXISTS bench WITH (FORCE)"))


# --- showing ----------------------------------------------------------------------------------------------------------


def page(records: list[Record]) -> str:
    """The page of the documentation."""
    others = [peers.peer_named(name) for name in OTHERS]
    settings = [
        f"- **PostgreSQL {records[0]['server']}** on the same machine ({platform.machine()}, {os.cpu_count()} cores): "
        "`fsync`, `full_page_writes` and",
        f"  `synchronous_commit` on, {', '.join(f'`{name} = {value}`' for name, value in SERVER.items())}.",
        f"- Python {platform.python_version()}.",
        *(f"- **{engine.title}**: {engine.settings}." for engine in (OURS, *others)),
    ]
    shown = found.table(records, others)
    return found.page("Beside DBOS and Absurd on PostgreSQL", INTRODUCTION, shown, REMARKS, records, settings)


if __name__ == "__main__":
    sys.exit(main())
