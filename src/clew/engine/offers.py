"""Offers: handing ready tasks to workers.

Owns: the choice between a waiting session and a queued row, the task structs that workers get, and taking an offer back
when its commit fails.
Never: commits, or decides beyond starting a task.

How it works: `match_*` runs before the commit. When a session waits, the task is started in the same transition and an
`Offer` is kept on the submission; `send` makes the offer after the commit. Without a session, the task becomes a row. A
task struct is built at sending time from events kept beside the run; what is not at hand is read from the store first.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import TYPE_CHECKING, Final

import msgspec

from clew.core.decisions import decide_start_activity, decide_start_workflow_task
from clew.core.idempotency import idempotency_key
from clew.core.replies import StartedActivity, StartedWorkflowTask
from clew.core.transition import ActivityCancelWanted, ActivityTaskReady, WorkflowTaskReady
from clew.core.versioning import forget_sticky
from clew.engine.history import read_events
from clew.engine.ids import Ids
from clew.engine.matching import Matcher, Session
from clew.engine.peers import Peers
from clew.engine.runs import RunEntry
from clew.engine.versions import Versions
from clew.model.events import ActivityTaskScheduled, Event
from clew.model.limits import Limits
from clew.model.rejection import Rejection
from clew.ports.store import Store, StoreError, TaskKind, TaskRow
from clew.service.requests import ActivityCancelReason, ActivityTask, TaskToken, UpdateMessage, WorkflowTask

if TYPE_CHECKING:
    from clew.engine.funnel import OpSubmission

logger = logging.getLogger("clew.engine")

PRIORITY_DEFAULT: Final = 3

READ_AGAIN_SECONDS: Final = 0.25
"""How long after a failed read of a task's events it is tried again."""


class WorkflowOffer:
    """A started workflow task on its way to a session, to be sent once its start is durable."""

    __slots__ = ("entry", "is_partial", "session", "started")

    def __init__(self, entry: RunEntry, session: Session, started: StartedWorkflowTask, *, is_partial: bool) -> None:
        self.entry = entry
        self.session = session
        self.started = started
        self.is_partial = is_partial

    def is_held(self, entry: RunEntry) -> bool:
        """Whether the run, as it is now, counts on this very task being with the session."""
        task, started = entry.state.workflow_task, self.started
        return (
            task is not None
            and task.session == self.session.session_id
            and task.lease_id == started.lease_id
            and task.started_time == started.started_time
        )


class ActivityOffer:
    """A started attempt on its way to a session, to be sent once its start is durable."""

    __slots__ = (
        "attempt",
        "attempt_scheduled_time",
        "entry",
        "heartbeat_details",
        "lease_id",
        "scheduled_event_id",
        "session",
        "started_time",
    )

    def __init__(self, entry: RunEntry, session: Session, scheduled_event_id: int, started: StartedActivity) -> None:
        activity = started.activity
        self.entry = entry
        self.session = session
        self.scheduled_event_id = scheduled_event_id
        self.attempt = started.attempt
        self.lease_id = started.lease_id
        self.heartbeat_details = activity.heartbeat_details
        self.attempt_scheduled_time: datetime | None = activity.attempt_scheduled_time or activity.scheduled_time
        self.started_time = activity.started_time

    @classmethod
    def of_task(cls, entry: RunEntry, session: Session, task: ActivityTask) -> ActivityOffer:
        """The offer whose sending is to hand over this very task."""
        offer = cls.__new__(cls)
        offer.entry = entry
        offer.session = session
        offer.scheduled_event_id = task.token.scheduled_event_id
        offer.attempt = task.attempt
        offer.lease_id = task.token.lease_id
        offer.heartbeat_details = task.heartbeat_details
        offer.attempt_scheduled_time = task.current_attempt_scheduled_time or task.scheduled_time
        offer.started_time = task.started_time
        return offer

    def is_held(self, entry: RunEntry) -> bool:
        """Whether the run, as it is now, counts on this very attempt being with the session."""
        activity = entry.state.activities.get(self.scheduled_event_id)
        return (
            activity is not None
            and activity.session == self.session.session_id
            and activity.lease_id == self.lease_id
            and activity.started_time == self.started_time
        )


Offer = WorkflowOffer | ActivityOffer


