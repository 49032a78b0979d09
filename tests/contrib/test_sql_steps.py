"""A step takes effect once and gives its result again: sqlite3, SQLAlchemy and asyncpg, on SQLite and PostgreSQL."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any, cast

import asyncpg
import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from clew.contrib.sql import StepError, create_table_sql
from clew.contrib.sql import asyncpg as pg
from clew.contrib.sql import sqlalchemy as alchemy
from clew.contrib.sql import sqlite3 as lite
from clew.testing import ActivityEnvironment

INSERT = "INSERT INTO payments (amount) VALUES (100)"
COUNT = "SELECT count(*) FROM payments"


@dataclass
class Receipt:
    number: int
    amount: Decimal


RECEIPT = Receipt(7, Decimal("100.50"))

# --- sqlite3 ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def database(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    connection = _open(tmp_path)
    lite.create_table(connection)
    connection.execute("CREATE TABLE payments (amount INTEGER)")
    yield connection
    connection.close()


def _open(tmp_path: Path, **options: Any) -> sqlite3.Connection:
    return sqlite3.connect(tmp_path / "payments.db", **options)


def count(connection: sqlite3.Connection) -> int:
    found: int = connection.execute(COUNT).fetchone()[0]
    return found


def test_a_repeat_gets_the_result_without_the_step(database: sqlite3.Connection) -> None:
    def pay() -> Receipt:
        database.execute(INSERT)
        return RECEIPT

    results: list[Receipt] = []
    for _ in range(3):
        with database:
            results.append(lite.run_once(database, pay, key="k1"))
    assert results == [RECEIPT] * 3
    assert count(database) == 1
    with database:
        lite.run_once(database, pay, key="k2")
    assert count(database) == 2


def test_the_block_tells_whether_it_is_done(database: sqlite3.Connection) -> None:
    seen: list[tuple[bool, Any]] = []
    for _ in range(2):
        with database, lite.exactly_once(database, key="k1") as step:
            if not step.is_done:
                database.execute(INSERT)
                step.record({"number": 7})
            seen.append((step.is_done, step.result))
    assert seen == [(False, {"number": 7}), (True, {"number": 7})]
    assert count(database) == 1


def test_a_step_may_have_no_result(database: sqlite3.Connection) -> None:
    for expected in (False, True):
        with database, lite.exactly_once(database, key="k1") as step:
            assert step.is_done is expected
            assert step.result is None


def test_a_block_that_forgets_to_look_is_stopped(database: sqlite3.Connection) -> None:
    def unguarded() -> None:
        with database, lite.exactly_once(database, key="k1") as step:
            database.execute(INSERT)
            step.record(1)

    unguarded()
    with pytest.raises(StepError, match=r"if not step.is_done"):
        unguarded()
    assert count(database) == 1


def test_a_rollback_takes_the_key_with_it(database: sqlite3.Connection) -> None:
    lite.run_once(database, lambda: database.execute(INSERT).rowcount, key="k1")
    database.rollback()
    with database, lite.exactly_once(database, key="k1") as step:
        assert not step.is_done


def test_an_error_undoes_the_step_even_if_the_transaction_goes_on(database: sqlite3.Connection) -> None:
    def fails() -> None:
        database.execute(INSERT)
        raise LookupError("no such account")

    with database:
        database.execute("INSERT INTO payments (amount) VALUES (1)")
        with pytest.raises(LookupError):
            lite.run_once(database, fails, key="k1")
    assert count(database) == 1
    with database, lite.exactly_once(database, key="k1") as step:
        assert not step.is_done


def test_a_result_that_cannot_be_recorded_undoes_the_step(database: sqlite3.Connection) -> None:
    with pytest.raises(ValueError, match="object"), database:
        lite.run_once(database, lambda: [database.execute(INSERT), object()][1], key="k1")
    assert count(database) == 0


def test_a_result_that_a_repeat_would_get_otherwise_undoes_the_step(database: sqlite3.Connection) -> None:
    def wrongly() -> str:
        database.execute(INSERT)
        number: Any = 7
        return cast(str, number)

    refused: list[tuple[Any, str]] = [
        (lambda: [database.execute(INSERT), RECEIPT][1], r"a repeat would be given .*\(dict\).*result_type=Receipt"),
        (
            lambda: [database.execute(INSERT), (1, 2)][1],
            r"\(1, 2\) \(tuple\), but a repeat would be given \[1, 2\] \(list\)",
        ),
        (wrongly, r"gave 7 \(int\), which does not fit the type"),
    ]
    for body, says in refused:
        with database, pytest.raises(StepError, match=says):
            lite.run_once(database, body, key="k1")
    with database, pytest.raises(StepError, match="result_type=Receipt"), lite.exactly_once(database, key="k1") as step:
        step.record(RECEIPT)
    assert count(database) == 0
    for _ in range(2):
        with database:
            assert lite.run_once(database, lambda: RECEIPT, key="k1", result_type=Receipt) == RECEIPT


def test_a_commit_within_the_block_is_told_then_and_later(database: sqlite3.Connection) -> None:
    def commits() -> None:
        database.execute(INSERT)
        database.commit()

    with pytest.raises(StepError, match="Commit only after the block"), database:
        lite.run_once(database, commits, key="k1")
    with pytest.raises(StepError, match=r"begun but not ended.*Find out whether it took effect"), database:
        lite.run_once(database, commits, key="k1")
    assert count(database) == 1


def _numbered() -> dict[Any, Any]:
    return {1: 2}


def _dated() -> date:
    return "2020-01-01"  # type: ignore[return-value]


def _paired() -> Any:
    return (1, 2)


@pytest.mark.parametrize("body", [_numbered, _dated, _paired])
def test_a_result_that_its_annotation_would_read_as_another_is_refused(
    database: sqlite3.Connection, body: Callable[[], Any]
) -> None:
    with pytest.raises(StepError, match="a repeat would be given"), database:
        lite.run_once(database, body, key="k1")


def _whole() -> float:
    return 3  # type: ignore[return-value]


@dataclass(eq=False)
class _Unequal:
    name: str


def _own() -> _Unequal:
    return _Unequal("a")


@pytest.mark.parametrize("body", [_whole, _own])
def test_a_result_that_a_repeat_reads_as_the_same_is_taken(
    database: sqlite3.Connection, body: Callable[[], Any]
) -> None:
    with database:
        lite.run_once(database, body, key="k1")
    with database:
        lite.run_once(database, body, key="k1")


def test_without_a_transaction_a_step_is_refused(tmp_path: Path, database: sqlite3.Connection) -> None:
    connection = _open(tmp_path, isolation_level=None)
    with pytest.raises(StepError, match="Execute BEGIN"):
        lite.run_once(connection, lambda: 1, key="k1")
    connection.execute("BEGIN IMMEDIATE")
    assert lite.run_once(connection, lambda: 1, key="k1") == 1
    connection.execute("COMMIT")
    connection.close()


def test_steps_may_be_nested(database: sqlite3.Connection) -> None:
    def outer() -> int:
        database.execute(INSERT)
        with pytest.raises(LookupError):
            lite.run_once(database, fails, key="bad")
        return lite.run_once(database, lambda: 5, key="inner")

    def fails() -> None:
        database.execute(INSERT)
        raise LookupError

    with database:
        assert lite.run_once(database, outer, key="outer") == 5
    assert count(database) == 1


def test_two_attempts_at_once_run_it_once(tmp_path: Path, database: sqlite3.Connection) -> None:
    barrier = threading.Barrier(4)
    results: list[int] = []

    def attempt() -> None:
        connection = _open(tmp_path, timeout=30)
        barrier.wait(30)
        with connection:
            results.append(lite.run_once(connection, lambda: connection.execute(INSERT).rowcount, key="k1"))
        connection.close()

    threads = [threading.Thread(target=attempt) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert results == [1, 1, 1, 1]
    assert count(database) == 1


def test_the_key_of_the_running_activity_is_taken(database: sqlite3.Connection) -> None:
    def pay() -> list[int]:
        with database:
            return [
                lite.run_once(database, lambda: database.execute(INSERT).rowcount),
                lite.run_once(database, lambda: database.execute(INSERT).rowcount, step="fee"),
            ]

    environment = ActivityEnvironment()
    assert environment.run(pay) == environment.run(pay) == [1, 1]
    assert count(database) == 2
    with pytest.raises(RuntimeError, match="Not in an activity"):
        lite.run_once(database, lambda: 1)


def test_wrong_arguments_are_refused(database: sqlite3.Connection) -> None:
    with pytest.raises(ValueError, match="either key or step"):
        lite.run_once(database, lambda: 1, key="k", step="s")
    for key in ("", "x" * 256):
        with pytest.raises(ValueError, match="1 to 255 characters"):
            lite.run_once(database, lambda: 1, key=key)
    with pytest.raises(ValueError, match="letters, digits and underscores"):
        lite.run_once(database, lambda: 1, key="k", table="x; DROP TABLE payments")
    with pytest.raises(ValueError, match="no DDL for 'oracle'"):
        create_table_sql("oracle")  # type: ignore[arg-type]


# --- SQLAlchemy ------------------------------------------------------------------------------------------------------

payments = sa.Table("payments", sa.MetaData(), sa.Column("amount", sa.Integer))


@pytest.fixture(params=["sqlite+aiosqlite", "postgresql+asyncpg", "postgresql+psycopg"])
async def engine(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[AsyncEngine]:
    made = create_async_engine(url_of(request, tmp_path))
    async with made.begin() as connection:
        await connection.run_sync(payments.metadata.drop_all)
        await connection.run_sync(alchemy.STEPS.metadata.drop_all)
        await connection.run_sync(payments.metadata.create_all)
        await connection.run_sync(alchemy.STEPS.metadata.create_all)
    yield made
    await made.dispose()


def url_of(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param.startswith("sqlite"):
        return f"{request.param}:///{tmp_path}/payments.db"
    return f"{request.param}://postgres@/postgres?host={request.getfixturevalue('postgres_directory')}"


@pytest.fixture(params=["sqlite", "postgresql+psycopg"])
def sync_engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[sa.Engine]:
    made = sa.create_engine(url_of(request, tmp_path))
    payments.metadata.drop_all(made)
    alchemy.STEPS.metadata.drop_all(made)
    payments.metadata.create_all(made)
    alchemy.STEPS.metadata.create_all(made)
    yield made
    made.dispose()


def rows(engine: sa.Engine) -> int:
    with engine.connect() as connection:
        return connection.execute(sa.select(sa.func.count()).select_from(payments)).scalar_one()


async def rows_async(engine: AsyncEngine) -> int:
    async with engine.connect() as connection:
        return (await connection.execute(sa.select(sa.func.count()).select_from(payments))).scalar_one()


def test_a_connection_and_a_session_share_the_key(sync_engine: sa.Engine) -> None:
    def pay(executor: sa.Connection | Session) -> Receipt:
        def body() -> Receipt:
            executor.execute(payments.insert().values(amount=100))
            return RECEIPT

        return alchemy.run_once(executor, body, key="k1")

    with sync_engine.begin() as connection:
        assert pay(connection) == RECEIPT
    with Session(sync_engine) as session, session.begin():
        assert pay(session) == RECEIPT
    assert rows(sync_engine) == 1


def test_a_rollback_of_sqlalchemy_takes_the_key_with_it(sync_engine: sa.Engine) -> None:
    with sync_engine.connect() as connection:
        alchemy.run_once(connection, lambda: connection.execute(payments.insert()).rowcount, key="k1")
        connection.rollback()
    with sync_engine.begin() as connection, alchemy.exactly_once(connection, key="k1") as step:
        assert not step.is_done
    assert rows(sync_engine) == 0


def test_an_error_in_a_session_undoes_the_step_alone(sync_engine: sa.Engine) -> None:
    def fails() -> None:
        session.execute(payments.insert())
        raise LookupError

    with Session(sync_engine) as session, session.begin():
        session.execute(payments.insert())
        with pytest.raises(LookupError):
            alchemy.run_once(session, fails, key="k1")
    assert rows(sync_engine) == 1
    with sync_engine.begin() as connection, alchemy.exactly_once(connection, key="k1") as step:
        assert not step.is_done


def test_a_commit_of_a_session_within_the_block_is_told(sync_engine: sa.Engine) -> None:
    def commits() -> None:
        session.execute(payments.insert())
        session.commit()

    with Session(sync_engine) as session, pytest.raises(StepError, match="Commit only after the block"):
        alchemy.run_once(session, commits, key="k1")


def test_autocommit_is_refused(sync_engine: sa.Engine) -> None:
    with (
        sync_engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection,
        pytest.raises(StepError, match="AUTOCOMMIT"),
    ):
        alchemy.run_once(connection, lambda: 1, key="k1")


def test_the_table_joins_your_metadata() -> None:
    metadata = sa.MetaData()
    table = alchemy.steps_table(metadata, "my_steps", schema="app")
    assert metadata.tables["app.my_steps"] is table


def test_a_database_without_a_quiet_insert_is_served_too(
    sync_engine: sa.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sync_engine.dialect, "name", "oracle")
    results: list[tuple[bool, Any]] = []
    for _ in range(2):
        with sync_engine.begin() as connection, alchemy.exactly_once(connection, key="k1") as step:
            if not step.is_done:
                step.record(1)
            results.append((step.is_done, step.result))
    assert results == [(False, 1), (True, 1)]


async def test_async_connections_and_sessions(engine: AsyncEngine) -> None:
    async def pay(executor: AsyncConnection | AsyncSession) -> Receipt:
        async def body() -> Receipt:
            await executor.execute(payments.insert().values(amount=100))
            return RECEIPT

        return await alchemy.run_once_async(executor, body, key="k1")

    async with engine.begin() as connection:
        assert await pay(connection) == RECEIPT
    async with AsyncSession(engine) as session, session.begin():
        assert await pay(session) == RECEIPT
    assert await rows_async(engine) == 1


async def test_an_error_of_the_database_itself_undoes_the_step_alone(engine: AsyncEngine) -> None:
    async def fails() -> None:
        await connection.execute(payments.insert())
        await connection.execute(sa.text("SELECT * FROM nowhere"))

    async with engine.begin() as connection:
        await connection.execute(payments.insert())
        with pytest.raises(sa.exc.SQLAlchemyError):
            await alchemy.run_once_async(connection, fails, key="k1")
    assert await rows_async(engine) == 1
    async with engine.begin() as connection, alchemy.exactly_once_async(connection, key="k1") as step:
        assert not step.is_done


async def test_a_step_that_is_cancelled_leaves_nothing(engine: AsyncEngine) -> None:
    began = asyncio.Event()

    async def hangs() -> None:
        await connection.execute(payments.insert())
        began.set()
        await asyncio.Event().wait()

    async with engine.begin() as connection:
        task = asyncio.create_task(alchemy.run_once_async(connection, hangs, key="k1"))
        await asyncio.wait_for(began.wait(), 10)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert await rows_async(engine) == 0


# --- asyncpg ---------------------------------------------------------------------------------------------------------


@pytest.fixture
async def connections(postgres_directory: str) -> AsyncIterator[list[Any]]:
    made = [await asyncpg.connect(host=postgres_directory, user="postgres", database="postgres") for _ in range(2)]
    await made[0].execute("DROP TABLE IF EXISTS payments, clew_steps")
    await made[0].execute("CREATE TABLE payments (amount integer)")
    await pg.create_table(made[0])
    yield made
    for connection in made:
        await connection.close()


async def test_asyncpg_repeats_give_the_result(connections: list[Any]) -> None:
    connection = connections[0]

    async def pay() -> Receipt:
        await connection.execute(INSERT)
        return RECEIPT

    for _ in range(2):
        async with connection.transaction():
            assert await pg.run_once(connection, pay, key="k1") == RECEIPT
    assert await connection.fetchval(COUNT) == 1


async def test_asyncpg_needs_a_transaction(connections: list[Any]) -> None:
    async def pay() -> int:
        return 1

    with pytest.raises(StepError, match=r"async with connection.transaction"):
        await pg.run_once(connections[0], pay, key="k1")


async def test_asyncpg_errors_undo_the_step_alone(connections: list[Any]) -> None:
    connection = connections[0]

    async def fails() -> None:
        await connection.execute(INSERT)
        await connection.execute("SELECT * FROM nowhere")

    async with connection.transaction():
        await connection.execute(INSERT)
        with pytest.raises(asyncpg.UndefinedTableError):
            await pg.run_once(connection, fails, key="k1")
    assert await connection.fetchval(COUNT) == 1
    assert await connection.fetchval("SELECT count(*) FROM clew_steps") == 0


@pytest.mark.parametrize("is_committed", [True, False])
async def test_a_second_attempt_waits_for_the_first_transaction(connections: list[Any], is_committed: bool) -> None:
    one, other = connections

    def paying(connection: Any, number: int) -> Any:
        async def pay() -> int:
            await connection.execute(INSERT)
            return number

        return pay

    async def second() -> int:
        async with other.transaction():
            result: int = await pg.run_once(other, paying(other, 2), key="k1")
            return result

    transaction = one.transaction()
    await transaction.start()
    assert await pg.run_once(one, paying(one, 1), key="k1") == 1
    waiting = asyncio.create_task(second())
    async with asyncio.timeout(20):
        blocked = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
        while await one.fetchval(blocked) == 0:
            assert not waiting.done()
    await (transaction.commit() if is_committed else transaction.rollback())
    assert await asyncio.wait_for(waiting, 20) == (1 if is_committed else 2)
    assert await one.fetchval(COUNT) == 1
