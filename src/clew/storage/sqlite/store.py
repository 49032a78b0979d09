"""The SQLite store: one file (or memory), one owning process.

Owns: `open_store`, `open_reader` and the methods of the port, which hand work to the threads. Never: SQL.

How it works: see ``threads`` (who runs what), ``commit`` (the write path), ``ownership`` (who owns the file).
Everything here runs on one event loop and never blocks it.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Coroutine, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Final

from clew.model.policies import WorkflowExecutionStatus
from clew.ports.clock import Clock
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
    RunRow,
    RunWrite,
    ShardLease,
    Store,
    TaskKind,
    TaskRow,
    VisibilityFilter,
)
from clew.storage.sqlite import api_keys, deployments, reads, search_attributes, tasks, visibility, writes
from clew.storage.sqlite.commit import GroupCommitter
from clew.storage.sqlite.connection import MEMORY, connect_reader, connect_writer, to_path
from clew.storage.sqlite.errors import to_store_error
from clew.storage.sqlite.fleet import FleetRegistry
from clew.storage.sqlite.ownership import Ownership, acquire
from clew.storage.sqlite.schema import migrate
from clew.storage.sqlite.search_attributes import AttributeNames
from clew.storage.sqlite.threads import CallQueue

BUSY_TIMEOUT_DEFAULT: Final = timedelta(seconds=10)
"""How long a lock of another program is waited for before a call fails as unavailable."""

_BLOCK: Final = 10_000
"""Numbers reserved at a time; a crash skips what is left of a block, and 64 bits have room for that."""

_DELETE_CHUNK: Final = 100
"""Runs removed in one transaction, so that commits are not held up by retention."""


class SqliteReader:
    """The reading methods of the store; beside a running owner it is all that another process gets."""

    def __init__(self, path: str, calls: CallQueue, shard_count: int) -> None:
        self.path = path
        """The real path of the file, or ``:memory:``."""
        self.shard_count = shard_count
        self._calls = calls

    def load_run(self, shard: int, run_key: int) -> asyncio.Future[RunRow | None]:
        """The run with its pending items."""
        return self._calls.read(partial(reads.load_run, shard=shard, run_key=run_key))

    def load_runs(self, runs: Sequence[tuple[int, int]], history_bytes_max: int) -> asyncio.Future[list[LoadedRun]]:
        """These runs as far as they exist, with their histories where those are short."""
        return self._calls.read(partial(reads.load_runs, runs=runs, history_bytes_max=history_bytes_max))

    def find_run(self, namespace: str, workflow_id: str, run_id: str) -> asyncio.Future[RunRow | None]:
        """The run with this run id, or with an empty `run_id` the latest run of the workflow id."""
        return self._calls.read(partial(reads.find_run, namespace=namespace, workflow_id=workflow_id, run_id=run_id))

    def read_history(
        self, shard: int, run_key: int, from_event_id: int, bytes_max: int
    ) -> asyncio.Future[list[HistoryBatch]]:
        """Batches from the one that contains `from_event_id` on, up to `bytes_max`, at least one."""
        return self._calls.read(
            partial(reads.read_history, shard=shard, run_key=run_key, from_event_id=from_event_id, bytes_max=bytes_max)
        )

    def find_due_runs(self, shards: Sequence[int] | None, until: datetime, limit: int) -> asyncio.Future[list[DueRun]]:
        """Open runs whose attention is due by `until`, earliest first."""
        return self._calls.read(partial(reads.find_due_runs, shards=shards, until=until, limit=limit))

    def find_busy_runs(
        self, shards: Sequence[int] | None, after_run_key: int, limit: int
    ) -> asyncio.Future[list[RunRow]]:
        """Open runs marked busy, in the order of their keys."""
        return self._calls.read(partial(reads.find_busy_runs, shards=shards, after_run_key=after_run_key, limit=limit))

    def find_versions(self, runs: Sequence[tuple[int, int]]) -> asyncio.Future[dict[int, int]]:
        """The stored version of each of these runs, by run key."""
        return self._calls.read(partial(reads.find_versions, runs=runs))

    def count_tasks(self, namespace: str, task_queue: str, kind: TaskKind) -> asyncio.Future[int]:
        """How many tasks wait in a queue, claimed ones included."""
        return self._calls.read(partial(tasks.count_tasks, namespace=namespace, task_queue=task_queue, kind=kind))

    def list_backlogs(self) -> asyncio.Future[list[Backlog]]:
        """Every task queue and kind with a waiting task."""
        return self._calls.read(tasks.list_backlogs)

    def find_queued_events(self, shard: int, run_key: int) -> asyncio.Future[set[int]]:
        """The scheduled event ids for which this run has a task row."""
        return self._calls.read(partial(tasks.find_queued_events, shard=shard, run_key=run_key))

    def read_outbox(
        self, shards: Sequence[int] | None, after_message_id: int, limit: int
    ) -> asyncio.Future[list[OutboxRow]]:
        """Undelivered messages, oldest first."""
        return self._calls.read(
            partial(reads.read_outbox, shards=shards, after_message_id=after_message_id, limit=limit)
        )

    def list_runs(
        self, namespace: str, where: VisibilityFilter | None, limit: int, before_run_key: int | None
    ) -> asyncio.Future[list[RunRow]]:
        """Runs by descending run key, without pending items and state."""
        return self._calls.read(
            partial(visibility.list_runs, namespace=namespace, where=where, limit=limit, before_run_key=before_run_key)
        )

    def count_runs(
        self, namespace: str, where: VisibilityFilter | None
    ) -> asyncio.Future[dict[WorkflowExecutionStatus, int]]:
        """How many runs there are of each status."""
        return self._calls.read(partial(visibility.count_runs, namespace=namespace, where=where))

    def list_search_attributes(self, namespace: str) -> asyncio.Future[dict[str, str]]:
        """The search attributes in use, with their types."""
        return self._calls.read(partial(search_attributes.list_search_attributes, namespace=namespace))

    async def get_namespace(self, name: str) -> NamespaceRow | None:
        """The namespace, if there is one of this name."""
        found = await self._calls.read(partial(reads.list_namespaces, name=name))
        return found[0] if found else None

    def list_namespaces(self) -> asyncio.Future[list[NamespaceRow]]:
        """All namespaces by name."""
        return self._calls.read(reads.list_namespaces)

    def list_deployments(self) -> asyncio.Future[list[DeploymentRow]]:
        """The deployments of all namespaces, by namespace and name."""
        return self._calls.read(deployments.list_deployments)

    def get_api_key(self, key_id: str) -> asyncio.Future[ApiKeyRow | None]:
        """The API key, if there is one with this id."""
        return self._calls.read(partial(api_keys.get_api_key, key_id=key_id))

    def list_api_keys(self) -> asyncio.Future[list[ApiKeyRow]]:
        """All API keys, by id."""
        return self._calls.read(api_keys.list_api_keys)

    async def close(self) -> None:
        """Finish what was accepted, then let go of the file."""
        await self._calls.close()


class _Numbers:
    """Hands out consecutive numbers from blocks whose end is durable. Belongs to the loop."""

    def __init__(self, calls: CallQueue, counter: str, first: int) -> None:
        self._calls = calls
        self._counter = counter
        self.next = first
        self._end = first

    async def reserve(self, count: int) -> int:
        if count < 1:
            raise ValueError(f"{count} numbers were to be reserved; expected at least 1")
        while self.next + count > self._end:
            end = self.next + max(count, _BLOCK)
            await self._calls.write(partial(writes.write_next_number, counter=self._counter, number=end))
            self._end = max(self._end, end)
        first = self.next
        self.next += count
        return first


class SqliteStore(SqliteReader):
    """The store as its owner has it: everything of the port `clew.ports.store.Store`."""

    def __init__(
        self,
        path: str,
        calls: CallQueue,
        shard_count: int,
        *,
        claims: tasks.TaskClaims,
        numbers: dict[str, int],
        ownership: Ownership | None,
        now: Callable[[], datetime],
    ) -> None:
        super().__init__(path, calls, shard_count)
        self._claims = claims
        self._run_keys = _Numbers(calls, writes.RUN_KEYS, numbers[writes.RUN_KEYS])
        self._task_ids = _Numbers(calls, writes.TASK_IDS, numbers[writes.TASK_IDS])
        self._ownership = ownership
        self._now = now
        self._fleet = FleetRegistry(now)

    def commit_if_current(self, units: Sequence[tuple[RunWrite, ...]]) -> asyncio.Future[list[CommitStatus]]:
        """Make each unit durable if all its guards hold; answers after the sync to disk."""
        return self._calls.commit(units)

    def reserve_run_keys(self, count: int) -> Coroutine[None, None, int]:
        """The first of `count` consecutive run keys that no one else will ever get."""
        return self._run_keys.reserve(count)

    def reserve_task_ids(self, count: int) -> Coroutine[None, None, int]:
        """The first of `count` consecutive ids for tasks and messages that no one else will ever get."""
        return self._task_ids.reserve(count)

    def claim_tasks(
        self, namespace: str, task_queue: str, kind: TaskKind, limit: int, until: datetime
    ) -> asyncio.Future[list[TaskRow]]:
        """Waiting tasks, highest priority and oldest first; none of them is given out again before `until`."""
        claim = partial(
            self._claims.claim,
            namespace=namespace,
            task_queue=task_queue,
            kind=kind,
            limit=limit,
            now=self._now(),
            until=until,
        )
        return self._calls.write(claim)

    def release_tasks(self, task_ids: Sequence[int]) -> asyncio.Future[None]:
        """Make claimed tasks claimable again."""

        def release(_: sqlite3.Connection) -> None:
            self._claims.forget(task_ids)

        return self._calls.write(release)

    def delete_tasks(self, task_ids: Sequence[int]) -> asyncio.Future[None]:
        """Remove task rows that turned out to be stale; one that is not there is no error."""

        def delete(connection: sqlite3.Connection) -> None:
            writes.delete_tasks(connection, task_ids)
            self._claims.forget(task_ids)

        return self._calls.write(delete)

    def delete_outbox(self, message_ids: Sequence[int]) -> asyncio.Future[None]:
        """Remove delivered messages that left nothing else to record; one that is not there is no error."""
        return self._calls.write(partial(writes.delete_outbox, message_ids=message_ids))

    def delete_run(self, shard: int, run_key: int) -> asyncio.Future[Deletion]:
        """Remove one closed run with its history."""
        return self._calls.write(partial(writes.delete_run, shard=shard, run_key=run_key))

    async def delete_closed_runs(self, namespace: str, closed_before: datetime, limit: int) -> int:
        """Remove up to `limit` closed runs with their history; answers how many."""
        deleted = 0
        while deleted < limit:
            chunk = min(_DELETE_CHUNK, limit - deleted)
            count = await self._calls.write(
                partial(writes.delete_closed_runs, namespace=namespace, closed_before=closed_before, limit=chunk)
            )
            deleted += count
            if count < chunk:
                break
        return deleted

    def put_namespace(self, row: NamespaceRow) -> asyncio.Future[bool]:
        """Create the namespace; False when it is there already (and is left as it is)."""
        return self._calls.write(partial(writes.put_namespace, row=row))

    def put_deployment_if_revision(self, row: DeploymentRow) -> asyncio.Future[bool]:
        """Write the deployment if the stored revision is the one before that of `row`."""
        return self._calls.write(partial(deployments.put_deployment_if_revision, row=row))

    def put_api_key_if_revision(self, row: ApiKeyRow) -> asyncio.Future[bool]:
        """Write the API key if the stored revision is the one before that of `row`."""
        return self._calls.write(partial(api_keys.put_api_key_if_revision, row=row))

    def delete_deployment_if_revision(self, namespace: str, name: str, revision: int) -> asyncio.Future[bool]:
        """Remove the deployment if the stored revision is this one."""
        return self._calls.write(
            partial(deployments.delete_deployment_if_revision, namespace=namespace, name=name, revision=revision)
        )

    async def join_fleet(self, node_id: str, address: str, body: bytes, lease: timedelta) -> FleetView:
        """Enter a node."""
        return self._fleet.join(node_id, address, body, lease)

    async def renew_node(self, node_id: str, body: bytes | None, lease: timedelta) -> FleetView | None:
        """Extend the node's lease; None when its row is gone."""
        return self._fleet.renew(node_id, body, lease)

    async def read_fleet(self, node_id: str) -> FleetView:
        """The fleet as `node_id` sees it."""
        return self._fleet.view(node_id)

    async def remove_expired_nodes(self, node_ids: Sequence[str]) -> list[str]:
        """Remove those of these nodes whose lease is over; answers which."""
        return self._fleet.remove_expired(node_ids)

    async def leave_fleet(self, node_id: str) -> None:
        """Remove the node."""
        self._fleet.leave(node_id)

    async def take_free_shards(self, node_id: str, shards: Sequence[int]) -> list[ShardLease]:
        """Give the node those of these shards that are free; answers those it got."""
        return self._fleet.take_free(node_id, shards)

    async def release_shards(self, leases: Sequence[ShardLease]) -> None:
        """Give shards back."""
        self._fleet.release(leases)

    async def post_mail(self, node_id: str, body: bytes) -> bool:
        """Leave a message for a node; False when there is no such node."""
        return self._fleet.post(node_id, body)

    async def take_mail(self, node_id: str) -> list[bytes]:
        """Remove and answer the messages that wait for the node."""
        return self._fleet.take_mail(node_id)

    async def close(self) -> None:
        """Finish what was accepted, then let go of the file."""
        await self._calls.close()
        if self._ownership is not None:
            self._ownership.release()
            self._ownership = None


