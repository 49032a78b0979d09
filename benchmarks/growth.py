"""How cost grows: ``python -m benchmarks.growth [history open-runs backlog payload …] [--page]``.

Owns: what grows, by how much, and the page with its plots. Never: judges.

How it works: each dimension is measured at a few sizes, some decades apart, as processor time an operation (which moves
less with the machine's load than time does). The exponent of growth is the slope of the points on logarithmic axes: 0
is a constant cost, 1 one in proportion to the size. Figures are kept in a file, so that dimensions can be measured one
at a time and the page written from all of them.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from benchmarks import fleet, parked, workloads
from benchmarks.peers import ROOT
from benchmarks.plot import Points, draw, slope
from benchmarks.workflows import TIMEOUT, Sequence, no_op
from clew import activity, workflow
from clew.client import Client
from clew.worker import Worker

RESULTS: Final = ROOT / "build" / "growth.json"
FOLDER: Final = ROOT / "docs" / "explanation"
PAGE: Final = FOLDER / "growth.md"

TURNS: Final = 3
"""Measurements of each size of which the least counts: what disturbs only adds."""

HISTORY_STEPS: Final = 50_000
"""Close to the number of events at which a run is ended (51,200)."""

WINDOW_MAX: Final = 1_000
"""Steps on either side of a length that are looked at together."""

OPEN_RUNS: Final = (100, 1_000, 10_000, 100_000)
BACKLOGS: Final = (100, 1_000, 10_000)
PAYLOAD_BYTES: Final = (100, 1_000, 10_000, 100_000, 1_000_000)
NODES: Final = (1, 2, 3)
FAN_OUTS: Final = (300, 1_000, 3_000, 10_000)
WINDOW: Final = 1_000
"""Half of what a run may have pending of a kind (2,000), so that the limit does not decide."""

QUEUE: Final = "growth"
cpu_times: list[float] = []


@activity.defn
async def timed(value: Any) -> Any:
    """Note the processor time so far."""
    cpu_times.append(time.process_time())
    return value


@workflow.defn
class LongSequence:
    """Local steps one after another."""

    @workflow.run
    async def run(self, count: int) -> None:
        for number in range(count):
            await workflow.execute_local_activity(timed, number, start_to_close_timeout=TIMEOUT)


@workflow.defn
class Carrier:
    """Activities that are given something and give it back."""

    @workflow.run
    async def run(self, value: str, count: int) -> None:
        for _ in range(count):
            await workflow.execute_activity(timed, value, start_to_close_timeout=TIMEOUT)


@workflow.defn
class WideActivities:
    """So many activities, of which at most so many are pending."""

    @workflow.run
    async def run(self, count: int, window: int) -> None:
        gate = asyncio.Semaphore(window)

        async def one(number: int) -> None:
            async with gate:
                await workflow.execute_activity(no_op, number, start_to_close_timeout=TIMEOUT)

        await asyncio.gather(*(one(number) for number in range(count)))


@workflow.defn
class Leaf:
    """A child that ends at once."""

    @workflow.run
    async def run(self, number: int) -> int:
        return number


@workflow.defn
class WideChildren:
    """So many children, of which at most so many are pending."""

    @workflow.run
    async def run(self, count: int, window: int) -> None:
        gate = asyncio.Semaphore(window)

        async def one(number: int) -> None:
            async with gate:
                await workflow.execute_child_workflow(Leaf.run, number, id=f"leaf-{count}-{number}")

        await asyncio.gather(*(one(number) for number in range(count)))


def worker(client: Client, queue: str = QUEUE) -> Worker:
    """A worker for all that is measured here."""
    return Worker(
        client,
        task_queue=queue,
        workflows=[LongSequence, Carrier, Sequence, WideActivities, WideChildren, Leaf],
        activities=[timed, no_op],
        max_concurrent_activities=workloads.IN_FLIGHT,
        max_concurrent_workflow_tasks=workloads.IN_FLIGHT,
    )


# --- dimensions -------------------------------------------------------------------------------------------------------


def history() -> Points:
    """A local step of a run with so many events."""

    async def run() -> None:
        async with workloads.engine() as client, worker(client):
            await client.execute_workflow(LongSequence.run, 200, id="warm-up", task_queue=QUEUE)
            cpu_times.clear()
            await client.execute_workflow(
                LongSequence.run, HISTORY_STEPS, id="measured", task_queue=QUEUE, task_timeout=timedelta(minutes=2)
            )

    asyncio.run(run())
    points: Points = []
    for length in (50, 500, 5_000, 20_000, HISTORY_STEPS - WINDOW_MAX):
        half = min(length // 2, WINDOW_MAX - 1)
        spent = cpu_times[length + half] - cpu_times[length - half]
        points.append((length, 1e6 * spent / (2 * half)))
    return points


def open_runs() -> Points:
    """A workflow of three activities beside so many parked ones."""
    points: Points = []
    with tempfile.TemporaryDirectory(prefix="clew-bench-") as folder:
        for count in OPEN_RUNS:
            store = f"sqlite:{folder}/{count}.db"
            asyncio.run(parked.fill(store, count))
            workloads.store_in_use[:] = [store]
            figures = [asyncio.run(workloads.many_workflows(300)) for _ in range(TURNS)]
            points.append((count, 1e3 * min(figure["CPU ms/workflow"] for figure in figures)))
    workloads.store_in_use.clear()
    return points


def backlog() -> Points:
    """A workflow of one activity, one of so many that have waited for a worker."""

    async def run(count: int) -> float:
        async with workloads.engine() as client:
            gate = asyncio.Semaphore(workloads.IN_FLIGHT)

            async def start(number: int) -> Any:
                async with gate:
                    return await client.start_workflow(Sequence.run, 1, id=f"w-{number}", task_queue=QUEUE)

            handles = await asyncio.gather(*(start(number) for number in range(count)))
            cpu = time.process_time()
            async with worker(client):
                for handle in handles:
                    await handle.result()
                return (time.process_time() - cpu) / count

    return [(count, 1e6 * min(asyncio.run(run(count)) for _ in range(_turns(count)))) for count in BACKLOGS]


def _turns(count: int) -> int:
    return TURNS if count < BACKLOGS[-1] else 1


def payload() -> Points:
    """An activity that is given so many bytes and gives them back."""

    async def run(size: int) -> float:
        async with workloads.engine() as client, worker(client):
            value = "x" * (size - 2)
            await client.execute_workflow(Carrier.run, args=[value, 3], id="warm-up", task_queue=QUEUE)
            cpu, steps = time.process_time(), 10
            await client.execute_workflow(Carrier.run, args=[value, steps], id="measured", task_queue=QUEUE)
            return (time.process_time() - cpu) / steps

    return [(size, 1e6 * min(asyncio.run(run(size)) for _ in range(TURNS))) for size in PAYLOAD_BYTES]


def wide_activities() -> Points:
    """An activity, one of so many that a run starts, 1,000 pending at a time."""
    return asyncio.run(_wide(WideActivities))


def wide_children() -> Points:
    """A child, one of so many that a run starts, 1,000 pending at a time."""
    return asyncio.run(_wide(WideChildren))


async def _wide(parent: type[WideActivities] | type[WideChildren]) -> Points:
    points: Points = []
    for count in FAN_OUTS:
        async with workloads.engine() as client, worker(client):
            await client.execute_workflow(parent.run, args=[50, 50], id="warm-up", task_queue=QUEUE)
            cpu = time.process_time()
            await client.execute_workflow(
                parent.run, args=[count, WINDOW], id="wide", task_queue=QUEUE, task_timeout=timedelta(minutes=2)
            )
            points.append((count, 1e6 * (time.process_time() - cpu) / count))
    return points


def nodes() -> Points:
    """A workflow of three activities on so many nodes with one PostgreSQL database, in all of them together."""
    from tests.postgres.server import running

    server = running({"max_connections": "100"})
    try:
        return [(count, 1e3 * fleet.measure(server.dsn, count, 0)[1]) for count in NODES]
    finally:
        server.remove()


@dataclass(frozen=True)
class Dimension:
    """One thing that grows.

    Args:
        title: Of its section.
        size: What is counted.
        cost: What is measured.
        order: What growth is promised.
        measure: Gives the points.
        remark: What is known of a step in the curve.
    """

    title: str
    size: str
    cost: str
    order: str
    measure: Callable[[], Points]
    remark: str = ""


DIMENSIONS: Final = {
    "history": Dimension(
        "Length of history",
        "events in the run's history",
        "CPU, µs a local step",
        "constant: a step appends one row and rewrites one of fixed size",
        history,
    ),
    "open-runs": Dimension(
        "Open runs",
        "runs that are parked beside",
        "CPU, µs a workflow of three activities",
        "constant but for the depth of indexes, which grows with the logarithm",
        open_runs,
    ),
    "backlog": Dimension(
        "Backlog",
        "runs that wait for a worker",
        "CPU, µs a workflow of one activity",
        "constant: tasks are claimed from the front of an index",
        backlog,
        "When more than some hundred runs wait, those that nobody works on leave memory, and are read again when their "
        "turn comes.",
    ),
    "payload": Dimension(
        "Size of payloads",
        "bytes given to an activity and back",
        "CPU, µs an activity",
        "in proportion once bytes outweigh the rest",
        payload,
    ),
    "activities": Dimension(
        "Activities of one run",
        "activities started by one run",
        "CPU, µs an activity",
        "constant: each is a row while it waits, and its events are appended",
        wide_activities,
        "With the namespace's limit `pending_activities_max` raised to 10,000 and all of them pending at once: 211, "
        "261 and 284 µs each, of 1,000, 3,000 and 10,000.",
    ),
    "children": Dimension(
        "Children of one run",
        "children started by one run",
        "CPU, µs a child",
        "constant: the parent is told of them task by task, and reads none of their starts again",
        wide_children,
    ),
    "nodes": Dimension(
        "Nodes of a fleet on PostgreSQL",
        "nodes",
        "CPU, µs a workflow of three activities, all nodes",
        "constant: nodes share the database and nothing else",
        nodes,
    ),
}


def main() -> None:
    """Measure what was asked for, and write the page."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.growth", description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="DIMENSION", help=f"of {', '.join(DIMENSIONS)}; all by default")
    parser.add_argument("--page", action="store_true", help=f"write {PAGE.relative_to(ROOT)} with its plots")
    parser.add_argument("--shown", action="store_true", help="measure nothing, show what was measured before")
    options = parser.parse_args()
    if unknown := set(options.names) - DIMENSIONS.keys():
        parser.error(f"no such dimension: {', '.join(sorted(unknown))}; there are {', '.join(DIMENSIONS)}")
    found: dict[str, Any] = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    for name in [] if options.shown else options.names or DIMENSIONS:
        points = DIMENSIONS[name].measure()
        found[name] = {"points": points, "at": time.strftime("%Y-%m-%d %H:%M"), "load": round(os.getloadavg()[0], 1)}
        RESULTS.parent.mkdir(parents=True, exist_ok=True)
        RESULTS.write_text(json.dumps(found, indent=1), encoding="utf-8")
        print(f"{name}: {points}; exponent {slope(points):.2f}", flush=True)
    if options.page:
        write(found)
    sys.stdout.flush()


