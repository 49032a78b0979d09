"""The schema: recognising a store, making one, and bringing an older one up to date.

Owns: the migrations in ``migrations/``, their phases, and the guard that lets one process at a time apply them.
Never: the write path.

How it works: a migration is a file ``NNN_pre_*.sql`` or ``NNN_post_*.sql``. *Pre* ones only add, so the previous
version of the code goes on working; an engine applies them by itself when it opens the store. *Post* ones need the new
code everywhere; on a store that is already in use they are applied by ``clew db migrate --post`` alone. A new store
gets all at once. Each phase is one transaction under an advisory lock, so of many processes that start together one
does the work and the others find it done. The table ``schema_migrations`` says what was applied.

Code that is older than the schema is let in as long as no *post* migration is applied that it does not know.
"""

from __future__ import annotations

import hashlib
from importlib import resources
from typing import TYPE_CHECKING, Final, Literal

import msgspec

from clew.ports.store import StoreIncompatible

if TYPE_CHECKING:
    from clew.storage.postgres.connections import Connection

Phase = Literal["pre", "post"]

VERSION_MIN: Final = 140000
"""PostgreSQL 14, as the server counts."""

_PACKAGE: Final = "clew.storage.postgres"
_LOCK_CLASS: Final = 0x434C4557
"""``CLEW`` in ASCII: the first half of the key of the advisory lock; the second is a hash of the schema's name."""


class Migration(msgspec.Struct, frozen=True):
    """One file of ``migrations/``."""

    name: str
    sql: str

    @property
    def number(self) -> int:
        """The schema version it belongs to."""
        return int(self.name.partition("_")[0])

    @property
    def phase(self) -> Phase:
        """When it may be applied."""
        return "post" if "_post_" in self.name else "pre"

    @property
    def digest(self) -> str:
        """What tells whether the file is the one that was applied."""
        return hashlib.sha256(self.sql.encode()).hexdigest()


class SchemaState(msgspec.Struct, frozen=True):
    """What a database has of the schema.

    Args:
        applied: Names of the migrations that were applied, with their digests.
        missing: Those that this code knows and that were not.
        unknown: Those that were applied and that this code does not know: a newer Clew did that.
    """

    applied: dict[str, str]
    missing: tuple[Migration, ...]
    unknown: tuple[str, ...]

    @property
    def is_new(self) -> bool:
        """Whether there is no store yet."""
        return not self.applied

    def of_phase(self, phase: Phase) -> list[Migration]:
        """What is missing of one phase."""
        return [migration for migration in self.missing if migration.phase == phase]


def migrations() -> list[Migration]:
    """All migrations, in the order in which they are applied."""
    folder = resources.files(_PACKAGE).joinpath("migrations")
    found = [
        Migration(file.name, file.read_text(encoding="utf-8"))
        for file in folder.iterdir()
        if file.name.endswith(".sql")
    ]
    return sorted(found, key=lambda m: (m.number, m.phase == "post", m.name))


async def read_state(connection: Connection, schema: str) -> SchemaState:
    """What the database has."""
    # Asked of the catalogue as of any table: functions such as to_regclass answer from a cache, which after waiting for
    # another process that made the schema may not know of it yet.
    table = await connection.fetchval(
        "SELECT c.oid FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace "
        "WHERE n.nspname = $1 AND c.relname = 'schema_migrations'",
        schema,
    )
    applied: dict[str, str] = {}
    if table is not None:
        rows = await connection.fetch(f"SELECT name, digest FROM {schema}.schema_migrations")
        applied = {row["name"]: row["digest"] for row in rows}
    known = migrations()
    names = {migration.name for migration in known}
    return SchemaState(
        applied,
        tuple(migration for migration in known if migration.name not in applied),
        tuple(sorted(name for name in applied if name not in names)),
    )


async def check(connection: Connection, schema: str, name: str) -> SchemaState:
    """Read the state and see whether this code can work with it, once what is missing of phase *pre* is applied.

    Raises:
        StoreIncompatible: The server is too old, or the schema is that of a Clew too new.
    """
    version = int(await connection.fetchval("SELECT current_setting('server_version_num')"))
    if version < VERSION_MIN:
        raise StoreIncompatible(
            f"{name} runs PostgreSQL {version // 10_000}. Expected: 14 or later; upgrade the server, or use another"
        )
    encoding = await connection.fetchval("SELECT current_setting('server_encoding')")
    if encoding != "UTF8":
        raise StoreIncompatible(
            f"the database {name} stores text as {encoding}. Expected: UTF8; create a database with ENCODING 'UTF8'"
        )
    state = await read_state(connection, schema)
    if not state.is_new:
        newer = [name for name in state.unknown if "_post_" in name]
        if newer:
            raise StoreIncompatible(
                f"the store {name} (schema {schema}) was finished for a newer Clew ({', '.join(newer)}); this version "
                f"knows up to {migrations()[-1].name}. Upgrade Clew in this environment"
            )
    return state


async def migrate(connection: Connection, schema: str, *, phases: tuple[Phase, ...]) -> list[str]:
    """Apply what is missing of these phases (of a new store: everything); answers the names. Waits for others."""
    await connection.execute("SELECT pg_advisory_xact_lock($1, hashtext($2))", _LOCK_CLASS, schema)
    state = await read_state(connection, schema)
    wanted = list(state.missing) if state.is_new else [m for m in state.missing if m.phase in phases]
    if not wanted:
        return []
    if await connection.fetchval("SELECT oid FROM pg_catalog.pg_namespace WHERE nspname = $1", schema) is None:
        await connection.execute(f"CREATE SCHEMA {schema}")
    await connection.execute(f"SET LOCAL search_path TO {schema}, pg_catalog")
    await connection.execute("SET LOCAL client_min_messages TO warning")
    await connection.execute(
        "CREATE TABLE IF NOT EXISTS schema_migrations "
        "(name text PRIMARY KEY, digest text NOT NULL, applied_at timestamptz NOT NULL DEFAULT now())"
    )
    for migration in wanted:
        await connection.execute(migration.sql)
        await connection.execute(
            "INSERT INTO schema_migrations (name, digest) VALUES ($1, $2)", migration.name, migration.digest
        )
    return [migration.name for migration in wanted]
