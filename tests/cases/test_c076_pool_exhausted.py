"""C076: a pool of two connections, and many more who start, wait, listen and complete; half of them are killed.

Nobody holds a connection while waiting, be it for another connection or for something to happen: while sixteen wait the
database has no statement and no transaction of theirs. Clients are processes of their own: half with a node
between them and the database, half with an engine and a pool in each. The form of this for a store alone is in
``tests/outage/test_lost_answers.py``.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from typing import TypeVar

import pytest

from clew import activity, workflow
from clew.client import Client, WorkflowUpdateStage
from clew.service.errors import RPCError
from clew.storage.postgres.driver import import_driver
from clew.worker import Worker
from tests.cases.harness import QUEUE, Process, eventually
from tests.link.node import Node
from tests.postgres.databases import create_database, drop_database, execute

T = TypeVar("T")

CLIENTS = 4
WAITS = 4
"""Of each client: 16 in all."""
QUICK_RUNS = 16
POOL = 2
HINTS = 2
"""Connections of a node besides its pool: docs/reference/postgres-store.md."""
SECONDS_MAX = 150.0

pytestmark = [pytest.mark.slow, pytest.mark.e2e, pytest.mark.timeout(600)]

OF_THIS_DATABASE = "FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"


@activity.defn
async def twice(number: int) -> int:
    return 2 * number


@workflow.defn
class Waits:
    """Waits for a word, and has an update wait as well."""

    def __init__(self) -> None:
        self.is_told = False

    @workflow.run
    async def run(self, number: int) -> int:
        await workflow.wait_condition(lambda: self.is_told)
        found = await workflow.execute_activity(twice, number, start_to_close_timeout=timedelta(seconds=30))
        await workflow.wait_condition(workflow.all_handlers_finished)
        return found

    @workflow.signal
    def tell(self) -> None:
        self.is_told = True

    @workflow.update
    async def until_told(self) -> str:
        await workflow.wait_condition(lambda: self.is_told)
        return "told"


@workflow.defn
class Naps:
    @workflow.run
    async def run(self, seconds: float) -> str:
        await workflow.sleep(seconds)
        return "awake"


async def connected(address: str) -> Client:
    """A client, however long the machine takes over it."""
    while True:
        try:
            return await Client.connect(address)
        except RPCError as error:
            if not error.is_retryable:
                raise


async def wait_in_four_ways(address: str, number: str) -> None:
    """A client: one run of its own, two who wait for its result, one for an update, one for its events."""
    async with await connected(address) as client:
        handle = await client.start_workflow(Waits.run, int(number), id=f"w{number}", task_queue=QUEUE)
        update = await handle.start_update(Waits.until_told, wait_for_stage=WorkflowUpdateStage.ACCEPTED)

        async def listen() -> str:
            names = [type(event).__name__ async for event in handle.fetch_history_events(wait_new_event=True)]
            return names[-1]

        waiting = [
            asyncio.ensure_future(one)
            for one in (
                handle.result(),
                client.get_workflow_handle_for(Waits.run, handle.id).result(),
                update.result(),
                listen(),
            )
        ]
        assert len(waiting) == WAITS
        await asyncio.sleep(0)
        print("waits")
        assert await asyncio.gather(*waiting) == [2 * int(number)] * 2 + ["told", "WorkflowExecutionCompleted"]
        print("done")


@asynccontextmanager
async def small_pool(options: str = "") -> AsyncIterator[tuple[str, Node, Client]]:
    """A node whose pool has two connections, and a client of it with a worker."""
    dsn = await create_database("shards=4")
    try:
        async with (
            Node(f"{dsn}&pool_size={POOL}{options}", resume_seconds=1.0) as node,
            await connected(node.address) as client,
            Worker(client, task_queue=QUEUE, workflows=[Waits, Naps], activities=[twice]),
        ):
            yield dsn, node, client
    finally:
        await drop_database(dsn)


async def connections_count(dsn: str, of: str = "") -> int:
    (count,) = await execute(dsn.partition("?")[0], f"SELECT count(*) {OF_THIS_DATABASE} {of}")
    return int(count)


async def test_all_who_wait_finish_and_what_killed_clients_held_is_given_back() -> None:
    async with small_pool() as (dsn, node, client), AsyncExitStack() as stack:
        sessions, ours = set(node.server._sessions), POOL + HINTS
        addresses = [node.address, f"{dsn}&pool_size={POOL}"] * (CLIENTS // 2)
        clients = [
            stack.enter_context(Process(wait_in_four_ways, address, str(n))) for n, address in enumerate(addresses)
        ]
        await asyncio.gather(*(one.says("waits", SECONDS_MAX) for one in clients))
        assert await connections_count(dsn) <= ours * (1 + CLIENTS // 2)
        # While sixteen wait, others get their turn, and there are moments without any statement or transaction.
        naps = (client.execute_workflow(Naps.run, 0.1, id=f"nap{n}", task_queue=QUEUE) for n in range(QUICK_RUNS))
        assert await within(asyncio.gather(*naps)) == ["awake"] * QUICK_RUNS
        await until_at_most(0, lambda: connections_count(dsn, "AND state <> 'idle'"))

        # One that came through the node, and one with an engine of its own.
        doomed, spared = clients[: CLIENTS // 2], clients[CLIENTS // 2 :]
        assert len(set(node.server._sessions) - sessions) == CLIENTS // 2
        for one in doomed:
            one.kill()
        await eventually(lambda: len(set(node.server._sessions) - sessions) == 1, "its session ends", SECONDS_MAX)
        await until_at_most(2 * ours, lambda: connections_count(dsn))

        handles = [client.get_workflow_handle_for(Waits.run, f"w{n}") for n in range(CLIENTS)]
        await within(asyncio.gather(*(handle.signal(Waits.tell) for handle in handles)))
        assert await within(asyncio.gather(*(handle.result() for handle in handles))) == [0, 2, 4, 6]
        await asyncio.gather(*(one.says("done", SECONDS_MAX) for one in spared))


async def test_a_pool_that_stays_exhausted_makes_calls_wait_and_ends_no_loop(caplog: pytest.LogCaptureFixture) -> None:
    async with small_pool("&patience=5&command_timeout=3") as (dsn, _, client):
        naps = [await client.start_workflow(Naps.run, 1.0, id=f"nap{n}", task_queue=QUEUE) for n in range(4)]
        in_the_way = await import_driver().connect(dsn=dsn.partition("?")[0])
        try:
            # Whatever takes a connection now keeps it until its time is over, for timers and sweepers as well.
            async with in_the_way.transaction():
                await in_the_way.execute("LOCK TABLE clew.executions, clew.tasks, clew.history")
                calls = [
                    asyncio.ensure_future(client.execute_workflow(Naps.run, 0.1, id=f"late{n}", task_queue=QUEUE))
                    for n in range(QUICK_RUNS)
                ]
                await eventually(lambda: "was free for 5 s" in caplog.text, "a call found no connection", SECONDS_MAX)
                await eventually(lambda: "attention.load_failed" in caplog.text, "so did a loop", SECONDS_MAX)
                assert not any(call.done() for call in calls)
        finally:
            await in_the_way.close()
        assert await within(asyncio.gather(*calls)) == ["awake"] * QUICK_RUNS
        assert await within(asyncio.gather(*(nap.result() for nap in naps))) == ["awake"] * 4


async def until_at_most(most: int, count: Callable[[], Awaitable[int]]) -> None:
    async def is_so() -> bool:
        return await count() <= most

    await eventually(is_so, f"at most {most} connections", SECONDS_MAX)


async def within(awaitable: Awaitable[T]) -> T:
    return await asyncio.wait_for(awaitable, SECONDS_MAX)