class OfferDesk:
    """See the module docstring. All methods belong to the engine's loop."""

    def __init__(
        self,
        store: Store,
        matcher: Matcher,
        ids: Ids,
        *,
        limits_of: Callable[[str], Limits],
        secret_of: Callable[[str], bytes],
        spawn: Callable[[Awaitable[None]], None],
        versions: Versions,
        peers: Peers,
    ) -> None:
        self._store = store
        self._peers = peers
        self._matcher = matcher
        self._ids = ids
        self._limits_of = limits_of
        self._secret_of = secret_of
        self._spawn = spawn
        self._versions = versions
        self._is_closed = False

    # --- before the commit ------------------------------------------------------------------------------------------

    def match_workflow_task(self, submission: OpSubmission, effect: WorkflowTaskReady, now: datetime) -> None:
        """Start the task for a waiting session, leave it with the session that has the run cached, or queue a row."""
        entry = submission.entry
        state = entry.state
        version = self._versions.for_workflow(state)
        if effect.sticky_session:
            session = self._matcher.take_sticky_session(effect.sticky_session)
            if session is None and self._peers.is_elsewhere(effect.sticky_session):
                submission.sticky_elsewhere = effect.sticky_session
                return
            if session is None or session.version != version:
                forget_sticky(state)
            else:
                if self._matcher.use_workflow_credit(session):
                    self._start_workflow_task(submission, session, effect.scheduled_event_id, effect.attempt, now)
                else:
                    session.sticky_waiting.append((entry.run_key, effect.scheduled_event_id, effect.attempt))
                return
        session = self._matcher.take_workflow_session(state.namespace, state.task_queue, state.workflow_type, version)
        if session is not None:
            self._start_workflow_task(submission, session, effect.scheduled_event_id, effect.attempt, now)
        else:
            self._queue(
                submission,
                TaskKind.WORKFLOW,
                state.task_queue,
                effect.scheduled_event_id,
                effect.attempt,
                PRIORITY_DEFAULT,
            )

    def match_activity_task(self, submission: OpSubmission, effect: ActivityTaskReady, now: datetime) -> None:
        """Start the attempt for a waiting session, or queue a row."""
        entry = submission.entry
        state = entry.state
        pending = state.activities[effect.scheduled_event_id]
        session = self._matcher.take_activity_session(
            state.namespace,
            effect.task_queue,
            pending.activity_type,
            self._versions.for_activity(state, effect.task_queue),
        )
        if session is not None:
            self._start_activity(submission, session, effect.scheduled_event_id, effect.attempt, now)
        else:
            self._queue(
                submission,
                TaskKind.ACTIVITY,
                effect.task_queue,
                effect.scheduled_event_id,
                effect.attempt,
                effect.priority,
            )

    def start_claimed_workflow_task(
        self, submission: OpSubmission, session: Session, scheduled_event_id: int, attempt: int, now: datetime
    ) -> Rejection | None:
        """Start a task that waited in a row or with its session; the refusal when it is no longer wanted."""
        return self._start_workflow_task(submission, session, scheduled_event_id, attempt, now)

    def start_claimed_activity(
        self, submission: OpSubmission, session: Session, scheduled_event_id: int, attempt: int, now: datetime
    ) -> Rejection | None:
        """Start an attempt that waited in a row; the refusal when it is no longer wanted."""
        return self._start_activity(submission, session, scheduled_event_id, attempt, now)

    def _start_workflow_task(
        self, submission: OpSubmission, session: Session, scheduled_event_id: int, attempt: int, now: datetime
    ) -> Rejection | None:
        entry = submission.entry
        is_partial = entry.state.sticky_session == session.session_id
        outcome = decide_start_workflow_task(
            entry.state,
            scheduled_event_id=scheduled_event_id,
            attempt=attempt,
            session=session.session_id,
            identity=session.hello.identity,
            now=now,
            limits=self._limits_of(entry.state.namespace),
        )
        if isinstance(outcome, Rejection):
            self._matcher.refund(session, TaskKind.WORKFLOW)
            return outcome
        started: StartedWorkflowTask = outcome.reply
        outcome.reply = None
        submission.decided.absorb(outcome)
        submission.offers.append(WorkflowOffer(entry, session, started, is_partial=is_partial))
        return None

    def _start_activity(
        self, submission: OpSubmission, session: Session, scheduled_event_id: int, attempt: int, now: datetime
    ) -> Rejection | None:
        entry = submission.entry
        outcome = decide_start_activity(
            entry.state,
            scheduled_event_id=scheduled_event_id,
            attempt=attempt,
            session=session.session_id,
            identity=session.hello.identity,
            now=now,
        )
        if isinstance(outcome, Rejection):
            self._matcher.refund(session, TaskKind.ACTIVITY)
            return outcome
        started: StartedActivity = outcome.reply
        outcome.reply = None
        submission.decided.absorb(outcome)
        submission.offers.append(ActivityOffer(entry, session, scheduled_event_id, started))
        return None

    def _queue(
        self,
        submission: OpSubmission,
        kind: TaskKind,
        task_queue: str,
        scheduled_event_id: int,
        attempt: int,
        priority: int,
    ) -> None:
        entry = submission.entry
        row = TaskRow(
            task_id=self._ids.next_task_id(),
            shard=entry.shard,
            run_key=entry.run_key,
            namespace=entry.state.namespace,
            task_queue=task_queue,
            kind=kind,
            scheduled_event_id=scheduled_event_id,
            attempt=attempt,
            priority=priority,
        )
        if submission.tasks_put is None:
            submission.tasks_put = []
        submission.tasks_put.append(row)

    # --- after the commit -------------------------------------------------------------------------------------------

    def send(self, offer: Offer) -> None:
        """Make the offer; its start is durable."""
        if not offer.session.is_attached:
            return
        if isinstance(offer, ActivityOffer):
            scheduled = offer.entry.scheduled.get(offer.scheduled_event_id)
            if scheduled is None:
                self._spawn(self._send_activity_later(offer))
            else:
                self._send_activity(offer, scheduled)
            return
        events = self._events_at_hand(offer)
        if events is None:
            self._spawn(self._send_workflow_task_later(offer))
        else:
            self._send_workflow_task(offer, events)

    def withdraw(self, offer: Offer) -> None:
        """The start was not committed: give the credit back."""
        kind = TaskKind.ACTIVITY if isinstance(offer, ActivityOffer) else TaskKind.WORKFLOW
        self._matcher.refund(offer.session, kind)

    def send_cancel(self, entry: RunEntry, effect: ActivityCancelWanted) -> None:
        """Tell a running attempt to stop, here or at the node that its worker is attached to."""
        session = self._matcher.session(effect.session)
        if session is None and not self._peers.is_elsewhere(effect.session):
            return
        state = entry.state
        token = TaskToken(
            namespace=state.namespace,
            workflow_id=state.workflow_id,
            run_id=state.run_id,
            shard=entry.shard,
            run_key=entry.run_key,
            scheduled_event_id=effect.scheduled_event_id,
            attempt=effect.attempt,
            lease_id=effect.lease_id,
        )
        reason = ActivityCancelReason(effect.reason)
        if session is None:
            self._peers.on_cancel_wanted(effect.session, token, reason)
        else:
            session.sink.cancel_activity(token, reason)

    def note_rows(self, rows: list[TaskRow]) -> None:
        """Rows were queued: whoever waits on their queues may take them."""
        for namespace, task_queue, kind in {(r.namespace, r.task_queue, r.kind) for r in rows}:
            self._matcher.note_backlog(namespace, task_queue, kind)
        self._peers.on_rows_queued(rows)

    def forget_rows(self, task_ids: list[int]) -> None:
        """Remove rows of tasks that nobody wants any more."""
        self._spawn(self._delete_rows(task_ids))

    async def _delete_rows(self, task_ids: list[int]) -> None:
        try:
            await self._store.delete_tasks(task_ids)
        except StoreError as error:
            # They are dropped when they are next claimed.
            logger.warning("engine.rows_left count=%d error=%s", len(task_ids), error)

    async def release_rows(self, task_ids: list[int]) -> None:
        """Claimed rows were not started: they may be claimed again at once."""
        await self._matcher.release_claims(task_ids)

    def close(self) -> None:
        """Give up what waits for the store to be readable again."""
        self._is_closed = True

    def _events_at_hand(self, offer: WorkflowOffer) -> list[Event] | None:
        events = offer.entry.events_from(_first_event_id(offer))
        if not events:
            return events
        surplus = events[-1].event_id - _last_event_id(offer.started)
        return events[:-surplus] if surplus > 0 else events

    def task_at_hand(self, offer: WorkflowOffer) -> WorkflowTask | None:
        """The task as it will be sent; None when its events have to be read first."""
        events = self._events_at_hand(offer)
        return None if events is None else self._make_workflow_task(offer, events)

    def _send_workflow_task(self, offer: WorkflowOffer, events: list[Event]) -> None:
        entry = offer.entry
        if entry.queries:
            entry.queries_on_task += entry.queries
            entry.queries = []
        offer.session.sink.offer_workflow_task(self._make_workflow_task(offer, events))

    @staticmethod
    def _make_workflow_task(offer: WorkflowOffer, events: list[Event]) -> WorkflowTask:
        entry, started = offer.entry, offer.started
        state = entry.state
        if started.synthetic_events:
            events = [*events, *started.synthetic_events]
        return WorkflowTask(
            token=TaskToken(
                namespace=state.namespace,
                workflow_id=state.workflow_id,
                run_id=state.run_id,
                shard=entry.shard,
                run_key=entry.run_key,
                scheduled_event_id=started.scheduled_event_id,
                started_event_id=started.started_event_id,
                attempt=started.attempt,
                lease_id=started.lease_id,
            ),
            workflow_type=state.workflow_type,
            task_queue=state.task_queue,
            attempt=started.attempt,
            previous_started_event_id=started.previous_started_event_id,
            started_event_id=started.started_event_id,
            events=tuple(events),
            is_partial=offer.is_partial,
            queries=tuple([q.task for q in entry.queries_on_task]) if entry.queries_on_task else (),
            messages=tuple(
                [
                    UpdateMessage(
                        message_id=u.message_id,
                        request=u.request,
                        sequencing_event_id=u.sequencing_event_id,
                    )
                    for u in started.updates
                ]
            )
            if started.updates
            else (),
            scheduled_time=started.scheduled_time,
            started_time=started.started_time,
            workflow_task_timeout=state.workflow_task_timeout,
        )

    async def _send_workflow_task_later(self, offer: WorkflowOffer) -> None:
        first, last = _first_event_id(offer), _last_event_id(offer.started)
        events = await self._read_in_the_end(offer, first, last)
        if events is not None:
            self._send_workflow_task(offer, events)

    def _send_activity(self, offer: ActivityOffer, scheduled: ActivityTaskScheduled) -> None:
        entry = offer.entry
        state = entry.state
        secret = self._secret_of(state.namespace)
        offer.session.sink.offer_activity_task(
            ActivityTask(
                token=TaskToken(
                    namespace=state.namespace,
                    workflow_id=state.workflow_id,
                    run_id=state.run_id,
                    shard=entry.shard,
                    run_key=entry.run_key,
                    scheduled_event_id=offer.scheduled_event_id,
                    attempt=offer.attempt,
                    lease_id=offer.lease_id,
                    activity_id=scheduled.activity_id,
                ),
                activity_id=scheduled.activity_id,
                activity_type=scheduled.activity_type,
                workflow_type=state.workflow_type,
                task_queue=scheduled.task_queue,
                attempt=offer.attempt,
                idempotency_key=idempotency_key(secret, state.workflow_id, scheduled.activity_id, state.key_generation),
                header=scheduled.header,
                input=scheduled.input,
                heartbeat_details=offer.heartbeat_details,
                scheduled_time=scheduled.event_time,
                current_attempt_scheduled_time=offer.attempt_scheduled_time,
                started_time=offer.started_time,
                schedule_to_close_timeout=scheduled.schedule_to_close_timeout,
                start_to_close_timeout=scheduled.start_to_close_timeout,
                heartbeat_timeout=scheduled.heartbeat_timeout,
                retry_policy=scheduled.retry_policy,
                priority=scheduled.priority,
            )
        )

    async def _send_activity_later(self, offer: ActivityOffer) -> None:
        entry, event_id = offer.entry, offer.scheduled_event_id
        events = await self._read_in_the_end(offer, event_id, event_id)
        if events is None:
            return
        scheduled = events[0] if events else None
        assert isinstance(scheduled, ActivityTaskScheduled), f"event {event_id} schedules a pending activity"
        if event_id in entry.state.activities:
            entry.scheduled[event_id] = scheduled
        self._send_activity(offer, scheduled)

    async def _read_in_the_end(self, offer: Offer, first: int, last: int) -> list[Event] | None:
        """Events that a task needs, however long the store cannot be read; None when its worker has gone meanwhile.

        The task is leased to the session by now: not sending it would cost the session a credit for good, and the run
        the time until the lease ends.
        """
        entry, session = offer.entry, offer.session
        events: list[Event] | None = None
        while events is None and self._matcher.session(session.session_id) is session and not self._is_closed:
            try:
                events = await read_events(self._store, entry.shard, entry.run_key, first, last)
            except StoreError as error:
                logger.warning("engine.offer_delayed run_id=%s error=%s", entry.state.run_id, error)
                await asyncio.sleep(READ_AGAIN_SECONDS)
        return events if self._matcher.session(session.session_id) is session else None


def _first_event_id(offer: WorkflowOffer) -> int:
    return offer.started.previous_started_event_id + 1 if offer.is_partial else 1


def _last_event_id(started: StartedWorkflowTask) -> int:
    """The last event of history that belongs to the task; synthetic ones come after it."""
    return started.scheduled_event_id - 1 if started.synthetic_events else started.started_event_id


def with_queries(entry: RunEntry, task: WorkflowTask) -> WorkflowTask:
    """The task with the questions that wait for it; they ride on it from now on."""
    entry.queries_on_task += entry.queries
    entry.queries = []
    return msgspec.structs.replace(task, queries=tuple([query.task for query in entry.queries_on_task]))
