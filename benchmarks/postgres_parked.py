"""What a million waiting rows in PostgreSQL cost the others: ``python -m benchmarks.postgres_parked [--rows N]``.

Owns: the making of the rows, and measuring W1-W3, starts, claims, the start of an engine and its idle time beside
them and without; with ``--steps``, how the tables grow while steps are made; with ``--prune``, what retention costs.
Never: other workloads than those of `benchmarks.workloads`.

How it works: a run that sleeps is made by the engine; the rest are copies of its rows, made by the database, with keys
and ids of their own, and so are the tasks. Then the tables are analysed, as autovacuum does within a minute. The store
with the rows and an empty one stand on one server and are measured by turns, so that a slow minute of the machine, or
of its disk, meets both; what counts is the ratio.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import time
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from benchmarks import workloads
from benchmarks.peers.gauge import cpu_seconds
from benchmarks.workflows import Sleeper
from clew.client import Client
from clew.ports.store import TaskKind
from clew.storage.postgres import open_store
from clew.worker import Worker
from tests.postgres.databases import execute
from tests.postgres.server import PostgresServer, running

SERVER: Final = {"shared_buffers": "512MB", "max_wal_size": "2GB"}
SCHEMA: Final = "bench"
EMPTY: Final = "empty"
"""The store beside it on the same server, with nothing that waits."""

KEYS_FROM: Final = 1 << 40
"""Keys and ids of copies begin here; those that engines take are far from it."""

_COPY_RUNS: Final = """
INSERT INTO {s}.executions
SELECT copy.* FROM {s}.executions AS e, generate_series(1, {count}) AS n,
     LATERAL jsonb_populate_record(e, jsonb_build_object(
    'run_key', {first} + n, 'workflow_id', 'parked-' || n, 'run_id', gen_random_uuid()::text, 'shard', n % {shards},
    'close_time', {close_time}
)) AS copy
WHERE e.workflow_id = 'model'
"""
_COPY_HISTORY: Final = """
INSERT INTO {s}.history
SELECT n % {shards}, {first} + n, h.first_event_id, h.last_event_id, h.events
FROM generate_series(1, {count}) AS n,
     (SELECT h.* FROM {s}.history AS h JOIN {s}.executions AS e USING (shard, run_key)
      WHERE e.workflow_id = 'model') AS h
"""
_QUEUE_TASKS: Final = """
INSERT INTO {s}.tasks (shard, task_id, run_key, namespace, task_queue, kind, scheduled_event_id, attempt, priority,
                       claimed_until)
