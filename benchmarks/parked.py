"""What a million parked runs cost those that run: ``python -m benchmarks.parked [--count N] [--turns N]``.

Owns: a store full of sleepers, and the comparison of W1, W2, W3, the start of an engine, its memory and its CPU while
idle, between that store and an empty one. Never: judges.

How it works: one sleeper is started by an engine and read from the store; the others are written through the store port
as copies of it with ids of their own, a few hundred a commit, due between an hour and a month from now. (An engine
would take some minutes more to start as many; what it would write is the same.) Then each turn measures both stores,
each in a process of its own.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import datetime, timedelta
from typing import Any, Final

import msgspec

from benchmarks import workloads
from benchmarks.peers.gauge import memory_mb
from benchmarks.workflows import Sequence, Sleeper
from clew.adapters import SystemClock, SystemEntropy
from clew.client import Client, WorkflowHandle
from clew.core.codec import decode_state, encode_state
from clew.engine.starts import shard_of
from clew.ports.store import CommitStatus, HistoryBatch, RunRow, RunWrite, Store
from clew.stores import open_by_address

UNITS: Final = 500
"""Copies a commit."""

SLEEPER_EVENTS: Final = 5
"""Of a sleeper that sleeps: its start, one workflow task, its timer."""

SLEEP_MIN: Final = timedelta(hours=1)
SLEEP_SPREAD: Final = timedelta(days=30)

IDLE_SECONDS: Final = 10.0

Figures = dict[str, float]


def main() -> None:
    """Read the arguments and run."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.parked", description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=1_000_000, help="sleepers")
    parser.add_argument("--turns", type=int, default=3, help="measurements of each store")
    parser.add_argument("--store", help="the address of the store to fill; a file that is removed when not given")
    parser.add_argument("--filled", action="store_true", help="that store was filled before")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(asyncio.run(measure(options.measure))), flush=True)
        return
    with tempfile.TemporaryDirectory(prefix="clew-bench-") as folder:
        full = options.store or f"sqlite:{folder}/full.db"
        if not options.filled:
            began = time.perf_counter()
            asyncio.run(fill(full, options.count))
            print(f"{options.count:,} parked runs written in {time.perf_counter() - began:.0f} s", flush=True)
        if options.turns:
            compare(full, f"sqlite:{folder}/empty.db", options.count, options.turns)


def compare(full: str, empty: str, count: int, turns: int) -> None:
    """Measure both stores in turn, and print."""
    found: dict[str, list[Figures]] = {empty: [], full: []}
    for _ in range(turns):
        for store, figures in found.items():
            figures.append(measure_apart(store))
    print(f"median of {turns}; {os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}")
    print(f"    {'':<28} {'empty':>10} {f'{count:,} parked':>18} {'ratio':>8}")
    for key in found[full][0]:
        without, beside = (statistics.median(figure[key] for figure in found[store]) for store in (empty, full))
        ratio = f"{beside / without:8.2f}" if without else ""
        print(f"    {key:<28} {without:>10.3f} {beside:>18.3f} {ratio}", flush=True)


def measure_apart(store: str) -> Figures:
    """Measure in a new process, as after a restart."""
    command = [sys.executable, "-m", "benchmarks.parked", "--measure", store]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"measuring {store} failed:\n{done.stderr[-4_000:]}")
    figures: Figures = json.loads(done.stdout.strip().splitlines()[-1])
    return figures


