"""Which index answers which question: no query of the engine's may grow with the number of closed runs."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from clew.ports.store import CommitStatus, TaskKind, VisibilityCondition, VisibilityFilter
from clew.storage.sqlite import reads, tasks, visibility, writes
from clew.storage.sqlite.commit import GroupCommitter
from clew.storage.sqlite.connection import PAGE_SIZE_BYTES, connect_writer
from clew.storage.sqlite.schema import migrate
from clew.storage.sqlite.search_attributes import AttributeNames
from clew.storage.sqlite.tasks import TaskClaims
from tests.conformance.store.rows import NAMESPACE, T0, close, insert, update

NOW = datetime(2026, 1, 1, tzinfo=UTC)


class Explaining:
    """A connection that notes the plan of every statement that it is given."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self.steps: list[str] = []
        self.calls_count = 0

    @property
    def in_transaction(self) -> bool:
        return self._connection.in_transaction

    def execute(self, sql: str, values: Any = ()) -> sqlite3.Cursor:
        self.calls_count += 1
        if sql.startswith(("SELECT", "DELETE")):
            self.steps += [row[3] for row in self._connection.execute(f"EXPLAIN QUERY PLAN {sql}", values)]
        return self._connection.execute(sql, values)


@pytest.fixture
def connection() -> Iterator[sqlite3.Connection]:
    opened = connect_writer(":memory:", busy_timeout_ms=0, size_bytes_max=None)
    migrate(opened, "now")
    GroupCommitter.prepare(opened)
    yield opened
    opened.close()


def where(attribute: str, operator: str, *values: Any) -> VisibilityFilter:
    return VisibilityFilter(conditions=(VisibilityCondition(attribute=attribute, operator=operator, values=values),))


QUESTIONS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "load": ("INTEGER PRIMARY KEY", lambda c: reads.load_run(c, 0, 1)),
    "load many": ("INTEGER PRIMARY KEY", lambda c: reads.load_runs(c, [(0, 1), (0, 2)], 1000)),
    "load histories": ("history_run", lambda c: reads.load_runs(c, [(0, 1), (0, 2)], 1000)),
    "latest run": ("executions_workflow_id", lambda c: reads.find_run(c, "d", "w", "")),
    "run by id": ("executions_run_id", lambda c: reads.find_run(c, "d", "w", "r")),
    "history": ("history_run", lambda c: reads.read_history(c, 0, 1, 7, 1000)),
    "due": ("executions_attention", lambda c: reads.find_due_runs(c, None, NOW, 10)),
    "busy": ("executions_busy", lambda c: reads.find_busy_runs(c, None, 0, 10)),
    "outbox": ("INTEGER PRIMARY KEY", lambda c: reads.read_outbox(c, None, 0, 10)),
    "claim": ("tasks_queue", lambda c: TaskClaims().claim(c, "d", "q", TaskKind.ACTIVITY, 1, NOW, NOW)),
    "count tasks": ("tasks_queue", lambda c: tasks.count_tasks(c, "d", "q", TaskKind.ACTIVITY)),
    "queued": ("tasks_run", lambda c: tasks.find_queued_events(c, 0, 1)),
    "list": ("executions_listed (", lambda c: visibility.list_runs(c, "d", None, 10, 5)),
    "list open": (
        "executions_listed_open",
        lambda c: visibility.list_runs(c, "d", where("ExecutionStatus", "=", "Running"), 10, 5),
    ),
    "list failed": (
        "executions_listed_closed",
        lambda c: visibility.list_runs(c, "d", where("ExecutionStatus", "=", "Failed"), 10, 5),
    ),
    "list of an id": (
        "executions_workflow_id",
        lambda c: visibility.list_runs(c, "d", where("WorkflowId", "=", "w"), 10, 5),
    ),
    "list by attribute": (
        "search_attributes_value (name=? AND value=?)",
        lambda c: visibility.list_runs(c, "d", where("Color", "=", "red"), 10, 5),
    ),
    "count": ("executions_listed_closed", lambda c: visibility.count_runs(c, "d", None)),
    "retention": (
        "executions_retained",
        lambda c: writes.delete_closed_runs(c, NAMESPACE, datetime(3000, 1, 1, tzinfo=UTC), 5),
    ),
}


