"""Reading runs, histories, due and busy runs, and the outbox."""

from __future__ import annotations

from datetime import timedelta

from clew.ports.store import OutboxRow, PendingItem, Store
from tests.conformance.store.rows import NAMESPACE, T0, batch, close, insert, update


async def test_what_is_not_there_is_none(store: Store) -> None:
    await store.commit_if_current([(insert(1),)])
    assert await store.load_run(0, 2) is None
    assert await store.load_run(1, 1) is None
    assert await store.find_run(NAMESPACE, "nothing", "") is None
    assert await store.find_run(NAMESPACE, "claim-1", "run-2") is None
    assert await store.find_run(NAMESPACE, "claim-2", "run-1") is None, "a run id of another workflow id"
    assert await store.find_run("other", "claim-1", "run-1") is None
    assert await store.read_history(0, 9, 1, 1000) == []


async def test_several_runs_come_together_with_their_short_histories(store: Store) -> None:
    item = PendingItem(kind=1, item_id=2, data=b"x")
    short = insert(1, batches=(batch(1, 2), batch(3)), history_size_bytes=300, items_put=(item,))
    long = insert(2, batches=(batch(1, 2),), history_size_bytes=301)
    await store.commit_if_current([(short,), (long,), (insert(3),)])
    await store.commit_if_current([(close(short, batches=(), history_size_bytes=300),)])
    found = await store.load_runs([(0, 2), (0, 1), (0, 9), (1, 3)], 300)
    rows = {loaded.row.run_key: loaded for loaded in found}
    assert sorted(rows) == [1, 2], "the others are not there, or not in that shard"
    assert rows[1].history == short.batches
    assert rows[2].history == (), "too long"
    for run_key, loaded in rows.items():
        assert loaded.row == await store.load_run(0, run_key)
    assert await store.load_runs([], 300) == []


async def test_find_run_by_run_id_or_the_latest(store: Store) -> None:
    first = insert(1, "w", items_put=(PendingItem(kind=1, item_id=2, data=b"x"),))
    await store.commit_if_current([(first,)])
    await store.commit_if_current([(close(first), insert(2, "w", expected_latest_run_key=1))])
    old = await store.find_run(NAMESPACE, "w", "run-1")
    latest = await store.find_run(NAMESPACE, "w", "")
    assert old is not None
    assert latest is not None
    assert (old.run_key, latest.run_key) == (1, 2)
    assert [item.item_id for item in old.items] == [2]


async def test_history_starts_at_the_batch_that_has_the_event(store: Store) -> None:
    first = insert(1, batches=(batch(1, 2), batch(3, 6), batch(7), batch(8, 10)))
    await store.commit_if_current([(first,), (insert(2),)])
    for wanted, expected in {1: 1, 2: 1, 3: 3, 5: 3, 6: 3, 7: 7, 9: 8, 10: 8}.items():
        found = await store.read_history(0, 1, wanted, 1 << 20)
        assert found[0].first_event_id == expected
        assert found[-1].last_event_id == 10
    assert await store.read_history(0, 1, 11, 1 << 20) == []
    assert await store.read_history(0, 1, 0, 1 << 20) == list(first.batches)


async def test_history_stops_at_the_bytes_but_gives_one_batch(store: Store) -> None:
    batches = tuple(batch(n) for n in range(1, 301))
    await store.commit_if_current([(insert(1, batches=batches),)])
    assert await store.read_history(0, 1, 5, 0) == [batches[4]]
    size = len(batches[4].events) + len(batches[5].events)
    assert await store.read_history(0, 1, 5, size) == [batches[4], batches[5]]
    collected = []
    at = 1
    while found := await store.read_history(0, 1, at, 1000):
        collected += found
        at = found[-1].last_event_id + 1
    assert collected == list(batches)


async def test_due_runs_are_open_and_in_order(store: Store) -> None:
    runs = [insert(key, attention_at=T0 - timedelta(seconds=key)) for key in range(1, 6)]
    none = insert(6, attention_at=None)
    later = insert(7, attention_at=T0 + timedelta(microseconds=1))
    exactly = insert(8, attention_at=T0)
    closed = insert(9, attention_at=T0)
    await store.commit_if_current([(run,) for run in (*runs, none, later, exactly, closed)])
    await store.commit_if_current([(close(closed, attention_at=T0),)])
    due = await store.find_due_runs(None, T0, 100)
    assert [run.run_key for run in due] == [5, 4, 3, 2, 1, 8]
    assert due[0].attention_at == T0 - timedelta(seconds=5)
    assert [run.run_key for run in await store.find_due_runs([0], T0, 2)] == [5, 4]
    assert await store.find_due_runs([1, 2], T0, 100) == []
    await store.commit_if_current([(update(runs[4], attention_at=T0 + timedelta(days=1)),)])
    assert [run.run_key for run in await store.find_due_runs(None, T0, 100)] == [4, 3, 2, 1, 8]


async def test_busy_runs_are_open_and_paged_with_their_items(store: Store) -> None:
    item = PendingItem(kind=1, item_id=5, data=b"x")
    runs = [insert(key, is_busy=key % 2 == 1, items_put=(item,)) for key in range(1, 10)]
    await store.commit_if_current([(run,) for run in runs])
    await store.commit_if_current([(close(runs[2], is_busy=True),)])
    await store.commit_if_current([(update(runs[6], is_busy=False),)])
    first = await store.find_busy_runs(None, 0, 2)
    assert [row.run_key for row in first] == [1, 5]
    assert all(row.items == (item,) and row.state for row in first)
    assert [row.run_key for row in await store.find_busy_runs([0], 5, 10)] == [9]
    assert await store.find_busy_runs([3], 0, 10) == []


async def test_the_outbox_is_read_in_order_until_delivered(store: Store) -> None:
    messages = tuple(OutboxRow(message_id=n, shard=0, run_key=1, body=b"m%d" % n) for n in (4, 2, 3))
    first = insert(1, outbox_put=messages)
    await store.commit_if_current([(first,)])
    assert [m.message_id for m in await store.read_outbox(None, 0, 10)] == [2, 3, 4]
    assert (await store.read_outbox([0], 2, 1))[0] == OutboxRow(message_id=3, shard=0, run_key=1, body=b"m3")
    assert await store.read_outbox([1], 0, 10) == []
    await store.commit_if_current([(update(first, outbox_delete=(3, 77)),)])
    assert [m.message_id for m in await store.read_outbox(None, 0, 10)] == [2, 4]
    await store.delete_outbox([2, 99])
    assert [m.message_id for m in await store.read_outbox(None, 0, 10)] == [4]
