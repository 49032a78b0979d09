"""The guards of the stores' SQL, each pinned by a test of the suite that every store passes.

A write with events that rests on another version is refused without its guard too, since history cannot be written
over; one without events is not. Likewise no store has two open runs of one id, as an index says.

Owns: `STORE_FAULTS`, which take a guard out of a statement, and `STORE_REGRESSIONS`, the tests that catch them. Never:
what a store promises (``tests/conformance/store`` says that).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final

from clew.ports.store import Store
from clew.storage.postgres import open_store as open_postgres
from clew.storage.sqlite import open_store as open_sqlite
from tests.conformance.store.test_commit import (
    test_an_update_without_events_on_another_version_loses as a_write_rests_on_another_version,
)
from tests.conformance.store.test_commit import test_the_next_run_names_the_latest_one as a_run_follows_another
from tests.postgres.databases import create_database, drop_database
from tests.simulation.fault import Fault

STORE_FAULTS: Final = (
    Fault(
        "no-version-guard-in-sqlite",
        "the statements of SQLite write whatever version was decided on",
        "clew.storage.sqlite.commit:GroupCommitter.prepare",
        "connection.execute(statement)",
        'connection.execute(statement.replace(" AND version = new.expected_version", ""))',
    ),
    Fault(
        "no-latest-run-guard-in-sqlite",
        "the statements of SQLite insert a run whatever run it is to follow",
        "clew.storage.sqlite.commit:GroupCommitter.prepare",
        "connection.execute(statement)",
        "connection.execute(statement.replace("
        '"WHERE new.expected_latest_run_key <>", "WHERE 0 AND new.expected_latest_run_key <>"))',
    ),
    Fault(
        "no-version-guard-in-postgres",
        "the statement of PostgreSQL writes whatever version was decided on",
        "clew.storage.postgres.commit:Work.statement",
        "return statement(schema, names), values",
        'return statement(schema, names).replace(" AND e.version = d.expected_version", ""), values',
    ),
    Fault(
        "no-latest-run-guard-in-postgres",
        "the statement of PostgreSQL does not notice that a run was not inserted",
        "clew.storage.postgres.commit:Work.statement",
        "return statement(schema, names), values",
        'text = statement(schema, names).replace("(r.run_key IN (SELECT run_key FROM new_runs)) IS TRUE", "true")\n'
        "return text, values",
    ),
)

Check = Callable[[Store], Awaitable[None]]


def _on_sqlite(check: Check) -> Callable[[], Coroutine[Any, Any, None]]:
    async def run() -> None:
        store = await open_sqlite("sqlite::memory:")
        try:
            await check(store)
        finally:
            await store.close()

    return run


def _on_postgres(check: Check) -> Callable[[], Coroutine[Any, Any, None]]:
    async def run() -> None:
        dsn = await create_database()
        store = await open_postgres(dsn)
        try:
            await check(store)
        finally:
            await store.close()
            await drop_database(dsn.partition("?")[0])

    return run


STORE_REGRESSIONS: Final[dict[str, Callable[[], Coroutine[Any, Any, None]]]] = {
    "no-version-guard-in-sqlite": _on_sqlite(a_write_rests_on_another_version),
    "no-latest-run-guard-in-sqlite": _on_sqlite(a_run_follows_another),
    "no-version-guard-in-postgres": _on_postgres(a_write_rests_on_another_version),
    "no-latest-run-guard-in-postgres": _on_postgres(a_run_follows_another),
}
