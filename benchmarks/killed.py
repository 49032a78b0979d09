"""W5: sleepers whose process is killed: ``python -m benchmarks.killed [--kill both|worker|engine] [--count N]``.

Owns: the workflow, the processes that are killed and started again, and the variants of who dies. Never: the marks and
what is counted (`benchmarks.peers.gauge`, as for every peer).

How it works: embedded, engine and worker are one process and die together. Over the link either dies alone: the worker
process while its node lives on, or the node while the worker waits for the next one on the same port.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import socket
import subprocess
import sys
import tempfile
from datetime import timedelta
from pathlib import Path
from typing import Final

from benchmarks.peers import gauge
from benchmarks.peers.gauge import Figures, Marks
from benchmarks.workloads import IN_FLIGHT, QUEUE
from clew import activity, workflow
from clew.client import Client
from clew.worker import Worker

TIMEOUT: Final = timedelta(minutes=5)
_folder = os.environ.get("CLEW_BENCH_FOLDER", ".")


@activity.defn
async def mark(word: str, number: int) -> None:
    """Note that it was run."""
    Marks(Path(_folder) / "marks").put(word, number)


@workflow.defn
class MarkedSleeper:
    """A step, a sleep, a step."""

    @workflow.run
    async def run(self, number: int) -> None:
        await workflow.execute_activity(mark, args=["asleep", number], start_to_close_timeout=TIMEOUT)
        await workflow.sleep(timedelta(seconds=gauge.SLEEP_SECONDS))
        await workflow.execute_activity(mark, args=["done", number], start_to_close_timeout=TIMEOUT)


async def work(address: str, count: int) -> None:
    """Be a worker; start `count` sleepers if there are any to start."""
    async with (
        await Client.connect(address) as client,
        Worker(
            client,
            task_queue=QUEUE,
            workflows=[MarkedSleeper],
            activities=[mark],
            max_concurrent_activities=IN_FLIGHT,
            max_concurrent_workflow_tasks=IN_FLIGHT,
        ),
    ):
        gate = asyncio.Semaphore(IN_FLIGHT)

        async def start(number: int) -> None:
            async with gate:
                await client.start_workflow(MarkedSleeper.run, number, id=f"s-{number}", task_queue=QUEUE)

        await asyncio.gather(*(start(number) for number in range(count)))
        await asyncio.sleep(3600)


def measure(count: int = 1_000, kill: str = "both") -> Figures:
    """Kill and start again, and see when the last sleeper is done."""
    with tempfile.TemporaryDirectory(prefix="clew-bench-") as folder:
        marks = Marks(Path(folder) / "marks")
        store = f"sqlite:{folder}/bench.db"
        if kill == "both":
            return gauge.kill_among_sleepers(lambda role: _worker(folder, store, role, count), marks, count)
        port = _free_port()
        address = f"127.0.0.1:{port}"
        if kill == "worker":
            node = _node(folder, store, port)
            try:
                return gauge.kill_among_sleepers(lambda role: _worker(folder, address, role, count), marks, count)
            finally:
                gauge.kill_tree(node)
        workers: list[subprocess.Popen[bytes]] = []

        def spawn_node(role: str) -> subprocess.Popen[bytes]:
            node = _node(folder, store, port)
            if role == "first":
                workers.append(_worker(folder, address, role, count))
            return node

        try:
            return gauge.kill_among_sleepers(spawn_node, marks, count)
        finally:
            for worker in workers:
                gauge.kill_tree(worker)


async def killed_among_sleepers(count: int = 1_000) -> Figures:
    """W5 as a workload: engine and worker in one process, killed."""
    return await asyncio.to_thread(measure, count)


def _worker(folder: str, address: str, role: str, count: int) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "benchmarks.killed", "--work", address]
    to_start = str(count if role == "first" else 0)
    environment = {**os.environ, "CLEW_BENCH_FOLDER": folder}
    return subprocess.Popen([*command, "--count", to_start], env=environment)


def _node(folder: str, store: str, port: int) -> subprocess.Popen[bytes]:
    log = (Path(folder) / "log").open("ab")
    command = [sys.executable, "-m", "benchmarks.node", store, str(port)]
    node = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log)
    assert node.stdout is not None, "as asked for"
    if not node.stdout.readline():
        raise SystemExit("the node did not start:\n" + (Path(folder) / "log").read_text(encoding="utf-8")[-2_000:])
    return node


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


def main() -> None:
    """Run."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.killed", description=__doc__.splitlines()[0])
    parser.add_argument("--kill", choices=("both", "worker", "engine"), nargs="+", default=["both", "worker", "engine"])
    parser.add_argument("--count", type=int, default=1_000, help="sleepers")
    parser.add_argument("--runs", type=int, default=1, help="measurements of each")
    parser.add_argument("--work", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        asyncio.run(work(options.work, options.count))
        return
    for _ in range(options.runs):
        for kill in options.kill:
            figures = measure(options.count, kill)
            print(kill, *(f"{value:.3f} {key};" for key, value in figures.items()), flush=True)


if __name__ == "__main__":
    main()
