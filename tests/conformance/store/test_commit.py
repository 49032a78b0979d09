"""Commits: what a unit may do, which guards it has, and that only losers lose."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from clew.model.policies import WorkflowExecutionStatus
from clew.ports.store import CommitStatus, OutboxRow, PendingItem, RunWrite, Store, StoreError
from tests.conformance.store.rows import (
    NAMESPACE,
    T0,
    attribute,
    batch,
    close,
    history_ids,
    insert,
    load,
    task,
    update,
    visibility,
)

COMMITTED = CommitStatus.COMMITTED
VERSION = CommitStatus.VERSION_CONFLICT
LATEST = CommitStatus.LATEST_RUN_CONFLICT


async def test_an_inserted_run_is_read_back_whole(store: Store) -> None:
    seen = visibility(
        first_execution_run_id="run-0",
        parent_workflow_id="parent",
        parent_run_id="parent-run",
        root_workflow_id="root",
        root_run_id="root-run",
        execution_time=T0 + timedelta(minutes=1),
        memo={"note": attribute("grüße")},
        search_attributes={"Customer": attribute("c-1")},
    )
    write = insert(7, visibility=seen, is_busy=True, state=b"\x00\xff", shard=0)
    assert await store.commit_if_current([(write,)]) == [COMMITTED]
    row = await load(store, 7)
    assert (row.namespace, row.workflow_id, row.run_id, row.version) == (NAMESPACE, "claim-7", "run-7", 1)
    assert row.status is WorkflowExecutionStatus.RUNNING
    assert row.attention_at == write.attention_at
    assert row.is_busy is True
    assert row.state == b"\x00\xff"
    assert (row.history_length, row.history_size_bytes) == (2, 100)
    assert row.visibility == seen
    assert row.items == ()
    assert await store.read_history(0, 7, 1, 10_000) == [batch(1, 2)]


async def test_nothing_to_commit_is_answered(store: Store) -> None:
    assert await store.commit_if_current([]) == []
    assert await store.commit_if_current([()]) == [COMMITTED]


async def test_an_update_moves_the_run_and_appends(store: Store) -> None:
    first = insert(1)
    later = update(first, attention_at=None, is_busy=True, batches=(batch(3, 5), batch(6), batch(7, 9)))
    assert await store.commit_if_current([(first,)]) == [COMMITTED]
    assert await store.commit_if_current([(later,)]) == [COMMITTED]
    row = await load(store, 1)
    assert (row.version, row.state, row.attention_at, row.is_busy) == (2, b"state-2", None, True)
    assert row.visibility == visibility(), "an update without visibility leaves it alone"
    assert await history_ids(store, 1) == list(range(1, 10))


async def test_an_update_without_events_changes_only_the_run(store: Store) -> None:
    first = insert(1)
    await store.commit_if_current([(first,)])
    assert await store.commit_if_current([(update(first, batches=()),)]) == [COMMITTED]
    assert (await load(store, 1)).version == 2
    assert await history_ids(store, 1) == [1, 2]


async def test_an_update_on_another_version_loses_and_changes_nothing(store: Store) -> None:
    first = insert(1)
    second = update(first)
    await store.commit_if_current([(first,)])
    await store.commit_if_current([(second,)])
    stale = update(
        first,
        state=b"stale",
        batches=(batch(3),),
        items_put=(PendingItem(kind=1, item_id=3, data=b"x"),),
        tasks_put=(task(1),),
        outbox_put=(OutboxRow(message_id=1, shard=0, run_key=1, body=b"x"),),
    )
    assert await store.commit_if_current([(stale,)]) == [VERSION]
    row = await load(store, 1)
    assert (row.version, row.state, row.items) == (2, b"state-2", ())
    assert await store.find_queued_events(0, 1) == set()
    assert await store.read_outbox(None, 0, 10) == []
    assert await history_ids(store, 1) == [1, 2, 3]


async def test_an_update_without_events_on_another_version_loses(store: Store) -> None:
    first = insert(1)
    await store.commit_if_current([(first,)])
    await store.commit_if_current([(update(first),)])
    stale = update(first, state=b"stale", batches=())
    assert await store.commit_if_current([(stale,)]) == [VERSION]
    assert await store.commit_if_current([(close(first, state=b"stale", batches=()),)]) == [VERSION]
    assert (await load(store, 1)).state == b"state-2"


async def test_an_update_of_a_run_that_is_not_there_loses(store: Store) -> None:
    assert await store.commit_if_current([(update(insert(1)),)]) == [VERSION]
    assert await store.load_run(0, 1) is None


async def test_an_update_in_another_shard_loses(store: Store) -> None:
    first = insert(1)
    await store.commit_if_current([(first,)])
    assert await store.commit_if_current([(update(first, shard=1),)]) == [VERSION]


@pytest.mark.parametrize("with_visibility", [True, False])
async def test_only_the_losers_of_a_batch_lose(store: Store, with_visibility: bool) -> None:
    runs = [insert(key) for key in range(1, 301)]
    assert await store.commit_if_current([(run,) for run in runs]) == [COMMITTED] * 300
    await store.commit_if_current([(update(run),) for run in runs[::7]])
    seen = visibility(task_queue="moved") if with_visibility else None
    answers = await store.commit_if_current([(update(run, visibility=seen, state=b"won"),) for run in runs])
    expected = [VERSION if n % 7 == 0 else COMMITTED for n in range(300)]
    assert answers == expected
    for run, answer in zip(runs, answers, strict=True):
        row = await load(store, run.run_key)
        assert (row.state == b"won") is (answer is COMMITTED)
        assert row.version == 2
        assert await history_ids(store, run.run_key) == [1, 2, 3]


async def test_calls_made_at_once_are_answered_each_for_itself(store: Store) -> None:
    first = insert(1)
    await store.commit_if_current([(first,)])
    rivals = [store.commit_if_current([(update(first, state=f"rival-{n}".encode()),)]) for n in range(20)]
    others = [store.commit_if_current([(insert(100 + n),)]) for n in range(20)]
    answers = [(await answer)[0] for answer in [asyncio.ensure_future(rival) for rival in rivals]]
    assert answers.count(COMMITTED) == 1
    assert answers.count(VERSION) == 19
    assert (await load(store, 1)).state == f"rival-{answers.index(COMMITTED)}".encode()
    for other in others:
        assert await other == [COMMITTED]


async def test_one_batch_may_move_one_run_several_times(store: Store) -> None:
    first = insert(1)
    second = update(first)
    third = close(second)
    assert await store.commit_if_current([(first,), (second,), (third,)]) == [COMMITTED] * 3
    row = await load(store, 1)
    assert (row.version, row.status) == (3, WorkflowExecutionStatus.COMPLETED)
    assert await history_ids(store, 1) == [1, 2, 3, 4]


async def test_one_open_run_per_workflow_id(store: Store) -> None:
    assert await store.commit_if_current([(insert(1, "same"),), (insert(2, "same"),)]) == [COMMITTED, LATEST]
    assert await store.commit_if_current([(insert(3, "same"),)]) == [LATEST]
    assert await store.commit_if_current([(insert(4, "same", expected_latest_run_key=1),)]) == [LATEST]
    assert await store.load_run(0, 4) is None
    row = await store.find_run(NAMESPACE, "same", "")
    assert row is not None
    assert row.run_key == 1


async def test_workflow_ids_of_two_namespaces_do_not_meet(store: Store) -> None:
    units = [(insert(1, "same"),), (insert(2, "same", namespace="other"),)]
    assert await store.commit_if_current(units) == [COMMITTED, COMMITTED]
    found = await store.find_run("other", "same", "")
    assert found is not None
    assert found.run_key == 2


async def test_the_next_run_names_the_latest_one(store: Store) -> None:
    first = insert(1, "again")
    await store.commit_if_current([(first,)])
    await store.commit_if_current([(close(first),)])
    assert await store.commit_if_current([(insert(2, "again"),)]) == [LATEST], "expected no run, but there is one"
    second = insert(3, "again", expected_latest_run_key=1)
    assert await store.commit_if_current([(second,)]) == [COMMITTED]
    await store.commit_if_current([(close(second),)])
    assert await store.commit_if_current([(insert(4, "again", expected_latest_run_key=1),)]) == [LATEST]


@pytest.mark.parametrize("close_first", [True, False])
@pytest.mark.parametrize("close_has_visibility", [True, False])
async def test_a_close_and_the_run_that_continues_it_are_one_unit(
    store: Store, close_first: bool, close_has_visibility: bool
) -> None:
    first = insert(1, "chain")
    await store.commit_if_current([(first,)])
    closing = close(first, status=WorkflowExecutionStatus.CONTINUED_AS_NEW)
    if not close_has_visibility:
        closing = close(first, status=WorkflowExecutionStatus.CONTINUED_AS_NEW, visibility=None)
    following = insert(2, "chain", expected_latest_run_key=1)
    unit = (closing, following) if close_first else (following, closing)
    assert await store.commit_if_current([unit]) == [COMMITTED]
    row = await store.find_run(NAMESPACE, "chain", "")
    assert row is not None
    assert (row.run_key, row.status) == (2, WorkflowExecutionStatus.RUNNING)
    assert (await load(store, 1)).status is WorkflowExecutionStatus.CONTINUED_AS_NEW


async def test_a_unit_may_pass_over_a_run_that_it_inserts_closed(store: Store) -> None:
    first = insert(1, "chain")
    await store.commit_if_current([(first,)])
    passed = insert(2, "chain", expected_latest_run_key=1, status=WorkflowExecutionStatus.TERMINATED, attention_at=None)
    last = insert(3, "chain", expected_latest_run_key=2)
    assert await store.commit_if_current([(close(first), passed, last)]) == [COMMITTED]
    row = await store.find_run(NAMESPACE, "chain", "")
    assert row is not None
    assert (row.run_key, row.status) == (3, WorkflowExecutionStatus.RUNNING)
    assert (await load(store, 2)).status is WorkflowExecutionStatus.TERMINATED
    again = insert(4, "chain", expected_latest_run_key=2)
    assert await store.commit_if_current([(again,)]) == [LATEST], "it is not the latest"
    following = insert(5, "chain", expected_latest_run_key=3)
    assert await store.commit_if_current([(close(await load(store, 3)), following)]) == [COMMITTED]


async def test_a_unit_may_begin_with_a_run_that_it_passes_over(store: Store) -> None:
    def unit(first_key: int) -> tuple[RunWrite, ...]:
        passed = insert(first_key, "new", status=WorkflowExecutionStatus.TERMINATED, attention_at=None)
        return passed, insert(first_key + 1, "new", expected_latest_run_key=first_key)

    assert await store.commit_if_current([unit(1)]) == [COMMITTED]
    assert await store.commit_if_current([unit(3)]) == [LATEST], "expected no run, but there is one"
    assert await store.load_run(0, 3) is None


@pytest.mark.parametrize("is_first_closed", [True, False])
async def test_only_one_run_of_a_unit_follows_another(store: Store, is_first_closed: bool) -> None:
    first = insert(1, "chain")
    await store.commit_if_current([(first,)])
    status = WorkflowExecutionStatus.TERMINATED if is_first_closed else WorkflowExecutionStatus.RUNNING
    both = [insert(key, "chain", expected_latest_run_key=1, status=status) for key in (2, 3)]
    assert await store.commit_if_current([(close(first), *both)]) == [LATEST]
    assert (await load(store, 1)).status is WorkflowExecutionStatus.RUNNING
    assert await store.load_run(0, 2) is None
    behind_an_open_one = insert(2, "chain", expected_latest_run_key=1), insert(3, "chain", expected_latest_run_key=2)
    assert await store.commit_if_current([(close(first), *behind_an_open_one)]) == [LATEST]
    assert (await load(store, 1)).status is WorkflowExecutionStatus.RUNNING


async def test_a_unit_is_all_or_nothing(store: Store) -> None:
    first = insert(1, "chain")
    await store.commit_if_current([(first,)])
    await store.commit_if_current([(update(first),)])
    stale_close = close(first)
    assert await store.commit_if_current([(stale_close, insert(2, "chain", expected_latest_run_key=1))]) == [VERSION]
    assert await store.load_run(0, 2) is None
    current = await load(store, 1)
    blocked = insert(3, "chain", expected_latest_run_key=99)
    assert await store.commit_if_current([(close(current), blocked)]) == [LATEST]
    assert (await load(store, 1)).status is WorkflowExecutionStatus.RUNNING


async def test_pending_items_are_put_replaced_and_deleted(store: Store) -> None:
    first = insert(1, items_put=tuple(PendingItem(kind=1, item_id=n, data=b"a%d" % n) for n in range(1, 601)))
    await store.commit_if_current([(first,)])
    assert [item.item_id for item in (await load(store, 1)).items] == list(range(1, 601))
    second = update(
        first,
        items_put=(PendingItem(kind=1, item_id=2, data=b"new"), PendingItem(kind=2, item_id=2, data=b"timer")),
        items_delete=(*tuple((1, n) for n in range(3, 601)), (9, 9)),
    )
    assert await store.commit_if_current([(second,)]) == [COMMITTED]
    items = (await load(store, 1)).items
    assert [(item.kind, item.item_id, item.data) for item in items] == [(1, 1, b"a1"), (1, 2, b"new"), (2, 2, b"timer")]


async def test_a_replaced_key_is_deleted_before_it_is_put(store: Store) -> None:
    first = insert(1, items_put=(PendingItem(kind=1, item_id=5, data=b"old"),), tasks_put=(task(10),))
    await store.commit_if_current([(first,)])
    again = update(
        first,
        items_delete=((1, 5),),
        items_put=(PendingItem(kind=1, item_id=5, data=b"new"),),
        tasks_delete=(10,),
        tasks_put=(task(10, attempt=2),),
    )
    await store.commit_if_current([(again,)])
    assert (await load(store, 1)).items[0].data == b"new"
    assert await store.find_queued_events(0, 1) == {5}


async def test_a_poisoned_unit_fails_its_own_call_only(store: Store) -> None:
    first = insert(1)
    await store.commit_if_current([(first,)])
    poison = update(first, state=None)
    good = insert(2)
    calls = [
        asyncio.ensure_future(store.commit_if_current(units))
        for units in ([(good,)], [(insert(3),), (poison,)], [(insert(4),)])
    ]
    done = await asyncio.gather(*calls, return_exceptions=True)
    assert done[0] == [COMMITTED]
    assert done[2] == [COMMITTED]
    assert isinstance(done[1], StoreError), done[1]
    assert await store.load_run(0, 3) is None, "nothing of a call that raised is durable"
    assert (await load(store, 1)).version == 1


async def test_history_cannot_be_written_over(store: Store) -> None:
    first = insert(1)
    await store.commit_if_current([(first,)])
    with pytest.raises(StoreError):
        await store.commit_if_current([(update(first, batches=(batch(1),)),)])
    assert await history_ids(store, 1) == [1, 2]
    assert (await load(store, 1)).version == 1


async def test_a_naive_instant_is_refused(store: Store) -> None:
    naive = datetime(2026, 1, 1)
    with pytest.raises(StoreError):
        await store.commit_if_current([(insert(1, attention_at=naive),)])
    assert await store.load_run(0, 1) is None


async def test_instants_keep_their_microseconds_far_from_now(store: Store) -> None:
    for key, instant in enumerate(
        [
            datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=UTC),
            datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC),
        ],
        1,
    ):
        await store.commit_if_current([(insert(key, attention_at=instant),)])
        assert (await load(store, key)).attention_at == instant


async def test_text_of_any_language_is_kept(store: Store) -> None:
    workflow_id = "заявка-№1 'quoted\" \N{PILE OF POO} \x00 end"
    await store.commit_if_current([(insert(1, workflow_id),)])
    row = await store.find_run(NAMESPACE, workflow_id, "")
    assert row is not None
    assert row.workflow_id == workflow_id


async def test_a_closed_store_refuses_calls(store: Store) -> None:
    accepted = asyncio.ensure_future(store.commit_if_current([(insert(1),)]))
    await store.close()
    assert await accepted == [COMMITTED], "what was accepted before close() is still done"
    with pytest.raises(StoreError, match="closed"):
        await store.commit_if_current([(insert(2),)])
    with pytest.raises(StoreError, match="closed"):
        await store.load_run(0, 1)
