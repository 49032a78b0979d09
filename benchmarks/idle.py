"""What idle links cost a node: ``python -m benchmarks.idle [COUNT] [SECONDS] [--silent]``.

Owns: many links with an attached worker each (or connections that say nothing), and what is printed about the node's
memory and CPU while they do nothing. Never: work for them. Linux only: the figures are read from ``/proc``.
"""

from __future__ import annotations

import asyncio
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from clew.link import LinkClient
from clew.link.websocket import Node, WebSocketDial
from clew.service.requests import ActivityTask, WorkerHello, WorkflowTask


class Idle:
    """A worker that is offered nothing."""

    def offer_workflow_task(self, task: WorkflowTask) -> None:
        raise AssertionError("nothing was started")

    def offer_activity_task(self, task: ActivityTask) -> None:
        raise AssertionError("nothing was started")

    def cancel_activity(self, token: Any, reason: Any) -> None:
        raise AssertionError("nothing runs")

    def evict_workflow(self, namespace: str, run_id: str) -> None:
        raise AssertionError("nothing is cached")


def rss_mib(pid: int) -> float:
    """Resident memory of a process."""
    pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="utf-8").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def cpu_seconds(pid: int) -> float:
    """CPU of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def measure(count: int, seconds: float, *, is_silent: bool) -> None:
    """Connect, wait, print."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    del soft
    with tempfile.TemporaryDirectory(prefix="clew-bench-") as folder:
        command = [sys.executable, "-m", "benchmarks.node", f"sqlite:{folder}/idle.db"]
        node = await asyncio.create_subprocess_exec(*command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert node.stdin is not None, "as asked for"
        assert node.stdout is not None, "as asked for"
        port = int(await node.stdout.readline())
        before, clock = rss_mib(node.pid), time.perf_counter()
        if is_silent:
            kept = [await asyncio.open_connection("127.0.0.1", port) for _ in range(count)]
            del kept[:0]
        else:
            kept = []
            clients = [LinkClient(WebSocketDial([Node("127.0.0.1", port)], chance=lambda: 0.5), chance=lambda: 0.5)
                       for _ in range(count)]  # fmt: skip
            for start in range(0, count, 50):
                await asyncio.gather(*(client.start() for client in clients[start : start + 50]))
            for number, client in enumerate(clients):
                hello = WorkerHello(namespace="default", task_queue="q", identity="i", instance_id=str(number))
                worker = await client.service.attach_worker(hello, Idle())
                worker.grant(workflow_tasks=100, activity_tasks=100)
        took = time.perf_counter() - clock
        await asyncio.sleep(1)
        peak, cpu = rss_mib(node.pid), cpu_seconds(node.pid)
        await asyncio.sleep(seconds)
        used = cpu_seconds(node.pid) - cpu
        print(f"{count} {'silent connections' if is_silent else 'idle workers'}, made in {took:.1f} s")
        print(f"    node's memory  {peak:.0f} MiB ({before:.0f} before), {1024 * (peak - before) / count:.1f} KiB each")
        print(f"    node's CPU     {100 * used / seconds:.2f} % of one core over {seconds:g} s")
        print(f"    after that     {rss_mib(node.pid):.0f} MiB")
        node.stdin.close()
        await node.wait()


def main() -> None:
    """Read the arguments and run."""
    numbers = [argument for argument in sys.argv[1:] if not argument.startswith("-")]
    count = int(numbers[0]) if numbers else 1_000
    seconds = float(numbers[1]) if len(numbers) > 1 else 20.0
    asyncio.run(measure(count, seconds, is_silent="--silent" in sys.argv))


if __name__ == "__main__":
    main()