async def measure(store: str) -> Figures:
    """Open a store, look at the engine while it is idle, and run W1, W2 and W3 on it."""
    began = time.perf_counter()
    async with await Client.connect(store) as client:
        opened = time.perf_counter() - began
        async with workloads.worker(client):
            await client.execute_workflow(Sequence.run, 1, id="first", task_queue=workloads.QUEUE)
            first = time.perf_counter() - began
            cpu = time.process_time()
            await asyncio.sleep(IDLE_SECONDS)
            idle = time.process_time() - cpu
            memory = memory_mb([os.getpid()])
    workloads.store_in_use.append(store)
    steps = await workloads.sequential_steps(100)
    many = await workloads.many_workflows(1_000)
    fan = await workloads.fan_out(1_000)
    return {
        "open, s": opened,
        "open to the first result, s": first,
        "idle CPU, %": 100 * idle / IDLE_SECONDS,
        "memory while idle, MB": memory,
        "W1 p50 ms/step": steps["p50 ms/step"],
        "W1 CPU ms/step": steps["CPU ms/step"],
        "W2 workflows/s": many["workflows/s"],
        "W2 CPU ms/workflow": many["CPU ms/workflow"],
        "W3 s": fan["s"],
        "memory after W3, MB": memory_mb([os.getpid()]),
    }


# --- filling ----------------------------------------------------------------------------------------------------------


async def fill(address: str, count: int) -> None:
    """Make the store with `count` sleepers in it."""
    workflow_id = "sleeper-0"
    async with await Client.connect(address) as client, workloads.worker(client):
        handle = await client.start_workflow(Sleeper.run, id=workflow_id, task_queue=workloads.QUEUE)
        await workloads.until(lambda: _is_asleep(handle))
    opened = await open_by_address(address, clock=SystemClock(asyncio.get_running_loop()))
    try:
        row = await opened.store.find_run("default", workflow_id, "")
        assert row is not None, "it has just been started"
        batches = await opened.store.read_history(row.shard, row.run_key, 1, 1_000_000)
        await _write_copies(opened.store, row, tuple(batches), count - 1)
    finally:
        await opened.store.close()


async def _is_asleep(handle: WorkflowHandle[Any, Any]) -> bool:
    return (await handle.describe()).history_length >= SLEEPER_EVENTS


async def _write_copies(store: Store, row: RunRow, batches: tuple[HistoryBatch, ...], count: int) -> None:
    entropy = SystemEntropy()
    assert row.attention_at is not None, "a sleeper has a deadline"
    pending: asyncio.Future[list[CommitStatus]] | None = None
    for first in range(0, count, UNITS):
        size = min(UNITS, count - first)
        run_key = await store.reserve_run_keys(size)
        units = [
            (
                _copy(
                    store,
                    row,
                    batches,
                    run_key + number,
                    f"sleeper-{run_key + number}",
                    entropy.uuid7(),
                    row.attention_at + SLEEP_MIN + SLEEP_SPREAD * ((first + number) / count),
                ),
            )
            for number in range(size)
        ]
        if pending is not None:
            _check(await pending)
        pending = asyncio.ensure_future(store.commit_if_current(units))
    if pending is not None:
        _check(await pending)


def _check(statuses: list[CommitStatus]) -> None:
    assert set(statuses) == {CommitStatus.COMMITTED}, "nobody else writes here"


def _copy(
    store: Store,
    row: RunRow,
    batches: tuple[HistoryBatch, ...],
    run_key: int,
    workflow_id: str,
    run_id: str,
    due: datetime,
) -> RunWrite:
    state = decode_state(row.state, [])
    state.workflow_id, state.run_id, state.first_execution_run_id = workflow_id, run_id, run_id
    for timer in state.timers.values():
        timer.due_time = due
    visibility = msgspec.structs.replace(
        row.visibility, first_execution_run_id=run_id, root_workflow_id=workflow_id, root_run_id=run_id
    )
    return RunWrite(
        shard=shard_of(row.namespace, workflow_id, store.shard_count),
        run_key=run_key,
        namespace=row.namespace,
        workflow_id=workflow_id,
        run_id=run_id,
        expected_version=0,
        version=row.version,
        status=row.status,
        attention_at=due,
        is_busy=row.is_busy,
        state=encode_state(state),
        history_length=row.history_length,
        history_size_bytes=row.history_size_bytes,
        visibility=visibility,
        batches=batches,
    )


if __name__ == "__main__":
    main()