SELECT n % {shards}, {first} + n, {first} + n, 'default', 'queued', 2, 5, 1, 3, 0
FROM generate_series({start}, {count}) AS n
"""


async def measure(rows: int, runs: int) -> None:
    """The figures on an empty store and beside sleepers and as many queued tasks, by turns on one server."""
    server = running(SERVER)
    try:
        began = time.perf_counter()
        await _park(server, SCHEMA, rows)
        store = await open_store(_dsn(server, SCHEMA))
        await _queue(server.dsn, SCHEMA, store.shard_count, rows)
        await store.close()
        await execute(server.dsn, "VACUUM ANALYZE", "CHECKPOINT")
        print(f"{rows:,} sleepers and {rows:,} queued tasks made in {time.perf_counter() - began:.0f} s", flush=True)
        found: dict[str, list[dict[str, float]]] = {EMPTY: [], SCHEMA: []}
        for turn in range(runs):
            for schema in (EMPTY, SCHEMA) if turn % 2 else (SCHEMA, EMPTY):
                figures = await _figures(server, schema)
                if not turn:
                    figures |= await _idle(server, schema)
                found[schema].append(figures)
                print(f"{schema}: " + ", ".join(f"{name} {value:.2f}" for name, value in figures.items()), flush=True)
        print("\n".join(_table(rows, found[EMPTY], found[SCHEMA])))
        print(await _sizes(server.dsn))
    finally:
        server.remove()


def _table(rows: int, empty: list[dict[str, float]], full: list[dict[str, float]]) -> list[str]:
    """Medians, and the median of what each turn's figure beside the rows is to that turn's without."""
    lines = [f"| figure | empty | beside {rows:,} sleepers and as many queued tasks | ratio |", "|---|---|---|---|"]
    for name in empty[0]:
        pairs = [(one[name], other[name]) for one, other in zip(empty, full, strict=True) if name in one]
        values = [statistics.median(column) for column in zip(*pairs, strict=True)]
        ratio = statistics.median(other / one for one, other in pairs if one)
        lines.append(f"| {name} | {values[0]:,.2f} | {values[1]:,.2f} | {ratio:.2f} |")
    return lines


def _dsn(server: PostgresServer, schema: str) -> str:
    return f"{server.dsn}?schema={schema}"


async def _figures(server: PostgresServer, schema: str) -> dict[str, float]:
    wanted: dict[str, tuple[Callable[[], Coroutine[Any, Any, workloads.Figures]], str]] = {
        "W1 p50 ms/step": (workloads.sequential_steps, "p50 ms/step"),
        "W2 workflows/s": (workloads.many_workflows, "workflows/s"),
        "W3 s": (workloads.fan_out, "s"),
        "starts/s": (_starts, "starts/s"),
    }
    figures = {}
    workloads.store_in_use.append(_dsn(server, schema))
    for name, (workload, key) in wanted.items():
        figures[name] = (await workload())[key]
        # Ids of workflows are the same each time; what is finished makes room. It is found by the index of retention:
        # to read a million rows for it would cost the next workload its cache.
        over = "namespace = 'default' AND NOT is_open AND close_time IS NOT NULL AND workflow_id <> run_id"
        renamed = f"UPDATE {schema}.executions SET workflow_id = run_id WHERE {over}"
        await execute(server.dsn, "SET enable_seqscan = off", renamed)
    workloads.store_in_use.clear()
    figures["claim of 10 tasks, ms"] = await _claims(server, schema)
    return figures


async def _claims(server: PostgresServer, schema: str) -> float:
    store = await open_store(_dsn(server, schema))
    seconds = []
    for _ in range(100):
        lacking = await execute(server.dsn, f"SELECT 2000 - count(*) FROM (SELECT 1 FROM {schema}.tasks LIMIT 2000) t")
        if lacking[0] > 0:
            await _queue(server.dsn, schema, store.shard_count, 2_000, start=2_001 - lacking[0])
        began = time.perf_counter()
        until = datetime.now(UTC) + timedelta(minutes=5)
        tasks = await store.claim_tasks("default", "queued", TaskKind.ACTIVITY, 10, until)
        seconds.append(time.perf_counter() - began)
        assert len(tasks) == 10, f"{len(tasks)} tasks were claimed, not 10"
        await store.delete_tasks([task.task_id for task in tasks])
    await store.close()
    return 1e3 * statistics.median(seconds)


async def _starts(count: int = 2_000) -> workloads.Figures:
    """Starts a second of runs that sleep; they are made as if they had closed afterwards."""
    async with workloads.engine() as client, workloads.worker(client):
        gate = asyncio.Semaphore(workloads.IN_FLIGHT)

        async def start(number: int) -> None:
            async with gate:
                await client.start_workflow(Sleeper.run, id=f"s-{number}", task_queue=workloads.QUEUE)

        began = time.perf_counter()
        await asyncio.gather(*(start(number) for number in range(count)))
        seconds = time.perf_counter() - began
        await asyncio.gather(*(client.get_workflow_handle(f"s-{number}").terminate() for number in range(count)))
    return {"starts/s": count / seconds}


async def _idle(server: PostgresServer, schema: str) -> dict[str, float]:
    """How long an engine takes to start, and what it and the server do while there is nothing to do."""
    began = time.perf_counter()
    async with await Client.connect(_dsn(server, schema)):
        seconds = time.perf_counter() - began
        await asyncio.sleep(5)
        count, own, others, clock = (
            await _transactions(server.dsn),
            time.process_time(),
            _server_cpu_seconds(server),
            time.perf_counter(),
        )
        await asyncio.sleep(20)
        passed = time.perf_counter() - clock
        return {
            "start of an engine, s": seconds,
            "CPU % of an idle engine": 100 * (time.process_time() - own) / passed,
            "CPU % of its server, vacuum included": 100 * (_server_cpu_seconds(server) - others) / passed,
            "queries/s of an idle engine": (await _transactions(server.dsn) - count) / passed,
        }


def _server_cpu_seconds(server: PostgresServer) -> float:
    """CPU of the server's processes, of those that have ended too."""
    pid = (server.data / "postmaster.pid").read_text().split("\n", 1)[0]
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    ended = (int(fields[13]) + int(fields[14])) / os.sysconf("SC_CLK_TCK")
    return cpu_seconds([int(pid)]) + ended


async def _transactions(plain: str) -> int:
    query = "SELECT xact_commit::bigint FROM pg_stat_database WHERE datname = current_database()"
    return int((await execute(plain, query))[0])


