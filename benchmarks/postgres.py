"""Clew beside DBOS and Absurd on one PostgreSQL server: ``python -m benchmarks.postgres [W1 …] [--runs 3] [--page]``.

Owns: the server that all three use, whose turn it is, and the table. Never: what is measured (``benchmarks.peers``).

How it works: each measurement gets a database of its own on the same server, with ``fsync`` and ``synchronous_commit``
on, after a checkpoint; the engines take turns within a run, so that a slow minute of the machine meets all. Figures are
added to a file of lines, so a long measurement can be made in parts; the table shows the medians of what is there.
CPU is that of the engine's processes and of the database server together.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import statistics
import sys
import time
from pathlib import Path
from typing import Any, Final

from benchmarks import peers
from benchmarks.peers import ROOT, SHOWN, SIZES, Peer, Shown
from tests.postgres.databases import execute
from tests.postgres.server import PostgresServer, running

RESULTS: Final = ROOT / "build" / "bench-postgres.jsonl"
PAGE: Final = ROOT / "docs" / "reference" / "benchmarks-postgres.md"

OURS: Final = Peer(
    "clew",
    "Clew",
    packages=(),
    stores=("sqlite", "postgres"),
    workloads=tuple(SIZES),
    settings="engine, worker and caller in one process, everything at its default but for 200 tasks at once",
)
OTHERS: Final = ("dbos", "absurd")

SERVER: Final = {"shared_buffers": "256MB", "max_wal_size": "1GB"}

GOAL: Final = 5.0
"""How many times the better of the others Clew wants to do in throughput."""

TITLES: Final = {
    "W1": "one workflow, 100 activities in sequence",
    "W1-LOCAL": "one workflow, 100 local steps in sequence",
    "W2": "workflows of three activities, 200 in flight",
    "W2-LOCAL": "workflows of three local steps, 200 in flight",
    "W3": "one workflow, 1,000 activities at once",
    "W4": "10,000 workflows that sleep for an hour",
    "W5": "1,000 sleepers, the process killed and started again",
    "W6": "a workflow with 1,000 finished activities, resumed after a kill",
    "W6-LOCAL": "a workflow with 1,000 finished local steps, resumed after a kill",
    "W7": "a message to a waiting workflow and its answer",
}
_BASE: Final = {"W1-LOCAL": "W1", "W2-LOCAL": "W2", "W6-LOCAL": "W6"}
"""What stands in for a line of local steps at an engine that has one kind of step."""

CUTS: Final = """\
What is timed in W6: *to the next step* begins when the code of the workflow is entered again. By then Absurd and Clew
have loaded what is recorded, Absurd with one query; DBOS reads each step as it comes to it. The next step is a local
one in W6-LOCAL, as theirs are, and an activity in W6, which takes a commit before it begins. *From the start* begins
when the process that was killed is started again, on the same machine; Absurd then waits for a claim to run out,
after 10 s here and 120 by default. In W4 memory is looked at 10 s after the last start. In W1 every engine makes one
durable commit a step. While other programs wrote to the same disk, a bare commit of one row took 0.2 to 4 ms there,
so W1 says more about the disk than about the engines; CPU does not."""

Record = dict[str, Any]


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
    records = read(options.results)
    print("\n".join(table(records)))
    if options.page:
        PAGE.write_text(page(records), encoding="utf-8")
    return 0


def _engines() -> list[Peer]:
    return [OURS, *[peer for peer in peers.installed("postgres") if peer.name in OTHERS]]


def read(path: Path) -> list[Record]:
    """What was measured so far."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


# --- measuring --------------------------------------------------------------------------------------------------------


def _measure(names: list[str], engines: list[Peer], runs: int, results: Path) -> None:
    results.parent.mkdir(parents=True, exist_ok=True)
    versions = {engine.name: peers.version_of(engine) if engine is not OURS else "" for engine in engines}
    server = running(SERVER)
    os.environ["CLEW_PEER_SERVER_PID"] = (server.data / "postmaster.pid").read_text().split("\n", 1)[0]
    try:
        [release] = asyncio.run(execute(server.dsn, "SELECT current_setting('server_version')"))
        for name in names:
            for turn in range(runs):
                for engine in _rotated(engines, turn):
                    if name not in engine.workloads:
                        continue
                    load = os.getloadavg()[0]
                    told = _measure_one(server, engine, name)
                    print(f"{name} {engine.title}: {json.dumps(told)}", flush=True)
                    record = {
                        "workload": name,
                        "engine": engine.name,
                        "figures": told,
                        "at": time.strftime("%Y-%m-%d %H:%M"),
                        "load": round(load, 1),
                        "version": versions[engine.name],
                        "server": release,
                    }
                    with results.open("a", encoding="utf-8") as file:
                        file.write(json.dumps(record) + "\n")
    finally:
        server.remove()


