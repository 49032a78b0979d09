"""What operators ask of the database: the state of the schema, sizes, bloat and its causes, and the rights of a role.

Owns: those queries and the script of a least-privilege role. Never: changes anything but by `migrate`.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import msgspec

from clew.storage.postgres import schema, writes
from clew.storage.postgres.address import Address, parse_address
from clew.storage.postgres.connections import Connections
from clew.storage.postgres.fleet import read_fleet
from clew.storage.postgres.store import migrate as migrate_store

if TYPE_CHECKING:
    from clew.storage.postgres.connections import Connection

_DEAD_SHARE: Final = 0.2
_DEAD_COUNT: Final = 20_000
"""Dead rows, as a share and as a number, that are worth a word: autovacuum begins far below on these tables."""

_HEAP_ONLY_SHARE: Final = 0.8
_OLD_TRANSACTION: Final = timedelta(minutes=5)
_UPDATES_MIN: Final = 10_000
"""Below this many updates the share of heap-only ones says little."""

TABLES: Final = (
    "api_keys",
    "deployments",
    "executions",
    "history",
    "inbox",
    "mail",
    "meta",
    "namespaces",
    "nodes",
    "outbox",
    "pending_items",
    "search_attribute_names",
    "search_attributes",
    "shard_leases",
    "tasks",
)


class TableFacts(msgspec.Struct, frozen=True, kw_only=True):
    """One table, as the statistics of the server have it."""

    name: str
    size_bytes: int
    live_rows: int
    dead_rows: int
    updates: int
    heap_only_updates: int
    vacuumed_at: str | None
    analyzed_at: str | None


class Advice(msgspec.Struct, frozen=True):
    """Something to do about the database: `about` names the thing, `text` says what was seen and what to do."""

    about: str
    text: str


class SchemaReport(msgspec.Struct, frozen=True, kw_only=True):
    """How the schema stands against this version of Clew."""

    server_version: str
    schema: str
    applied: tuple[str, ...]
    missing_pre: tuple[str, ...]
    missing_post: tuple[str, ...]
    unknown: tuple[str, ...]
    changed: tuple[str, ...]
    """Migrations whose file is not the one that was applied."""

    @property
    def is_usable(self) -> bool:
        """Whether engines of this version run on it as it is."""
        return bool(self.applied) and not self.missing_pre and not self.changed


class StoreReport(msgspec.Struct, frozen=True, kw_only=True):
    """What is in the database, and who uses it."""

    schema: SchemaReport
    shard_count: int
    tables: tuple[TableFacts, ...]
    nodes: tuple[str, ...]
    sessions: int
    connections_max: int


@asynccontextmanager
async def administration(address: str) -> AsyncGenerator[Administration, None]:
    """Connect for a while.

    Raises:
        StoreError: The database cannot be reached, or not with these rights.
    """
    parsed = parse_address(address)
    connections = Connections(parsed, 1)
    try:
        yield Administration(parsed, connections)
    finally:
        await connections.close()


class Administration:
    """See the module docstring; made by `administration`."""

    def __init__(self, address: Address, connections: Connections) -> None:
        self.address = address
        self._connections = connections

    async def migrate(self, *, is_post: bool) -> list[str]:
        """Apply what is missing: of phase *pre*, and of *post* if wanted; answers the names."""
        await self._connections.read(partial(schema.check, schema=self.address.schema, name=self.address.name))
        return await migrate_store(self._connections, phases=("pre", "post") if is_post else ("pre",))

    async def read_schema(self) -> SchemaReport:
        """How the schema stands."""
        return await self._connections.read(partial(_read_schema, name=self.address.schema))

    async def read_store(self) -> StoreReport:
        """What there is."""
        return await self._connections.read(partial(_read_store, name=self.address.schema))

    async def advise(self) -> list[Advice]:
        """What to do about dead rows and their causes; nothing, if all is well."""
        return await self._connections.read(partial(_advise, name=self.address.schema))


async def _read_schema(connection: Connection, name: str) -> SchemaReport:
    state = await schema.read_state(connection, name)
    return SchemaReport(
        server_version=await connection.fetchval("SHOW server_version"),
        schema=name,
        applied=tuple(sorted(state.applied)),
        missing_pre=tuple(migration.name for migration in state.of_phase("pre")),
        missing_post=tuple(migration.name for migration in state.of_phase("post")),
        unknown=state.unknown,
        changed=tuple(
            migration.name
            for migration in schema.migrations()
            if state.applied.get(migration.name, migration.digest) != migration.digest
        ),
    )


async def _read_store(connection: Connection, name: str) -> StoreReport:
    report = await _read_schema(connection, name)
    view = await read_fleet(connection, name, None, "")
    return StoreReport(
        schema=report,
        shard_count=await writes.read_meta(connection, name, writes.SHARD_COUNT) or 0,
        tables=tuple(await _read_tables(connection, name)),
        nodes=tuple(
            f"{node.node_id} {node.address} {'live' if node.lease_until > view.now else 'silent'}".replace("  ", " ")
            for node in view.nodes
        ),
        sessions=await connection.fetchval(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'clew'"
        ),
        connections_max=int(await connection.fetchval("SHOW max_connections")),
    )


async def _read_tables(connection: Connection, name: str) -> list[TableFacts]:
    rows = await connection.fetch(
        "SELECT relname, pg_total_relation_size(relid) AS size, n_live_tup, n_dead_tup, n_tup_upd, n_tup_hot_upd, "
        "greatest(last_vacuum, last_autovacuum)::text AS vacuumed, "
        "greatest(last_analyze, last_autoanalyze)::text AS analyzed "
        "FROM pg_stat_user_tables WHERE schemaname = $1 ORDER BY size DESC, relname",
        name,
    )
    return [
        TableFacts(
            name=row["relname"],
            size_bytes=row["size"],
            live_rows=row["n_live_tup"],
            dead_rows=row["n_dead_tup"],
            updates=row["n_tup_upd"],
            heap_only_updates=row["n_tup_hot_upd"],
            vacuumed_at=row["vacuumed"],
            analyzed_at=row["analyzed"],
        )
        for row in rows
    ]


async def _advise(connection: Connection, name: str) -> list[Advice]:
    advice = [one for table in await _read_tables(connection, name) for one in _about_table(table, name)]
    if await connection.fetchval("SHOW autovacuum") != "on":
        advice.append(Advice("autovacuum", "it is off on this server, so dead rows stay for good. Set autovacuum = on"))
    rows: list[Any] = await connection.fetch(
        "SELECT pid, coalesce(application_name, '') AS program, state, (now() - xact_start)::text AS age "
        "FROM pg_stat_activity WHERE xact_start < now() - $1::interval AND backend_type = 'client backend' "
        "ORDER BY xact_start",
        _OLD_TRANSACTION,
    )
    advice += [
        Advice(
            f"session {row['pid']}",
            f"its transaction ({row['program'] or 'unnamed program'}, {row['state']}) has been open for {row['age']} "
            "and keeps every row that died since. End it, or the program that forgot it: "
            f"SELECT pg_terminate_backend({row['pid']})",
        )
        for row in rows
    ]
    rows = await connection.fetch("SELECT slot_name FROM pg_replication_slots WHERE NOT active AND xmin IS NOT NULL")
    advice += [
        Advice(
            f"replication slot {row['slot_name']}",
            "nobody uses it, and it keeps every row that died since. Drop it: "
            f"SELECT pg_drop_replication_slot('{row['slot_name']}')",
        )
        for row in rows
    ]
    rows = await connection.fetch(
        "SELECT gid FROM pg_prepared_xacts WHERE prepared < now() - $1::interval", _OLD_TRANSACTION
    )
    advice += [
        Advice(
            f"prepared transaction {row['gid']}",
            "it waits to be finished and keeps every row that died since. COMMIT PREPARED or ROLLBACK PREPARED it",
        )
        for row in rows
    ]
    return advice


def _about_table(table: TableFacts, name: str) -> list[Advice]:
    found: list[Advice] = []
    if table.dead_rows > _DEAD_COUNT and table.dead_rows > _DEAD_SHARE * table.live_rows:
        found.append(
            Advice(
                f"table {table.name}",
                f"{table.dead_rows:,} dead rows beside {table.live_rows:,} live ones, last vacuumed "
                f"{table.vacuumed_at or 'never'}. Something keeps them (see the other lines), or autovacuum is too "
                f"slow for this load: raise autovacuum_max_workers, or run VACUUM {name}.{table.name}",
            )
        )
    if (
        table.name == "executions"
        and table.updates > _UPDATES_MIN
        and table.heap_only_updates < _HEAP_ONLY_SHARE * table.updates
    ):
        share = table.heap_only_updates / table.updates
        found.append(
            Advice(
                f"table {table.name}",
                f"only {share:.0%} of its updates touched no index; 80 % and more are usual. An index of your own on a "
                "column that changes, or states too large for the room left on a page, are the usual causes: drop the "
                f"index, or give the pages more room (ALTER TABLE {name}.executions SET (fillfactor = 40))",
            )
        )
    return found


def role_script(role: str, schema_name: str) -> str:
    """The SQL that makes a role which may do what an engine does, and nothing else (no change of the schema)."""
    quoted = '"' + role.replace('"', '""') + '"'
    tables = ", ".join(f"{schema_name}.{table}" for table in TABLES)
    return f"""\
-- A role for Clew's engines: reads and writes rows, cannot change the schema, cannot change recorded history.
-- Run this as the owner of the schema, after 'clew db migrate'; again after each migration that makes a table.
DO $$ BEGIN
    IF NOT EXISTS (SELECT 1 FROM pg_roles WHERE rolname = '{role.replace("'", "''")}') THEN
        CREATE ROLE {quoted} LOGIN;  -- then: ALTER ROLE {quoted} PASSWORD '…'
    END IF;
END $$;
GRANT USAGE ON SCHEMA {schema_name} TO {quoted};
GRANT SELECT ON {schema_name}.schema_migrations TO {quoted};
GRANT SELECT, INSERT, UPDATE, DELETE ON {tables} TO {quoted};
REVOKE UPDATE ON {schema_name}.history FROM {quoted};
-- A role of programs that start or signal workflows in their own transactions needs this alone:
--   GRANT USAGE ON SCHEMA {schema_name} TO …;
"""
