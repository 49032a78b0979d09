"""Connections to PostgreSQL: made when needed, thrown away when broken, made again with back-off.

Owns: the settings of a session, `Connections` (a bounded pool) and how long a call waits for a database that is away.
Never: SQL of the store.

How it works: a call borrows a connection for one job and gives it back; nobody holds one while waiting for anything but
the server. A connection that met trouble is dropped, not repaired. While the server is away, the first call that fails
to connect sets the time of the next try for all, so that a fleet does not run against a server that just comes up.
With a proxy in transaction mode each job runs in a transaction of its own, in which the settings are made anew.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final, TypeVar

from clew.ports.store import StoreError, StoreUnavailable
from clew.storage.postgres.address import Address
from clew.storage.postgres.driver import connection_class, import_driver
from clew.storage.postgres.errors import (
    is_connection_trouble,
    is_contention,
    is_outcome_open,
    refused_option,
    to_store_error,
    unreachable,
)

if TYPE_CHECKING:
    import asyncpg

    Connection = asyncpg.Connection[asyncpg.Record]

T = TypeVar("T")
Job = Callable[["Connection"], Awaitable[T]]

APPLICATION_NAME: Final = "clew"

_BACKOFF_FIRST: Final = 0.05
_BACKOFF_MAX: Final = 1.0
_CONTENTION_TRIES: Final = 10
"""Times that a job is tried again at once when another transaction was in the way."""

_PLANNER: Final = {
    # Every statement of the engine finds its rows by an index, whatever the planner has seen of a table so far: a plan
    # that was made for an empty table would otherwise scan it when it has grown.
    "enable_seqscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "random_page_cost": "1.1",
    # Planning costs as much as running; parameters (arrays) say nothing that would make another plan better.
    "plan_cache_mode": "force_generic_plan",
    "jit": "off",
}

_log = logging.getLogger("clew.store")


class Connections:
    """A pool of connections of one store. All methods belong to the loop it was made on."""

    def __init__(self, address: Address, size: int) -> None:
        self.address = address
        self._idle: list[Connection] = []
        self._slots = asyncio.Semaphore(size)
        self._is_closed = False
        self._failures = 0
        self._next_try_at = 0.0
        self._loop = asyncio.get_running_loop()
        self.timeout_seconds = address.command_timeout.total_seconds()
        self.patience_seconds = address.patience.total_seconds()

    async def read(self, job: Job[T]) -> T:
        """Do a job that changes nothing; tried again until it succeeds or patience ends.

        Raises:
            StoreError: It did not succeed.
        """
        return await self._do(job, is_repeatable=True)

    async def write(self, job: Job[T], *, timeout_seconds: float | None = None) -> T:
        """Do a job that changes something; tried again only while it is known that nothing was done.

        Args:
            job: What to do.
            timeout_seconds: How long it may take, if not as long as any command.

        Raises:
            StoreError: It did not succeed; as `StoreUnavailable` also when that is not known.
        """
        return await self._do(job, is_repeatable=False, timeout_seconds=timeout_seconds)

    async def _do(self, job: Job[T], *, is_repeatable: bool, timeout_seconds: float | None = None) -> T:
        deadline = self._loop.time() + self.patience_seconds
        contended = 0
        while True:
            connection: Connection | None = None
            try:
                async with asyncio.timeout_at(deadline):
                    await self._slots.acquire()
            except TimeoutError as error:
                raise self._exhausted() from error
            try:
                connection = await self.take(deadline)
                done = await self.run(connection, job, timeout_seconds)
                self.give_back(connection)
                return done
            except Exception as error:
                if connection is not None:
                    self.settle(connection, error)
                if is_contention(error) and contended < _CONTENTION_TRIES:
                    contended += 1
                elif (
                    connection is None
                    or not is_connection_trouble(error)
                    or (is_outcome_open(error) and not is_repeatable)
                    or self._loop.time() >= deadline
                ):
                    raise to_store_error(error, self.address.name) from error
            except BaseException:
                if connection is not None:
                    connection.terminate()
                raise
            finally:
                self._slots.release()

    async def run(self, connection: Connection, job: Job[T], timeout_seconds: float | None = None) -> T:
        """Do a job on this connection, within the time that a command may take."""
        async with asyncio.timeout(timeout_seconds or self.timeout_seconds):
            if not self.address.is_pooled:
                return await job(connection)
            await connection.execute(_begin_sql(self.timeout_seconds))
            done = await job(connection)
            await connection.execute("COMMIT")
            return done

    async def take(self, deadline: float) -> Connection:
        """A connection that worked when it was last used, or a new one.

        Raises:
            StoreError: None could be had until `deadline`.
        """
        while self._idle:
            connection = self._idle.pop()
            if not connection.is_closed():
                return connection
        while True:
            now = self._loop.time()
            if self._is_closed:
                raise self.closed()
            wait = self._next_try_at - now
            if wait > 0:
                await asyncio.sleep(min(wait, max(0.0, deadline - now)))
            try:
                connection = await connect(self.address, timeout=max(0.5, min(self.timeout_seconds, deadline - now)))
            except Exception as error:
                if not is_connection_trouble(error):
                    raise to_store_error(error, self.address.name) from error
                self._failures += 1
                delay = min(_BACKOFF_MAX, _BACKOFF_FIRST * 2 ** min(self._failures, 10))
                self._next_try_at = self._loop.time() + delay
                if self._failures == 1:
                    _log.warning("store.connect_failed store=%s error=%r", self.address.name, error)
                if self._loop.time() + delay >= deadline:
                    raise unreachable(error, self.address.name) from error
                continue
            if self._failures > 1:
                _log.warning("store.connected_again store=%s failures=%d", self.address.name, self._failures)
            self._failures = 0
            return connection

    def give_back(self, connection: Connection) -> None:
        """Keep a connection for the next job."""
        if self._is_closed:
            connection.terminate()
        else:
            self._idle.append(connection)

    def settle(self, connection: Connection, error: BaseException) -> None:
        """Keep the connection after `error`, if that was only about the statement."""
        if connection.is_closed():
            return
        if is_connection_trouble(error) or self.address.is_pooled or connection.is_in_transaction():
            connection.terminate()
        else:
            self.give_back(connection)

    async def close(self) -> None:
        """Close what is idle; what is in use is closed when it comes back."""
        self._is_closed = True
        while self._idle:
            await close_quietly(self._idle.pop())

    def closed(self) -> StoreError:
        """What a call is told after `close`."""
        return StoreError(f"the store {self.address.name} is closed. Expected: no calls after close(); open it again")

    def _exhausted(self) -> StoreUnavailable:
        return StoreUnavailable(
            f"no connection to {self.address.name} was free for {self.patience_seconds:g} s; nothing of the call was "
            "done; try again. Give the store more of them (?pool_size=…), or find out why its statements take so long"
        )


async def connect(address: Address, *, timeout: float) -> Connection:
    """A new connection with the session's settings.

    Raises:
        StoreIncompatible: An option of the connection string is refused.
        Exception: What else is wrong, as the driver raises it.
    """
    asyncpg = import_driver()
    settings: dict[str, str] = {}
    if not address.is_pooled:
        settings = {"application_name": APPLICATION_NAME, **session_settings(address.command_timeout.total_seconds())}
    try:
        connection: Connection = await asyncpg.connect(
            dsn=address.dsn,
            connection_class=connection_class(),
            timeout=timeout,
            statement_cache_size=0 if address.is_pooled else 500,
            max_cached_statement_lifetime=0,
            max_cacheable_statement_size=0,
            server_settings=settings or None,
            target_session_attrs="any" if address.is_pooled else "read-write",
        )
    except Exception as error:
        refusal = refused_option(error, address.name, address.driver_options())
        if refusal is None:
            raise
        raise refusal from error
    try:
        if not address.is_pooled:
            async with asyncio.timeout(timeout):
                if await connection.fetchval("SHOW synchronous_commit") in ("off", "local"):
                    # What is acknowledged must be durable; a stronger setting of the server is left alone.
                    await connection.execute("SET synchronous_commit = on")
        return connection
    except BaseException:
        connection.terminate()
        raise


def session_settings(timeout_seconds: float) -> dict[str, str]:
    """The settings that every transaction of the engine runs under."""
    # The server gives up a little before the client does, so that the outcome is known.
    timeout_ms = max(1, round(timeout_seconds * 900))
    return {
        **_PLANNER,
        "statement_timeout": str(timeout_ms),
        "lock_timeout": str(timeout_ms),
        "idle_in_transaction_session_timeout": str(timeout_ms),
    }


def _begin_sql(timeout_seconds: float) -> str:
    settings = "; ".join(f"SET LOCAL {name} = '{value}'" for name, value in session_settings(timeout_seconds).items())
    return (
        f"BEGIN; {settings}; SELECT set_config('synchronous_commit', 'on', true) "
        "WHERE current_setting('synchronous_commit') IN ('off', 'local')"
    )


async def close_quietly(connection: Connection) -> None:
    """Close a connection; one that cannot be closed in good order is dropped."""
    try:
        await connection.close(timeout=2.0)
    except Exception as error:  # noqa: BLE001 - it is gone either way
        _log.debug("store.close_failed error=%r", error)
        connection.terminate()
