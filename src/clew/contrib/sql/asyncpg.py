"""Exactly-once steps in a transaction of ``asyncpg``.

Owns: the statements. Never: your transaction (see ``clew.contrib.sql``); imports asyncpg, since all it needs is a
connection.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol, TypeVar

from clew.contrib.sql._step import (
    TABLE_DEFAULT,
    Step,
    StepError,
    checked_table,
    create_table_sql,
    decode_done,
    encode_result,
    result_type_of,
    step_key,
)

T = TypeVar("T")


class Connection(Protocol):
    """What is needed of ``asyncpg.Connection``; connections of a pool have it too."""

    async def execute(self, query: str, *args: Any) -> Any:
        """Run a statement."""
        ...

    async def fetchval(self, query: str, *args: Any) -> Any:
        """Give the first column of the first row, or None."""
        ...

    def is_in_transaction(self) -> bool:
        """Whether a transaction is open."""
        ...

    def transaction(self) -> AbstractAsyncContextManager[Any]:
        """Make a transaction, or a savepoint in one."""
        ...


async def create_table(connection: Connection, table: str = TABLE_DEFAULT) -> None:
    """Make the table of keys, unless it is there."""
    await connection.execute(create_table_sql("postgresql", table))


async def run_once(
    connection: Connection,
    body: Callable[[], Awaitable[T]],
    *,
    key: str | None = None,
    step: str | None = None,
    result_type: Any | None = None,
    table: str = TABLE_DEFAULT,
) -> T:
    """Run `body` if no earlier attempt did; give its result, or the recorded one.

    Args:
        connection: In your transaction: ``async with connection.transaction():``.
        body: Changes the database over the same connection. Its result is recorded as JSON.
        key: By which the step is recorded; that of the running activity when not given.
        step: Names the step, when the activity has more than one.
        result_type: What a recorded result is converted to; by default what `body` says that it returns.
        table: Table of keys.

    Raises:
        StepError: No transaction is open.
        RuntimeError: No key is given, and no activity is running here.
    """
    found = result_type_of(body, result_type)
    async with exactly_once(connection, key=key, step=step, result_type=found, table=table) as one:
        if not one.is_done:
            one.record(await body())
    result: T = one.result
    return result


@contextlib.asynccontextmanager
async def exactly_once(
    connection: Connection,
    *,
    key: str | None = None,
    step: str | None = None,
    result_type: Any | None = None,
    table: str = TABLE_DEFAULT,
) -> AsyncGenerator[Step]:
    """Record a step in your transaction; the block must begin with ``if not step.is_done:``.

    Arguments and errors are those of `run_once`.
    """
    name = checked_table(table)
    chosen = step_key(key, step)
    if not connection.is_in_transaction():
        raise StepError(
            "No transaction is open on this connection, so the key and the step would not be committed together. Put "
            "the step into `async with connection.transaction():`."
        )
    insert = f"INSERT INTO {name} (step_key) VALUES ($1) ON CONFLICT DO NOTHING RETURNING 1"
    if await connection.fetchval(insert, chosen) is None:
        text = await connection.fetchval(f"SELECT result FROM {name} WHERE step_key = $1", chosen)
        yield decode_done(chosen, text, result_type, table)
        return
    one = Step(chosen, is_done=False)
    try:
        async with connection.transaction():
            yield one
            text = encode_result(one, result_type)
    except BaseException as error:
        await _undo(connection, name, chosen, error)
        raise
    await connection.execute(f"UPDATE {name} SET result = $2 WHERE step_key = $1", chosen, text)


async def _undo(connection: Connection, table: str, key: str, error: BaseException) -> None:
    try:
        await connection.execute(f"DELETE FROM {table} WHERE step_key = $1", key)
    except Exception as second:  # noqa: BLE001 - whatever it is, the first error is the one to tell
        error.add_note(f"Undoing step {key} failed as well ({second}). Roll the transaction back.")
