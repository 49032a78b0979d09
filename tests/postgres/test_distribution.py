"""The distribution statements of ``docs/explanation/scale.md``, on a plain server that has the functions they call.

No distributed database is at hand. So the functions are made here, with the published conditions of Citus on what may
be distributed: the table has the column, each unique key holds it, row triggers need a setting, tables that are kept
together agree in the type of the column. What such a database then makes of the engine's statements, this cannot tell.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from tests.postgres.databases import create_database, drop_database

PAGE = Path(__file__).resolve().parents[2] / "docs" / "explanation" / "scale.md"

STAY = {"meta", "schema_migrations", "nodes", "shard_leases", "mail", "inbox", "api_keys"}
"""Tables that stay with the coordinator: those of the fleet and what is not read on the way of a transition."""

FUNCTIONS = """
CREATE TABLE public.distributed (name regclass PRIMARY KEY, key text, beside text);

CREATE FUNCTION public.create_distributed_table(name regclass, key text, colocate_with text DEFAULT 'default')
RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    place smallint;
    of_type oid;
    culprit text;
BEGIN
    SELECT attnum, atttypid INTO place, of_type FROM pg_attribute
    WHERE attrelid = name AND attname = key AND NOT attisdropped;
    IF place IS NULL THEN
        RAISE EXCEPTION '% has no column %', name, key;
    END IF;
    SELECT indexrelid::regclass::text INTO culprit FROM pg_index
    WHERE indrelid = name AND (indisunique OR indisexclusion) AND NOT place = ANY (indkey::int2[]) LIMIT 1;
    IF culprit IS NOT NULL THEN
        RAISE EXCEPTION 'unique key % of % does not hold column %', culprit, name, key;
    END IF;
    SELECT tgname INTO culprit FROM pg_trigger WHERE tgrelid = name AND NOT tgisinternal LIMIT 1;
    IF culprit IS NOT NULL AND NOT coalesce(current_setting('citus.enable_unsafe_triggers', true), 'off') = 'on' THEN
        RAISE EXCEPTION '% has the trigger %', name, culprit;
    END IF;
    PERFORM 1 FROM pg_constraint WHERE contype = 'f' AND name IN (conrelid, confrelid);
    IF FOUND THEN
        RAISE EXCEPTION '% has a foreign key', name;
    END IF;
    IF colocate_with <> 'default' THEN
        PERFORM 1 FROM public.distributed AS d JOIN pg_attribute AS a ON a.attrelid = d.name AND a.attname = d.key
        WHERE d.name = colocate_with::regclass AND a.atttypid = of_type;
        IF NOT FOUND THEN
            RAISE EXCEPTION '% cannot be kept beside %', name, colocate_with;
        END IF;
    END IF;
    INSERT INTO public.distributed VALUES (name, key, colocate_with);
END;
$$;

CREATE FUNCTION public.create_reference_table(name regclass) RETURNS void LANGUAGE sql AS $$
    INSERT INTO public.distributed VALUES (name, NULL, NULL);
$$;
"""


@pytest.fixture
async def connection() -> AsyncIterator[Any]:
    dsn = await create_database("shards=3")
    made = await asyncpg.connect(dsn.partition("?")[0])
    await made.execute(FUNCTIONS)
    yield made
    await made.close()
    await drop_database(dsn)


def statements() -> list[str]:
    blocks = re.findall(r"```sql\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    return [line for block in blocks for line in block.strip().splitlines()]


async def test_the_statements_of_the_page_place_every_table(connection: Any) -> None:
    for statement in statements():
        await connection.execute(statement)
    placed = {
        name.rpartition(".")[2]: (key, beside)
        for name, key, beside in await connection.fetch("SELECT name::text, key, beside FROM public.distributed")
    }
    tables = {name for (name,) in await connection.fetch("SELECT tablename FROM pg_tables WHERE schemaname = 'clew'")}
    assert placed.keys() | STAY == tables, "a table is neither distributed nor said to stay"
    assert not placed.keys() & STAY
    of_runs = await connection.fetch(
        "SELECT table_name FROM information_schema.columns WHERE table_schema = 'clew' AND column_name = 'shard' "
        "AND table_name IN (SELECT tablename FROM pg_tables WHERE schemaname = 'clew')"
    )
    for (name,) in of_runs:
        if name not in STAY:
            assert placed[name][0] == "shard", f"{name} has a shard and is placed by {placed[name][0]}"
    together = {beside for name, (key, beside) in placed.items() if key and name != "executions"}
    assert together == {"clew.executions"}, "tables of one shard are not all kept together"


async def test_without_the_setting_the_table_with_a_trigger_is_refused(connection: Any) -> None:
    asked = [statement for statement in statements() if not statement.startswith("SET")]
    with pytest.raises(asyncpg.RaiseError, match="has the trigger history_append_only"):
        await connection.execute("\n".join(asked))


async def test_a_key_without_the_shard_is_refused(connection: Any) -> None:
    await connection.execute("CREATE UNIQUE INDEX alone ON clew.outbox (message_id)")
    with pytest.raises(asyncpg.RaiseError, match="does not hold column shard"):
        await connection.execute("SELECT create_distributed_table('clew.outbox', 'shard')")