@pytest.mark.parametrize("question", QUESTIONS)
def test_an_index_answers(connection: sqlite3.Connection, question: str) -> None:
    committer = GroupCommitter(":memory:", TaskClaims(), AttributeNames())
    first = insert(1)
    committer.commit(connection, [[(first,)], [(close(first),)], [(insert(2),)]])
    index, ask = QUESTIONS[question]
    explaining = Explaining(connection)
    ask(explaining)
    assert explaining.steps
    assert any(index in step for step in explaining.steps), explaining.steps
    scans = [step for step in explaining.steps if step.startswith("SCAN") and "CONSTANT" not in step]
    assert not scans
    if question not in ("count", "list by attribute"):
        assert not [step for step in explaining.steps if "TEMP B-TREE" in step]


def test_an_update_of_an_open_run_is_one_call(connection: sqlite3.Connection) -> None:
    """Each call of SQLite has to win the interpreter's lock back, so a group of plain updates is a single one."""
    committer = GroupCommitter(":memory:", TaskClaims(), AttributeNames())
    runs = [insert(key, attention_at=T0) for key in range(1, 251)]
    committer.commit(connection, [[(run,)] for run in runs])
    counting: Any = Explaining(connection)
    answers = committer.commit(counting, [[(update(run),)] for run in runs])
    assert answers == [[CommitStatus.COMMITTED]] * 250
    assert counting.calls_count == 1


def test_a_batch_of_starts_steps_and_ends_is_one_call(connection: sqlite3.Connection) -> None:
    """Likewise, as a busy engine has all of them at once."""
    committer = GroupCommitter(":memory:", TaskClaims(), AttributeNames())
    runs = [insert(key, attention_at=T0) for key in range(1, 71)]
    committer.commit(connection, [[(run,)] for run in runs])
    counting: Any = Explaining(connection)
    writes = [update(run) for run in runs[:40]] + [close(run) for run in runs[40:]]
    writes += [insert(key) for key in range(100, 130)]
    answers = committer.commit(counting, [[(write,)] for write in writes])
    assert answers == [[CommitStatus.COMMITTED]] * 100
    assert counting.calls_count == 1


def test_the_driver_adapts_nothing_that_a_usual_batch_holds(connection: sqlite3.Connection) -> None:
    """It binds numbers, texts and bytearrays as they are, and looks for an adapter for everything else."""
    committer = GroupCommitter(":memory:", TaskClaims(), AttributeNames())
    first = insert(1)
    for write in (first, update(first), close(first)):
        for _, values in committer.collect([(write,)]).steps():
            assert {type(value) for value in values} <= {int, str, bytearray}


@pytest.mark.parametrize(("later_seconds", "pages_count"), [(0, 3), (5, 5)])
def test_a_step_touches_no_index_whose_columns_it_leaves_alone(
    tmp_path: Path, later_seconds: int, pages_count: int
) -> None:
    """A row of the run, one of history and its index; a new instant of attention takes two indexes more."""
    path = tmp_path / "pages.db"
    opened = connect_writer(str(path), busy_timeout_ms=0, size_bytes_max=None)
    migrate(opened, "now")
    GroupCommitter.prepare(opened)
    committer = GroupCommitter(str(path), TaskClaims(), AttributeNames())
    row = insert(1, is_busy=True)
    assert committer.commit(opened, [[(row,)]]) == [[CommitStatus.COMMITTED]]
    opened.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    step = update(row, attention_at=T0 + timedelta(seconds=1 + later_seconds))
    assert committer.commit(opened, [[(step,)]]) == [[CommitStatus.COMMITTED]]
    header_bytes, frame_bytes = 32, 24 + PAGE_SIZE_BYTES
    assert (path.with_name("pages.db-wal").stat().st_size - header_bytes) / frame_bytes == pages_count
    opened.close()
