"""The PostgreSQL store: one database, any number of processes.

Owns: `open_store` and the methods of the port, each of which is one job on a connection. Never: SQL.

How it works: see ``committer`` (the write path), ``connections`` (who waits how long for what), ``schema``
(migrations).
A call is accepted at once and done in a task of its own, so that a caller who stops waiting leaves no connection in
the middle of a statement.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable, Coroutine, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Concatenate, Final, ParamSpec, TypeVar

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
    StoreError,
    StoreIncompatible,
    StoreReadOnly,
    TaskKind,
    TaskRow,
    VisibilityFilter,
)
from clew.storage.postgres import fleet, reads, schema, tasks, visibility, writes
from clew.storage.postgres.address import Address, parse_address
from clew.storage.postgres.commit import UnitWriter
from clew.storage.postgres.committer import Committer
from clew.storage.postgres.connections import Connections
from clew.storage.postgres.errors import sqlstate
from clew.storage.values import to_micros

if TYPE_CHECKING:
    from clew.storage.postgres.connections import Connection, Job

T = TypeVar("T")
P = ParamSpec("P")

Query = Callable[Concatenate["Connection", str, P], Coroutine[Any, Any, T]]

LANES_MAX: Final = 2
"""Commits in flight at a time; while they are made durable the next one gathers."""

_DELETE_CHUNK: Final = 500
"""Runs that retention looks for at a time; it removes them shard by shard."""

_POOL_WITH_KEEPING: Final = 4
"""Of so many connections one is kept for the node's lease, which must not wait behind a crowd of other calls."""

MIGRATION_TIMEOUT: Final = timedelta(minutes=30)


