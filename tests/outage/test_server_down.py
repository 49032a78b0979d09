"""The server stops, crashes, pauses, or fails over while runs are under way: all complete, nothing accepted is lost.

That no recovery drops a run because the database was away just then is ``tests/cases/test_c072_…``.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Awaitable, Callable
from datetime import timedelta

import pytest

from clew import activity, workflow
from clew.client import Client, WorkflowHandle
from clew.model.rejection import RejectionCode
from clew.service.errors import RPCError
from clew.worker import Worker
from tests.postgres.databases import execute, long_test, own_server
from tests.postgres.server import PostgresServer

SECONDS_MAX = 90.0
RUNS = 40
QUEUE = "outage"
PASSING = (RejectionCode.UNAVAILABLE, RejectionCode.STORE_FULL)
"""What a caller is told to try again, or to make room for and then to try again."""

finished: Counter[str] = Counter()


@activity.defn
async def work(name: str) -> str:
    finished[name] += 1
    return name


@workflow.defn
class Steps:
    @workflow.run
    async def run(self, name: str) -> list[str]:
        done = [
            await workflow.execute_activity(work, f"{name}/{n}", start_to_close_timeout=timedelta(seconds=30))
            for n in range(3)
        ]
        await asyncio.sleep(0.5)
        return done


async def start_surely(client: Client, name: str) -> WorkflowHandle[Steps, list[str]]:
    """Start a run, trying again whenever the client is told to."""
    while True:
        try:
            return await client.start_workflow(Steps.run, name, id=name, task_queue=QUEUE)
        except RPCError as error:
            if error.code is RejectionCode.WORKFLOW_ALREADY_STARTED:
                return client.get_workflow_handle_for(Steps.run, name)
            if error.code not in PASSING:
                raise
            await asyncio.sleep(0.05)


async def result_surely(handle: WorkflowHandle[Steps, list[str]]) -> list[str]:
    while True:
        try:
            return await handle.result()
        except RPCError as error:
            if error.code not in PASSING:
                raise
            await asyncio.sleep(0.05)


async def ride_out(dsn: str, trouble: Callable[[], Awaitable[None]]) -> None:
    """Run many workflows while there is trouble, and see that each ends as it should, with a sound history."""
    async with (
        await Client.connect(f"{dsn}?patience=3&command_timeout=3") as client,
        Worker(client, task_queue=QUEUE, workflows=[Steps], activities=[work]),
    ):
        names = [f"run-{n}" for n in range(RUNS)]
        starting = asyncio.gather(*(start_surely(client, name) for name in names[: RUNS // 2]))
        handles = list(await asyncio.wait_for(starting, SECONDS_MAX))
        in_trouble = asyncio.ensure_future(trouble())
        late = asyncio.gather(*(start_surely(client, name) for name in names[RUNS // 2 :]))
        handles += await asyncio.wait_for(late, SECONDS_MAX)
        await asyncio.wait_for(in_trouble, SECONDS_MAX)
        results = await asyncio.wait_for(asyncio.gather(*(result_surely(h) for h in handles)), SECONDS_MAX)
        assert results == [[f"{name}/{n}" for n in range(3)] for name in names]
        for handle in handles:
            history = await handle.fetch_history()
            ids = [event.event_id for event in history.events]
            assert ids == list(range(1, len(ids) + 1))
            completed = [e for e in history.events if type(e).__name__ == "ActivityTaskCompleted"]
            assert len(completed) == 3, "each step is recorded once"


@pytest.mark.parametrize("mode", [pytest.param("fast", marks=long_test), "immediate"])
async def test_a_restart_is_ridden_out(mode: str) -> None:
    with own_server() as server:

        async def restart() -> None:
            await asyncio.to_thread(server.stop, mode)
            await asyncio.sleep(1.0)
            await asyncio.to_thread(server.start)

        await ride_out(server.dsn, restart)


@long_test
async def test_a_paused_server_is_waited_for() -> None:
    with own_server() as server:

        async def pause() -> None:
            server.pause()
            await asyncio.sleep(5.0)  # longer than a command may take
            server.resume()

        await ride_out(server.dsn, pause)


@long_test
async def test_no_connection_left_is_a_passing_trouble() -> None:
    with own_server({"max_connections": "24", "superuser_reserved_connections": "3"}) as server:
        await execute(server.dsn, "CREATE ROLE app LOGIN", "CREATE DATABASE app OWNER app")
        dsn = server.dsn_of("app").replace("postgres@", "app@")

        async def crowd() -> None:
            import asyncpg

            taken = []
            with contextlib.suppress(asyncpg.TooManyConnectionsError):
                for _ in range(30):
                    taken.append(await asyncpg.connect(dsn))
            await execute(
                server.dsn,
                "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name = 'clew'",
            )
            await asyncio.sleep(1.0)
            for connection in taken:
                await connection.close()

        await ride_out(dsn, crowd)


@long_test
async def test_a_synchronous_standby_takes_over() -> None:
    with own_server({"wal_level": "replica", "max_wal_senders": "4"}) as primary:
        standby = PostgresServer(primary.settings)
        try:
            standby.copy_from(primary)
            standby.start()
            await execute(
                primary.dsn,
                "ALTER SYSTEM SET synchronous_standby_names = '*'",
                "SELECT pg_reload_conf()",
            )

            async def until_synchronous() -> None:
                while await execute(
                    primary.dsn, "SELECT count(*) FROM pg_stat_replication WHERE sync_state IN ('sync', 'quorum')"
                ) == [0]:
                    await asyncio.sleep(0.05)

            await asyncio.wait_for(until_synchronous(), SECONDS_MAX)
            hosts = f"postgresql://postgres@127.0.0.1:{primary.port},127.0.0.1:{standby.port}/postgres"

            async def fail_over() -> None:
                await asyncio.to_thread(primary.stop, "immediate")
                # What the standby copied of the primary's settings would make it wait for a standby of its own.
                await asyncio.to_thread(standby.promote)
                await execute(
                    standby.dsn, "SET synchronous_commit = local", "ALTER SYSTEM SET synchronous_standby_names = ''"
                )
                await execute(standby.dsn, "SELECT pg_reload_conf()")

            await ride_out(hosts, fail_over)
        finally:
            standby.remove()