def write(found: dict[str, Any]) -> None:
    """Write the page and a plot for each dimension that was measured."""
    lines = ["# How cost grows", "", INTRODUCTION, ""]
    lines += ["| what grows | from | to | cost there, µs | exponent | promised |", "|---|---|---|---|---|---|"]
    sections: list[str] = []
    for name, dimension in DIMENSIONS.items():
        if name not in found:
            continue
        points = [(float(x), float(y)) for x, y in found[name]["points"]]
        (first, first_cost), (last, last_cost) = points[0], points[-1]
        lines.append(
            f"| {dimension.title.lower()} | {first:,.0f} | {last:,.0f} | {first_cost:,.0f} to {last_cost:,.0f} "
            f"| {slope(points):.2f} | {dimension.order} |"
        )
        plot = FOLDER / f"growth-{name}.svg"
        plot.write_text(
            draw(points, title=dimension.title, x_label=dimension.size, y_label=dimension.cost), encoding="utf-8"
        )
        told = str(dimension.measure.__doc__).rstrip(".")
        sections += ["", f"## {dimension.title}", "", f"{told}: {dimension.cost}.", ""]
        sections += [f"![{dimension.cost} by {dimension.size}]({plot.name})", ""]
        sections += [f"| {dimension.size} | {' | '.join(f'{x:,.0f}' for x, _ in points)} |"]
        sections += [f"|---|{'---|' * len(points)}"]
        sections += [f"| {dimension.cost} | {' | '.join(f'{y:,.0f}' for _, y in points)} |"]
        sections += ["", dimension.remark] if dimension.remark else []
        sections += ["", f"Measured {found[name]['at']} UTC at load {found[name]['load']}."]
    machine = (
        f"{platform.machine()}, {os.cpu_count()} processors, {platform.system()}, Python {platform.python_version()}"
    )
    lines += ["", f"Machine: {machine}, SQLite {sqlite3.sqlite_version} (WAL, `synchronous=FULL`)."]
    PAGE.write_text("\n".join([*lines, *sections]) + "\n", encoding="utf-8")


INTRODUCTION: Final = """\
Written by `make bench-growth`; do not edit. Each plot has the cost of one operation in processor time (engine, worker,
store and caller together) as one thing grows and all else stays, both axes logarithmic. The exponent is the slope of
the points: 0 is a constant cost, 1 one in proportion to what grows."""


if __name__ == "__main__":
    main()
