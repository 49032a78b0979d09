"""The life of the one workflow task of a run (semantics 2.4, rules 2, 5, 12 to 15, 19).

Owns: scheduling, writing down and ending a workflow task, with attempts, back-off and stickiness.
Never: reads what a worker answered (``core.workflow_tasks`` does).

How it works: a *normal* task has its events in history. A *virtual* one has not, yet: either *transient* (a retry after
a failure: history would fill with failures) or *speculative* (made for updates alone: if all are rejected, nothing has
happened). A virtual task is written down when it ends with something to say. Any outside event that comes before it is
started replaces it with a normal first attempt, for now there is news.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

from clew.core import deadlines
from clew.core.pending import PendingWorkflowTask
from clew.core.state import WorkflowTaskProblem
from clew.core.step import Step
from clew.core.transition import WorkflowTaskDropped, WorkflowTaskReady
from clew.model import events as e
from clew.model.events import WorkflowTaskFailedCause
from clew.model.failure import Failure, TimeoutType
from clew.model.policies import WorkflowExecutionStatus

BACKOFF_FROM_ATTEMPT: Final = 4
"""The first attempt of a failing workflow task that is put off (rule 14)."""

BACKOFF_INITIAL: Final = timedelta(seconds=5)
BACKOFF_MAX: Final = timedelta(minutes=10)


def task_backoff(attempt: int) -> timedelta:
    """How long attempt `attempt` of a failing workflow task waits: nothing for the first three, then 5 s, doubling."""
    if attempt < BACKOFF_FROM_ATTEMPT:
        return e.ZERO
    doublings = min(attempt - BACKOFF_FROM_ATTEMPT, 16)
    return min(BACKOFF_INITIAL * (1 << doublings), BACKOFF_MAX)


def expect_news(step: Step) -> None:
    """An outside event is about to be recorded: a virtual task that nobody has started gives way."""
    state = step.state
    task = state.workflow_task
    if task is not None and task.is_virtual and not task.started_event_id:
        state.workflow_task = None
        state.workflow_task_attempt = 1


def want_task(step: Step, *, dispatch_now: bool = False) -> None:
    """Make sure that a workflow task will see what was recorded.

    Args:
        step: The transition in the making.
        dispatch_now: Do not wait for the end of the first task's back-off.
    """
    state = step.state
    if state.workflow_task is not None or not can_schedule(step):
        return
    if state.first_task_at is not None and not dispatch_now:
        return
    schedule_task(step)


def can_schedule(step: Step) -> bool:
    """Whether a workflow task may be scheduled at all."""
    state = step.state
    return state.status is WorkflowExecutionStatus.RUNNING and not state.is_first_task_held


def schedule_task(step: Step, *, is_speculative: bool = False, not_before: datetime | None = None) -> None:
    """Schedule a workflow task; there must be none."""
    state = step.state
    assert state.workflow_task is None, "a workflow task is pending already"
    attempt = state.workflow_task_attempt
    sticky_session = state.sticky_session
    if attempt > 1 or is_speculative:
        task = PendingWorkflowTask(
            scheduled_event_id=state.next_event_id,
            attempt=attempt,
            scheduled_time=step.now,
            start_to_close_timeout=state.workflow_task_timeout,
            is_virtual=True,
            is_speculative=is_speculative,
            sticky_session=sticky_session,
            not_before=not_before,
        )
        state.workflow_task = task
    else:
        step.append(
            e.WorkflowTaskScheduled(
                event_id=state.next_event_id,
                event_time=step.now,
                task_queue=state.task_queue,
                start_to_close_timeout=state.workflow_task_timeout,
                is_sticky=bool(sticky_session),
            )
        )
        task = _pending_task(step)
        task.sticky_session = sticky_session
    if sticky_session or not_before is not None:
        state.arm(deadlines.KIND_WORKFLOW_TASK)
    if not_before is None:
        announce_task(step, task)


def _pending_task(step: Step) -> PendingWorkflowTask:
    task = step.state.workflow_task
    assert task is not None, "no workflow task is pending"
    return task


def announce_task(step: Step, task: PendingWorkflowTask) -> None:
    """Ask for a worker."""
    step.effects.append(
        WorkflowTaskReady(
            task_queue=step.state.task_queue,
            scheduled_event_id=task.scheduled_event_id,
            attempt=task.attempt,
            sticky_session=task.sticky_session,
        )
    )


def scheduled_event(step: Step, task: PendingWorkflowTask) -> e.WorkflowTaskScheduled:
    """The Scheduled event of a virtual task."""
    return e.WorkflowTaskScheduled(
        event_id=task.scheduled_event_id,
        event_time=task.scheduled_time,
        task_queue=step.state.task_queue,
        start_to_close_timeout=task.start_to_close_timeout,
        attempt=task.attempt,
        is_sticky=bool(task.sticky_session),
    )


def started_event(task: PendingWorkflowTask) -> e.WorkflowTaskStarted:
    """The Started event of a started task."""
    assert task.started_time is not None, "the workflow task is not started"
    return e.WorkflowTaskStarted(
        event_id=task.started_event_id,
        event_time=task.started_time,
        scheduled_event_id=task.scheduled_event_id,
        identity=task.identity,
        request_id=task.request_id,
        suggest_continue_as_new=task.suggest_continue_as_new,
        suggest_continue_as_new_reasons=task.suggest_continue_as_new_reasons,
        history_size_bytes=task.history_size_bytes,
    )


def write_down(step: Step, task: PendingWorkflowTask) -> None:
    """Give a virtual started task its two events."""
    if task.is_virtual:
        step.append(scheduled_event(step, task))
        step.append(started_event(task))
        task.is_speculative = False


def fail_task(
    step: Step,
    cause: WorkflowTaskFailedCause,
    failure: Failure | None = None,
    *,
    identity: str = "",
) -> None:
    """End the started task as failed, and schedule the next attempt."""
    task = _end_started(step, cause, failure, identity)
    if task.is_speculative:
        write_down(step, task)
    if not task.is_virtual:
        step.append(
            e.WorkflowTaskFailed(
                event_id=step.state.next_event_id,
                event_time=step.now,
                scheduled_event_id=task.scheduled_event_id,
                started_event_id=task.started_event_id,
                cause=cause,
                failure=failure,
                identity=identity,
            )
        )
    _retry_task(step, task)


def time_out_task(step: Step) -> None:
    """End the started task as timed out, and schedule the next attempt."""
    task = _end_started(step, None, None, "")
    if task.is_speculative:
        write_down(step, task)
    if not task.is_virtual:
        _append_timed_out(step, task, TimeoutType.START_TO_CLOSE)
    step.effects.append(WorkflowTaskDropped(lease_id=task.lease_id, session=task.session))
    _retry_task(step, task)


def time_out_sticky_task(step: Step) -> None:
    """Give up waiting for the session that has the run cached: the task goes to any worker, as the same attempt."""
    state = step.state
    task = _pending_task(step)
    assert not task.started_event_id, "a started task does not wait for its session"
    state.sticky_session = ""
    if task.is_virtual:
        task.sticky_session = ""
        announce_task(step, task)
        return
    _append_timed_out(step, task, TimeoutType.SCHEDULE_TO_START)
    want_task(step)


def lose_task(step: Step) -> None:
    """The worker that held the task is gone: the same attempt goes to any other worker at once."""
    state = step.state
    task = _pending_task(step)
    step.effects.append(WorkflowTaskDropped(lease_id=task.lease_id, session=task.session))
    is_speculative = task.is_speculative
    state.sticky_session = ""
    if task.is_virtual:
        state.workflow_task = None
    else:
        _append_timed_out(step, task, TimeoutType.START_TO_CLOSE)
    if step.flush():
        state.workflow_task_attempt = 1
        is_speculative = False
    if can_schedule(step):
        schedule_task(step, is_speculative=is_speculative)


def drop_task(step: Step) -> None:
    """Take the task away because the run is about to close; a worker that holds it is told."""
    state = step.state
    task = state.workflow_task
    if task is None:
        return
    if task.started_event_id:
        if not task.is_virtual:
            step.append(
                e.WorkflowTaskFailed(
                    event_id=state.next_event_id,
                    event_time=step.now,
                    scheduled_event_id=task.scheduled_event_id,
                    started_event_id=task.started_event_id,
                    cause=WorkflowTaskFailedCause.FORCE_CLOSE_COMMAND,
                )
            )
        step.effects.append(WorkflowTaskDropped(lease_id=task.lease_id, session=task.session))
    state.workflow_task = None
    step.flush()


def _append_timed_out(step: Step, task: PendingWorkflowTask, timeout_type: TimeoutType) -> None:
    step.append(
        e.WorkflowTaskTimedOut(
            event_id=step.state.next_event_id,
            event_time=step.now,
            scheduled_event_id=task.scheduled_event_id,
            started_event_id=task.started_event_id,
            timeout_type=timeout_type,
        )
    )


def _end_started(
    step: Step, cause: WorkflowTaskFailedCause | None, failure: Failure | None, identity: str
) -> PendingWorkflowTask:
    state = step.state
    task = _pending_task(step)
    assert task.started_event_id, "only a started workflow task can fail"
    state.is_close_attempted = False
    state.last_workflow_task_failure = WorkflowTaskProblem(
        attempt=task.attempt,
        failed_at=step.now,
        cause=cause,
        failure=failure,
        identity=identity or task.identity,
    )
    return task


def _retry_task(step: Step, ended: PendingWorkflowTask) -> None:
    state = step.state
    state.workflow_task = None
    state.sticky_session = ""
    if step.flush():
        state.workflow_task_attempt = 1
    elif not ended.sticky_session:
        state.workflow_task_attempt = ended.attempt + 1
    if not can_schedule(step):
        return
    backoff = task_backoff(state.workflow_task_attempt)
    schedule_task(step, not_before=step.now + backoff if backoff else None)
