"""The schema: recognising a store, making one, and bringing an older one up to date.

Owns: the application id, the migrations in ``migrations/`` and how they are applied. Never: the write path.

How it works: a migration is a file ``NNN_pre_*.sql`` or ``NNN_post_*.sql``; *pre* ones may be applied while the
previous version of the code still runs (they only add), *post* ones need the new code everywhere. Opening a store for
writing applies what is missing, in the order of names, in one transaction. The number of the last one is SQLite's
``user_version``, by which a newer store is recognised; the table ``schema_migrations`` says which were applied.
"""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Iterator
from importlib import resources
from typing import Final, NamedTuple

from clew.ports.store import StoreIncompatible

_PACKAGE: Final = "clew.storage.sqlite"

APPLICATION_ID: Final = 0x434C4557
"""``CLEW`` in ASCII; SQLite keeps it in the header of the file."""


class Migration(NamedTuple):
    """One file of ``migrations/``."""

    name: str
    sql: str

    @property
    def number(self) -> int:
        """The schema version it belongs to."""
        return int(self.name.partition("_")[0])


def load_sql(*path: str) -> str:
    """The text of a file beside this module."""
    return resources.files(_PACKAGE).joinpath(*path).read_text(encoding="utf-8")


def migrations() -> list[Migration]:
    """All migrations, in the order in which they are applied."""
    folder = resources.files(_PACKAGE).joinpath("migrations")
    found = [
        Migration(file.name, file.read_text(encoding="utf-8"))
        for file in folder.iterdir()
        if file.name.endswith(".sql")
    ]
    return sorted(found, key=lambda m: (m.number, "_post_" in m.name, m.name))


def statements(script: str) -> Iterator[str]:
    """The statements of `script`, one by one, so that they can run inside a transaction."""
    pending = ""
    for line in script.splitlines():
        if not pending and (not line.strip() or line.lstrip().startswith("--")):
            continue
        pending += line + "\n"
        if sqlite3.complete_statement(pending):
            yield pending
            pending = ""
    if pending.strip():
        raise AssertionError(f"a migration ends inside a statement: {pending[:80]!r}")


def check_is_store(connection: sqlite3.Connection, path: str) -> bool:
    """Whether there is a store to use (True) or an empty database in which to make one (False).

    Raises:
        StoreIncompatible: It is something else, or a store of a newer Clew.
    """
    (application_id,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (object_count,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if application_id == 0 and version == 0 and object_count == 0:
        return False
    if application_id != APPLICATION_ID:
        raise StoreIncompatible(
            f"{path} is an SQLite database of another program (application id {application_id:#x}, {object_count} "
            f"tables and other objects). Expected: a store that Clew made ({APPLICATION_ID:#x}), or a new or empty "
            "file; give another path"
        )
    newest = migrations()[-1].number
    if version > newest:
        raise StoreIncompatible(
            f"the store {path} has schema version {version}, made by a newer Clew; this one knows up to {newest}. "
            "Upgrade Clew in this environment, or use another file"
        )
    return True


def is_up_to_date(connection: sqlite3.Connection) -> bool:
    """Whether the store needs no migration."""
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    return bool(version == migrations()[-1].number)


def migrate(connection: sqlite3.Connection, now_text: str) -> None:
    """Make the schema, or bring it up to date; all of it or nothing."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        if is_up_to_date(connection):
            connection.execute("UPDATE meta SET value = value WHERE false")  # fails on a file that cannot be written
            connection.execute("COMMIT")
            return
        connection.execute(
            "CREATE TABLE IF NOT EXISTS schema_migrations "
            "(name TEXT PRIMARY KEY, digest TEXT NOT NULL, applied_at TEXT NOT NULL) WITHOUT ROWID"
        )
        applied = {name for (name,) in connection.execute("SELECT name FROM schema_migrations")}
        for migration in migrations():
            if migration.name in applied:
                continue
            for statement in statements(migration.sql):
                connection.execute(statement)
            digest = hashlib.sha256(migration.sql.encode()).hexdigest()
            connection.execute("INSERT INTO schema_migrations VALUES (?, ?, ?)", (migration.name, digest, now_text))
            connection.execute(f"PRAGMA user_version = {migration.number}")
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
