"""A lone commit on PostgreSQL: what it need not wait for, and that it writes what a group writes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from clew.ports.store import CommitStatus, PendingItem, RunWrite
from clew.storage.postgres import open_store
from clew.storage.postgres.address import parse_address
from clew.storage.postgres.connections import close_quietly, connect
from tests.conformance.store.rows import T0, attribute, batch, close, insert, update, visibility
from tests.postgres.databases import create_database, execute, reuse_database

DEADLINE_SECONDS = 60


@pytest.fixture
async def dsn() -> AsyncIterator[str]:
    made = await create_database("shards=4")
    yield made
    await reuse_database(made)


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("bool", [True, None, False]),
        ("bytea", [b"", None, b"\x00\xff"]),
        ("int2", [-1, None, 2**15 - 1]),
        ("int4", [-1, None, 2**31 - 1]),
        ("int8", [-1, None, 2**63 - 1]),
        ("text", ["", None, "\u20ac"]),
    ],
)
async def test_a_new_connection_does_not_ask_what_an_array_is(dsn: str, kind: str, values: list[Any]) -> None:
    connection = await connect(parse_address(dsn), timeout=DEADLINE_SECONDS)
    asked: list[str] = []
    connection.add_query_logger(lambda record: asked.append(record.query))
    query = f"SELECT $1::{kind}[]"
    assert await connection.fetchval(query, values) == values
    await asyncio.sleep(0)
    assert asked == [query], "the first use of the type should be one query"
    await close_quietly(connection)


async def test_a_type_of_the_users_own_is_asked_for_as_ever(dsn: str) -> None:
    connection = await connect(parse_address(dsn), timeout=DEADLINE_SECONDS)
    await connection.execute("CREATE TYPE pg_temp.colour AS ENUM ('red', 'green')")
    row = await connection.fetchrow("SELECT $1::pg_temp.colour[] AS colours, $2::int8[] AS numbers", ["red"], [1])
    assert row is not None
    assert (row["colours"], row["numbers"]) == (["red"], [1])
    await close_quietly(connection)


async def test_the_connections_of_commits_are_made_ahead_of_them(dsn: str) -> None:
    store = await open_store(dsn)
    ready = (
        "SELECT count(*)::text FROM pg_stat_activity WHERE datname = current_database() AND query LIKE 'WITH updates%'"
    )
    async with asyncio.timeout(DEADLINE_SECONDS):
        while await execute(dsn.partition("?")[0], ready) != ["2"]:
            await asyncio.sleep(0.01)
    await store.close()


async def test_a_store_is_closed_while_its_connections_are_being_made(dsn: str) -> None:
    store = await open_store(dsn)
    [status] = await store.commit_if_current([(insert(1),)])
    assert status is CommitStatus.COMMITTED
    at_once = await open_store(dsn)
    await asyncio.wait_for(at_once.close(), DEADLINE_SECONDS)
    await store.close()


async def _rows(dsn: str, run_key: int) -> list[str]:
    run = (
        "SELECT (to_jsonb(e) - '{run_key,workflow_id,run_id,commit_id}'::text[])::text "
        f"FROM clew.executions AS e WHERE run_key = {run_key}"
    )
    history = (
        "SELECT coalesce(jsonb_agg(to_jsonb(h) - 'run_key' ORDER BY first_event_id), '[]')::text "
        f"FROM clew.history AS h WHERE run_key = {run_key}"
    )
    return await execute(dsn.partition("?")[0], run, history)


@pytest.mark.parametrize("kind", ["step", "without_events", "asleep", "closed", "stale"])
async def test_alone_and_in_a_group_the_same_is_written(dsn: str, kind: str) -> None:
    store = await open_store(dsn)
    runs = [insert(key, attention_at=T0) for key in (1, 2, 3)]
    await store.commit_if_current([(run,) for run in runs])

    def written(run: RunWrite) -> RunWrite:
        match kind:
            case "without_events":
                return update(run, batches=())
            case "asleep":
                return update(run, attention_at=None, is_busy=True)
            case "closed":
                return close(run, visibility=None)
            case "stale":
                return update(run, expected_version=7)
        return update(run)

    alone, *together = [written(run) for run in runs]
    answers = await store.commit_if_current([(alone,)])
    answers += await store.commit_if_current([(write,) for write in together])
    expected = CommitStatus.VERSION_CONFLICT if kind == "stale" else CommitStatus.COMMITTED
    assert answers == [expected] * 3
    assert await _rows(dsn, 1) == await _rows(dsn, 2) == await _rows(dsn, 3)
    await store.close()


AWKWARD = ['"', "\\", "{}", ",", "", "NULL", "null", " a ", "a\nb", "\u20ac", '\\"', '","', "x" * 3000]


async def test_texts_and_bytes_of_a_group_come_back_as_they_were(dsn: str) -> None:
    store = await open_store(dsn)
    runs = [
        insert(
            key,
            workflow_id=f"{text}-{key}",
            state=text.encode(),
            visibility=visibility(workflow_type=text, memo={text: attribute(text)} if key % 2 else None),
            items_put=(PendingItem(kind=1, item_id=key, data=text.encode() * 2),),
            batches=(batch(1, key),) if key % 3 else (),
        )
        for key, text in enumerate(AWKWARD, 1)
    ]
    answers = await store.commit_if_current([(run,) for run in runs])
    assert answers == [CommitStatus.COMMITTED] * len(runs)
    for run in runs:
        found = await store.load_run(0, run.run_key)
        assert found is not None
        assert (found.workflow_id, found.state, found.visibility) == (run.workflow_id, run.state, run.visibility)
        assert found.items == run.items_put
        history = await store.read_history(0, run.run_key, 1, 10**6)
        assert tuple(history) == run.batches
    await store.close()
