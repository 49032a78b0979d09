"""Starting tasks that waited: in a queued row, or with the session that has the run cached.

Owns: the way from a claimed row (or a sticky wait) to an offer. Never: claims rows itself (``engine.matching``).
"""

from __future__ import annotations

import logging

from clew.core.transition import Transition, WorkflowTaskReady
from clew.core.versioning import forget_sticky
from clew.engine.funnel import Funnel, submission_of
from clew.engine.locate import Locator
from clew.engine.matching import Matcher, Session, Want
from clew.engine.offers import OfferDesk
from clew.engine.peers import Peers
from clew.engine.runs import RunCache, RunEntry
from clew.engine.versions import Versions
from clew.model.rejection import Rejection
from clew.ports.clock import Clock
from clew.ports.store import Store, StoreCorrupt, TaskKind, TaskRow

logger = logging.getLogger("clew.engine")


class Claims:
    """All methods belong to the engine's loop."""

    def __init__(
        self,
        *,
        store: Store,
        clock: Clock,
        cache: RunCache,
        matcher: Matcher,
        desk: OfferDesk,
        funnel: Funnel,
        versions: Versions,
        locator: Locator,
        peers: Peers,
    ) -> None:
        self._store = store
        self._clock = clock
        self._cache = cache
        self._matcher = matcher
        self._desk = desk
        self._funnel = funnel
        self._versions = versions
        self._locator = locator
        self._peers = peers

    async def start(self, row: TaskRow, *, is_shared: bool = False) -> bool:
        """Start the task of a claimed row, or drop the row when nobody wants it any more.

        Answers False when no session can have the task now, and so the row was set aside. A shared row is one that
        another node has claimed and could not use.

        Raises:
            StoreError: The run could not be read; the caller releases the row.
        """
        try:
            entry = await self._cache.load(row.shard, row.run_key)
        except StoreCorrupt as error:
            # It keeps its claim for a while, so that it does not hold up those behind it.
            logger.error("matching.run_unreadable run_key=%s error=%s", row.run_key, error)
            return False
        want = self._want(entry, row) if entry is not None else None
        is_usable = want is not None and self._matcher.can_take(row, want)
        if entry is not None and not is_usable:
            if not await self._locator.is_current(entry):
                return await self.start(row, is_shared=is_shared)
            want = self._want(entry, row)  # routes may have changed meanwhile
        if entry is None or want is None:
            self._matcher.forget_set_aside(row)
            await self._store.delete_tasks([row.task_id])
            return True
        take = (
            self._matcher.take_workflow_session
            if row.kind is TaskKind.WORKFLOW
            else self._matcher.take_activity_session
        )
        session = take(row.namespace, row.task_queue, want.type_name, want.version)
        if session is None:
            self._matcher.set_aside(row, want, is_shared=is_shared)
            return False
        submission = submission_of(entry, Transition(), self._funnel.settle)
        submission.tasks_delete = [row.task_id]
        start = (
            self._desk.start_claimed_workflow_task
            if row.kind is TaskKind.WORKFLOW
            else self._desk.start_claimed_activity
        )
        refused = start(submission, session, row.scheduled_event_id, row.attempt, self._clock.now())
        if isinstance(refused, Rejection):
            if not await self._locator.is_current(entry):
                return await self.start(row, is_shared=is_shared)
            await self._store.delete_tasks([row.task_id])
            return True
        self._funnel.submit_prepared(submission)
        return True

    def start_sticky(self, session: Session, run_key: int, scheduled_event_id: int, attempt: int) -> None:
        """Start a task that waited for this very session; its credit is used up already."""
        entry = self._cache.get(run_key)
        if entry is None:
            self._matcher.refund(session, TaskKind.WORKFLOW)
            return
        if not self._may_have(session, entry):
            self._matcher.refund(session, TaskKind.WORKFLOW)
            self._offer_elsewhere(entry, scheduled_event_id, attempt)
            return
        submission = submission_of(entry, Transition(), self._funnel.settle)
        refused = self._desk.start_claimed_workflow_task(
            submission, session, scheduled_event_id, attempt, self._clock.now()
        )
        if refused is None:
            self._funnel.submit_prepared(submission)

    async def take_up(self, shard: int, run_key: int) -> None:
        """Have the run in memory as it is stored, and start its task if that waits for a session of this node.

        Raises:
            StoreError: The run could not be read.
        """
        entry = self._cache.get(run_key)
        if entry is not None:
            await self._locator.is_current(entry)
        entry = await self._cache.load(shard, run_key)
        if entry is None or not entry.state.is_open:
            return
        task = entry.state.workflow_task
        if task is None or task.started_event_id or task.not_before is not None or not task.sticky_session:
            return
        if self._peers.is_elsewhere(task.sticky_session):
            return
        session = self._matcher.take_sticky_session(task.sticky_session)
        waiting = (run_key, task.scheduled_event_id, task.attempt)
        if session is None:
            # Whoever committed the task did not know yet that the session has ended.
            forget_sticky(entry.state)
            self._offer_elsewhere(entry, task.scheduled_event_id, task.attempt)
        elif waiting not in session.sticky_waiting:
            if self._matcher.use_workflow_credit(session):
                self.start_sticky(session, *waiting)
            else:
                session.sticky_waiting.append(waiting)

    def recheck_sticky(self, session: Session) -> None:
        """Versions were rerouted: tasks that wait for this session and must not go to it any more go elsewhere."""
        for waiting in list(session.sticky_waiting):
            run_key, scheduled_event_id, attempt = waiting
            entry = self._cache.get(run_key)
            if entry is not None and not self._may_have(session, entry):
                session.sticky_waiting.remove(waiting)
                self._offer_elsewhere(entry, scheduled_event_id, attempt)

    def _may_have(self, session: Session, entry: RunEntry) -> bool:
        return session.version == self._versions.for_workflow(entry.state)

    def _offer_elsewhere(self, entry: RunEntry, scheduled_event_id: int, attempt: int) -> None:
        state = entry.state
        task = state.workflow_task
        if task is None or task.scheduled_event_id != scheduled_event_id or task.attempt != attempt:
            return
        if task.started_event_id or not state.is_open:
            return
        ready = WorkflowTaskReady(
            task_queue=state.task_queue,
            scheduled_event_id=scheduled_event_id,
            attempt=attempt,
            sticky_session=task.sticky_session,
        )
        submission = submission_of(entry, Transition(effects=[ready]), self._funnel.settle)
        self._funnel.hand_over(submission, self._clock.now())
        self._funnel.submit_prepared(submission)

    def _want(self, entry: RunEntry, row: TaskRow) -> Want | None:
        """What the row's task asks of a session; None when nobody waits for it any more."""
        state = entry.state
        if not state.is_open:
            return None
        if row.kind is TaskKind.WORKFLOW:
            task = state.workflow_task
            wanted = (
                task is not None and task.scheduled_event_id == row.scheduled_event_id and not task.started_event_id
            )
            if not wanted:
                return None
            return Want(TaskKind.WORKFLOW, state.workflow_type, self._versions.for_workflow(state))
        activity = state.activities.get(row.scheduled_event_id)
        if activity is None or activity.is_started or activity.attempt != row.attempt:
            return None
        version = self._versions.for_activity(state, activity.task_queue)
        return Want(TaskKind.ACTIVITY, activity.activity_type, version)
