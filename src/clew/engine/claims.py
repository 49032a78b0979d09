"""Starting tasks that waited: in a queued row, or with the session that has the run cached.

Owns: the way from a claimed row (or a sticky wait) to an offer. Never: claims rows itself (``engine.matching``).
"""

from __future__ import annotations

import logging

from clew.core.transition import Transition
from clew.engine.funnel import Funnel, OpSubmission
from clew.engine.matching import Matcher, Session
from clew.engine.offers import OfferDesk
from clew.engine.runs import RunCache, RunEntry
from clew.model.rejection import Rejection
from clew.ports.clock import Clock
from clew.ports.store import Store, TaskKind, TaskRow

logger = logging.getLogger("clew.engine")


class Claims:
    """All methods belong to the engine's loop."""

    def __init__(
        self, *, store: Store, clock: Clock, cache: RunCache, matcher: Matcher, desk: OfferDesk, funnel: Funnel
    ) -> None:
        self._store = store
        self._clock = clock
        self._cache = cache
        self._matcher = matcher
        self._desk = desk
        self._funnel = funnel

    async def start(self, row: TaskRow) -> None:
        """Start the task of a claimed row, or drop the row when nobody wants it any more.

        Raises:
            StoreError: The run could not be read; the row is claimable again after its lease.
        """
        entry = await self._cache.load(row.shard, row.run_key)
        type_name = self._wanted_type(entry, row) if entry is not None else None
        if entry is None or type_name is None:
            await self._store.delete_tasks([row.task_id])
            return
        take = (
            self._matcher.take_workflow_session
            if row.kind is TaskKind.WORKFLOW
            else self._matcher.take_activity_session
        )
        session = take(row.namespace, row.task_queue, type_name)
        if session is None:
            if self._matcher.is_polled(row.namespace, row.task_queue, row.kind) and not self._matcher.is_polled(
                row.namespace, row.task_queue, row.kind, type_name
            ):
                logger.warning("matching.unknown_type queue=%s type=%s", row.task_queue, type_name)
                self._matcher.set_aside(row)
            else:
                await self._matcher.release(row)
            return
        submission = OpSubmission(entry, Transition(), self._funnel.settle, None)
        submission.tasks_delete = [row.task_id]
        start = (
            self._desk.start_claimed_workflow_task
            if row.kind is TaskKind.WORKFLOW
            else self._desk.start_claimed_activity
        )
        refused = start(submission, session, row.scheduled_event_id, row.attempt, self._clock.now())
        if isinstance(refused, Rejection):
            await self._store.delete_tasks([row.task_id])
            return
        self._funnel.submit_prepared(submission)

    def start_sticky(self, session: Session, run_key: int, scheduled_event_id: int, attempt: int) -> None:
        """Start a task that waited for this very session; its credit is used up already."""
        entry = self._cache.get(run_key)
        if entry is None:
            self._matcher.refund(session, TaskKind.WORKFLOW)
            return
        submission = OpSubmission(entry, Transition(), self._funnel.settle, None)
        refused = self._desk.start_claimed_workflow_task(
            submission, session, scheduled_event_id, attempt, self._clock.now()
        )
        if refused is None:
            self._funnel.submit_prepared(submission)

    @staticmethod
    def _wanted_type(entry: RunEntry, row: TaskRow) -> str | None:
        state = entry.state
        if not state.is_open:
            return None
        if row.kind is TaskKind.WORKFLOW:
            task = state.workflow_task
            if task is None or task.scheduled_event_id != row.scheduled_event_id or task.started_event_id:
                return None
            return state.workflow_type
        activity = state.activities.get(row.scheduled_event_id)
        if activity is None or activity.is_started or activity.attempt != row.attempt:
            return None
        return activity.activity_type
