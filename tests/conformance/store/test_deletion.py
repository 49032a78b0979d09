"""Removing one closed run: all of it goes, and its workflow id keeps the latest of those that are left."""

from __future__ import annotations

import asyncio

import pytest

from clew.ports.store import CommitStatus, Deletion, OutboxRow, PendingItem, RunWrite, Store
from tests.conformance.store.rows import NAMESPACE, attribute, close, insert, load, task, update, visibility


async def run_of(store: Store, run_key: int, after: int = 0, workflow_id: str = "w") -> RunWrite:
    """A closed run that followed another."""
    run = insert(run_key, workflow_id, expected_latest_run_key=after)
    ended = close(run)
    assert await store.commit_if_current([(run,)]) == [CommitStatus.COMMITTED]
    assert await store.commit_if_current([(ended,)]) == [CommitStatus.COMMITTED]
    return ended


async def latest(store: Store) -> int | None:
    row = await store.find_run(NAMESPACE, "w", "")
    return row.run_key if row is not None else None


async def test_all_of_a_closed_run_goes_and_nothing_of_others(store: Store) -> None:
    runs = [
        insert(
            key,
            items_put=(PendingItem(kind=1, item_id=1, data=b"x"),),
            tasks_put=(task(key, run_key=key),),
            visibility=visibility(search_attributes={"Customer": attribute("c")}),
        )
        for key in (1, 2)
    ]
    await store.commit_if_current([(run,) for run in runs])
    await store.commit_if_current([(close(runs[0]),)])
    assert await store.delete_run(0, 1) is Deletion.DELETED
    assert await store.load_run(0, 1) is None
    assert await store.read_history(0, 1, 1, 1000) == []
    assert await store.find_queued_events(0, 1) == set()
    assert await store.find_queued_events(0, 2) == {5}
    assert (await load(store, 2)).items
    assert await store.delete_run(0, 1) is Deletion.NOT_FOUND
    assert [row.run_key for row in await store.list_runs(NAMESPACE, None, 10, None)] == [2]


async def test_an_open_run_stays(store: Store) -> None:
    await store.commit_if_current([(insert(1),)])
    assert await store.delete_run(0, 1) is Deletion.OPEN
    assert await store.load_run(0, 1) is not None
    assert await store.delete_run(0, 2) is Deletion.NOT_FOUND


async def test_a_run_with_undelivered_messages_stays_until_they_are_delivered(store: Store) -> None:
    run = insert(1)
    await store.commit_if_current([(run,)])
    closing = close(run, outbox_put=(OutboxRow(message_id=1, shard=0, run_key=1, body=b"tell the parent"),))
    await store.commit_if_current([(closing,)])
    assert await store.delete_run(0, 1) is Deletion.UNDELIVERED
    await store.commit_if_current([(update(closing, status=closing.status, outbox_delete=(1,)),)])
    assert await store.delete_run(0, 1) is Deletion.DELETED


async def test_the_run_before_the_latest_is_the_latest_once_that_is_gone(store: Store) -> None:
    await run_of(store, 1)
    await run_of(store, 2, after=1)
    await run_of(store, 3, after=2)
    assert await store.delete_run(0, 3) is Deletion.DELETED
    assert await latest(store) == 2
    assert await store.commit_if_current([(insert(4, "w", expected_latest_run_key=3),)]) == [
        CommitStatus.LATEST_RUN_CONFLICT
    ]
    assert await store.commit_if_current([(insert(5, "w"),)]) == [CommitStatus.LATEST_RUN_CONFLICT]
    assert await store.commit_if_current([(insert(6, "w", expected_latest_run_key=2),)]) == [CommitStatus.COMMITTED]
    assert await latest(store) == 6


@pytest.mark.parametrize("middle", [(2,), (2, 3), (3, 2)], ids=str)
async def test_runs_from_the_middle_leave_no_gap(store: Store, middle: tuple[int, ...]) -> None:
    for key in (1, 2, 3, 4):
        await run_of(store, key, after=key - 1)
    for key in middle:
        assert await store.delete_run(0, key) is Deletion.DELETED
        assert await latest(store) == 4
    left = [key for key in (3, 2, 1) if key not in middle]
    assert await store.delete_run(0, 4) is Deletion.DELETED
    for key in left:
        assert await latest(store) == key
        assert await store.delete_run(0, key) is Deletion.DELETED
    assert await latest(store) is None
    assert await store.commit_if_current([(insert(9, "w"),)]) == [CommitStatus.COMMITTED]


async def test_a_start_that_follows_at_the_same_time_is_told_or_comes_first(store: Store) -> None:
    for key in range(10, 30, 2):
        workflow_id = f"w-{key}"
        await run_of(store, key, workflow_id=workflow_id)
        following = insert(key + 1, workflow_id, expected_latest_run_key=key)
        deletion, [status] = await asyncio.gather(store.delete_run(0, key), store.commit_if_current([(following,)]))
        assert deletion is Deletion.DELETED
        row = await store.find_run(NAMESPACE, workflow_id, "")
        if status is CommitStatus.COMMITTED:
            assert row is not None
            assert row.run_key == key + 1
        else:
            assert status is CommitStatus.LATEST_RUN_CONFLICT
            assert row is None
            assert await store.commit_if_current([(insert(key + 1, workflow_id),)]) == [CommitStatus.COMMITTED]
