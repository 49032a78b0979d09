"""Which statements stay within a shard: the check behind ``docs/explanation/scale.md``.

Every statement that a transition, a timer or a recovery makes must name its shard and find its rows by an index that
begins with it, and by all of the key that it knows. Those that cannot are listed here with the reason; a new one fails
until it is in one of the two lists.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest

from clew.storage.postgres import commit_sql, reads, tasks, writes
from clew.storage.postgres.connections import session_settings
from tests.postgres.databases import create_database, drop_database

LOCAL = {
    **{f"commit: {name}": commit_sql.statement("clew", ("updates", name)) for name in commit_sql.SIDE_SECTIONS},
    **{f"commit: {name}": commit_sql.statement("clew", (name,)) for name in commit_sql.RUN_SECTIONS},
    "commit: follow": commit_sql.UNLATCH.format(s="clew"),
    "load a run": reads.LOAD_RUN.format(s="clew"),
    "load runs": reads.LOAD_RUNS.format(s="clew"),
    "find a run": reads.FIND_RUN.format(s="clew"),
    "find the latest run": reads.FIND_LATEST.format(s="clew"),
    "read history": reads.READ_HISTORY.format(s="clew"),
    "find due runs": reads.FIND_DUE.format(s="clew"),
    "find busy runs": reads.FIND_BUSY.format(s="clew"),
    "read the outbox": reads.READ_OUTBOX.format(s="clew"),
    "find versions": reads.FIND_VERSIONS.format(s="clew"),
    "find queued events": tasks.QUEUED_EVENTS.format(s="clew"),
    "release tasks": tasks.RELEASE.format(s="clew"),
    "delete tasks": tasks.DELETE.format(s="clew"),
    "delete runs": writes.DELETE_RUNS.format(s="clew"),
    "delete messages": writes.DELETE_OUTBOX.format(s="clew"),
}

ACROSS = {
    "claim tasks": (tasks.CLAIM.format(s="clew"), "a queue has the tasks of all shards, in one order"),
    "count tasks": (tasks.COUNT.format(s="clew"), "for people and scaling"),
    "find expired runs": (
        writes.FIND_EXPIRED.format(s="clew"),
        "retention goes by namespace; what it finds is deleted by shard",
    ),
}

_NOT_OF_RUNS = {"search_attribute_names"}
"""Tables without shards: names, not runs."""


@pytest.fixture
async def connection() -> AsyncIterator[Any]:
    # One that no other test has used, so that the plans rest on no statistics: those of a few rows call for scans.
    dsn = await create_database("shards=3")
    made = await asyncpg.connect(dsn.partition("?")[0], server_settings=session_settings(10))
    yield made
    await made.close()
    await drop_database(dsn)


async def plan_of(connection: Any, statement: str) -> list[dict[str, Any]]:
    """All nodes of the generic plan of a statement."""
    prepared = await connection.prepare(statement)
    arguments = ", ".join("NULL" for _ in prepared.get_parameters())
    types = ", ".join(f"{t.name.lstrip('_')}[]" if t.kind == "array" else t.name for t in prepared.get_parameters())
    await connection.execute(f"PREPARE checked ({types.replace('[][]', '[]')}) AS {statement}")
    text = await connection.fetchval(f"EXPLAIN (FORMAT JSON) EXECUTE checked ({arguments})")
    await connection.execute("DEALLOCATE checked")
    found: list[dict[str, Any]] = []
    waiting = [json.loads(text)[0]["Plan"]]
    while waiting:
        node = waiting.pop()
        found.append(node)
        waiting += node.get("Plans", [])
    return found


@pytest.mark.parametrize("name", list(LOCAL))
async def test_rows_are_found_by_their_shard(connection: Any, name: str) -> None:
    for node in await plan_of(connection, LOCAL[name]):
        table = node.get("Relation Name")
        if table is None or table in _NOT_OF_RUNS or node["Node Type"] in ("ModifyTable", "LockRows"):
            continue
        assert "Seq Scan" not in node["Node Type"], f"{name} scans {table}"
        condition = node.get("Index Cond") or node.get("Recheck Cond", "")
        assert re.search(r"\bshard\b", condition), f"{name} looks for rows of {table} by {condition or 'nothing'}"
        left = node.get("Filter", "")
        assert not re.search(r"\b(run_key|task_id|message_id|item_id)\b", left), (
            f"{name} reads more of {table} than it wants: it finds rows by {condition} and then drops others by {left}"
        )


@pytest.mark.parametrize("name", list(ACROSS))
async def test_what_spans_shards_uses_an_index_too(connection: Any, name: str) -> None:
    statement, reason = ACROSS[name]
    assert reason
    nodes = await plan_of(connection, statement)
    assert not [node for node in nodes if "Seq Scan" in node["Node Type"]]


def test_no_statement_is_left_out() -> None:
    known = {*LOCAL.values(), *(statement for statement, _ in ACROSS.values())}
    for module in (reads, tasks, writes):
        for name, value in vars(module).items():
            is_statement = name.isupper() and isinstance(value, str) and "{s}" in value and not name.startswith("_")
            if is_statement and name != "BACKLOGS":  # that one is for people: it counts all queues
                assert value.format(s="clew") in known, f"{module.__name__}.{name} is in neither list"