if TYPE_CHECKING:
    _fits_the_port: type[Store] = SqliteStore


def _system_now() -> datetime:
    return datetime.now(UTC)  # noqa: TID251 - the default clock of an adapter


async def open_store(
    address: str,
    *,
    clock: Clock | None = None,
    busy_timeout: timedelta = BUSY_TIMEOUT_DEFAULT,
    size_bytes_max: int | None = None,
    reader_count: int = 2,
    shard_count: int = 1,
) -> SqliteStore:
    """Open a store as its owner, making it if there is none.

    Args:
        address: A path, ``sqlite:path``, or ``sqlite::memory:`` for one that lives as long as it is open.
        clock: What decides whether a claim on a task has run out; the system's clock if not given.
        busy_timeout: How long a lock of another program on the file is waited for.
        size_bytes_max: The size that the file may grow to.
        reader_count: Reading threads.
        shard_count: Fixed when the store is made; later values are ignored.

    Raises:
        StoreInUse: Another process owns the file.
        StoreIncompatible: The file is not a store, or one of a newer Clew.
        StoreReadOnly: The file or its directory cannot be written.
        StoreError: What else is wrong with the file.
    """
    loop = asyncio.get_running_loop()
    path = to_path(address)
    now = _system_now if clock is None else clock.now
    opening = partial(
        _open,
        path,
        now().isoformat(),
        busy_timeout_ms=round(busy_timeout.total_seconds() * 1000),
        size_bytes_max=size_bytes_max,
        reader_count=reader_count,
        shard_count=shard_count,
    )
    connection, readers, ownership, shard_count, numbers = await loop.run_in_executor(None, opening)
    claims = tasks.TaskClaims()
    calls = CallQueue(path, loop)
    calls.add_writer(connection, GroupCommitter(path, claims, AttributeNames()))
    if readers:
        calls.add_readers(readers)
    return SqliteStore(path, calls, shard_count, claims=claims, numbers=numbers, ownership=ownership, now=now)