def _rotated(engines: list[Peer], turn: int) -> list[Peer]:
    start = turn % len(engines)
    return engines[start:] + engines[:start]


def _measure_one(server: PostgresServer, engine: Peer, name: str) -> peers.Figures | None:
    """The figures; None when the engine failed, which is said."""
    asyncio.run(execute(server.dsn, "CREATE DATABASE bench", "CHECKPOINT"))
    try:
        return peers.measure(engine, name, SIZES[name], server.dsn_of("bench"))
    except peers.PeerFailed as error:
        print(error, flush=True)
        return None
    finally:
        asyncio.run(execute(server.dsn, "DROP DATABASE IF EXISTS bench WITH (FORCE)"))


# --- showing ----------------------------------------------------------------------------------------------------------


def table(records: list[Record]) -> list[str]:
    """Lines of Markdown: each figure with the medians of all three, and how Clew stands to the better of the others."""
    titles = {"clew": "Clew", **{name: peers.peer_named(name).title for name in OTHERS}}
    lines = [
        f"| workload | figure | {' | '.join(titles.values())} | Clew to the better | runs |",
        f"|---|---|{'---|' * (len(titles) + 2)}",
    ]
    for name in SIZES:
        for shown in SHOWN[name]:
            values = {engine: _median(records, engine, name, shown.key) for engine in titles}
            if values["clew"] is None:
                continue
            cells = " | ".join(_number(value) for value in values.values())
            runs = len(_values(records, "clew", name, shown.key))
            lines.append(f"| {name}: {TITLES[name]} | {shown.key} | {cells} | {_standing(shown, values)} | {runs} |")
    return lines


def _values(records: list[Record], engine: str, name: str, key: str) -> list[float]:
    wanted = name if engine == "clew" else _BASE.get(name, name)
    return [
        record["figures"][key]
        for record in records
        if record["engine"] == engine and record["workload"] == wanted and record["figures"]
    ]


def _median(records: list[Record], engine: str, name: str, key: str) -> float | None:
    values = _values(records, engine, name, key)
    return statistics.median(values) if values else None


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _standing(shown: Shown, values: dict[str, float | None]) -> str:
    """How many times as good as the better of the others."""
    ours = values["clew"]
    others = [value for engine, value in values.items() if engine != "clew" and value is not None]
    if ours is None or not others:
        return "-"
    better = max(others) if shown.is_rate else min(others)
    if ours <= 0 or better <= 0:
        return "-"
    times = ours / better if shown.is_rate else better / ours
    return f"{times:.1f} times as good" if times >= 1 else f"**{1 / times:.1f} times as bad**"


def page(records: list[Record]) -> str:
    """The page of the documentation."""
    first, last = (f(record["at"] for record in records) for f in (min, max))
    loads = [record["load"] for record in records]
    versions = sorted({record["version"] for record in records if record["version"]})
    settings = [f"- **{engine.title}**: {engine.settings}." for engine in (OURS, *map(peers.peer_named, OTHERS))]
    lines = [
        "# Beside DBOS and Absurd on PostgreSQL",
        "",
        "Written by `make bench-postgres`; do not edit. The three engines on the same server, by turns, each",
        "time on a new database. Figures are medians; what each workload does is in `benchmarks/peers`. CPU is that of",
        "the engine's processes and the database server together. DBOS and Absurd have one kind of step, which runs in",
        "the process of the workflow, as a local step of Clew does; an activity of Clew goes through a task queue to",
        "any worker. Their figures stand in both lines.",
        "",
        *table(records),
        "",
        "Clew aims at five times the throughput of the better of the two and a latency that is no worse; where a cell",
        "of the last columns is bold, it misses even the latter.",
        "",
        *CUTS.splitlines(),
        "",
        "## Settings",
        "",
        f"- **PostgreSQL {records[0]['server']}** on the same machine ({platform.machine()}, {os.cpu_count()} cores): "
        "`fsync`, `full_page_writes` and",
        f"  `synchronous_commit` on, {', '.join(f'`{name} = {value}`' for name, value in SERVER.items())}.",
        f"- Python {platform.python_version()}; {'; '.join(versions)}.",
        f"- Measured from {first} to {last} UTC on a machine that did other work (load {min(loads)} to {max(loads)}).",
        *settings,
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
