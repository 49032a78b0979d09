"""The store, measured: batches, conflicts, errors, runs that begin and end, leases of shards.

Owns: the wrapper around the port. Never: changes a call or an answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from typing import Any, Final, cast, final

from clew.model.policies import WorkflowExecutionStatus
from clew.ports.store import CommitStatus, FleetView, RunWrite, ShardLease, Store, StoreError
from clew.server.metrics.metrics import Metrics

_COMMITTED: Final = CommitStatus.COMMITTED
_RUNNING: Final = WorkflowExecutionStatus.RUNNING


@final
class MeteredStore:
    """Stands for the port; see `metered_store`."""

    def __init__(self, store: Store, metrics: Metrics) -> None:
        self._store = store
        self._metrics = metrics
        self._loop = asyncio.get_running_loop()

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        if name.startswith("_") or not callable(found):
            return found
        method: Callable[..., Any] = found

        def call(*args: Any, **named: Any) -> Any:
            answer = method(*args, **named)
            if isinstance(answer, asyncio.Future):
                future = cast("asyncio.Future[Any]", answer)
                future.add_done_callback(lambda done: self._note_error(name, done))
                return future
            return self._watched(name, answer) if asyncio.iscoroutine(answer) else answer

        call.__name__ = name
        object.__setattr__(self, name, call)
        return call

    def commit_if_current(self, units: Sequence[tuple[RunWrite, ...]]) -> Awaitable[list[CommitStatus]]:
        """Make units durable."""
        began = self._loop.time()
        self._metrics.commit_units.observe(len(units))
        committing = asyncio.ensure_future(self._store.commit_if_current(units))

        def committed(done: asyncio.Future[list[CommitStatus]]) -> None:
            self._metrics.commit_seconds.observe(self._loop.time() - began)
            self._note_error("commit_if_current", done)
            if not done.cancelled() and done.exception() is None:
                self._note_units(units, done.result())

        committing.add_done_callback(committed)
        return committing

    def load_run(self, shard: int, run_key: int) -> Awaitable[Any]:
        """Read a run that is not in memory."""
        self._metrics.run_lookups.add("miss")
        return asyncio.ensure_future(self._watched("load_run", self._store.load_run(shard, run_key)))

    def load_runs(self, runs: Sequence[tuple[int, int]], history_bytes_max: int) -> Awaitable[Any]:
        """Read runs that are not in memory."""
        self._metrics.run_lookups.add("miss", by=len(runs))
        loaded = self._store.load_runs(runs, history_bytes_max)
        return asyncio.ensure_future(self._watched("load_runs", loaded))

    def find_run(self, namespace: str, workflow_id: str, run_id: str) -> Awaitable[Any]:
        """Read a run that is not in memory."""
        self._metrics.run_lookups.add("miss")
        found = self._store.find_run(namespace, workflow_id, run_id)
        return asyncio.ensure_future(self._watched("find_run", found))

    async def take_free_shards(self, node_id: str, shards: Sequence[int]) -> list[ShardLease]:
        """Lease shards."""
        taken: list[ShardLease] = await self._watched("take_free_shards", self._store.take_free_shards(node_id, shards))
        self._metrics.lease_changes.add("gained", by=len(taken))
        return taken

    async def release_shards(self, leases: Sequence[ShardLease]) -> None:
        """Give leases back."""
        await self._watched("release_shards", self._store.release_shards(leases))
        self._metrics.lease_changes.add("released", by=len(leases))

    async def renew_node(self, node_id: str, body: bytes | None, lease: timedelta) -> FleetView | None:
        """Renew this node's own lease."""
        view: FleetView | None = await self._watched("renew_node", self._store.renew_node(node_id, body, lease))
        if view is None:
            self._metrics.lease_changes.add("lost")
        else:
            self._metrics.nodes.set(len(view.nodes))
        return view

    async def _watched(self, name: str, awaitable: Awaitable[Any]) -> Any:
        try:
            return await awaitable
        except StoreError as error:
            self._metrics.store_errors.add(name, type(error).__name__)
            raise

    def _note_error(self, name: str, done: asyncio.Future[Any]) -> None:
        error = None if done.cancelled() else done.exception()
        if isinstance(error, StoreError):
            self._metrics.store_errors.add(name, type(error).__name__)

    def _note_units(self, units: Sequence[tuple[RunWrite, ...]], statuses: Sequence[CommitStatus]) -> None:
        metrics = self._metrics
        for unit, status in zip(units, statuses, strict=True):
            if status is not _COMMITTED:
                metrics.commit_conflicts.add(status.value)
                continue
            for write in unit:
                if not write.expected_version:
                    metrics.runs_started.add(write.namespace)
                if write.status is not _RUNNING and not write.status.is_open:
                    metrics.runs_closed.add(write.namespace, write.status.value)


def metered_store(store: Store, metrics: Metrics) -> Store:
    """The same store, measured; on the service loop."""
    return cast(Store, MeteredStore(store, metrics))
