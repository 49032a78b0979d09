"""Steps in a database that take effect exactly once, though the activity around them may run twice.

The idempotency key of the activity is recorded in *your* transaction, together with what the step changed and what it
gave back: either all of it is committed or nothing. When the activity runs again (because its worker died between the
commit and the report, say), the key is found, the step is left out, and its recorded result is given back::

    from clew.contrib.sql.sqlite3 import run_once

    @activity.defn
    def pay_out(claim: Claim) -> int:
        with sqlite3.connect("payments.db") as connection:   # your transaction
            return run_once(connection, lambda: insert_payment(connection, claim))

Owns: the table of keys and `Step`; the drivers are in ``sql.sqlite3``, ``sql.sqlalchemy`` (extra ``sqlalchemy``, sync
and async) and ``sql.asyncpg``. Never: begins, commits or rolls back your transaction.

How it works: the key is inserted first, so a second attempt at the same time waits for the first one's transaction.
The step runs in a savepoint; if it raises, savepoint and key are undone and the error goes on to you. Rows may be
deleted once no activity can run again that made them: after the longest schedule-to-close timeout, or the retention.

The other way round, `start_workflow` and `signal_workflow` ask for a start or a signal inside your transaction on the
PostgreSQL database of the engines: it happens if and only if you commit::

    async with connection.transaction():                     # asyncpg, SQLAlchemy or psycopg
        await insert_order(connection, order)
        await start_workflow(connection, Fulfil.run, order, id=f"order-{order.id}", task_queue="orders")
"""

from __future__ import annotations

from clew.contrib.sql._step import TABLE_DEFAULT, Step, StepError, create_table_sql
from clew.contrib.sql._transactional import UnknownConnectionError, signal_workflow, start_workflow

__all__ = [
    "TABLE_DEFAULT",
    "Step",
    "StepError",
    "UnknownConnectionError",
    "create_table_sql",
    "signal_workflow",
    "start_workflow",
]
