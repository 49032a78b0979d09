"""Clew's server beside the servers of others: ``python -m benchmarks.servers [W1 …] [--runs 3] [--page]``.

Owns: which engines are servers, and the page of what was found. Never: what is measured (``benchmarks.peers``),
whose turn it is (``benchmarks.beside``), or how a table is made (``benchmarks.records``).

How it works: as ``benchmarks.beside``, but each engine is a server in a process of its own with one worker process
behind a connection, which is the shape that Restate and Temporal have. Clew's is a node as ``clew server start`` runs
it, on a SQLite file, with the worker and the caller in one process behind a link.
"""

from __future__ import annotations

import argparse
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Final

from benchmarks import peers
from benchmarks import records as found
from benchmarks.beside import machine, measure_in_turns
from benchmarks.peers import ROOT
from benchmarks.records import OURS, Record

RESULTS: Final = ROOT / "build" / "bench-servers.jsonl"
PAGE: Final = ROOT / "docs" / "reference" / "benchmarks-servers.md"
SERVERS: Final = ("restate", "temporal")
WORKLOADS: Final = ("W1", "W1-LOCAL", "W2", "W2-LOCAL", "W7")

SERVED: Final = replace(
    OURS,
    settings="a node as `clew server start` makes it, on a SQLite file, in a process of its own; worker and caller in "
    "another, behind one link over loopback; everything at its default but for 200 tasks at once",
)

INTRODUCTION: Final = """\
Written by `make bench-servers`; do not edit. Each engine as a server in processes of its own, with one worker behind a
connection over loopback, by turns on one machine on which load, worker and server share the processors. Figures are
medians. What a workload does is in `benchmarks/peers`. Restate has one kind of step, which runs in the process of the
workflow, as a local step of Clew does; its figures stand in both lines. Clew in the caller's process, without a server:
[Beside other engines](benchmarks.md)."""

REMARKS: Final = """\
The round trip of W7 is an update (Clew, Temporal), or a durable promise resolved and another awaited (Restate). A dash
is a measurement that was not made, or not within the time that one may take."""


def main() -> int:
    """Measure what was asked for, and show what there is."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.servers", description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="W", help=f"workloads, of {' '.join(WORKLOADS)}; all by default")
    parser.add_argument("--runs", type=int, default=3, help="measurements of each; 0 shows what was measured before")
    parser.add_argument("--only", nargs="+", help="engines; Clew and all that are installed by default")
    parser.add_argument("--results", type=Path, default=RESULTS, help="the file of lines that figures are added to")
    parser.add_argument("--note", default="", help="a sentence about the machine, for the page")
    parser.add_argument("--page", action="store_true", help=f"write {PAGE.relative_to(ROOT)}")
    options = parser.parse_args()
    names = [name.upper() for name in options.names] or list(WORKLOADS)
    if unknown := set(names) - set(WORKLOADS):
        parser.error(f"no such workload: {', '.join(sorted(unknown))}; there are {', '.join(WORKLOADS)}")
    os.environ.setdefault(OURS.variable, sys.executable)
    others = [peers.peer_named(name) for name in SERVERS]
    for peer in others:
        if peer.python is None:
            print(f"{peer.title} is not installed (make bench-peers, or {peer.variable}); it is left out")
    if options.runs:
        engines = [SERVED, *(peer for peer in others if peer.python is not None)]
        engines = [engine for engine in engines if not options.only or engine.name in options.only]
        measure_in_turns(names, engines, options.runs, options.results, our_store="server")
    records = found.read(options.results)
    print("\n".join(found.table(records, others)))
    if options.page:
        PAGE.write_text(page(records, options.note), encoding="utf-8")
    return 0


def page(records: list[Record], note: str = "") -> str:
    """The page of the documentation."""
    others = [peers.peer_named(name) for name in SERVERS]
    settings = [machine(), *([f"- {note}"] if note else [])]
    settings += [f"- **{engine.title}**: {engine.settings}." for engine in (SERVED, *others)]
    return found.page("Beside other servers", INTRODUCTION, found.table(records, others), REMARKS, records, settings)


if __name__ == "__main__":
    sys.exit(main())
