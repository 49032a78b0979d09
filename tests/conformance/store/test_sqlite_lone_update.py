"""The short way of a commit that is one row writes what the usual way writes, and leaves everything else to that."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from clew.model.policies import WorkflowExecutionStatus
from clew.ports.store import CommitStatus, OutboxRow, PendingItem, RunWrite
from clew.storage.sqlite import commit, open_store
from clew.storage.sqlite.commit import GroupCommitter
from clew.storage.sqlite.search_attributes import AttributeNames
from clew.storage.sqlite.store import SqliteStore
from clew.storage.sqlite.tasks import TaskClaims
from tests.conformance.store.rows import batch, history_ids, insert, load, task, update, visibility

ROW = insert(7)


def as_updates(row: RunWrite) -> Sequence[Any]:
    return GroupCommitter("s.db", TaskClaims(), AttributeNames()).collect([(row,)]).updates


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"attention_at": None, "is_busy": True},
        {"status": WorkflowExecutionStatus.COMPLETED, "attention_at": None},
        {"state": b"", "history_length": 0},
    ],
    ids=["open", "busy", "closed", "empty"],
)
def test_the_short_way_has_the_values_of_the_usual_one(changes: dict[str, Any]) -> None:
    row = update(ROW, batches=(batch(3, 5),), **changes)
    assert list(commit._lone_update([[(row,)]]) or ()) == list(as_updates(row))


NEXT = update(ROW, batches=(batch(3),))
OTHERS: dict[str, list[list[tuple[RunWrite, ...]]]] = {
    "an insert": [[(ROW,)]],
    "a visibility": [[(update(ROW, batches=(batch(3),), visibility=visibility()),)]],
    "two batches": [[(update(ROW, batches=(batch(3), batch(4))),)]],
    "no batch": [[(update(ROW, batches=()),)]],
    "two rows": [[(NEXT, update(insert(8), batches=(batch(3),)))]],
    "two units": [[(NEXT,), (update(insert(8), batches=(batch(3),)),)]],
    "two calls": [[(NEXT,)], [(update(insert(8), batches=(batch(3),)),)]],
    "no call": [],
    "a task": [[(update(ROW, batches=(batch(3),), tasks_put=(task(1),)),)]],
    "a task less": [[(update(ROW, batches=(batch(3),), tasks_delete=(1,)),)]],
    "a message": [
        [(update(ROW, batches=(batch(3),), outbox_put=(OutboxRow(message_id=1, shard=0, run_key=7, body=b"x"),)),)]
    ],
    "a message less": [[(update(ROW, batches=(batch(3),), outbox_delete=(1,)),)]],
    "an item": [[(update(ROW, batches=(batch(3),), items_put=(PendingItem(kind=1, item_id=1, data=b"x"),)),)]],
    "an item less": [[(update(ROW, batches=(batch(3),), items_delete=((1, 1),)),)]],
}


@pytest.mark.parametrize("calls", list(OTHERS.values()), ids=list(OTHERS))
def test_whatever_else_takes_the_usual_way(calls: list[list[tuple[RunWrite, ...]]]) -> None:
    assert commit._lone_update(calls) is None


@pytest.fixture
def usual_way_only() -> Iterator[None]:
    with mock.patch.object(commit, "_lone_update", return_value=None):
        yield


async def play(path: Path) -> tuple[list[CommitStatus], int, list[int]]:
    """A few lone commits, one of which loses its guard: what they were told, the version, and the history."""
    store = await open_store(str(path))
    assert isinstance(store, SqliteStore)
    try:
        told: list[CommitStatus] = []
        second, third = update(ROW, batches=(batch(3),)), update(ROW, batches=(batch(4),))
        for row in (ROW, second, third, update(second, batches=(batch(4, 6),))):
            told += await store.commit_if_current([(row,)])
        return told, (await load(store, 7)).version, await history_ids(store, 7)
    finally:
        await store.close()


EXPECTED = (
    [*[CommitStatus.COMMITTED] * 2, CommitStatus.VERSION_CONFLICT, CommitStatus.COMMITTED],
    3,
    [1, 2, 3, 4, 5, 6],
)


async def test_a_lone_update_that_loses_its_guard_is_told_so(tmp_path: Path) -> None:
    assert await play(tmp_path / "s.db") == EXPECTED


@pytest.mark.usefixtures("usual_way_only")
async def test_the_usual_way_says_the_same(tmp_path: Path) -> None:
    assert await play(tmp_path / "s.db") == EXPECTED


def test_a_lone_update_is_one_call_into_sqlite() -> None:
    statements: list[str] = []

    class Connection:
        in_transaction = False

        def execute(self, sql: str, values: Sequence[Any] = ()) -> None:
            statements.append(sql)

    connection: sqlite3.Connection = Connection()  # type: ignore[assignment]
    committer = GroupCommitter("s.db", TaskClaims(), AttributeNames())
    assert committer.commit(connection, [[(NEXT,)]]) == [[CommitStatus.COMMITTED]]
    assert len(statements) == 1
