"""Exactly-once steps in a transaction of the standard library's ``sqlite3``.

Owns: the statements. Never: your transaction (see ``clew.contrib.sql``).
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable, Generator
from typing import Any, TypeVar

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


def create_table(connection: sqlite3.Connection, table: str = TABLE_DEFAULT) -> None:
    """Make the table of keys, unless it is there."""
    connection.execute(create_table_sql("sqlite", table))


def run_once(
    connection: sqlite3.Connection,
    body: Callable[[], T],
    *,
    key: str | None = None,
    step: str | None = None,
    result_type: Any | None = None,
    table: str = TABLE_DEFAULT,
) -> T:
    """Run `body` if no earlier attempt did; give its result, or the recorded one.

    Args:
        connection: In your transaction: commit it afterwards, as ``with connection:`` does.
        body: Changes the database over the same connection. Its result is recorded as JSON.
        key: By which the step is recorded; that of the running activity when not given.
        step: Names the step, when the activity has more than one.
        result_type: What a recorded result is converted to; by default what `body` says that it returns.
        table: Table of keys.

    Raises:
        StepError: The transaction was committed within `body`, or nothing would commit the key together with it.
        RuntimeError: No key is given, and no activity is running here.
    """
    found = result_type_of(body, result_type)
    with exactly_once(connection, key=key, step=step, result_type=found, table=table) as one:
        if not one.is_done:
            one.record(body())
    result: T = one.result
    return result


@contextlib.contextmanager
def exactly_once(
    connection: sqlite3.Connection,
    *,
    key: str | None = None,
    step: str | None = None,
    result_type: Any | None = None,
    table: str = TABLE_DEFAULT,
) -> Generator[Step]:
    """Record a step in your transaction; the block must begin with ``if not step.is_done:``.

    Arguments and errors are those of `run_once`.
    """
    name = checked_table(table)
    chosen = step_key(key, step)
    _check_transaction(connection)
    insert = f"INSERT INTO {name} (step_key) VALUES (?) ON CONFLICT DO NOTHING"
    if connection.execute(insert, (chosen,)).rowcount != 1:
        [text] = connection.execute(f"SELECT result FROM {name} WHERE step_key = ?", (chosen,)).fetchone()
        yield decode_done(chosen, text, result_type, table)
        return
    connection.execute("SAVEPOINT clew_step")
    one = Step(chosen, is_done=False)
    try:
        yield one
        text = encode_result(one, result_type)
    except BaseException as error:
        _undo(connection, name, chosen, error)
        raise
    try:
        connection.execute("RELEASE clew_step")
    except sqlite3.OperationalError as error:
        raise _ended_within(chosen) from error
    connection.execute(f"UPDATE {name} SET result = ? WHERE step_key = ?", (text, chosen))


def _check_transaction(connection: sqlite3.Connection) -> None:
    # Python 3.12 has `autocommit`; False there means that a transaction is always open, -1 the older way.
    is_autocommit = getattr(connection, "autocommit", -1) is True or (
        getattr(connection, "autocommit", -1) == -1 and connection.isolation_level is None
    )
    if is_autocommit and not connection.in_transaction:
        raise StepError(
            "This connection commits each statement by itself, so the key and the step would not be committed "
            "together. Execute BEGIN before and COMMIT after the step."
        )


def _undo(connection: sqlite3.Connection, table: str, key: str, error: BaseException) -> None:
    if not connection.in_transaction:
        return
    try:
        connection.execute("ROLLBACK TO clew_step")
        connection.execute("RELEASE clew_step")
        connection.execute(f"DELETE FROM {table} WHERE step_key = ?", (key,))
    except sqlite3.Error as second:
        error.add_note(f"Undoing step {key} failed as well ({second}). Roll the transaction back.")


def _ended_within(key: str) -> StepError:
    return StepError(
        f"The transaction of step {key} was committed or rolled back within its block, so the key and the step are not "
        "committed together. Commit only after the block."
    )
