"""The schema and its care: migrations, concurrent starts, rights, advice, and what a newer Clew leaves."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import asyncpg
import pytest

from clew.cli import main
from clew.client import Client
from clew.model.rejection import RejectionCode
from clew.ports.store import CommitStatus, StoreIncompatible
from clew.service.errors import RPCError
from clew.storage.postgres import open_reader, open_store
from clew.storage.postgres.admin import TABLES, administration, role_script
from tests.conformance.store.rows import close, insert, update
from tests.postgres.databases import create_database, dsn_of, execute, reuse_database, server_dsn

EMPTY = "clew_test_empty"


@pytest.fixture
async def empty() -> AsyncIterator[str]:
    """A database without a store."""
    server = server_dsn()
    await execute(server, f"DROP DATABASE IF EXISTS {EMPTY} WITH (FORCE)", f"CREATE DATABASE {EMPTY}")
    yield dsn_of(server, EMPTY)
    await execute(server, f"DROP DATABASE IF EXISTS {EMPTY} WITH (FORCE)")


@pytest.fixture
async def dsn() -> AsyncIterator[str]:
    made = await create_database()
    yield made
    await reuse_database(made)


async def clew(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, str]:
    """Run the command in a thread, as it has a loop of its own."""
    code = await asyncio.to_thread(main, ["db", *args])
    told = capsys.readouterr()
    return code, told.out + told.err


async def test_many_that_start_at_once_migrate_once(empty: str) -> None:
    stores = await asyncio.gather(*(open_store(f"{empty}?shards={n}") for n in range(2, 10)))
    assert len({store.shard_count for store in stores}) == 1, "the first one's number holds"
    (count,) = await execute(empty, "SELECT count(*) FROM clew.schema_migrations")
    async with administration(empty) as admin:
        report = await admin.read_schema()
        assert report.is_usable
        assert count == len(report.applied)
        assert report.missing_post == ()
    await asyncio.gather(*(store.close() for store in stores))


async def test_the_schema_has_the_name_that_was_asked_for(empty: str) -> None:
    one, other = await open_store(f"{empty}?schema=one"), await open_store(f"{empty}?schema=other")
    assert await one.commit_if_current([(insert(1),)]) == [CommitStatus.COMMITTED]
    assert await other.load_run(0, 1) is None
    await one.close()
    await other.close()


async def test_the_command_migrates_checks_and_shows(empty: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, told = await clew(capsys, "check", "--store", empty)
    assert code == 6
    assert "there is no store yet" in told
    code, told = await clew(capsys, "migrate", "--store", empty)
    assert code == 0
    assert "applied 001_pre_tables.sql" in told
    code, told = await clew(capsys, "migrate", "--store", empty)
    assert told == "Nothing to apply.\n"
    code, told = await clew(capsys, "check", "--store", empty, "-o", "json")
    assert (code, json.loads(told)["is_usable"]) == (0, True)
    code, told = await clew(capsys, "status", "--store", empty)
    assert code == 0
    assert "executions" in told
    code, told = await clew(capsys, "vacuum-advice", "--store", empty)
    assert code == 0
    code, told = await clew(capsys, "status", "--store", "sqlite:nothing.db")
    assert code == 2
    assert "about PostgreSQL" in told


async def test_a_role_for_engines_may_do_their_work_and_no_more(dsn: str) -> None:
    plain = dsn.partition("?")[0]
    await execute(plain, role_script("clew_engine", "clew"))
    as_engine = dsn.replace("postgres@", "clew_engine@")
    store = await open_store(as_engine)
    run = insert(1)
    assert await store.commit_if_current([(run,)]) == [CommitStatus.COMMITTED]
    assert await store.commit_if_current([(close(run),)]) == [CommitStatus.COMMITTED]
    await store.close()
    connection = await asyncpg.connect(as_engine.partition("?")[0])
    for forbidden in (
        "UPDATE clew.history SET events = ''",
        "DROP TABLE clew.history",
        "CREATE TABLE clew.more (x int)",
        "INSERT INTO clew.schema_migrations VALUES ('x', 'y')",
    ):
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await connection.execute(forbidden)
    await connection.close()


async def test_every_table_is_in_the_script_of_the_role(dsn: str) -> None:
    (tables,) = await execute(
        dsn.partition("?")[0], "SELECT array_agg(tablename::text) FROM pg_tables WHERE schemaname = 'clew'"
    )
    assert set(tables) == {*TABLES, "schema_migrations"}


async def test_a_user_who_may_not_make_the_schema_is_told(empty: str) -> None:
    await execute(empty, "DROP ROLE IF EXISTS clew_nobody", "CREATE ROLE clew_nobody LOGIN")
    with pytest.raises(StoreIncompatible, match="clew db migrate"):
        await open_store(empty.replace("postgres@", "clew_nobody@"))
    with pytest.raises(StoreIncompatible, match="no store of this version"):
        await open_reader(empty.replace("postgres@", "clew_nobody@"))
    await execute(empty, "DROP ROLE clew_nobody")


async def test_what_a_newer_clew_added_is_worked_with_and_what_it_finished_is_not(dsn: str) -> None:
    plain = dsn.partition("?")[0]
    await execute(
        plain,
        "INSERT INTO clew.schema_migrations (name, digest) VALUES ('900_pre_more.sql', 'x')",
        "ALTER TABLE clew.executions ADD COLUMN more text",
    )
    try:
        store = await open_store(dsn)
        run = insert(1)
        assert await store.commit_if_current([(run,)]) == [CommitStatus.COMMITTED]
        assert await store.commit_if_current([(update(run),)]) == [CommitStatus.COMMITTED]
        await store.close()
        await execute(plain, "INSERT INTO clew.schema_migrations (name, digest) VALUES ('900_post_more.sql', 'x')")
        with pytest.raises(StoreIncompatible, match="Upgrade Clew"):
            await open_store(dsn)
    finally:
        await execute(
            plain,
            "DELETE FROM clew.schema_migrations WHERE name LIKE '900%'",
            "ALTER TABLE clew.executions DROP COLUMN more",
        )


async def test_recorded_events_can_be_read_by_plain_sql_and_not_changed(dsn: str) -> None:
    store = await open_store(dsn)
    await store.commit_if_current([(insert(1, "w"),)])
    await store.close()
    plain = dsn.partition("?")[0]
    connection = await asyncpg.connect(plain)
    rows = await connection.fetch("SELECT workflow_id, event_id, event_type FROM clew.clew_events ORDER BY event_id")
    assert [tuple(row) for row in rows] == [("w", 1, "TimerFired"), ("w", 2, "TimerFired")]
    assert (
        await connection.fetchval("SELECT start_time::text FROM clew.clew_executions")
        == "2026-03-01 08:00:00.123456+00"
    )
    with pytest.raises(asyncpg.RaiseError, match="append-only"):
        await connection.execute("UPDATE clew.history SET events = ''")
    await connection.close()


async def test_an_open_transaction_that_keeps_dead_rows_is_named(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from datetime import timedelta

    monkeypatch.setattr("clew.storage.postgres.admin._OLD_TRANSACTION", timedelta(0))
    connection = await asyncpg.connect(dsn.partition("?")[0])
    await connection.execute("BEGIN")
    pid = await connection.fetchval("SELECT pg_backend_pid()")
    async with administration(dsn) as admin:
        advice = {one.about: one.text for one in await admin.advise()}
    await connection.close()
    assert f"pg_terminate_backend({pid})" in advice[f"session {pid}"]


@pytest.mark.parametrize(
    ("option", "told"),
    [
        ("foo=1", "refuses the option foo="),
        ("work_mem=banana", "refuses the option work_mem="),
        ("sslmode=banana", "cannot use the connection string .*sslmode"),
        ("ssl_min_protocol_version=banana", "cannot use the connection string .*ssl_min_protocol_version"),
        ("sslmode", "the option 'sslmode' of the connection string has no value"),
        ("lease=abc", "the option lease='abc'"),
    ],
)
async def test_an_option_that_cannot_be_used_is_the_mistake_of_the_caller(dsn: str, option: str, told: str) -> None:
    with pytest.raises(StoreIncompatible, match=told) as refused:
        await open_store(f"{dsn}&{option}")
    assert "bug" not in str(refused.value)
    with pytest.raises(RPCError) as seen:
        await Client.connect(f"{dsn}&{option}")
    assert seen.value.code is RejectionCode.INVALID_ARGUMENT


async def test_a_setting_of_the_server_may_be_an_option(dsn: str) -> None:
    store = await open_store(f"{dsn}&work_mem=8MB&clew_test.note=1")
    await store.close()
