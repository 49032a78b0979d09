"""A commit whose values were made on the loop runs the very statements of one whose values the writer makes."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Any

import pytest

from clew.ports.store import CommitStatus, RunWrite
from clew.storage.sqlite.commit import GroupCommitter
from clew.storage.sqlite.search_attributes import AttributeNames
from clew.storage.sqlite.tasks import TaskClaims
from tests.conformance.store.rows import batch, insert, update
from tests.conformance.store.test_sqlite_lone_update import OTHERS

SEVERAL = {
    **OTHERS,
    "many calls": [
        [(insert(number),), (update(insert(50 + number), batches=(batch(3), batch(4))),)] for number in range(1, 8)
    ],
}


class Connection:
    """Notes what it is to execute."""

    in_transaction = False

    def __init__(self) -> None:
        self.executed: list[tuple[str, list[Any]]] = []

    def execute(self, sql: str, values: Sequence[Any] = ()) -> None:
        self.executed.append((sql, list(values)))


def executed(calls: list[list[tuple[RunWrite, ...]]], *, is_collected: bool) -> list[tuple[str, list[Any]]]:
    noted = Connection()
    connection: sqlite3.Connection = noted  # type: ignore[assignment]
    committer = GroupCommitter("s.db", TaskClaims(), AttributeNames())
    values = [committer.collect(units) for units in calls] if is_collected else [None for _ in calls]
    answers = committer.commit(connection, calls, values)
    assert answers == [[CommitStatus.COMMITTED] * len(units) for units in calls]
    return noted.executed


@pytest.mark.parametrize("calls", SEVERAL.values(), ids=SEVERAL)
def test_both_execute_the_same(calls: list[list[tuple[RunWrite, ...]]]) -> None:
    found = executed(calls, is_collected=True)
    assert found == executed(calls, is_collected=False)
    assert bool(found) == bool(calls)


def test_values_of_some_calls_only_are_not_used() -> None:
    calls = SEVERAL["two calls"]
    noted = Connection()
    connection: sqlite3.Connection = noted  # type: ignore[assignment]
    committer = GroupCommitter("s.db", TaskClaims(), AttributeNames())
    committer.commit(connection, calls, [committer.collect(calls[0]), None])
    assert noted.executed == executed(calls, is_collected=False)
