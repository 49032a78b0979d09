"""Tasks that wait for a worker: their order, claims on them, and what ends a claim."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

from clew.ports.store import Store, TaskKind
from tests.conformance.store.rows import NAMESPACE, insert, task, update

ACTIVITY = TaskKind.ACTIVITY


def soon() -> datetime:
    return datetime.now(UTC) + timedelta(minutes=5)


def past() -> datetime:
    return datetime.now(UTC) - timedelta(seconds=1)


async def test_tasks_come_by_priority_then_age_and_once(store: Store) -> None:
    rows = (task(1), task(2, priority=1), task(3, priority=5), task(4), task(5, priority=1, attempt=3))
    await store.commit_if_current([(insert(1, tasks_put=rows),)])
    first = await store.claim_tasks(NAMESPACE, "claims", ACTIVITY, 3, soon())
    assert [row.task_id for row in first] == [2, 5, 1]
    assert first[1] == task(5, priority=1, attempt=3)
    rest = await store.claim_tasks(NAMESPACE, "claims", ACTIVITY, 10, soon())
    assert [row.task_id for row in rest] == [4, 3]
    assert await store.claim_tasks(NAMESPACE, "claims", ACTIVITY, 10, soon()) == []
    assert await store.count_tasks(NAMESPACE, "claims", ACTIVITY) == 5


async def test_queues_kinds_and_namespaces_are_apart(store: Store) -> None:
    rows = (
        task(1, task_queue="other"),
        task(2, kind=TaskKind.WORKFLOW),
        task(3, namespace="other"),
        task(4),
    )
    await store.commit_if_current([(insert(1, tasks_put=rows),)])
    assert [t.task_id for t in await store.claim_tasks(NAMESPACE, "claims", ACTIVITY, 10, soon())] == [4]
    assert [t.task_id for t in await store.claim_tasks(NAMESPACE, "claims", TaskKind.WORKFLOW, 10, soon())] == [2]
    assert await store.count_tasks("other", "claims", ACTIVITY) == 1
    assert await store.count_tasks(NAMESPACE, "nothing", ACTIVITY) == 0


async def test_no_task_is_claimed_twice_by_callers_at_once(store: Store) -> None:
    await store.commit_if_current([(insert(1, tasks_put=tuple(task(n) for n in range(1, 101))),)])
    claims = [store.claim_tasks(NAMESPACE, "claims", ACTIVITY, 7, soon()) for _ in range(20)]
    given = [row.task_id for claim in claims for row in await claim]
    assert sorted(given) == list(range(1, 101))


async def test_a_claim_ends_by_time_or_by_release(store: Store) -> None:
    await store.commit_if_current([(insert(1, tasks_put=(task(1), task(2))),)])
    assert len(await store.claim_tasks(NAMESPACE, "claims", ACTIVITY, 1, past())) == 1
    again = await store.claim_tasks(NAMESPACE, "claims", ACTIVITY, 10, soon())
    assert [row.task_id for row in again] == [1, 2], "the first claim was over at once"
    await store.release_tasks([2, 99])
    assert [row.task_id for row in await store.claim_tasks(NAMESPACE, "claims", ACTIVITY, 10, soon())] == [2]


async def test_a_started_task_is_gone_with_its_commit(store: Store) -> None:
    first = insert(1, tasks_put=(task(1, scheduled_event_id=5), task(2, scheduled_event_id=6)))
    await store.commit_if_current([(first,)])
    assert await store.find_queued_events(0, 1) == {5, 6}
    await store.claim_tasks(NAMESPACE, "claims", ACTIVITY, 1, soon())
    await store.commit_if_current([(update(first, tasks_delete=(1, 77)),)])
    assert await store.find_queued_events(0, 1) == {6}
    await store.release_tasks([1])
    assert [row.task_id for row in await store.claim_tasks(NAMESPACE, "claims", ACTIVITY, 10, soon())] == [2]


async def test_stale_tasks_can_be_deleted(store: Store) -> None:
    await store.commit_if_current([(insert(1, tasks_put=tuple(task(n) for n in range(1, 501))),)])
    await store.delete_tasks([*range(1, 500), 9999])
    assert await store.count_tasks(NAMESPACE, "claims", ACTIVITY) == 1
    await store.delete_tasks([])
    assert [row.task_id for row in await store.claim_tasks(NAMESPACE, "claims", ACTIVITY, 10, soon())] == [500]


async def test_a_claim_of_nothing_is_empty(store: Store) -> None:
    await store.commit_if_current([(insert(1, tasks_put=(task(1),)),)])
    assert (
        await asyncio.gather(*[store.claim_tasks(NAMESPACE, "claims", ACTIVITY, 0, soon()) for _ in range(3)])
        == [[]] * 3
    )


async def test_backlogs_name_every_queue_with_its_count_and_the_task_queued_first(store: Store) -> None:
    assert await store.list_backlogs() == []
    rows = (
        task(3, priority=1),
        task(2),
        task(4, kind=TaskKind.WORKFLOW),
        task(5, task_queue="another"),
        task(6, namespace="other"),
    )
    await store.commit_if_current([(insert(1, tasks_put=rows),)])
    await store.claim_tasks(NAMESPACE, "claims", ACTIVITY, 1, soon())
    found = await store.list_backlogs()
    assert [(b.namespace, b.task_queue, b.kind, b.count, b.oldest.task_id) for b in found] == [
        (NAMESPACE, "another", ACTIVITY, 1, 5),
        (NAMESPACE, "claims", TaskKind.WORKFLOW, 1, 4),
        (NAMESPACE, "claims", ACTIVITY, 2, 2),
        ("other", "claims", ACTIVITY, 1, 6),
    ]
    assert found[0].oldest == rows[3]
