"""Housekeeping: retention, and the sweep for tasks that lost their row.

Owns: the slow loops of a node. Never: anything that a run's progress depends on in the ordinary case.

How it works: every run that has work out at workers is marked busy in the store. The sweep walks those runs and queues
a row for each task that is scheduled and neither leased, nor waiting in a row, nor with its session: a wake-up that was
lost (a row removed by hand) is made again within `SWEEP_INTERVAL`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Final

from clew.core.decisions import outstanding_tasks
from clew.core.transition import Transition, WorkflowTaskReady
from clew.engine.funnel import Funnel, submission_of
from clew.engine.namespaces import Namespaces
from clew.engine.offers import OfferDesk
from clew.engine.peers import Peers
from clew.engine.runs import RunCache
from clew.ports.clock import Clock
from clew.ports.store import Store, StoreError

logger = logging.getLogger("clew.engine")

SWEEP_INTERVAL: Final = timedelta(seconds=60)
RETENTION_INTERVAL: Final = timedelta(minutes=5)
DELETE_ROWS: Final = 500
PAGE_ROWS: Final = 500


class Keeping:
    """All methods belong to the engine's loop."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        cache: RunCache,
        funnel: Funnel,
        desk: OfferDesk,
        *,
        namespaces: Namespaces,
        peers: Peers,
    ) -> None:
        self._store = store
        self._clock = clock
        self._cache = cache
        self._funnel = funnel
        self._desk = desk
        self._namespaces = namespaces
        self._peers = peers
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Begin the loops."""
        self._tasks = [
            asyncio.ensure_future(self._every(SWEEP_INTERVAL, self.sweep)),
            asyncio.ensure_future(self._every(RETENTION_INTERVAL, self.delete_expired)),
        ]

    async def close(self) -> None:
        """End the loops."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def sweep(self) -> int:
        """Queue tasks that lost their row, and answer how many."""
        found = 0
        after = 0
        while True:
            # Asked for each page: others may have got shards of this node while the store took its time with the last.
            shards = self._peers.own_shards()
            rows = await self._store.find_busy_runs(shards, after, PAGE_ROWS) if shards != [] else ()
            if not rows:
                break
            after = rows[-1].run_key
            for row in rows:
                entry = await self._cache.load(row.shard, row.run_key)
                ready = outstanding_tasks(entry.state) if entry is not None and entry.unsettled_count == 0 else []
                waiting = [task for task in ready if not self._is_sticky(task)]
                if entry is None or not waiting:
                    continue
                queued = await self._store.find_queued_events(entry.shard, entry.run_key)
                lost = [task for task in waiting if task.scheduled_event_id not in queued]
                if lost and not entry.is_discarded and entry.unsettled_count == 0:
                    still = {task.scheduled_event_id for task in outstanding_tasks(entry.state)}
                    lost = [task for task in lost if task.scheduled_event_id in still]
                    logger.warning("keeping.task_requeued run_id=%s count=%d", entry.state.run_id, len(lost))
                    found += len(lost)
                    submission = submission_of(entry, Transition(effects=list(lost)), self._funnel.settle)
                    self._funnel.hand_over(submission, self._clock.now())
                    self._funnel.submit_prepared(submission)
        return found

    async def delete_expired(self) -> int:
        """Delete closed runs whose retention time is over, and answer how many."""
        deleted = 0
        for namespace in self._namespaces.all():
            if not self._peers.does_housekeeping(namespace.name):
                continue
            before = self._clock.now() - timedelta(seconds=namespace.retention_seconds)
            while True:
                count = await self._store.delete_closed_runs(namespace.name, before, DELETE_ROWS)
                deleted += count
                if count < DELETE_ROWS:
                    break
        return deleted

    @staticmethod
    def _is_sticky(task: object) -> bool:
        return isinstance(task, WorkflowTaskReady) and bool(task.sticky_session)

    async def _every(self, interval: timedelta, work: Callable[[], Awaitable[int]]) -> None:
        while True:
            await self._sleep(interval)
            try:
                await work()
            except StoreError as error:
                logger.warning("keeping.failed error=%s", error)

    async def _sleep(self, interval: timedelta) -> None:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def wake() -> None:
            if not done.done():
                done.set_result(None)

        timer = self._clock.call_at(self._clock.now() + interval, wake)
        try:
            await done
        finally:
            timer.cancel()
