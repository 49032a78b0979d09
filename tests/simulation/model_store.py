"""The model store: the store port in plain dictionaries, as simple as it can be said.

Owns: what a store has to do, without SQL, threads or files. Never: search by filters (the conformance suite compares
those with a model of its own), or surviving the process.

How it works: each method does its work at once and gives a finished future. A commit is checked unit by unit against
the guards of the port, and applied whole. It passes the parts of the conformance suite that it takes part in, so that
what the simulation finds on it would be found on any store.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any, TypeVar

import msgspec

from clew.model.policies import WorkflowExecutionStatus
from clew.ports.store import (
    ApiKeyRow,
    Backlog,
    CommitStatus,
    Deletion,
    DeploymentRow,
    DueRun,
    FleetView,
    HistoryBatch,
    LoadedRun,
    NamespaceRow,
    OutboxRow,
    PendingItem,
    RunRow,
    RunWrite,
    ShardLease,
    Store,
    StoreError,
    TaskKind,
    TaskRow,
    VisibilityFilter,
)
from clew.storage.sqlite.fleet import FleetRegistry

T = TypeVar("T")


class _Run:
    """One run: its row, its history, its pending items."""

    def __init__(self, row: RunRow) -> None:
        self.row = row
        self.previous = 0
        """The run of its workflow id that it followed."""
        self.batches: list[HistoryBatch] = []
        self.items: dict[tuple[int, int], bytes] = {}

    def whole(self) -> RunRow:
        items = tuple(PendingItem(kind=k, item_id=i, data=self.items[k, i]) for k, i in sorted(self.items))
        return msgspec.structs.replace(self.row, items=items)


class ModelData:
    """What the disk holds; survives the stores opened on it.

    Args:
        now: The store's own clock; by default each store goes by that of its node, and claims die with the node (as
            in a process that owns its file).
        shard_count: Shards of runs.
        fleet: The nodes that share the disk; by default none do, or as many as come, by the clock.
        claims_lie: Drawn for each row that a node has claimed: whether it is given to another all the same.
    """

    def __init__(
        self,
        now: Callable[[], datetime] | None = None,
        shard_count: int = 1,
        *,
        fleet: FleetRegistry | None = None,
        claims_lie: Callable[[], bool] = lambda: False,
    ) -> None:
        self.now = now
        self.shard_count = shard_count
        self.claims: dict[int, datetime] = {}
        self.fleet = fleet or (FleetRegistry(now) if now is not None else None)
        self.claims_lie = claims_lie
        self.api_keys: dict[str, ApiKeyRow] = {}
        self.runs: dict[int, _Run] = {}
        self.latest: dict[tuple[str, str], int] = {}
        self.tasks: dict[int, TaskRow] = {}
        self.outbox: dict[int, OutboxRow] = {}
        self.namespaces: dict[str, NamespaceRow] = {}
        self.deployments: dict[tuple[str, str], DeploymentRow] = {}
        self.next_run_key = 1
        self.next_task_id = 1


class ModelStore:
    """See the module docstring.

    Args:
        data: The disk.
        now: Decides whether a claim has run out.
    """

    def __init__(self, data: ModelData, now: Callable[[], datetime]) -> None:
        self.shard_count = data.shard_count
        self._data = data
        self._now = data.now or now
        self._claims: dict[int, datetime] = {} if data.now is None else data.claims
        self._registry = data.fleet or FleetRegistry(now)
        self._is_closed = False

    # --- commits ----------------------------------------------------------------------------------------------------

    def commit_if_current(self, units: Sequence[tuple[RunWrite, ...]]) -> asyncio.Future[list[CommitStatus]]:
        if self._is_closed:
            return self._done([])  # refused, before anything is done
        for unit in units:
            for write in unit:
                problem = self._problem(write)
                if problem:
                    failed: asyncio.Future[list[CommitStatus]] = asyncio.get_running_loop().create_future()
                    failed.set_exception(StoreError(f"run {write.run_id}: {problem}; nothing was done"))
                    return failed
        return self._done([self._commit_unit(unit) for unit in units])

    def _problem(self, write: RunWrite) -> str:
        """What is wrong with a write, whatever is stored; empty when nothing is."""
        run = self._data.runs.get(write.run_key)
        last = run.batches[-1].last_event_id if run is not None and run.batches else 0
        is_current = run is not None and run.row.version == write.expected_version
        if is_current and any(batch.first_event_id <= last for batch in write.batches):
            return "history is not written over"
        if write.attention_at is not None and write.attention_at.tzinfo is None:
            return "an instant is not aware"
        return "" if isinstance(write.state, bytes) else "the state is no bytes"

    def _commit_unit(self, unit: tuple[RunWrite, ...]) -> CommitStatus:
        closing = {write.run_key for write in unit if not write.status.is_open}
        inserted: dict[tuple[str, str], int] = {}
        for write in unit:
            if write.expected_version:
                run = self._data.runs.get(write.run_key)
                if run is None or run.row.shard != write.shard or run.row.version != write.expected_version:
                    return CommitStatus.VERSION_CONFLICT
            elif not self._may_insert(write, closing, inserted):
                return CommitStatus.LATEST_RUN_CONFLICT
            else:
                inserted[write.namespace, write.workflow_id] = write.run_key
        for write in unit:
            self._apply(write)
        return CommitStatus.COMMITTED

    def _may_insert(self, write: RunWrite, closing: set[int], inserted: dict[tuple[str, str], int]) -> bool:
        """Whether the run it follows is the latest, counting those that the unit has inserted before, and closes."""
        name = write.namespace, write.workflow_id
        latest = inserted.get(name) or self._data.latest.get(name, 0)
        if latest != write.expected_latest_run_key:
            return False
        if not latest or latest in closing:
            return True
        return latest in self._data.runs and not self._data.runs[latest].row.status.is_open

    def _apply(self, write: RunWrite) -> None:
        data = self._data
        run = data.runs.get(write.run_key)
        visibility = write.visibility or (run.row.visibility if run is not None else None)
        assert visibility is not None, "an insert has visibility"
        row = RunRow(
            shard=write.shard, run_key=write.run_key, namespace=write.namespace, workflow_id=write.workflow_id,
            run_id=write.run_id, version=write.version, status=write.status, attention_at=write.attention_at,
            is_busy=write.is_busy, state=write.state, history_length=write.history_length,
            history_size_bytes=write.history_size_bytes, visibility=visibility,
        )  # fmt: skip
        if run is None:
            run = data.runs[write.run_key] = _Run(row)
            run.previous = write.expected_latest_run_key
            data.latest[write.namespace, write.workflow_id] = write.run_key
        run.row = row
        run.batches += write.batches
        for key in write.items_delete:
            run.items.pop(key, None)
        for item in write.items_put:
            run.items[item.kind, item.item_id] = item.data
        for task_id in write.tasks_delete:
            self._drop_task(task_id)
        for task in write.tasks_put:
            data.tasks[task.task_id] = task
        for message_id in write.outbox_delete:
            if message_id in data.outbox and data.outbox[message_id].shard == write.shard:
                del data.outbox[message_id]
        for message in write.outbox_put:
            data.outbox[message.message_id] = message

    # --- numbers ----------------------------------------------------------------------------------------------------

    def reserve_run_keys(self, count: int) -> asyncio.Future[int]:
        first = self._data.next_run_key
        self._data.next_run_key += _positive(count)
        return self._done(first)

    def reserve_task_ids(self, count: int) -> asyncio.Future[int]:
        first = self._data.next_task_id
        self._data.next_task_id += _positive(count)
        return self._done(first)

    # --- runs -------------------------------------------------------------------------------------------------------

    def load_run(self, shard: int, run_key: int) -> asyncio.Future[RunRow | None]:
        run = self._data.runs.get(run_key)
        return self._done(run.whole() if run is not None and run.row.shard == shard else None)

    def load_runs(self, runs: Sequence[tuple[int, int]], history_bytes_max: int) -> asyncio.Future[list[LoadedRun]]:
        found = [self._data.runs[key] for shard, key in runs if key in self._data.runs]
        return self._done(
            [
                LoadedRun(
                    row=run.whole(),
                    history=tuple(run.batches) if run.row.history_size_bytes <= history_bytes_max else (),
                )
                for run in found
                if (run.row.shard, run.row.run_key) in set(runs)
            ]
        )

    def find_run(self, namespace: str, workflow_id: str, run_id: str) -> asyncio.Future[RunRow | None]:
        for key in sorted(self._data.runs, reverse=True):
            row = self._data.runs[key].row
            if (row.namespace, row.workflow_id) == (namespace, workflow_id) and run_id in ("", row.run_id):
                return self._done(self._data.runs[key].whole())
        return self._done(None)

    def read_history(
        self, shard: int, run_key: int, from_event_id: int, bytes_max: int
    ) -> asyncio.Future[list[HistoryBatch]]:
        run = self._data.runs.get(run_key)
        found: list[HistoryBatch] = []
        size = 0
        for batch in run.batches if run is not None and run.row.shard == shard else ():
            if batch.last_event_id < from_event_id:
                continue
            size += len(batch.events)
            if found and size > bytes_max:
                break
            found.append(batch)
        return self._done(found)

    def find_due_runs(self, shards: Sequence[int] | None, until: datetime, limit: int) -> asyncio.Future[list[DueRun]]:
        due = [
            DueRun(shard=row.shard, run_key=row.run_key, attention_at=row.attention_at)
            for row in self._open(shards)
            if row.attention_at is not None and row.attention_at <= until
        ]
        due.sort(key=lambda one: (one.attention_at, one.shard, one.run_key))
        return self._done(due[:limit])

    def find_busy_runs(
        self, shards: Sequence[int] | None, after_run_key: int, limit: int
    ) -> asyncio.Future[list[RunRow]]:
        busy = [row.run_key for row in self._open(shards) if row.is_busy and row.run_key > after_run_key]
        return self._done([self._data.runs[key].whole() for key in sorted(busy)[:limit]])

    def _open(self, shards: Sequence[int] | None) -> list[RunRow]:
        rows = [run.row for run in self._data.runs.values()]
        return [row for row in rows if row.status.is_open and (shards is None or row.shard in shards)]

    # --- tasks and messages -----------------------------------------------------------------------------------------

    def claim_tasks(
        self, namespace: str, task_queue: str, kind: TaskKind, limit: int, until: datetime
    ) -> asyncio.Future[list[TaskRow]]:
        now = self._now()
        waiting = [
            task
            for task in self._data.tasks.values()
            if (task.namespace, task.task_queue, task.kind) == (namespace, task_queue, kind)
            and (self._claims.get(task.task_id, now) <= now or self._data.claims_lie())
        ]
        waiting.sort(key=lambda task: (task.priority, task.task_id))
        claimed = waiting[: max(limit, 0)]
        for task in claimed:
            self._claims[task.task_id] = until
        return self._done(claimed)

    def release_tasks(self, task_ids: Sequence[int]) -> asyncio.Future[None]:
        for task_id in task_ids:
            self._claims.pop(task_id, None)
        return self._done(None)

    def delete_tasks(self, task_ids: Sequence[int]) -> asyncio.Future[None]:
        for task_id in task_ids:
            self._drop_task(task_id)
        return self._done(None)

    def _drop_task(self, task_id: int) -> None:
        self._data.tasks.pop(task_id, None)
        self._claims.pop(task_id, None)

    def find_queued_events(self, shard: int, run_key: int) -> asyncio.Future[set[int]]:
        tasks = self._data.tasks.values()
        return self._done({t.scheduled_event_id for t in tasks if (t.shard, t.run_key) == (shard, run_key)})

    def count_tasks(self, namespace: str, task_queue: str, kind: TaskKind) -> asyncio.Future[int]:
        wanted = (namespace, task_queue, kind)
        return self._done(sum((t.namespace, t.task_queue, t.kind) == wanted for t in self._data.tasks.values()))

    def list_backlogs(self) -> asyncio.Future[list[Backlog]]:
        queues: dict[tuple[str, str, TaskKind], list[TaskRow]] = {}
        for task in self._data.tasks.values():
            queues.setdefault((task.namespace, task.task_queue, task.kind), []).append(task)
        return self._done(
            [
                Backlog(
                    namespace=key[0], task_queue=key[1], kind=key[2], count=len(queues[key]),
                    oldest=min(queues[key], key=lambda task: task.task_id),
                )
                for key in sorted(queues)
            ]
        )  # fmt: skip

    def read_outbox(
        self, shards: Sequence[int] | None, after_message_id: int, limit: int
    ) -> asyncio.Future[list[OutboxRow]]:
        rows = [
            row
            for message_id, row in sorted(self._data.outbox.items())
            if message_id > after_message_id and (shards is None or row.shard in shards)
        ]
        return self._done(rows[:limit])

    def delete_outbox(self, message_ids: Sequence[int]) -> asyncio.Future[None]:
        for message_id in message_ids:
            self._data.outbox.pop(message_id, None)
        return self._done(None)

    # --- lists ------------------------------------------------------------------------------------------------------

    def list_runs(
        self, namespace: str, where: VisibilityFilter | None, limit: int, before_run_key: int | None
    ) -> asyncio.Future[list[RunRow]]:
        rows = [
            msgspec.structs.replace(run.row, state=b"")
            for key, run in sorted(self._data.runs.items(), reverse=True)
            if run.row.namespace == namespace and (before_run_key is None or key < before_run_key)
        ]
        return self._done(_unfiltered(rows, where)[:limit])

    def count_runs(
        self, namespace: str, where: VisibilityFilter | None
    ) -> asyncio.Future[dict[WorkflowExecutionStatus, int]]:
        counts: dict[WorkflowExecutionStatus, int] = {}
        rows = [run.row for run in self._data.runs.values() if run.row.namespace == namespace]
        for row in _unfiltered(rows, where):
            counts[row.status] = counts.get(row.status, 0) + 1
        return self._done(counts)

    def list_search_attributes(self, namespace: str) -> asyncio.Future[dict[str, str]]:
        return self._done({})

    def delete_run(self, shard: int, run_key: int) -> asyncio.Future[Deletion]:
        data = self._data
        run = data.runs.get(run_key)
        if run is None or run.row.shard != shard:
            return self._done(Deletion.NOT_FOUND)
        if run.row.status.is_open:
            return self._done(Deletion.OPEN)
        if any(row.run_key == run_key for row in data.outbox.values()):
            return self._done(Deletion.UNDELIVERED)
        self._remove(run_key)
        return self._done(Deletion.DELETED)

    def _remove(self, run_key: int) -> None:
        data = self._data
        run = data.runs.pop(run_key)
        for other in data.runs.values():
            if other.previous == run_key:
                other.previous = run.previous
        name = run.row.namespace, run.row.workflow_id
        if data.latest.get(name) == run_key:
            del data.latest[name]
            if run.previous in data.runs:
                data.latest[name] = run.previous
        for task_id in [task.task_id for task in data.tasks.values() if task.run_key == run_key]:
            self._drop_task(task_id)

    def delete_closed_runs(self, namespace: str, closed_before: datetime, limit: int) -> asyncio.Future[int]:
        data = self._data
        undelivered = {row.run_key for row in data.outbox.values()}
        old: list[tuple[datetime, int]] = []
        for key, run in data.runs.items():
            close_time = run.row.visibility.close_time
            if run.row.namespace != namespace or run.row.status.is_open or close_time is None or key in undelivered:
                continue
            if close_time < closed_before:
                old.append((close_time, key))
        for _, key in sorted(old)[:limit]:
            self._remove(key)
        return self._done(min(len(old), limit))

    # --- namespaces, deployments ------------------------------------------------------------------------------------

    def get_namespace(self, name: str) -> asyncio.Future[NamespaceRow | None]:
        return self._done(self._data.namespaces.get(name))

    def put_namespace(self, row: NamespaceRow) -> asyncio.Future[bool]:
        is_new = row.name not in self._data.namespaces
        self._data.namespaces.setdefault(row.name, row)
        return self._done(is_new)

    def list_namespaces(self) -> asyncio.Future[list[NamespaceRow]]:
        return self._done([self._data.namespaces[name] for name in sorted(self._data.namespaces)])

    def put_deployment_if_revision(self, row: DeploymentRow) -> asyncio.Future[bool]:
        key = (row.namespace, row.name)
        stored = self._data.deployments.get(key)
        if (stored.revision if stored is not None else 0) != row.revision - 1:
            return self._done(False)
        self._data.deployments[key] = row
        return self._done(True)

    def list_deployments(self) -> asyncio.Future[list[DeploymentRow]]:
        return self._done([self._data.deployments[key] for key in sorted(self._data.deployments)])

    def delete_deployment_if_revision(self, namespace: str, name: str, revision: int) -> asyncio.Future[bool]:
        stored = self._data.deployments.get((namespace, name))
        if stored is None or stored.revision != revision:
            return self._done(False)
        del self._data.deployments[namespace, name]
        return self._done(True)

    def get_api_key(self, key_id: str) -> asyncio.Future[ApiKeyRow | None]:
        return self._done(self._data.api_keys.get(key_id))

    def list_api_keys(self) -> asyncio.Future[list[ApiKeyRow]]:
        return self._done([self._data.api_keys[key_id] for key_id in sorted(self._data.api_keys)])

    def put_api_key_if_revision(self, row: ApiKeyRow) -> asyncio.Future[bool]:
        stored = self._data.api_keys.get(row.key_id)
        if (stored.revision if stored is not None else 0) != row.revision - 1:
            return self._done(False)
        self._data.api_keys[row.key_id] = row
        return self._done(True)

    # --- the nodes that share the store -----------------------------------------------------------------------------

    def find_versions(self, runs: Sequence[tuple[int, int]]) -> asyncio.Future[dict[int, int]]:
        found = {key: self._data.runs[key].row for shard, key in runs if key in self._data.runs}
        return self._done({key: row.version for key, row in found.items() if (row.shard, key) in set(runs)})

    def join_fleet(self, node_id: str, address: str, body: bytes, lease: timedelta) -> asyncio.Future[FleetView]:
        return self._done(self._registry.join(node_id, address, body, lease))

    def renew_node(self, node_id: str, body: bytes | None, lease: timedelta) -> asyncio.Future[FleetView | None]:
        return self._done(self._registry.renew(node_id, body, lease))

    def read_fleet(self, node_id: str) -> asyncio.Future[FleetView]:
        return self._done(self._registry.view(node_id))

    def remove_expired_nodes(self, node_ids: Sequence[str]) -> asyncio.Future[list[str]]:
        return self._done(self._registry.remove_expired(node_ids))

    def leave_fleet(self, node_id: str) -> asyncio.Future[None]:
        return self._done(self._registry.leave(node_id))

    def take_free_shards(self, node_id: str, shards: Sequence[int]) -> asyncio.Future[list[ShardLease]]:
        return self._done(self._registry.take_free(node_id, shards))

    def release_shards(self, leases: Sequence[ShardLease]) -> asyncio.Future[None]:
        return self._done(self._registry.release(leases))

    def post_mail(self, node_id: str, body: bytes) -> asyncio.Future[bool]:
        return self._done(self._registry.post(node_id, body))

    def take_mail(self, node_id: str) -> asyncio.Future[list[bytes]]:
        return self._done(self._registry.take_mail(node_id))

    def close(self) -> asyncio.Future[None]:
        answer = self._done(None)
        self._is_closed = True
        return answer

    def _done(self, value: T) -> asyncio.Future[T]:
        if self._is_closed:
            raise StoreError("the store is closed. Expected: no calls after close()")
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        future.set_result(value)
        return future


def _positive(count: int) -> int:
    if count < 1:
        raise ValueError(f"{count} numbers were to be reserved; expected at least 1")
    return count


def _unfiltered(rows: list[RunRow], where: VisibilityFilter | None) -> list[RunRow]:
    if where is not None:
        raise NotImplementedError("the model store does not search; nothing that the simulation does needs that")
    return rows


_fits_the_port: type[Store] = ModelStore
