"""Group commit: the units of many calls as one transaction, each guarded by itself.

Owns: how write units become statements, and who loses when a guard fails. Never: threads.

How it works: what most commits of a lone run are, one update that is one row, goes straight to its statement. Else the
*fast* way writes everything with a few many-row statements and expects all guards to hold; their
triggers raise when one does not. Then all is rolled back and done again the *careful* way, a savepoint a unit, in
which exactly the losers lose. When the whole group is one statement it needs no BEGIN and COMMIT around it. Trouble
with the database itself (full, locked, damaged) fails every call of the group: nothing of it is durable.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from typing import Any, Final

from clew.ports.store import CommitStatus, RunWrite, StoreError
from clew.storage.sqlite.bulk import BulkStatement, delete_rows, insert_rows
from clew.storage.sqlite.errors import is_fault_of_call, to_store_error
from clew.storage.sqlite.rows import NO_INSTANT, OPEN_STATUSES, STATUS_NAMES, to_micros, to_visibility_columns
from clew.storage.sqlite.schema import load_sql, statements
from clew.storage.sqlite.search_attributes import AttributeNames
from clew.storage.sqlite.tasks import TaskClaims
from clew.storage.sqlite.writes import OUTBOX_DELETE, TASKS_DELETE
from clew.storage.values import to_index_rows

Unit = tuple[RunWrite, ...]

_STATUS_COLUMNS: Final = {status: (name, int(status in OPEN_STATUSES)) for status, name in STATUS_NAMES.items()}
"""``status`` and ``is_open``. Whole numbers, texts and bytearrays are bound as they are; for anything else, also None,
True and bytes, SQLite's driver looks for an adapter first, which takes half a microsecond of the interpreter's time."""

_WIDTH: Final = 30
_UPDATE_WIDTH: Final = 14
_WRITE: Final = BulkStatement("INSERT INTO clew_write VALUES", _WIDTH, padding=0)
_UPDATE: Final = BulkStatement(
    "INSERT INTO clew_write (run_key, shard, expected_version, version, status, is_open, is_busy, attention_at, "
    "history_length, history_size_bytes, state, first_event_id, last_event_id, events) VALUES",
    _UPDATE_WIDTH,
    padding=0,
)
_UPDATE_ONE: Final = _UPDATE.sql_of(1)
_REST: Final = (0,) * (_WIDTH - _UPDATE_WIDTH)
"""What a row of `_WRITE` has beyond one of `_UPDATE`, if it leaves the visibility alone."""
_HISTORY: Final = BulkStatement(
    "INSERT INTO history (shard, run_key, first_event_id, last_event_id, events) "
    "SELECT column1, column2, column3, column4, CAST(column5 AS TEXT) FROM (VALUES",
    5,
    ") WHERE column1 IS NOT NULL",
)
_ITEMS_DELETE: Final = delete_rows("pending_items", "shard, run_key, kind, item_id", 4)
_ITEMS_PUT: Final = insert_rows("pending_items", "shard, run_key, kind, item_id, data", 5)
_TASKS_PUT: Final = insert_rows(
    "tasks", "task_id, shard, run_key, namespace, task_queue, kind, scheduled_event_id, attempt, priority", 9
)
_OUTBOX_PUT: Final = insert_rows("outbox", "message_id, shard, run_key, body", 4)
_ATTRIBUTES_PUT: Final = insert_rows("search_attributes", "run_key, name, ordinal, kind, value", 5)
_NAMES_PUT: Final = BulkStatement(
    "INSERT OR IGNORE INTO search_attribute_names (namespace, name, kind) "
    "SELECT column1, column2, column3 FROM (VALUES",
    3,
    ") WHERE column1 IS NOT NULL",
)

_STATEMENTS: Final = (
    _UPDATE,
    _WRITE,
    _HISTORY,
    _ITEMS_DELETE,
    _ITEMS_PUT,
    TASKS_DELETE,
    _TASKS_PUT,
    OUTBOX_DELETE,
    _OUTBOX_PUT,
    _ATTRIBUTES_PUT,
    _NAMES_PUT,
)
"""In the order in which they run: updates before inserts (a close before the run that follows), deletes before puts. Of
the first two there is one: what only updates has no more columns than they need."""


class _NoBatch:
    first_event_id = None
    last_event_id = None
    events = None


_NO_BATCH: Final = _NoBatch()


class _Work:
    """The values of all statements, one flat list each, in the order of `_STATEMENTS`."""

    __slots__ = (
        "attributes_put",
        "history",
        "items_delete",
        "items_put",
        "names_put",
        "outbox_delete",
        "outbox_put",
        "put_inserts",
        "put_updates",
        "tasks_delete",
        "tasks_put",
        "updates",
    )

    def __init__(self) -> None:
        self.updates: list[Any] = []
        self.put_updates: list[Any] = []
        self.put_inserts: list[Any] = []
        self.history: list[Any] = []
        self.items_delete: list[Any] = []
        self.items_put: list[Any] = []
        self.tasks_delete: list[Any] = []
        self.tasks_put: list[Any] = []
        self.outbox_delete: list[Any] = []
        self.outbox_put: list[Any] = []
        self.attributes_put: list[Any] = []
        self.names_put: list[Any] = []

    def add(self, other: _Work) -> None:
        """Put the values of `other` behind these."""
        for name in _Work.__slots__:
            getattr(self, name).extend(getattr(other, name))

    def steps(self) -> list[tuple[BulkStatement, list[Any]]]:
        """The statements that have something to do."""
        updates, puts = self.updates, self.put_updates + self.put_inserts
        if updates and puts:
            updates, puts = [], _widened(updates) + puts
        values = (
            updates,
            puts,
            self.history,
            self.items_delete,
            self.items_put,
            self.tasks_delete,
            self.tasks_put,
            self.outbox_delete,
            self.outbox_put,
            self.attributes_put,
            self.names_put,
        )
        return [step for step in zip(_STATEMENTS, values, strict=True) if step[1]]


class GroupCommitter:
    """Commits groups on the writer's connection."""

    def __init__(self, path: str, claims: TaskClaims, names: AttributeNames) -> None:
        self._path = path
        self._claims = claims
        self._names = names

    @staticmethod
    def prepare(connection: sqlite3.Connection) -> None:
        """Give `connection` the views that commits write through."""
        for statement in statements(load_sql("commit_views.sql")):
            connection.execute(statement)

    def commit(
        self, connection: sqlite3.Connection, calls: Sequence[Sequence[Unit]], values: Sequence[_Work | None] = ()
    ) -> list[list[CommitStatus] | StoreError]:
        """Make the units of `calls` durable; one answer a call, in order.

        Args:
            connection: The writing one.
            calls: The units of each.
            values: What `collect` has given for each call, None where it was not asked.
        """
        try:
            try:
                row = _lone_update(calls)
                if row is not None:
                    connection.execute(_UPDATE_ONE, row)
                else:
                    self._commit_all(connection, calls, _joined(values))
                return [[CommitStatus.COMMITTED] * len(units) for units in calls]
            except Exception as error:
                _roll_back(connection)
                if not is_fault_of_call(error):
                    raise
                return self._commit_each(connection, calls)
        except Exception as error:  # noqa: BLE001 - every call of the group is told
            _roll_back(connection)
            return [_with_cause(error, self._path) for _ in calls]

    def _commit_all(self, connection: sqlite3.Connection, calls: Sequence[Sequence[Unit]], work: _Work | None) -> None:
        if work is None:
            work = self.collect(unit for units in calls for unit in units)
        steps = work.steps()
        if len(steps) == 1 and steps[0][0].step_count(steps[0][1]) == 1:
            steps[0][0].execute(connection, steps[0][1])
        elif steps:
            connection.execute("BEGIN IMMEDIATE")
            for statement, values in steps:
                statement.execute(connection, values)
            connection.execute("COMMIT")
        self._after_commit(work)

    def _commit_each(
        self, connection: sqlite3.Connection, calls: Sequence[Sequence[Unit]]
    ) -> list[list[CommitStatus] | StoreError]:
        answers: list[list[CommitStatus] | StoreError] = []
        done: list[_Work] = []
        connection.execute("BEGIN IMMEDIATE")
        for units in calls:
            connection.execute("SAVEPOINT call")
            try:
                outcomes = [self._try_unit(connection, unit) for unit in units]
                answers.append([status for status, _ in outcomes])
                done.extend(work for _, work in outcomes if work is not None)
            except Exception as error:
                if not is_fault_of_call(error):
                    raise
                connection.execute("ROLLBACK TO call")
                answers.append(_with_cause(error, self._path))
            connection.execute("RELEASE call")
        connection.execute("COMMIT")
        for work in done:
            self._after_commit(work)
        return answers

    def _try_unit(self, connection: sqlite3.Connection, unit: Unit) -> tuple[CommitStatus, _Work | None]:
        work = self.collect((unit,))
        connection.execute("SAVEPOINT unit")
        try:
            for statement, values in work.steps():
                statement.execute(connection, values)
        except sqlite3.IntegrityError as error:
            status = _conflict(error)
            if status is None:
                raise
            connection.execute("ROLLBACK TO unit")
            connection.execute("RELEASE unit")
            return status, None
        connection.execute("RELEASE unit")
        return CommitStatus.COMMITTED, work

    def _after_commit(self, work: _Work) -> None:
        if work.tasks_delete:
            self._claims.forget(work.tasks_delete)
        if work.names_put:
            self._names.add(work.names_put)

    def collect(self, units: Iterable[Unit]) -> _Work:
        """The values of all statements for these units."""
        work = _Work()
        updates = work.updates
        for unit in units:
            for write in unit:
                version = write.expected_version
                batches = write.batches
                batch = batches[0] if batches else _NO_BATCH
                events = batch.events
                attention_at = write.attention_at
                row = (
                    write.run_key,
                    write.shard,
                    version,
                    write.version,
                    *_STATUS_COLUMNS[write.status],
                    1 if write.is_busy else 0,
                    NO_INSTANT if attention_at is None else to_micros(attention_at),
                    write.history_length,
                    write.history_size_bytes,
                    bytearray(write.state),
                    batch.first_event_id,
                    batch.last_event_id,
                    None if events is None else bytearray(events),
                )
                if version and write.visibility is None:
                    updates += row
                else:
                    self._collect_put(work, write, row)
                if len(batches) > 1:
                    for batch in batches[1:]:
                        key = (write.shard, write.run_key, batch.first_event_id, batch.last_event_id, batch.events)
                        work.history += key
                if (
                    write.tasks_put
                    or write.tasks_delete
                    or write.outbox_put
                    or write.outbox_delete
                    or (write.items_put or write.items_delete)
                ):
                    _collect_side_rows(work, write)
        return work

    def _collect_put(self, work: _Work, write: RunWrite, row: tuple[Any, ...]) -> None:
        visibility = write.visibility
        if visibility is None:
            raise ValueError(f"the insert of run {write.run_id!r} has no visibility; an insert needs one")
        is_update = write.expected_version > 0
        latest = 0 if is_update else write.expected_latest_run_key
        names = (latest, write.namespace, write.workflow_id, write.run_id)
        whole = (*row, *names, *to_visibility_columns(visibility))
        if is_update:
            work.put_updates += whole
        else:
            work.put_inserts += whole
        if visibility.search_attributes:
            for name, ordinal, kind, value in to_index_rows(visibility.search_attributes):
                work.attributes_put += (write.run_key, name, ordinal, kind, value)
                if (write.namespace, name) not in self._names:
                    work.names_put += (write.namespace, name, kind)


