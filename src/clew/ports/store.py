"""Storage as a port: what the engine needs of a store, and the rows that travel.

Owns: the Protocol `Store`, its rows and its errors. Never: SQL, or what a transition means.

How it works: the unit of durability is a *batch* of write units; the store makes each unit wholly durable or not at
all, and says for each how it went. A unit is one run's write, or several that stand or fall together (a close and the
run that continues it). Every write is guarded: an update by the version it was decided on, an insert by the run it
believes to be the latest of its workflow id. A guard that fails loses that unit alone.

Every row is keyed by shard first. ``attention_at`` is the next instant at which the run needs the engine (indexed);
``is_busy`` marks open runs that have work out at workers (indexed), which is all that a restart must look at.
Instants are aware UTC. Method names state their precondition.
"""

from __future__ import annotations

import enum
from collections.abc import Awaitable, Sequence
from datetime import datetime, timedelta
from typing import Protocol

import msgspec

from clew.model.events import Memo, SearchAttributes
from clew.model.policies import WorkflowExecutionStatus


class _Row(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Base of the rows."""


class TaskKind(enum.IntEnum):
    """What a queued task is for."""

    WORKFLOW = 1
    ACTIVITY = 2


class HistoryBatch(_Row, frozen=True):
    """The events of one transition, encoded once."""

    first_event_id: int
    last_event_id: int
    events: bytes


class PendingItem(_Row, frozen=True, kw_only=True):
    """One pending thing of a wide run, kept in a row of its own (design §5: few rows a transition)."""

    kind: int
    item_id: int
    data: bytes


class TaskRow(_Row, frozen=True, kw_only=True):
    """A task that waits for a worker. `task_id` grows and gives the order within a priority."""

    task_id: int
    shard: int
    run_key: int
    namespace: str
    task_queue: str
    kind: TaskKind
    scheduled_event_id: int
    attempt: int = 1
    priority: int = 3


class Backlog(_Row, frozen=True, kw_only=True):
    """What waits in one task queue: how many tasks of one kind, and the one that was queued first."""

    namespace: str
    task_queue: str
    kind: TaskKind
    count: int
    oldest: TaskRow


class OutboxRow(_Row, frozen=True, kw_only=True):
    """An effect on another execution, to be delivered at least once."""

    message_id: int
    shard: int
    run_key: int
    body: bytes


class Visibility(_Row, frozen=True, kw_only=True):
    """What people list and search runs by."""

    workflow_type: str
    task_queue: str
    start_time: datetime
    execution_time: datetime
    close_time: datetime | None = None
    first_execution_run_id: str = ""
    parent_workflow_id: str = ""
    parent_run_id: str = ""
    root_workflow_id: str = ""
    root_run_id: str = ""
    memo: Memo | None = None
    search_attributes: SearchAttributes | None = None


class RunWrite(msgspec.Struct, frozen=True, gc=False):
    """All that one commit changes of one run. Made by position only where the pipeline makes thousands a second.

    Args:
        expected_version: The version this was decided on; 0 inserts the run.
        expected_latest_run_key: For an insert: the run believed to be the latest of this workflow id, 0 for none. The
            store refuses the insert when another is there, or when that one is still open and not closed by the same
            unit.
        version: The version after this write.
        state: The snapshot; what it leaves out lies in pending items.
        visibility: Given at insert and whenever it changed.
        batches: One a transition, in order.
    """

    shard: int
    run_key: int
    namespace: str
    workflow_id: str
    run_id: str
    expected_version: int
    version: int
    status: WorkflowExecutionStatus
    attention_at: datetime | None
    is_busy: bool
    state: bytes
    history_length: int
    history_size_bytes: int
    expected_latest_run_key: int = 0
    visibility: Visibility | None = None
    batches: tuple[HistoryBatch, ...] = ()
    items_put: tuple[PendingItem, ...] = ()
    items_delete: tuple[tuple[int, int], ...] = ()
    """``(kind, item_id)`` of pending items to remove."""
    tasks_put: tuple[TaskRow, ...] = ()
    tasks_delete: tuple[int, ...] = ()
    """Task ids to remove; one that is not there is no error."""
    outbox_put: tuple[OutboxRow, ...] = ()
    outbox_delete: tuple[int, ...] = ()
    """Message ids to remove, of this run's shard; one that is not there is no error."""


class CommitStatus(enum.Enum):
    """How one unit of a batch went."""

    COMMITTED = "committed"
    VERSION_CONFLICT = "version_conflict"
    LATEST_RUN_CONFLICT = "latest_run_conflict"


class Deletion(enum.Enum):
    """What became of a run that was to be removed."""

    DELETED = "deleted"
    NOT_FOUND = "not_found"
    OPEN = "open"
    UNDELIVERED = "undelivered"
    """It has messages that are still to be delivered."""


class RunRow(msgspec.Struct, gc=False, frozen=True, kw_only=True):
    """A run as the store has it."""

    shard: int
    run_key: int
    namespace: str
    workflow_id: str
    run_id: str
    version: int
    status: WorkflowExecutionStatus
    attention_at: datetime | None
    is_busy: bool
    state: bytes
    history_length: int
    history_size_bytes: int
    visibility: Visibility
    items: tuple[PendingItem, ...] = ()


class LoadedRun(_Row, frozen=True, kw_only=True):
    """A run with its whole history, if that is short; else `history` is empty."""

    row: RunRow
    history: tuple[HistoryBatch, ...] = ()


class DueRun(_Row, frozen=True, kw_only=True):
    shard: int
    run_key: int
    attention_at: datetime


class NamespaceRow(_Row, frozen=True, kw_only=True):
    """A namespace: `secret` keys its idempotency keys; `settings` is the JSON of what differs from the defaults."""

    name: str
    secret: bytes
    retention_seconds: int
    settings: bytes = b"{}"


class DeploymentRow(_Row, frozen=True, kw_only=True):
    """What is known of one deployment of workers: `body` is JSON that the engine alone reads.

    Args:
        revision: Grows by one with every change; the first is 1.
    """

    namespace: str
    name: str
    revision: int
    body: bytes


class NodeRow(_Row, frozen=True, kw_only=True):
    """One engine process that shares the store with others (a node of the fleet), under the id of this incarnation.

    Args:
        address: Where it can be reached, for people; may be empty.
        body: JSON that the engine alone reads: what the workers of the node poll.
        lease_until: By the store's clock. A node whose lease is over may be gone; it is gone when its row is.
    """

    node_id: str
    address: str
    body: bytes
    lease_until: datetime


class ShardLease(_Row, frozen=True, kw_only=True):
    """Who does the work of a shard: good while the node has its lease. `epoch` grows each time it is taken."""

    shard: int
    node_id: str
    epoch: int


class FleetView(_Row, frozen=True, kw_only=True):
    """The fleet at one moment.

    Args:
        now: The store's clock.
        nodes: All that have a row, also those whose lease is over.
        shards: Those that a node holds; a shard without one was never taken or was given back.
        has_mail: Whether messages wait for the node that asked.
    """

    now: datetime
    nodes: tuple[NodeRow, ...]
    shards: tuple[ShardLease, ...]
    has_mail: bool = False


class ApiKeyRow(_Row, frozen=True, kw_only=True):
    """One API key: `body` is JSON that ``core.api_keys`` reads, with a salted digest and never the key itself.

    Args:
        revision: Grows by one with every change; the first is 1.
    """

    key_id: str
    revision: int
    body: bytes


class VisibilityCondition(_Row, frozen=True, kw_only=True):
    """One comparison of a filter: `attribute` ``operator`` `values` (already checked and typed)."""

    attribute: str
    operator: str
    """``=``, ``!=``, ``>``, ``>=``, ``<``, ``<=``, ``IN``, ``NOT IN``, ``BETWEEN``, ``STARTS_WITH``,
    ``NOT STARTS_WITH``, ``IS NULL``, ``IS NOT NULL``."""
    values: tuple[str | int | float | bool | datetime, ...] = ()


class VisibilityFilter(_Row, frozen=True, kw_only=True):
    """A tree of conditions: ``all`` of them, or ``any`` of them."""

    any_of: bool = False
    conditions: tuple[VisibilityCondition | VisibilityFilter, ...] = ()


class StoreError(Exception):
    """Base of what a store may raise; the message says what happened and what to do."""


class StoreUnavailable(StoreError):
    """A passing trouble (busy, connection lost): nothing of the call is known to be done; try again."""


class StoreFull(StoreError):
    """No room: nothing of the call was done; works again once there is room."""


class StoreReadOnly(StoreError):
    """The store cannot be written."""


class StoreUnstorable(StoreError):
    """A value has no stored form; the store was not asked."""


class StoreInUse(StoreError):
    """Another process owns the store."""


class StoreCorrupt(StoreError):
    """The store's contents are damaged; nothing was written."""


class StoreIncompatible(StoreError):
    """Not a Clew store, or one of another schema version."""


class Store(Protocol):
    """One database. Opened by its own constructor function; all methods belong to one event loop."""

    shard_count: int

    def commit_if_current(self, units: Sequence[tuple[RunWrite, ...]]) -> Awaitable[list[CommitStatus]]:
        """Make each unit durable if all its guards hold; answers in the order of the units, after the sync to disk.

        Raises:
            StoreError: Nothing of the batch was made durable.
        """
        ...

    def reserve_run_keys(self, count: int) -> Awaitable[int]:
        """The first of `count` consecutive run keys that no one else will ever get."""
        ...

    def reserve_task_ids(self, count: int) -> Awaitable[int]:
        """The first of `count` consecutive ids for tasks and outbox messages that no one else will ever get."""
        ...

    def load_run(self, shard: int, run_key: int) -> Awaitable[RunRow | None]: ...

    def load_runs(self, runs: Sequence[tuple[int, int]], history_bytes_max: int) -> Awaitable[list[LoadedRun]]:
        """These runs, given as ``(shard, run key)``, as far as they exist, in any order.

        Each comes with its history, as of the same moment, if that takes at most `history_bytes_max`.
        """
        ...

    def find_run(self, namespace: str, workflow_id: str, run_id: str) -> Awaitable[RunRow | None]:
        """The run with this run id, or with an empty `run_id` the latest run of the workflow id."""
        ...

    def read_history(
        self, shard: int, run_key: int, from_event_id: int, bytes_max: int
    ) -> Awaitable[list[HistoryBatch]]:
        """Batches in order, the first of which contains `from_event_id`; stops after `bytes_max`, but gives one."""
        ...

    def find_due_runs(self, shards: Sequence[int] | None, until: datetime, limit: int) -> Awaitable[list[DueRun]]:
        """Open runs whose attention is due by `until`, earliest first; ``None`` means every shard."""
        ...

    def find_busy_runs(self, shards: Sequence[int] | None, after_run_key: int, limit: int) -> Awaitable[list[RunRow]]:
        """Open runs marked busy with a run key above `after_run_key`, in order."""
        ...

    def claim_tasks(
        self, namespace: str, task_queue: str, kind: TaskKind, limit: int, until: datetime
    ) -> Awaitable[list[TaskRow]]:
        """Waiting tasks, highest priority and oldest first; none of them is given out again before `until`."""
        ...

    def release_tasks(self, task_ids: Sequence[int]) -> Awaitable[None]:
        """Make claimed tasks claimable again."""
        ...

    def delete_tasks(self, task_ids: Sequence[int]) -> Awaitable[None]:
        """Remove task rows that turned out to be stale; one that is not there is no error."""
        ...

    def find_queued_events(self, shard: int, run_key: int) -> Awaitable[set[int]]:
        """The scheduled event ids for which this run has a task row."""
        ...

    def count_tasks(self, namespace: str, task_queue: str, kind: TaskKind) -> Awaitable[int]: ...

    def list_backlogs(self) -> Awaitable[list[Backlog]]:
        """Every task queue and kind with a waiting task, claimed ones included, by namespace, name and kind."""
        ...

    def read_outbox(
        self, shards: Sequence[int] | None, after_message_id: int, limit: int
    ) -> Awaitable[list[OutboxRow]]:
        """Undelivered messages, oldest first."""
        ...

    def delete_outbox(self, message_ids: Sequence[int]) -> Awaitable[None]:
        """Remove delivered messages that left nothing else to record; one that is not there is no error."""
        ...

    def list_runs(
        self, namespace: str, where: VisibilityFilter | None, limit: int, before_run_key: int | None
    ) -> Awaitable[list[RunRow]]:
        """Runs by descending run key (so newest start first), without pending items; `state` is left empty."""
        ...

    def count_runs(
        self, namespace: str, where: VisibilityFilter | None
    ) -> Awaitable[dict[WorkflowExecutionStatus, int]]: ...

    def list_search_attributes(self, namespace: str) -> Awaitable[dict[str, str]]:
        """The search attributes in use in a namespace, each with its type: ``Keyword``, ``KeywordList``, ``Text``,
        ``Int``, ``Double``, ``Bool`` or ``Datetime``.
        """
        ...

    def delete_run(self, shard: int, run_key: int) -> Awaitable[Deletion]:
        """Remove one run with its history, if it is closed and its messages are delivered.

        Of the runs of its workflow id, the one before it becomes the latest if it was that.
        """
        ...

    def delete_closed_runs(self, namespace: str, closed_before: datetime, limit: int) -> Awaitable[int]:
        """Remove up to `limit` closed runs with their history; answers how many."""
        ...

    def get_namespace(self, name: str) -> Awaitable[NamespaceRow | None]: ...

    def put_namespace(self, row: NamespaceRow) -> Awaitable[bool]:
        """Create the namespace; False when it is there already (and is left as it is)."""
        ...

    def list_namespaces(self) -> Awaitable[list[NamespaceRow]]: ...

    def put_deployment_if_revision(self, row: DeploymentRow) -> Awaitable[bool]:
        """Write the deployment if the stored revision is the one before `row.revision` (for revision 1: if there is
        none); False, and nothing is changed, when it is not.
        """
        ...

    def list_deployments(self) -> Awaitable[list[DeploymentRow]]:
        """The deployments of all namespaces, by namespace and name."""
        ...

    def delete_deployment_if_revision(self, namespace: str, name: str, revision: int) -> Awaitable[bool]:
        """Remove the deployment if the stored revision is `revision`; False when it is not, or there is none."""
        ...

    def get_api_key(self, key_id: str) -> Awaitable[ApiKeyRow | None]: ...

    def list_api_keys(self) -> Awaitable[list[ApiKeyRow]]:
        """All API keys, ended ones too, by id."""
        ...

    def put_api_key_if_revision(self, row: ApiKeyRow) -> Awaitable[bool]:
        """Write the key if the stored revision is the one before `row.revision` (for revision 1: if there is none);
        False, and nothing is changed, when it is not.
        """
        ...

    # the nodes that share the store

    def find_versions(self, runs: Sequence[tuple[int, int]]) -> Awaitable[dict[int, int]]:
        """The stored version of each of these runs, given as ``(shard, run key)``, by run key; as far as they exist."""
        ...

    def join_fleet(self, node_id: str, address: str, body: bytes, lease: timedelta) -> Awaitable[FleetView]:
        """Enter a node under an id that was never used, with a lease from now on by the store's clock."""
        ...

    def renew_node(self, node_id: str, body: bytes | None, lease: timedelta) -> Awaitable[FleetView | None]:
        """Extend the node's lease (also one that is over) and, unless it is None, replace its body.

        Answers None, and changes nothing, when the node's row is gone.
        """
        ...

    def read_fleet(self, node_id: str) -> Awaitable[FleetView]:
        """The fleet as `node_id` sees it; changes nothing."""
        ...

    def remove_expired_nodes(self, node_ids: Sequence[str]) -> Awaitable[list[str]]:
        """Remove those of these nodes whose lease is over, with their shard leases and mail; answers which."""
        ...

    def leave_fleet(self, node_id: str) -> Awaitable[None]:
        """Remove the node, with its shard leases and mail."""
        ...

    def take_free_shards(self, node_id: str, shards: Sequence[int]) -> Awaitable[list[ShardLease]]:
        """Give the node those of these shards that no node with a good lease holds; answers those it got.

        Each gets the next epoch. None is given to a node without a row.
        """
        ...

    def release_shards(self, leases: Sequence[ShardLease]) -> Awaitable[None]:
        """Give shards back; one that was taken since (node or epoch differ) stays as it is."""
        ...

    def post_mail(self, node_id: str, body: bytes) -> Awaitable[bool]:
        """Leave a message for a node; False when there is no such node."""
        ...

    def take_mail(self, node_id: str) -> Awaitable[list[bytes]]:
        """Remove and answer the messages that wait for the node, oldest first."""
        ...

    def close(self) -> Awaitable[None]:
        """Finish what was accepted, then let go of the store."""
        ...
