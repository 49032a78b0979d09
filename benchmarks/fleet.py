"""How much faster two nodes on one database are than one: ``python -m benchmarks.fleet [DSN] [--nodes 1 2]``.

Owns: node processes that each start, work on and await three-activity workflows, all at the same time. Never: compares
with others (`run` does).

Each node keeps `IN_FLIGHT` runs going. All nodes begin together once each is connected; the figure is the runs of all
by the time until the last node has all its results. Without a DSN a server is made for the measurement, which must be
durable, so ``fsync`` is on.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import subprocess
import sys
import time
from typing import Final

from benchmarks.workflows import ALL, Sequence, no_op
from clew.client import Client
from clew.worker import Worker

IN_FLIGHT: Final = 200
RUNS: Final = 1_500
ACTIVITIES: Final = 3


async def work(dsn: str, name: str) -> None:
    """Be one node: connect, say so, wait for the word, run everything, say how long it took."""
    async with (
        await Client.connect(dsn) as client,
        Worker(
            client,
            task_queue=f"bench-{name}" if os.environ.get("CLEW_BENCH_APART") else "bench",
            workflows=ALL,
            activities=[no_op],
            max_concurrent_activities=IN_FLIGHT,
            max_concurrent_workflow_tasks=IN_FLIGHT,
        ) as worker,
    ):
        queue = worker.task_queue
        await client.execute_workflow(Sequence.run, ACTIVITIES, id=f"{name}-first", task_queue=queue)
        print("ready", flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
        slots = asyncio.Semaphore(IN_FLIGHT)

        async def one(number: int) -> None:
            async with slots:
                await client.execute_workflow(Sequence.run, ACTIVITIES, id=f"{name}-{number}", task_queue=queue)

        began, cpu = time.perf_counter(), time.process_time()
        await asyncio.gather(*[one(number) for number in range(RUNS)])
        print(time.perf_counter() - began, time.process_time() - cpu, flush=True)


def measure(dsn: str, node_count: int, turn: int) -> tuple[float, float]:
    """Runs a second of so many nodes, and CPU milliseconds of the nodes a run."""
    nodes = [
        subprocess.Popen(
            [sys.executable, "-m", "benchmarks.fleet", dsn, "--as-node", f"{turn}-{node_count}-{number}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(node_count)
    ]
    for node in nodes:
        assert node.stdout is not None, "as asked for"
        assert node.stdout.readline() == "ready\n", "a node did not start"
    for node in nodes:
        assert node.stdin is not None, "as asked for"
        node.stdin.write("go\n")
        node.stdin.flush()
    seconds = cpu = 0.0
    for node in nodes:
        assert node.stdout is not None, "as asked for"
        took, used = map(float, node.stdout.readline().split())
        seconds, cpu = max(seconds, took), cpu + used
        node.wait()
    runs = RUNS * node_count
    return runs / seconds, cpu * 1000 / runs


def main() -> None:
    """Run."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fleet", description=__doc__.splitlines()[0])
    parser.add_argument("dsn", nargs="?", help="the database; one on a server of its own when not given")
    parser.add_argument("--nodes", type=int, nargs="+", default=[1, 2], help="how many nodes, one figure each")
    parser.add_argument("--runs", type=int, default=3, help="measurements of each")
    parser.add_argument("--as-node", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.as_node:
        asyncio.run(work(options.dsn, options.as_node))
        return
    server = None
    if options.dsn is None:
        from tests.postgres.server import running

        server = running({"max_connections": "100"})
    try:
        print(f"{os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}; {RUNS} runs a node, {ACTIVITIES} activities each")
        for turn in range(options.runs):
            for count in options.nodes:
                rate, cpu = measure(options.dsn or server.dsn, count, turn)  # type: ignore[union-attr]
                print(f"{count} nodes: {rate:7.0f} runs/s, {cpu:.2f} ms CPU a run in the nodes", flush=True)
    finally:
        if server is not None:
            server.remove()


if __name__ == "__main__":
    main()