def _joined(values: Sequence[_Work | None]) -> _Work | None:
    """The values of all calls; None if those of one are missing."""
    joined: _Work | None = None
    for work in values:
        if work is None:
            return None
        if joined is None:
            joined = work
        else:
            joined.add(work)
    return joined


def _lone_update(calls: Sequence[Sequence[Unit]]) -> tuple[Any, ...] | None:
    """The values of `_UPDATE_ONE`, as `GroupCommitter.collect` has them, if that is all there is to commit."""
    if len(calls) != 1 or len(calls[0]) != 1 or len(calls[0][0]) != 1:
        return None
    write = calls[0][0][0]
    version, batches, attention_at = write.expected_version, write.batches, write.attention_at
    if (
        version == 0
        or write.visibility is not None
        or len(batches) != 1
        or write.tasks_put
        or write.tasks_delete
        or write.outbox_put
        or write.outbox_delete
        or write.items_put
        or write.items_delete
    ):
        return None
    (batch,) = batches
    return (
        write.run_key,
        write.shard,
        version,
        write.version,
        *_STATUS_COLUMNS[write.status],
        1 if write.is_busy else 0,
        NO_INSTANT if attention_at is None else to_micros(attention_at),
        write.history_length,
        write.history_size_bytes,
        bytearray(write.state),
        batch.first_event_id,
        batch.last_event_id,
        bytearray(batch.events),
    )


