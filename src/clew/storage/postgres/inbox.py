"""What programs and triggers asked for inside their own transactions.

Owns: `Inbox`: reading those requests in order, who of several nodes does, and removing what is done.
Never: does what a request says (the composition root hands it to the engine).

How it works: one node at a time has the lease of the inbox, so a start and the signal after it are not done by two
nodes in the wrong order. A request is removed after the engine has accepted it; if the node dies in between, the next
one does it again, which the request id makes harmless. NOTIFY wakes; a look every few seconds is the guarantee.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Final, NamedTuple

from clew.storage.postgres.fleet import NOW
from clew.storage.postgres.notifier import PostgresNotifier

if TYPE_CHECKING:
    from clew.storage.postgres.connections import Connection
    from clew.storage.postgres.store import PostgresStore

LOOK_SECONDS: Final = 5.0
"""The longest that a request waits when its notification is lost."""

LEASE_MICROS: Final = 10_000_000
ROWS_MAX: Final = 200

_LEASE: Final = "inbox_lease"


class Request(NamedTuple):
    """One request: `kind` is ``start`` or ``signal``, `body` the JSON of the service's request."""

    inbox_id: int
    kind: str
    body: str


class Inbox:
    """See the module docstring. All methods belong to the store's loop."""

    def __init__(self, store: PostgresStore, notifier: PostgresNotifier) -> None:
        self._store = store
        self._wanted = asyncio.Event()
        self._lease = 0
        notifier.also_listen(f"clew_inbox_{store.address.schema}", self._wanted.set)

    async def wait(self) -> None:
        """Return when something was asked for, or when it is time to look."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LOOK_SECONDS):
                await self._wanted.wait()
        self._wanted.clear()

    async def take(self) -> list[Request]:
        """The oldest requests; none when there are none, or another node is at them.

        Raises:
            StoreError: They cannot be read.
        """
        found, self._lease = await self._store.run_job(_take, self._lease)
        return found

    async def done(self, inbox_ids: list[int]) -> None:
        """Remove what the engine has accepted."""
        await self._store.run_job(_done, inbox_ids)

    async def failed(self, inbox_id: int, why: str) -> None:
        """Keep a request that can never be done, with the reason, out of the way."""
        await self._store.run_job(_failed, inbox_id, why)


async def _take(connection: Connection, schema: str, lease: int) -> tuple[list[Request], int]:
    if not await connection.fetchval(f"SELECT EXISTS (SELECT 1 FROM {schema}.inbox WHERE failed IS NULL)"):
        return [], lease
    mine = await connection.fetchval(
        f"INSERT INTO {schema}.meta AS held (key, value) VALUES ($3, {NOW} + $2) ON CONFLICT (key) DO UPDATE "
        f"SET value = greatest(excluded.value, held.value + 1) WHERE held.value < {NOW} OR held.value = $4 "
        "RETURNING value",
        None,
        LEASE_MICROS,
        _LEASE,
        lease,
    )
    if mine is None:
        return [], 0
    rows = await connection.fetch(
        f"SELECT inbox_id, kind, request FROM {schema}.inbox WHERE failed IS NULL ORDER BY inbox_id LIMIT {ROWS_MAX}"
    )
    return [Request(*row) for row in rows], mine


async def _done(connection: Connection, schema: str, inbox_ids: list[int]) -> None:
    await connection.execute(f"DELETE FROM {schema}.inbox WHERE inbox_id = ANY($1::int8[])", inbox_ids)


async def _failed(connection: Connection, schema: str, inbox_id: int, why: str) -> None:
    await connection.execute(f"UPDATE {schema}.inbox SET failed = $2 WHERE inbox_id = $1", inbox_id, why)
