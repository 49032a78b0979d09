"""Exactly-once steps in a transaction of SQLAlchemy, sync and async (extra ``sqlalchemy``).

Owns: the table for your metadata, and the statements. Never: your transaction (see ``clew.contrib.sql``).

How it works: connections and sessions of both kinds are taken. On PostgreSQL, SQLite and MySQL the insert of a key that
is there is no error; on others it is one that is caught in a savepoint.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from typing import Any, Final, TypeAlias, TypeVar, cast

from clew.contrib.sql._step import (
    KEY_CHARS_MAX,
    TABLE_DEFAULT,
    Step,
    StepError,
    decode_done,
    encode_result,
    result_type_of,
    step_key,
)

try:
    import sqlalchemy as sa
    from sqlalchemy.dialects import postgresql, sqlite
    from sqlalchemy.exc import IntegrityError, SQLAlchemyError
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
    from sqlalchemy.orm import Session
except ImportError as missing:
    raise ImportError(
        "clew.contrib.sql.sqlalchemy needs SQLAlchemy 2. Install it with: pip install 'clew[sqlalchemy]'"
    ) from missing

T = TypeVar("T")
SyncExecutor: TypeAlias = sa.Connection | Session
AsyncExecutor: TypeAlias = AsyncConnection | AsyncSession


def steps_table(metadata: sa.MetaData, name: str = TABLE_DEFAULT, *, schema: str | None = None) -> sa.Table:
    """Give the table of keys as part of `metadata`, for ``create_all`` and migrations.

    Args:
        metadata: Yours.
        name: Of the table.
        schema: Where it lies.
    """
    return sa.Table(
        name,
        metadata,
        sa.Column("step_key", sa.String(KEY_CHARS_MAX), primary_key=True),
        sa.Column("result", sa.Text()),
        sa.Column(
            "recorded_at", sa.DateTime(timezone=True), nullable=False, server_default=sa.func.current_timestamp()
        ),
        schema=schema,
    )


STEPS: Final = steps_table(sa.MetaData())
"""The table that is used when no other is named; `steps_table` puts it into your metadata."""


def run_once(
    executor: SyncExecutor,
    body: Callable[[], T],
    *,
    key: str | None = None,
    step: str | None = None,
    result_type: Any | None = None,
    table: sa.Table = STEPS,
) -> T:
    """Run `body` if no earlier attempt did; give its result, or the recorded one.

    Args:
        executor: A connection or session in your transaction, as of ``with engine.begin() as connection:``.
        body: Changes the database over the same executor. Its result is recorded as JSON.
        key: By which the step is recorded; that of the running activity when not given.
        step: Names the step, when the activity has more than one.
        result_type: What a recorded result is converted to; by default what `body` says that it returns.
        table: Table of keys, made by `steps_table`.

    Raises:
        StepError: The transaction was ended within `body`, or nothing would commit the key together with it.
        RuntimeError: No key is given, and no activity is running here.
    """
    found = result_type_of(body, result_type)
    with exactly_once(executor, key=key, step=step, result_type=found, table=table) as one:
        if not one.is_done:
            one.record(body())
    result: T = one.result
    return result


async def run_once_async(
    executor: AsyncExecutor,
    body: Callable[[], Awaitable[T]],
    *,
    key: str | None = None,
    step: str | None = None,
    result_type: Any | None = None,
    table: sa.Table = STEPS,
) -> T:
    """As `run_once`, for ``AsyncConnection`` and ``AsyncSession``."""
    found = result_type_of(body, result_type)
    async with exactly_once_async(executor, key=key, step=step, result_type=found, table=table) as one:
        if not one.is_done:
            one.record(await body())
    result: T = one.result
    return result


@contextlib.contextmanager
def exactly_once(
    executor: SyncExecutor,
    *,
    key: str | None = None,
    step: str | None = None,
    result_type: Any | None = None,
    table: sa.Table = STEPS,
) -> Generator[Step]:
    """Record a step in your transaction; the block must begin with ``if not step.is_done:``.

    Arguments and errors are those of `run_once`.
    """
    chosen = step_key(key, step)
    connection = executor.connection() if isinstance(executor, Session) else executor
    _check_transaction(connection)
    if not _insert(executor, connection.dialect.name, table, chosen):
        text = executor.execute(_select(table, chosen)).scalar_one()
        yield decode_done(chosen, text, result_type, table.name)
        return
    one = Step(chosen, is_done=False)
    try:
        with executor.begin_nested() as savepoint:
            yield one
            text = encode_result(one, result_type)
            if not savepoint.is_active:
                raise _ended_within(chosen)
    except BaseException as error:
        try:
            executor.execute(_delete(table, chosen))
        except SQLAlchemyError as second:
            _note(error, chosen, second)
        raise
    executor.execute(_update(table, chosen, text))


@contextlib.asynccontextmanager
async def exactly_once_async(
    executor: AsyncExecutor,
    *,
    key: str | None = None,
    step: str | None = None,
    result_type: Any | None = None,
    table: sa.Table = STEPS,
) -> AsyncGenerator[Step]:
    """As `exactly_once`, for ``AsyncConnection`` and ``AsyncSession``."""
    chosen = step_key(key, step)
    connection = await executor.connection() if isinstance(executor, AsyncSession) else executor
    assert connection.sync_connection is not None, "a connection that is open has its sync side"
    _check_transaction(connection.sync_connection)
    if not await _insert_async(executor, connection.dialect.name, table, chosen):
        text = (await executor.execute(_select(table, chosen))).scalar_one()
        yield decode_done(chosen, text, result_type, table.name)
        return
    one = Step(chosen, is_done=False)
    try:
        async with executor.begin_nested() as savepoint:
            yield one
            text = encode_result(one, result_type)
            if not savepoint.is_active:
                raise _ended_within(chosen)
    except BaseException as error:
        try:
            await executor.execute(_delete(table, chosen))
        except SQLAlchemyError as second:
            _note(error, chosen, second)
        raise
    await executor.execute(_update(table, chosen, text))


def _insert(executor: SyncExecutor, dialect: str, table: sa.Table, key: str) -> bool:
    statement, may_conflict = _insert_statement(dialect, table, key)
    if not may_conflict:
        return _is_new(executor.execute(statement))
    try:
        with executor.begin_nested():
            executor.execute(statement)
    except IntegrityError:
        return False
    return True


async def _insert_async(executor: AsyncExecutor, dialect: str, table: sa.Table, key: str) -> bool:
    statement, may_conflict = _insert_statement(dialect, table, key)
    if not may_conflict:
        return _is_new(await executor.execute(statement))
    try:
        async with executor.begin_nested():
            await executor.execute(statement)
    except IntegrityError:
        return False
    return True


def _insert_statement(dialect: str, table: sa.Table, key: str) -> tuple[Any, bool]:
    """Give the insert of a key, and whether it raises when the key is there."""
    if dialect == "postgresql":
        added = postgresql.insert(table).values(step_key=key).on_conflict_do_nothing()
        return added.returning(table.c.step_key), False
    # Drivers may forget the count with their cursor, which is closed before anybody asks.
    counted = {"preserve_rowcount": True}
    if dialect == "sqlite":
        return sqlite.insert(table).values(step_key=key).on_conflict_do_nothing().execution_options(**counted), False
    if dialect in ("mysql", "mariadb"):
        return sa.insert(table).values(step_key=key).prefix_with("IGNORE").execution_options(**counted), False
    return sa.insert(table).values(step_key=key), True


def _is_new(result: Any) -> bool:
    """Whether a quiet insert added the key."""
    return result.first() is not None if result.returns_rows else cast(int, result.rowcount) == 1


def _select(table: sa.Table, key: str) -> sa.Select[Any]:
    return sa.select(table.c.result).where(table.c.step_key == key)


def _update(table: sa.Table, key: str, text: str) -> sa.Update:
    return sa.update(table).where(table.c.step_key == key).values(result=text)


def _delete(table: sa.Table, key: str) -> sa.Delete:
    return sa.delete(table).where(table.c.step_key == key)


def _check_transaction(connection: sa.Connection) -> None:
    if connection.get_execution_options().get("isolation_level") == "AUTOCOMMIT":
        raise StepError(
            "This connection commits each statement by itself (isolation_level AUTOCOMMIT), so the key and the step "
            "would not be committed together. Use a connection with transactions for the step."
        )


def _ended_within(key: str) -> StepError:
    return StepError(
        f"The transaction of step {key} was committed or rolled back within its block, so the key and the step are not "
        "committed together. Commit only after the block."
    )


def _note(error: BaseException, key: str, second: Exception) -> None:
    error.add_note(f"Undoing step {key} failed as well ({second}). Roll the transaction back.")
