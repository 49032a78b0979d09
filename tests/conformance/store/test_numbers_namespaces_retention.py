"""Reserved numbers, namespaces, and the removal of closed runs."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from clew.ports.store import CommitStatus, NamespaceRow, OutboxRow, PendingItem, Store
from tests.conformance.store.conftest import OpenStore
from tests.conformance.store.rows import NAMESPACE, T0, attribute, close, insert, load, task, update, visibility


async def test_reserved_numbers_are_consecutive_and_never_given_twice(store: Store) -> None:
    for reserve in (store.reserve_run_keys, store.reserve_task_ids):
        sizes = [1, 5, 1, 20_000, 3, 9_999, 1, 1] * 3
        starts = await asyncio.gather(*[reserve(size) for size in sizes])
        given = [n for start, size in zip(starts, sizes, strict=True) for n in range(start, start + size)]
        assert len(set(given)) == len(given)
        assert min(given) >= 1


async def test_a_reservation_of_nothing_is_refused(store: Store) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        await store.reserve_run_keys(0)


async def test_numbers_go_on_after_reopening_even_if_rows_are_gone(open_durable: OpenStore) -> None:
    last_key = last_id = 0
    for _ in range(3):
        store = await open_durable()
        key = await store.reserve_run_keys(25_000) + 24_999
        identity = await store.reserve_task_ids(3)
        assert key - 24_999 > last_key
        assert identity > last_id
        last_key, last_id = key, identity + 2
        run = insert(key, f"w-{key}")
        await store.commit_if_current([(run,)])
        await store.commit_if_current([(close(run),)])
        assert await store.delete_closed_runs(NAMESPACE, T0 + timedelta(days=1), 10) == 1
        await store.close()


async def test_namespaces_are_created_once(store: Store) -> None:
    row = NamespaceRow(name="default", secret=b"s" * 32, retention_seconds=86_400, settings=b'{"a":1}')
    assert await store.get_namespace("default") is None
    assert await store.put_namespace(row) is True
    assert await store.put_namespace(NamespaceRow(name="default", secret=b"x", retention_seconds=1)) is False
    assert await store.get_namespace("default") == row
    other = NamespaceRow(name="alpha", secret=b"y", retention_seconds=5)
    assert await store.put_namespace(other) is True
    assert await store.list_namespaces() == [other, row]


async def test_retention_removes_all_of_the_oldest_closed_runs(store: Store) -> None:
    runs = [
        insert(
            key,
            items_put=(PendingItem(kind=1, item_id=1, data=b"x"),),
            tasks_put=(task(key, run_key=key),),
            visibility=visibility(search_attributes={"Customer": attribute("c")}),
        )
        for key in range(1, 8)
    ]
    await store.commit_if_current([(run,) for run in runs])
    for run in runs[:5]:
        seen = visibility(
            close_time=T0 + timedelta(minutes=10 - run.run_key), search_attributes={"Customer": attribute("c")}
        )
        assert await store.commit_if_current([(close(run, visibility=seen),)]) == [CommitStatus.COMMITTED]
    before = T0 + timedelta(minutes=9)
    assert await store.delete_closed_runs("other", before, 100) == 0
    assert await store.delete_closed_runs(NAMESPACE, before, 2) == 2
    assert [row.run_key for row in await store.list_runs(NAMESPACE, None, 10, None)] == [7, 6, 3, 2, 1]
    assert await store.delete_closed_runs(NAMESPACE, before, 100) == 2
    assert [row.run_key for row in await store.list_runs(NAMESPACE, None, 10, None)] == [7, 6, 1], (
        "1 closed at 9 minutes"
    )
    assert await store.read_history(0, 3, 1, 1000) == []
    assert await store.load_run(0, 3) is None
    assert await store.find_queued_events(0, 3) == set()
    assert await store.find_queued_events(0, 7) == {5}
    assert (await load(store, 7)).items
    assert await store.delete_closed_runs(NAMESPACE, before, 0) == 0


async def test_retention_waits_for_undelivered_messages(store: Store) -> None:
    run = insert(1)
    await store.commit_if_current([(run,)])
    message = OutboxRow(message_id=1, shard=0, run_key=1, body=b"tell the parent")
    closing = close(run, outbox_put=(message,))
    await store.commit_if_current([(closing,)])
    assert await store.delete_closed_runs(NAMESPACE, T0 + timedelta(days=1), 10) == 0
    await store.commit_if_current([(update(closing, status=closing.status, outbox_delete=(1,)),)])
    assert await store.delete_closed_runs(NAMESPACE, T0 + timedelta(days=1), 10) == 1


async def test_a_workflow_id_is_free_again_once_its_runs_are_removed(store: Store) -> None:
    run = insert(1, "w")
    await store.commit_if_current([(run,)])
    await store.commit_if_current([(close(run),)])
    await store.delete_closed_runs(NAMESPACE, T0 + timedelta(days=1), 10)
    late = insert(2, "w", expected_latest_run_key=1)
    assert await store.commit_if_current([(late,)]) == [CommitStatus.LATEST_RUN_CONFLICT]
    assert await store.commit_if_current([(insert(3, "w"),)]) == [CommitStatus.COMMITTED]
