"""What express transitions are made of: their submissions, and the tasks that go out with them.

Owns: `ExpressSubmission`, and how the tasks of plain runs are built from what is at hand.
Never: decides, or sends anything.
"""

from __future__ import annotations

from typing import Any

from clew.core.idempotency import idempotency_key
from clew.core.pending import PendingWorkflowTask
from clew.core.replies import StartedWorkflowTask
from clew.engine.early_causes import EarlyCause
from clew.engine.matching import Session
from clew.engine.offers import ActivityOffer, Offer, WorkflowOffer
from clew.engine.runs import RunEntry
from clew.model.events import ActivityTaskScheduled, Event
from clew.model.inputs import TaskToken
from clew.service.reply import Reply
from clew.service.requests import ActivityTask, RecordMarkersResponse, StartWorkflowResponse, WorkflowTask


class ExpressSubmission(EarlyCause, eq=False):
    """One express transition, or one and the answer to the workflow task that it has made ready, in one write.

    Args:
        request: The input, for the general way if the commit loses its guard.
        answer: What the caller is told after the commit.
        others: Further tasks that go out, each with the session that gets it.
        forget_until: The last event that the worker has cached from now on; 0 when that has not changed.
        rider: The reply to the answer that has joined this write.
        rests_on: The transition that gave out the task which this one answers, if that was not durable then.
    """

    request: Any = None
    answer: StartWorkflowResponse | RecordMarkersResponse | None = None
    others: list[tuple[Session, ActivityTask]] | None = None
    forget_until: int = 0
    rider: Reply[None] | None = None
    rests_on: EarlyCause | None = None


def tasks_of(submission: ExpressSubmission) -> list[tuple[Session, WorkflowTask | ActivityTask]]:
    """What goes out after the commit, with who gets it."""
    if submission.session is None or submission.task is None:
        return []
    return [(submission.session, submission.task), *(submission.others or ())]


def offer_of(entry: RunEntry, session: Session, task: WorkflowTask | ActivityTask) -> Offer:
    """The offer of the general way that the sending of this task stands for."""
    token = task.token
    if isinstance(task, ActivityTask):
        return ActivityOffer.of_task(entry, session, task)
    assert task.scheduled_time is not None, "a task that is not a question has its times"
    assert task.started_time is not None, "a task that is not a question has its times"
    started = StartedWorkflowTask(
        lease_id=token.lease_id,
        scheduled_event_id=token.scheduled_event_id,
        started_event_id=token.started_event_id,
        attempt=task.attempt,
        previous_started_event_id=task.previous_started_event_id,
        scheduled_time=task.scheduled_time,
        started_time=task.started_time,
    )
    return WorkflowOffer(entry, session, started, is_partial=task.is_partial)


def make_workflow_task(
    entry: RunEntry, task: PendingWorkflowTask, events: list[Event], *, is_partial: bool
) -> WorkflowTask:
    """The first attempt at a workflow task that is started in this very transition."""
    state = entry.state
    return WorkflowTask(
        token=TaskToken(
            namespace=state.namespace,
            workflow_id=state.workflow_id,
            run_id=state.run_id,
            shard=entry.shard,
            run_key=entry.run_key,
            scheduled_event_id=task.scheduled_event_id,
            attempt=1,
            lease_id=task.lease_id,
            started_event_id=task.started_event_id,
        ),
        workflow_type=state.workflow_type,
        task_queue=state.task_queue,
        previous_started_event_id=state.previous_started_event_id,
        started_event_id=task.started_event_id,
        events=tuple(events),
        is_partial=is_partial,
        scheduled_time=task.scheduled_time,
        started_time=task.started_time,
        workflow_task_timeout=state.workflow_task_timeout,
    )


def make_activity_task(entry: RunEntry, event: ActivityTaskScheduled, lease_id: int, secret: bytes) -> ActivityTask:
    """The first attempt at an activity that is started in the transition which schedules it."""
    state = entry.state
    activity_id, now = event.activity_id, event.event_time
    return ActivityTask(
        token=TaskToken(
            namespace=state.namespace,
            workflow_id=state.workflow_id,
            run_id=state.run_id,
            shard=entry.shard,
            run_key=entry.run_key,
            scheduled_event_id=event.event_id,
            attempt=1,
            lease_id=lease_id,
            activity_id=activity_id,
        ),
        activity_id=activity_id,
        activity_type=event.activity_type,
        workflow_type=state.workflow_type,
        task_queue=event.task_queue,
        attempt=1,
        idempotency_key=idempotency_key(secret, state.workflow_id, activity_id, state.key_generation),
        header=event.header,
        input=event.input,
        scheduled_time=now,
        current_attempt_scheduled_time=now,
        started_time=now,
        schedule_to_close_timeout=event.schedule_to_close_timeout,
        start_to_close_timeout=event.start_to_close_timeout,
        retry_policy=event.retry_policy,
        priority=event.priority,
    )