async def _park(server: PostgresServer, schema: str, rows: int) -> None:
    plain, dsn = server.dsn, _dsn(server, schema)
    async with await Client.connect(dsn) as client, Worker(client, task_queue="parked", workflows=[Sleeper]):
        await client.start_workflow(Sleeper.run, id="model", task_queue="parked")
        history = f"SELECT history_length::int FROM {schema}.executions WHERE workflow_id = 'model'"
        while (await execute(plain, history))[0] < 5:  # noqa: ASYNC110 - the database tells nobody
            await asyncio.sleep(0.02)
    store = await open_store(dsn)
    values = {"s": schema, "first": KEYS_FROM, "shards": store.shard_count, "count": rows}
    await store.close()
    await execute(plain, _COPY_RUNS.format(**values, close_time="null"), _COPY_HISTORY.format(**values))


async def _queue(plain: str, schema: str, shards: int, count: int, start: int = 1) -> None:
    values = {"s": schema, "first": KEYS_FROM, "shards": shards, "count": count, "start": start}
    await execute(plain, _QUEUE_TASKS.format(**values) + " ON CONFLICT DO NOTHING")


async def _sizes(plain: str) -> str:
    query = (
        "SELECT string_agg(relname || ' ' || pg_size_pretty(pg_total_relation_size(relid)) || ', dead rows ' "
        "|| n_dead_tup || ', heap-only ' || CASE WHEN n_tup_upd = 0 THEN '-' ELSE "
        "round(100.0 * n_tup_hot_upd / n_tup_upd, 1)::text || ' %' END || ', vacuumed ' || autovacuum_count, '; ' "
        "ORDER BY pg_total_relation_size(relid) DESC) "
        f"FROM pg_stat_user_tables WHERE schemaname = '{SCHEMA}' AND pg_total_relation_size(relid) > 1000000"
    )
    return str((await execute(plain, query))[0])


async def grow(steps: int) -> None:
    """Sizes of the tables and their dead rows while runs take steps, 10 at a time each."""
    server = running(SERVER)
    try:
        async with (
            await Client.connect(f"{server.dsn}?schema={SCHEMA}") as client,
            workloads.worker(client),
        ):
            done = 0
            while done < steps:
                async with asyncio.TaskGroup() as group:
                    for number in range(200):
                        run = client.execute_workflow(
                            workloads.Sequence.run, 100, id=f"{done}-{number}", task_queue=workloads.QUEUE
                        )
                        group.create_task(run)
                done += 200 * 100
                print(f"{done:,} steps: {await _sizes(server.dsn)}", flush=True)
    finally:
        server.remove()


async def prune(runs: int) -> None:
    """How long retention takes to remove closed runs, what it leaves, and how much more as many new ones need."""
    server = running(SERVER)
    try:
        dsn = f"{server.dsn}?schema={SCHEMA}"
        async with await Client.connect(dsn) as client, workloads.worker(client):
            await client.execute_workflow(workloads.Sequence.run, 3, id="model", task_queue=workloads.QUEUE)
        store = await open_store(dsn)
        values = {"s": SCHEMA, "shards": store.shard_count, "count": runs}
        # The model is closed later than all, so that it is never among the oldest.
        later = f"UPDATE {SCHEMA}.executions SET close_time = 1::bigint << 60 WHERE workflow_id = 'model'"
        await execute(server.dsn, later)
        for first in (KEYS_FROM, 2 * KEYS_FROM):
            await execute(
                server.dsn,
                _COPY_RUNS.format(**values, first=first, close_time=1).replace("'parked-' ||", f"'{first}-' ||"),
                _COPY_HISTORY.format(**values, first=first),
                "VACUUM ANALYZE",
            )
            print(f"{runs:,} closed runs: {await _sizes(server.dsn)}", flush=True)
            began, deleted = time.perf_counter(), 0
            while deleted < runs:
                count = await store.delete_closed_runs("default", datetime.now(UTC), min(5_000, runs - deleted))
                assert count, f"{runs - deleted} runs were not removed"
                deleted += count
            seconds = time.perf_counter() - began
            print(f"removed in {seconds:.1f} s, {1e6 * seconds / runs:.0f} µs a run", flush=True)
            began = time.perf_counter()
            await execute(server.dsn, "VACUUM ANALYZE")
            print(f"vacuum: {time.perf_counter() - began:.1f} s; {await _sizes(server.dsn)}", flush=True)
        await store.close()
    finally:
        server.remove()


def main() -> None:
    """Run."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.postgres_parked", description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_000_000, help="sleepers, and as many queued tasks")
    parser.add_argument("--runs", type=int, default=5, help="turns in which all is measured")
    parser.add_argument("--steps", type=int, help="make this many steps instead, and show how the tables grow")
    parser.add_argument("--prune", type=int, help="make this many closed runs instead, twice, and remove them")
    options = parser.parse_args()
    if options.prune:
        asyncio.run(prune(options.prune))
    else:
        asyncio.run(grow(options.steps) if options.steps else measure(options.rows, options.runs))


if __name__ == "__main__":
    main()