def _open(
    path: str, now_text: str, *, busy_timeout_ms: int, size_bytes_max: int | None, reader_count: int, shard_count: int
) -> tuple[sqlite3.Connection, list[sqlite3.Connection], Ownership | None, int, dict[str, int]]:
    ownership = None if path == MEMORY else acquire(path)
    connections: list[sqlite3.Connection] = []
    try:
        writer = connect_writer(path, busy_timeout_ms=busy_timeout_ms, size_bytes_max=size_bytes_max)
        connections.append(writer)
        migrate(writer, now_text)
        GroupCommitter.prepare(writer)
        shard_count = writes.read_or_put_meta(writer, "shard_count", shard_count)
        numbers = {name: writes.read_next_number(writer, name) for name in (writes.RUN_KEYS, writes.TASK_IDS)}
        if path != MEMORY:
            connections.extend(connect_reader(path, busy_timeout_ms=busy_timeout_ms) for _ in range(reader_count))
        return writer, connections[1:], ownership, shard_count, numbers
    except BaseException as error:
        for connection in connections:
            connection.close()
        if ownership is not None:
            ownership.release()
        if isinstance(error, sqlite3.Error):
            raise to_store_error(error, path) from error
        raise


async def open_reader(address: str, *, busy_timeout: timedelta = BUSY_TIMEOUT_DEFAULT) -> SqliteReader:
    """Open a store to read from it only, beside its owner or without one.

    Raises:
        StoreIncompatible: The file is not a store of this version.
        StoreError: What else is wrong with the file.
    """
    loop = asyncio.get_running_loop()
    path = to_path(address)
    timeout_ms = round(busy_timeout.total_seconds() * 1000)
    connection = await loop.run_in_executor(None, partial(_open_reader, path, timeout_ms))
    calls = CallQueue(path, loop)
    shard_count = int(connection.execute("SELECT value FROM meta WHERE key = 'shard_count'").fetchone()[0])
    calls.add_readers([connection])
    return SqliteReader(path, calls, shard_count)


def _open_reader(path: str, busy_timeout_ms: int) -> sqlite3.Connection:
    return connect_reader(path, busy_timeout_ms=busy_timeout_ms)