class PostgresStore:
    """Everything of the port `clew.ports.store.Store`. All methods belong to the loop it was opened on."""

    def __init__(
        self,
        address: Address,
        connections: Connections,
        committer: Committer | None,
        *,
        shard_count: int,
        clock: Clock | None,
        keeping: Connections | None = None,
    ) -> None:
        self.address = address
        self.shard_count = shard_count
        self._connections = connections
        self._keeping = keeping or connections
        self._committer = committer
        self._clock = clock
        self._all_shards = list(range(shard_count))
        self._loop = asyncio.get_running_loop()
        self._jobs: set[asyncio.Task[Any]] = set()
        self._is_closed = False

    # --- commits ----------------------------------------------------------------------------------------------------

    def commit_if_current(self, units: Sequence[tuple[RunWrite, ...]]) -> asyncio.Future[list[CommitStatus]]:
        """Make each unit durable if all its guards hold; answers when the server has it on disk."""
        self._check_open()
        return self._owned().commit(units)

    def reserve_run_keys(self, count: int) -> asyncio.Future[int]:
        """The first of `count` consecutive run keys that no one else will ever get."""
        return self._reserve(writes.RUN_KEYS, count)

    def reserve_task_ids(self, count: int) -> asyncio.Future[int]:
        """The first of `count` consecutive ids for tasks and messages that no one else will ever get."""
        return self._reserve(writes.TASK_IDS, count)

    def _reserve(self, counter: str, count: int) -> asyncio.Future[int]:
        if count < 1:
            raise ValueError(f"{count} numbers were to be reserved; expected at least 1")
        # To be done twice costs numbers only, so a lost answer is no trouble.
        return self._read(writes.reserve, counter, count)

    # --- runs -------------------------------------------------------------------------------------------------------

    def load_run(self, shard: int, run_key: int) -> asyncio.Future[RunRow | None]:
        """The run with its pending items."""
        return self._read(reads.load_run, shard, run_key)

    def load_runs(self, runs: Sequence[tuple[int, int]], history_bytes_max: int) -> asyncio.Future[list[LoadedRun]]:
        """These runs as far as they exist, with their histories where those are short."""
        return self._read(reads.load_runs, runs, history_bytes_max)

    def find_run(self, namespace: str, workflow_id: str, run_id: str) -> asyncio.Future[RunRow | None]:
        """The run with this run id, or with an empty `run_id` the latest run of the workflow id."""
        return self._read(reads.find_run, self._shard_of(namespace, workflow_id), namespace, workflow_id, run_id)

    def read_history(
        self, shard: int, run_key: int, from_event_id: int, bytes_max: int
    ) -> asyncio.Future[list[HistoryBatch]]:
        """Batches from the one that contains `from_event_id` on, up to `bytes_max`, at least one."""
        return self._read(reads.read_history, shard, run_key, from_event_id, bytes_max)

    def find_due_runs(self, shards: Sequence[int] | None, until: datetime, limit: int) -> asyncio.Future[list[DueRun]]:
        """Open runs whose attention is due by `until`, earliest first."""
        return self._read(reads.find_due_runs, self._these(shards), until, limit)

    def find_busy_runs(
        self, shards: Sequence[int] | None, after_run_key: int, limit: int
    ) -> asyncio.Future[list[RunRow]]:
        """Open runs marked busy, in the order of their keys."""
        return self._read(reads.find_busy_runs, self._these(shards), after_run_key, limit)

    def find_versions(self, runs: Sequence[tuple[int, int]]) -> asyncio.Future[dict[int, int]]:
        """The stored version of each of these runs, by run key."""
        return self._read(reads.find_versions, runs)

    def delete_run(self, shard: int, run_key: int) -> asyncio.Future[Deletion]:
        """Remove one closed run with its history."""
        return self._write(writes.delete_run, shard, run_key)

    async def delete_closed_runs(self, namespace: str, closed_before: datetime, limit: int) -> int:
        """Remove up to `limit` closed runs with their history; answers how many."""
        deleted = 0
        while deleted < limit:
            chunk = min(_DELETE_CHUNK, limit - deleted)
            found = await self._read(writes.find_expired_runs, namespace, closed_before, chunk)
            count = 0
            for shard, run_keys in found.items():
                count += await self._write(writes.delete_runs, shard, run_keys)
            deleted += count
            if count == 0:
                break
        return deleted

    # --- tasks and messages -----------------------------------------------------------------------------------------

    def claim_tasks(
        self, namespace: str, task_queue: str, kind: TaskKind, limit: int, until: datetime
    ) -> asyncio.Future[list[TaskRow]]:
        """Waiting tasks, highest priority and oldest first; none of them is given out again before `until`."""
        return self._write(tasks.claim_tasks, namespace, task_queue, kind, limit, self._now(), until)

    def release_tasks(self, task_ids: Sequence[int]) -> asyncio.Future[None]:
        """Make claimed tasks claimable again."""
        return self._read(tasks.release_tasks, self._all_shards, task_ids)

    def delete_tasks(self, task_ids: Sequence[int]) -> asyncio.Future[None]:
        """Remove task rows that turned out to be stale; one that is not there is no error."""
        return self._read(tasks.delete_tasks, self._all_shards, task_ids)

    def find_queued_events(self, shard: int, run_key: int) -> asyncio.Future[set[int]]:
        """The scheduled event ids for which this run has a task row."""
        return self._read(tasks.find_queued_events, shard, run_key)

    def count_tasks(self, namespace: str, task_queue: str, kind: TaskKind) -> asyncio.Future[int]:
        """How many tasks wait in a queue, claimed ones included."""
        return self._read(tasks.count_tasks, namespace, task_queue, kind)

    def list_backlogs(self) -> asyncio.Future[list[Backlog]]:
        """Every task queue and kind with a waiting task."""
        return self._read(tasks.list_backlogs)

    def read_outbox(
        self, shards: Sequence[int] | None, after_message_id: int, limit: int
    ) -> asyncio.Future[list[OutboxRow]]:
        """Undelivered messages, oldest first."""
        return self._read(reads.read_outbox, self._these(shards), after_message_id, limit)

    def delete_outbox(self, message_ids: Sequence[int]) -> asyncio.Future[None]:
        """Remove delivered messages that left nothing else to record; one that is not there is no error."""
        return self._read(writes.delete_outbox, self._all_shards, message_ids)

    # --- lists ------------------------------------------------------------------------------------------------------

    def list_runs(
        self, namespace: str, where: VisibilityFilter | None, limit: int, before_run_key: int | None
    ) -> asyncio.Future[list[RunRow]]:
        """Runs by descending start, without pending items and state."""
        return self._read(visibility.list_runs, namespace, where, limit, before_run_key)

    def count_runs(
        self, namespace: str, where: VisibilityFilter | None
    ) -> asyncio.Future[dict[WorkflowExecutionStatus, int]]:
        """How many runs there are of each status."""
        return self._read(visibility.count_runs, namespace, where)

    def list_search_attributes(self, namespace: str) -> asyncio.Future[dict[str, str]]:
        """The search attributes in use, with their types."""
        return self._read(visibility.list_search_attributes, namespace)

    # --- namespaces and deployments ---------------------------------------------------------------------------------

    async def get_namespace(self, name: str) -> NamespaceRow | None:
        """The namespace, if there is one of this name."""
        found = await self._read(reads.list_namespaces, name)
        return found[0] if found else None

    def list_namespaces(self) -> asyncio.Future[list[NamespaceRow]]:
        """All namespaces by name."""
        return self._read(reads.list_namespaces)

    def put_namespace(self, row: NamespaceRow) -> asyncio.Future[bool]:
        """Create the namespace; False when it is there already (and is left as it is)."""
        return self._write(writes.put_namespace, row)

    def list_deployments(self) -> asyncio.Future[list[DeploymentRow]]:
        """The deployments of all namespaces, by namespace and name."""
        return self._read(writes.list_deployments)

    def put_deployment_if_revision(self, row: DeploymentRow) -> asyncio.Future[bool]:
        """Write the deployment if the stored revision is the one before that of `row`."""
        return self._write(writes.put_deployment_if_revision, row)

    def delete_deployment_if_revision(self, namespace: str, name: str, revision: int) -> asyncio.Future[bool]:
        """Remove the deployment if the stored revision is this one."""
        return self._write(writes.delete_deployment_if_revision, namespace, name, revision)

    async def get_api_key(self, key_id: str) -> ApiKeyRow | None:
        """The API key of this id, if there is one."""
        found = await self._read(writes.list_api_keys, key_id)
        return found[0] if found else None

    def list_api_keys(self) -> asyncio.Future[list[ApiKeyRow]]:
        """All API keys by id."""
        return self._read(writes.list_api_keys)

    def put_api_key_if_revision(self, row: ApiKeyRow) -> asyncio.Future[bool]:
        """Write the API key if the stored revision is the one before that of `row`."""
        return self._write(writes.put_api_key_if_revision, row)

    # --- the nodes that share the store -----------------------------------------------------------------------------

    def join_fleet(self, node_id: str, address: str, body: bytes, lease: timedelta) -> asyncio.Future[FleetView]:
        """Enter a node under an id that was never used."""
        return self._write_keeping(fleet.join_fleet, self._now(), node_id, address, body, lease)

    def renew_node(self, node_id: str, body: bytes | None, lease: timedelta) -> asyncio.Future[FleetView | None]:
        """Extend the node's lease and, unless it is None, replace its body; None when the node's row is gone."""
        return self._read_keeping(fleet.renew_node, self._now(), node_id, body, lease)

    def read_fleet(self, node_id: str) -> asyncio.Future[FleetView]:
        """The fleet as `node_id` sees it."""
        return self._read_keeping(fleet.read_fleet, self._now(), node_id)

    def remove_expired_nodes(self, node_ids: Sequence[str]) -> asyncio.Future[list[str]]:
        """Remove those of these nodes whose lease is over, with their shard leases and mail."""
        return self._write_keeping(fleet.remove_expired_nodes, self._now(), node_ids)

    def leave_fleet(self, node_id: str) -> asyncio.Future[None]:
        """Remove the node, with its shard leases and mail."""
        return self._read_keeping(fleet.leave_fleet, node_id)

    def take_free_shards(self, node_id: str, shards: Sequence[int]) -> asyncio.Future[list[ShardLease]]:
        """Give the node those of these shards that no node with a good lease holds."""
        return self._write_keeping(fleet.take_free_shards, self._now(), node_id, shards)

    def release_shards(self, leases: Sequence[ShardLease]) -> asyncio.Future[None]:
        """Give shards back; one that was taken since stays as it is."""
        return self._read_keeping(fleet.release_shards, leases)

    def post_mail(self, node_id: str, body: bytes) -> asyncio.Future[bool]:
        """Leave a message for a node; False when there is no such node."""
        return self._write(fleet.post_mail, node_id, body)

    def take_mail(self, node_id: str) -> asyncio.Future[list[bytes]]:
        """Remove and answer the messages that wait for the node, oldest first."""
        return self._write(fleet.take_mail, node_id)

    # --- the end ----------------------------------------------------------------------------------------------------

    def _now(self) -> int | None:
        """The time in microseconds, if it is not the server's."""
        return None if self._clock is None else to_micros(self._clock.now())

    async def close(self) -> None:
        """Finish what was accepted, then let go of the database."""
        self._is_closed = True
        if self._committer is not None:
            await self._committer.wait_idle()
        while self._jobs:
            await asyncio.wait(list(self._jobs))
        if self._committer is not None:
            await self._committer.close()
        await self._connections.close()
        if self._keeping is not self._connections:
            await self._keeping.close()

    # --- jobs -------------------------------------------------------------------------------------------------------

    def _read(self, query: Query[P, T], *args: P.args, **kwargs: P.kwargs) -> asyncio.Future[T]:
        """Do what may be done again when its answer is lost."""
        return self._spawn(self._connections.read, partial(_run, query, self.address.schema, args))

    def _write(self, query: Query[P, T], *args: P.args, **kwargs: P.kwargs) -> asyncio.Future[T]:
        """Do what must not be done again when its answer is lost."""
        self._owned()
        return self._spawn(self._connections.write, partial(_run, query, self.address.schema, args))

    def _read_keeping(self, query: Query[P, T], *args: P.args, **kwargs: P.kwargs) -> asyncio.Future[T]:
        """As `_read`, for what keeps the node alive in the eyes of the others."""
        return self._spawn(self._keeping.read, partial(_run, query, self.address.schema, args))

    def _write_keeping(self, query: Query[P, T], *args: P.args, **kwargs: P.kwargs) -> asyncio.Future[T]:
        """As `_write`, likewise."""
        self._owned()
        return self._spawn(self._keeping.write, partial(_run, query, self.address.schema, args))

    def _spawn(
        self, do: Callable[[Job[T]], Coroutine[Any, Any, T]], job: Callable[[Connection], Coroutine[Any, Any, T]]
    ) -> asyncio.Future[T]:
        self._check_open()
        task = self._loop.create_task(do(job), name="clew-store-call")
        self._jobs.add(task)
        task.add_done_callback(self._jobs.discard)
        return asyncio.shield(task)

    async def run_job(self, query: Query[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Do a query that is no call of the port, and may be done again when its answer is lost."""
        return await self._read(query, *args, **kwargs)

    def _check_open(self) -> None:
        if self._is_closed:
            raise self._connections.closed()

    def _owned(self) -> Committer:
        if self._committer is None:
            raise StoreReadOnly(
                f"{self.address.name} was opened for reading. Expected: no changes. Open it with open_store for those"
            )
        return self._committer

    def _these(self, shards: Sequence[int] | None) -> Sequence[int]:
        return self._all_shards if shards is None else shards

    def _shard_of(self, namespace: str, workflow_id: str) -> int:
        if self.shard_count == 1:
            return 0
        return zlib.crc32(f"{len(namespace)}:{namespace}{workflow_id}".encode()) % self.shard_count


async def _run(query: Callable[..., Coroutine[Any, Any, T]], schema_name: str, args: Any, connection: Connection) -> T:
    return await query(connection, schema_name, *args)


if TYPE_CHECKING:
    _fits_the_port: type[Store] = PostgresStore


async def open_store(address: str | Address, *, clock: Clock | None = None) -> PostgresStore:
    """Open a store, making it if there is none and bringing an older one up to date.

    Args:
        address: ``postgresql://user:password@host:5432/database?option=…``; see `Address` for the options.
        clock: What decides whether claims and leases have run out; the server's clock if not given, so that all nodes
            go by one.

    Raises:
        StoreIncompatible: The server is too old, or the store was made by a newer Clew.
        StoreUnavailable: The server cannot be reached.
        StoreError: What else is wrong.
    """
    if isinstance(address, str):
        address = parse_address(address)
    lane_count = max(1, min(LANES_MAX, address.pool_size // 2))
    keeping = Connections(address, 1) if address.pool_size >= _POOL_WITH_KEEPING else None
    connections = Connections(address, address.pool_size - lane_count - (keeping is not None))
    try:
        await prepare(connections)
        shard_count = await connections.read(
            lambda c: writes.read_or_put_meta(c, address.schema, writes.SHARD_COUNT, address.shard_count)
        )
        writer_id = await connections.read(lambda c: writes.reserve(c, address.schema, writes.WRITERS, 1))
    except BaseException:
        await connections.close()
        raise
    lanes = Connections(address, lane_count)
    committer = Committer(lanes, UnitWriter(address.schema), writer_id=writer_id, lane_count=lane_count)
    committer.warm_up()
    return PostgresStore(
        address,
        connections,
        committer,
        shard_count=shard_count,
        clock=clock,
        keeping=keeping,
    )


async def open_reader(address: str | Address) -> PostgresStore:
    """Open a store to read from it only, beside the engines that use it; its user needs no right to write.

    Raises:
        StoreIncompatible: There is no store, or it is not one of this version.
        StoreError: What else is wrong.
    """
    if isinstance(address, str):
        address = parse_address(address)
    connections = Connections(address, 2)
    try:
        state = await connections.read(partial(schema.check, schema=address.schema, name=address.name))
        if state.is_new or state.of_phase("pre"):
            raise StoreIncompatible(
                f"the database {address.name} has no store of this version in its schema {address.schema}. Start a "
                "program that uses it, or run 'clew db migrate'"
            )
        count = await connections.read(partial(writes.read_meta, schema=address.schema, key=writes.SHARD_COUNT))
    except BaseException:
        await connections.close()
        raise
    return PostgresStore(address, connections, None, shard_count=count or 1, clock=None)


async def prepare(connections: Connections) -> list[str]:
    """See that the schema is there and fits; what may be applied while others run is applied. Answers what was."""
    address = connections.address
    state = await connections.read(partial(schema.check, schema=address.schema, name=address.name))
    if not state.of_phase("pre") and not state.is_new:
        return []
    return await migrate(connections, phases=("pre",))


async def migrate(connections: Connections, *, phases: tuple[schema.Phase, ...]) -> list[str]:
    """Apply what is missing of these phases (of a new store: everything); answers the names.

    Raises:
        StoreIncompatible: The user of the connection may not.
    """
    address = connections.address
    seconds = MIGRATION_TIMEOUT.total_seconds()
    try:
        return await connections.write(partial(_migrate, address=address, phases=phases), timeout_seconds=seconds)
    except StoreError as error:
        if error.__cause__ is None or sqlstate(error.__cause__) != "42501":
            raise
        raise StoreIncompatible(
            f"the database {address.name} lacks parts of the schema {address.schema}, and its user may not make them "
            f"({error.__cause__}). Run 'clew db migrate' once as a user who may, before the programs start"
        ) from error


async def _migrate(connection: Connection, address: Address, phases: tuple[schema.Phase, ...]) -> list[str]:
    milliseconds = str(round(MIGRATION_TIMEOUT.total_seconds() * 1000))
    settings = f"SET LOCAL statement_timeout = {milliseconds}; SET LOCAL lock_timeout = {milliseconds}"
    if address.is_pooled:  # in a transaction already
        await connection.execute(settings)
        return await schema.migrate(connection, address.schema, phases=phases)
    async with connection.transaction():
        await connection.execute(settings)
        return await schema.migrate(connection, address.schema, phases=phases)
