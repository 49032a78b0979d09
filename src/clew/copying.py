"""Copying a store: namespaces or single runs, open ones included, between SQLite and PostgreSQL.

Owns: `copy_store`, what is copied in which order, and the check of every run that was. Never: runs an engine.

How it works: both stores must be without an engine, as a run that goes on meanwhile would be copied in halves. Runs are
copied from the oldest on, so that each finds the one before it; each gets a key and a shard of the target and keeps
everything else: ids, history byte for byte, state, version. After each write the run is read back and compared. A run
that is there already with the same version is compared only; so a copy that was interrupted is taken up by doing it
again. Tasks that wait for a worker are queued anew from the state; what was out at workers of the source, an engine
that starts on the target takes for lost with them.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Final

import msgspec

from clew.adapters import SystemClock
from clew.core.codec import decode_state
from clew.core.decisions import outstanding_tasks
from clew.core.transition import ActivityTaskReady, WorkflowTaskReady
from clew.engine.starts import shard_of
from clew.ports.store import (
    CommitStatus,
    HistoryBatch,
    NamespaceRow,
    OutboxRow,
    RunRow,
    RunWrite,
    Store,
    StoreError,
    StoreIncompatible,
    StoreInUse,
    TaskKind,
    TaskRow,
    VisibilityCondition,
    VisibilityFilter,
)
from clew.stores import name_of, open_by_address

PAGE_RUNS: Final = 500
PRIORITY_DEFAULT: Final = 3
HISTORY_BYTES: Final = 4 * 1024 * 1024
"""Read of a history at a time."""


class CopyReport(msgspec.Struct, kw_only=True):
    """What a copy did."""

    namespaces: int = 0
    copied: int = 0
    found: int = 0
    """Runs that were there already, the same."""
    open_runs: int = 0
    events: int = 0
    messages: int = 0
    """Undelivered messages to other runs."""
    api_keys: int = 0
    """Keys that the target did not have."""


class CopyMismatch(StoreError):
    """The target has something else than the source; nothing of it was changed."""


async def copy_store(
    source: str,
    target: str,
    *,
    clock: SystemClock,
    namespaces: Sequence[str] = (),
    workflow_ids: Sequence[str] = (),
    on_progress: Callable[[CopyReport], None] = lambda _: None,
) -> CopyReport:
    """Copy runs from one store to another and compare each.

    Args:
        source: Connection string.
        target: Connection string; the store is made when there is none.
        clock: For opening the stores.
        namespaces: Which; all when none is given.
        workflow_ids: Which, with all their runs; all when none is given.
        on_progress: Called after each page of runs.

    Raises:
        StoreInUse: An engine uses one of them.
        CopyMismatch: A namespace or run of the same name is there, and is another.
        StoreError: What else is wrong with them.
    """
    async with _quiet(source, clock) as origin, _quiet(target, clock) as goal:
        report = CopyReport()
        for namespace in await origin.list_namespaces():
            if namespaces and namespace.name not in namespaces:
                continue
            await _copy_namespace(goal, namespace, name_of(target))
            report.namespaces += 1
            await _copy_runs(origin, goal, namespace.name, workflow_ids, report, on_progress)
        for deployment in await origin.list_deployments():
            if not namespaces or deployment.namespace in namespaces:
                first = msgspec.structs.replace(deployment, revision=1)
                await goal.put_deployment_if_revision(first)
        if not namespaces and not workflow_ids:
            await _copy_api_keys(origin, goal, report)
        return report


async def _copy_api_keys(origin: Store, goal: Store, report: CopyReport) -> None:
    """Those that are not there: one that is may have been revoked since."""
    for key in await origin.list_api_keys():
        report.api_keys += await goal.put_api_key_if_revision(msgspec.structs.replace(key, revision=1))


@asynccontextmanager
async def _quiet(address: str, clock: SystemClock) -> AsyncGenerator[Store, None]:
    """The store, if no engine uses it."""
    store, *_ = await open_by_address(address, clock=clock)
    try:
        view = await store.read_fleet("")
        live = [node.node_id for node in view.nodes if node.lease_until > view.now]
        if live:
            raise StoreInUse(
                f"the store {name_of(address)} is in use by {len(live)} engines ({', '.join(live[:3])}). Expected: "
                "none, so that no run changes while it is copied; stop them, then copy again"
            )
        yield store
    finally:
        await store.close()


async def _copy_namespace(goal: Store, row: NamespaceRow, name: str) -> None:
    if await goal.put_namespace(row):
        return
    there = await goal.get_namespace(row.name)
    if there is None or there.secret != row.secret:
        raise CopyMismatch(
            f"{name} has a namespace {row.name!r} already, with a secret of its own: idempotency keys of the "
            "copied runs would change. Copy into a store without that namespace"
        )


async def _copy_runs(
    origin: Store,
    goal: Store,
    namespace: str,
    workflow_ids: Sequence[str],
    report: CopyReport,
    on_progress: Callable[[CopyReport], None],
) -> None:
    where = None
    if workflow_ids:
        condition = VisibilityCondition(attribute="WorkflowId", operator="IN", values=tuple(workflow_ids))
        where = VisibilityFilter(conditions=(condition,))
    keys: list[tuple[int, int]] = []
    before: int | None = None
    while page := await origin.list_runs(namespace, where, PAGE_RUNS, before):
        keys += [(row.shard, row.run_key) for row in page]
        before = page[-1].run_key
    messages = await _messages_of(origin, keys)
    for at, (shard, run_key) in enumerate(reversed(keys), 1):
        row = await origin.load_run(shard, run_key)
        if row is None:
            raise StoreError(f"run key {run_key} vanished from the source while it was copied; copy again")
        await _copy_run(origin, goal, row, messages.get(run_key, ()), report)
        if at % PAGE_RUNS == 0:
            on_progress(report)
    on_progress(report)


async def _messages_of(origin: Store, keys: Sequence[tuple[int, int]]) -> dict[int, list[OutboxRow]]:
    wanted = {run_key for _, run_key in keys}
    found: dict[int, list[OutboxRow]] = {}
    after = 0
    while page := await origin.read_outbox(None, after, PAGE_RUNS):
        for message in page:
            if message.run_key in wanted:
                found.setdefault(message.run_key, []).append(message)
        after = page[-1].message_id
    return found


async def _copy_run(origin: Store, goal: Store, row: RunRow, messages: Sequence[OutboxRow], report: CopyReport) -> None:
    batches = await _history(origin, row)
    there = await goal.find_run(row.namespace, row.workflow_id, row.run_id)
    if there is None:
        await _write_run(goal, row, batches, messages)
        there = await goal.find_run(row.namespace, row.workflow_id, row.run_id)
        report.copied += 1
        report.messages += len(messages)
    else:
        report.found += 1
    if there is None or _facts(there) != _facts(row) or await _history(goal, there) != batches:
        raise CopyMismatch(
            f"the target has a run {row.run_id} of workflow {row.workflow_id!r} that is not the one of the source "
            f"(version {'none' if there is None else there.version}, in the source {row.version}). If it went on "
            "there, it must not be copied again; else remove it, then copy again"
        )
    report.open_runs += row.status.is_open
    report.events += row.history_length


async def _write_run(
    goal: Store, row: RunRow, batches: tuple[HistoryBatch, ...], messages: Sequence[OutboxRow]
) -> None:
    shard = shard_of(row.namespace, row.workflow_id, goal.shard_count)
    run_key = await goal.reserve_run_keys(1)
    tasks = _waiting_tasks(row)
    count = len(messages) + len(tasks)
    first_id = await goal.reserve_task_ids(count) if count else 0
    latest = await goal.find_run(row.namespace, row.workflow_id, "")
    write = RunWrite(
        shard=shard,
        run_key=run_key,
        namespace=row.namespace,
        workflow_id=row.workflow_id,
        run_id=row.run_id,
        expected_version=0,
        expected_latest_run_key=0 if latest is None else latest.run_key,
        version=row.version,
        status=row.status,
        attention_at=row.attention_at,
        is_busy=row.is_busy,
        state=row.state,
        history_length=row.history_length,
        history_size_bytes=row.history_size_bytes,
        visibility=row.visibility,
        batches=batches,
        items_put=row.items,
        tasks_put=tuple(
            _task_row(task, row, shard=shard, run_key=run_key, task_id=first_id + len(messages) + n)
            for n, task in enumerate(tasks)
        ),
        outbox_put=tuple(
            OutboxRow(message_id=first_id + n, shard=shard, run_key=run_key, body=message.body)
            for n, message in enumerate(messages)
        ),
    )
    (status,) = await goal.commit_if_current([(write,)])
    if status is not CommitStatus.COMMITTED:
        raise StoreIncompatible(
            f"workflow {row.workflow_id!r} has a run in the target that is open, or newer than the one to be copied "
            f"({row.run_id}). Copy into a store where the id is free"
        )


def _waiting_tasks(row: RunRow) -> list[WorkflowTaskReady | ActivityTaskReady]:
    if not row.status.is_open:
        return []
    return outstanding_tasks(decode_state(row.state, [(item.kind, item.item_id, item.data) for item in row.items]))


def _task_row(
    task: WorkflowTaskReady | ActivityTaskReady, row: RunRow, *, shard: int, run_key: int, task_id: int
) -> TaskRow:
    is_activity = isinstance(task, ActivityTaskReady)
    return TaskRow(
        task_id=task_id,
        shard=shard,
        run_key=run_key,
        namespace=row.namespace,
        task_queue=task.task_queue,
        kind=TaskKind.ACTIVITY if is_activity else TaskKind.WORKFLOW,
        scheduled_event_id=task.scheduled_event_id,
        attempt=task.attempt,
        priority=task.priority if isinstance(task, ActivityTaskReady) and task.priority else PRIORITY_DEFAULT,
    )


async def _history(store: Store, row: RunRow) -> tuple[HistoryBatch, ...]:
    batches: list[HistoryBatch] = []
    at = 1
    while found := await store.read_history(row.shard, row.run_key, at, HISTORY_BYTES):
        batches += found
        at = found[-1].last_event_id + 1
    return tuple(batches)


def _facts(row: RunRow) -> RunRow:
    """What must be the same in both stores."""
    return msgspec.structs.replace(row, shard=0, run_key=0)
