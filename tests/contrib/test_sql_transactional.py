"""Starts and signals inside the caller's own transaction: they happen if and only if it commits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import psycopg
import pytest

from clew import workflow
from clew.client import Client
from clew.contrib.sql import UnknownConnectionError, signal_workflow, start_workflow
from clew.service.errors import RPCError
from clew.worker import Worker
from tests.postgres.databases import create_database, execute, reuse_database

SECONDS_MAX = 60.0


@workflow.defn
class Collects:
    def __init__(self) -> None:
        self.words: list[str] = []

    @workflow.run
    async def run(self, first: str, count: int) -> list[str]:
        self.words.append(first)
        await workflow.wait_condition(lambda: len(self.words) >= count)
        return self.words

    @workflow.signal
    def add(self, word: str) -> None:
        self.words.append(word)


@pytest.fixture
async def dsn() -> AsyncIterator[str]:
    made = await create_database("shards=16")
    yield made
    await reuse_database(made)


@pytest.fixture
async def client(dsn: str) -> AsyncIterator[Client]:
    async with (
        await Client.connect(dsn) as client,
        Worker(client, task_queue="sql", workflows=[Collects]),
    ):
        yield client


@pytest.fixture
async def connection(dsn: str) -> AsyncIterator[Any]:
    connection = await asyncpg.connect(dsn.partition("?")[0])
    yield connection
    await connection.close()


async def result(client: Client, workflow_id: str) -> list[str]:
    """The result, once the run is there."""

    async def look() -> list[str]:
        while True:
            try:
                return await client.get_workflow_handle_for(Collects.run, workflow_id).result()
            except RPCError as error:
                if error.code.value != "workflow_not_found":
                    raise
                await asyncio.sleep(0.01)

    return await asyncio.wait_for(look(), SECONDS_MAX)


async def test_a_start_and_its_signals_happen_with_the_commit(client: Client, connection: Any) -> None:
    await connection.execute("CREATE TEMP TABLE orders (id int)")
    async with connection.transaction():
        await connection.execute("INSERT INTO orders VALUES (1)")
        await start_workflow(connection, Collects.run, "first", 4, id="order-1", task_queue="sql")
        for word in ("a", "b", "c"):
            await signal_workflow(connection, "order-1", Collects.add, word)
    assert await result(client, "order-1") == ["first", "a", "b", "c"], "in the order in which they were asked for"


async def test_nothing_happens_when_the_transaction_is_rolled_back(client: Client, connection: Any) -> None:
    undone = connection.transaction()
    await undone.start()
    await start_workflow(connection, Collects.run, "never", 1, id="rolled-back", task_queue="sql")
    await undone.rollback()
    async with connection.transaction():
        await start_workflow(connection, Collects.run, "after", 1, id="after", task_queue="sql")
    assert await result(client, "after") == ["after"]
    with pytest.raises(RPCError, match="rolled-back"):
        await client.get_workflow_handle("rolled-back").describe()


async def test_a_trigger_starts_workflows_in_sql(client: Client, connection: Any) -> None:
    await connection.execute(
        "CREATE TABLE bills (id int, who text)",
    )
    try:
        await connection.execute(
            "CREATE FUNCTION on_bill() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
            "PERFORM clew.start_workflow('bill-' || NEW.id, 'Collects', 'sql', json_build_array(NEW.who, 2)); "
            "PERFORM clew.signal_workflow('bill-' || NEW.id, 'add', json_build_array('paid')); RETURN NEW; END $$"
        )
        await connection.execute("CREATE TRIGGER on_bill AFTER INSERT ON bills FOR EACH ROW EXECUTE FUNCTION on_bill()")
        await connection.execute("INSERT INTO bills SELECT n, 'who-' || n FROM generate_series(1, 20) AS n")
        for n in range(1, 21):
            assert await result(client, f"bill-{n}") == [f"who-{n}", "paid"]
    finally:
        await connection.execute("DROP TABLE bills; DROP FUNCTION on_bill")


async def test_a_repeat_with_the_same_request_id_is_one_start(client: Client, connection: Any) -> None:
    for _ in range(2):
        await start_workflow(connection, Collects.run, "x", 1, id="repeated", task_queue="sql", request_id="the-same")
    assert await result(client, "repeated") == ["x"]

    async def until_empty() -> None:
        while await connection.fetchval("SELECT count(*) FROM clew.inbox"):
            await asyncio.sleep(0.01)

    await asyncio.wait_for(until_empty(), SECONDS_MAX)
    assert await connection.fetchval("SELECT count(*) FROM clew.executions WHERE workflow_id = 'repeated'") == 1


async def test_what_is_refused_for_good_is_kept_with_the_reason(
    client: Client, connection: Any, caplog: pytest.LogCaptureFixture
) -> None:
    await signal_workflow(connection, "nobody", "add", "x")
    await connection.execute("SELECT clew.enqueue('start', '{\"no\": 1}')")

    async def until_refused() -> None:
        while await connection.fetchval("SELECT count(*) FROM clew.inbox WHERE failed IS NOT NULL") < 2:
            await asyncio.sleep(0.01)

    await asyncio.wait_for(until_refused(), SECONDS_MAX)
    reasons = await connection.fetch("SELECT failed FROM clew.inbox ORDER BY inbox_id")
    assert "nobody" in reasons[0][0]
    assert "cannot be read" in reasons[1][0]
    assert "inbox.refused" in caplog.text


async def test_sqlalchemy_sessions_take_part(client: Client, dsn: str) -> None:
    from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

    made = create_async_engine(dsn.partition("?")[0].replace("postgresql://", "postgresql+asyncpg://"))
    async with AsyncSession(made) as session, session.begin():
        await start_workflow(session, Collects.run, "session", 2, id="session", task_queue="sql")
    async with made.begin() as connection:
        await signal_workflow(connection, "session", Collects.add, "too")
    assert await result(client, "session") == ["session", "too"]
    await made.dispose()


async def test_psycopg_connections_take_part(client: Client, dsn: str) -> None:
    async with await psycopg.AsyncConnection.connect(dsn.partition("?")[0]) as connection:
        await connection.execute("CREATE TEMP TABLE orders (id int)")
        async with connection.transaction():
            await connection.execute("INSERT INTO orders VALUES (%s)", (1,))
            await start_workflow(connection, Collects.run, "100 %s", 3, id="order-1", task_queue="sql")
            await signal_workflow(connection, "order-1", Collects.add, "%")
        await connection.commit()
        async with connection.transaction(force_rollback=True):
            await signal_workflow(connection, "order-1", Collects.add, "rolled back")
            await start_workflow(connection, Collects.run, "never", 1, id="rolled-back", task_queue="sql")
        await signal_workflow(connection, "order-1", Collects.add, "last")
        await connection.commit()
        assert await result(client, "order-1") == ["100 %s", "%", "last"]
        with pytest.raises(RPCError, match="rolled-back"):
            await client.get_workflow_handle("rolled-back").describe()


async def test_a_connection_of_psycopg_that_blocks_calls_the_sql_functions(client: Client, dsn: str) -> None:
    def order() -> None:
        with psycopg.connect(dsn.partition("?")[0]) as connection:
            connection.execute("SELECT clew.start_workflow('order-2', 'Collects', 'sql', '[\"a\", 2]')")
            connection.execute("SELECT clew.signal_workflow('order-2', 'add', %s)", ('["b"]',))

    await asyncio.to_thread(order)
    assert await result(client, "order-2") == ["a", "b"]
    with psycopg.connect(dsn.partition("?")[0]) as blocking, pytest.raises(UnknownConnectionError, match="AsyncConn"):
        await start_workflow(blocking, Collects.run, "x", 1, id="x", task_queue="sql")


async def test_other_connections_are_refused(dsn: str) -> None:
    with pytest.raises(UnknownConnectionError, match=r"clew\.start_workflow"):
        await start_workflow(object(), "W", id="x", task_queue="q")
    with pytest.raises(ValueError, match="schema"):
        await start_workflow(object(), "W", id="x", task_queue="q", schema="a; DROP TABLE b")
    assert await execute(dsn.partition("?")[0], "SELECT count(*) FROM clew.inbox") == [0]