def _widened(updates: list[Any]) -> list[Any]:
    """The values of `_UPDATE` as rows of `_WRITE`."""
    rows: list[Any] = []
    for start in range(0, len(updates), _UPDATE_WIDTH):
        rows += updates[start : start + _UPDATE_WIDTH]
        rows += _REST
    return rows


def _collect_side_rows(work: _Work, write: RunWrite) -> None:
    shard, run_key = write.shard, write.run_key
    if write.items_delete:
        for kind, item_id in write.items_delete:
            work.items_delete += (shard, run_key, kind, item_id)
    if write.items_put:
        for item in write.items_put:
            work.items_put += (shard, run_key, item.kind, item.item_id, item.data)
    if write.tasks_delete:
        work.tasks_delete += write.tasks_delete
    if write.tasks_put:
        for t in write.tasks_put:
            work.tasks_put += (t.task_id, t.shard, t.run_key, t.namespace, t.task_queue, int(t.kind))
            work.tasks_put += (t.scheduled_event_id, t.attempt, t.priority)
    if write.outbox_delete:
        work.outbox_delete += write.outbox_delete
    if write.outbox_put:
        for message in write.outbox_put:
            work.outbox_put += (message.message_id, message.shard, message.run_key, message.body)


def _conflict(error: sqlite3.IntegrityError) -> CommitStatus | None:
    """Which guard `error` comes from; None when it is none of them."""
    text = str(error)
    if text == "version_conflict":
        return CommitStatus.VERSION_CONFLICT
    if text == "latest_run_conflict" or text.endswith("failed: executions.namespace, executions.workflow_id"):
        return CommitStatus.LATEST_RUN_CONFLICT
    return None


def _roll_back(connection: sqlite3.Connection) -> None:
    if connection.in_transaction:
        connection.execute("ROLLBACK")


def _with_cause(error: Exception, path: str) -> StoreError:
    store_error = to_store_error(error, path)
    if store_error is not error:
        store_error.__cause__ = error
    return store_error
