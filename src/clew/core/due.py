"""What happens by itself: timers, timeouts, ends of back-off; and what happens when workers vanish.

Owns: `decide_due`, `decide_sessions_lost` and `outstanding_tasks`. Never: keeps time (the caller says what time it is).

How it works: everything that is due by `now` becomes one transition (semantics 2.4, rule 23). A run or execution
timeout ends the run, so it goes first; then the workflow task, so that what follows need not be buffered; then timers
by due time and event id; then activities by the earliest of their passed deadlines.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from clew.core import deadlines
from clew.core.activities import lose_attempt, offer_attempt, time_out_activity
from clew.core.chain import run_after_failure
from clew.core.closing import close_run, finish
from clew.core.pending import PendingActivity, PendingTimer
from clew.core.state import ExecutionState
from clew.core.step import Step
from clew.core.tasks import (
    announce_task,
    drop_task,
    expect_news,
    lose_task,
    time_out_sticky_task,
    time_out_task,
    want_task,
)
from clew.core.transition import (
    ITEM_ACTIVITY,
    ITEM_TIMER,
    ActivityCancelWanted,
    ActivityTaskReady,
    Transition,
    WorkflowTaskReady,
)
from clew.model import events as e
from clew.model.failure import Failure, RetryState, TimeoutInfo, TimeoutType
from clew.model.inputs import ActivityCancelReason
from clew.model.limits import LIMITS_DEFAULT, Limits


def decide_due(
    state: ExecutionState,
    now: datetime,
    limits: Limits = LIMITS_DEFAULT,
    *,
    new_run_id: Callable[[], str] | None = None,
    started: e.WorkflowExecutionStarted | None = None,
) -> Transition | None:
    """Everything of this run that is due by `now`; None when nothing is.

    Args:
        state: The run.
        now: The instant of the transition.
        limits: Of the namespace.
        new_run_id: Makes a run id; must be given when ``state.needs_started_event``.
        started: Event 1; must be given when ``state.needs_started_event``.
    """
    if state.close_event_id:
        return None
    due = state.deadline_heap().take_due(now, state.deadline_of)
    if not due:
        return None
    step = Step(state, now, limits)
    kinds = {kind for _, kind, _ in due}
    if deadlines.KIND_EXECUTION_TIMEOUT in kinds or deadlines.KIND_RUN_TIMEOUT in kinds:
        _time_out_run(step, deadlines.KIND_EXECUTION_TIMEOUT in kinds, new_run_id, started)
        return finish(step)
    if deadlines.KIND_WORKFLOW_TASK in kinds:
        _task_due(step)
    timers = [item_id for _, kind, item_id in due if kind == ITEM_TIMER]
    for item_id in timers:
        _fire(step, state.timers[item_id])
    for _, kind, item_id in due:
        if kind == ITEM_ACTIVITY and (activity := state.activities.get(item_id)) is not None:
            _activity_due(step, activity)
    if timers:
        want_task(step)
    if deadlines.KIND_FIRST_TASK in kinds:
        want_task(step, dispatch_now=True)
    return finish(step)


def _time_out_run(
    step: Step,
    is_execution: bool,
    new_run_id: Callable[[], str] | None,
    started: e.WorkflowExecutionStarted | None,
) -> None:
    state = step.state
    drop_task(step)
    retry_state, new_run = RetryState.TIMEOUT, None
    if not is_execution and state.needs_started_event:
        assert new_run_id is not None, "a run that may be followed by another times out, but no `new_run_id` is given"
        failure = Failure(
            message="The workflow run timed out.", info=TimeoutInfo(timeout_type=TimeoutType.START_TO_CLOSE)
        )
        retry_state, new_run = run_after_failure(step, failure, new_run_id, started)
    elif not is_execution:
        retry_state = RetryState.RETRY_POLICY_NOT_SET
    event = e.WorkflowExecutionTimedOut(
        event_id=state.next_event_id,
        event_time=step.now,
        retry_state=retry_state,
        new_execution_run_id=new_run[0].run_id if new_run is not None else "",
    )
    close_run(step, event, new_run=new_run)


def _task_due(step: Step) -> None:
    task = step.state.workflow_task
    assert task is not None, "a workflow task is due that is not there"
    if task.started_event_id:
        time_out_task(step)
    elif task.not_before is not None:
        task.not_before = None
        task.scheduled_time = step.now
        announce_task(step, task)
    else:
        time_out_sticky_task(step)


def _fire(step: Step, timer: PendingTimer) -> None:
    expect_news(step)
    event = e.TimerFired(
        event_id=step.outside_event_id,
        event_time=step.now,
        timer_id=timer.timer_id,
        started_event_id=timer.started_event_id,
    )
    step.record(event)
    if event.event_id == 0:
        timer.is_closing = True
        step.dirty.add((ITEM_TIMER, timer.started_event_id))


def _activity_due(step: Step, activity: PendingActivity) -> None:
    """One thing happens to the activity: the end of its back-off, or the first of its passed deadlines."""
    timeout_type = _passed_timeout(activity, step.now)
    if timeout_type is None:
        assert activity.next_attempt_time is not None, "an activity is due for no reason"
        offer_attempt(step, activity)
        return
    if activity.started_time is not None and activity.session:
        step.effects.append(
            ActivityCancelWanted(
                scheduled_event_id=activity.scheduled_event_id,
                attempt=activity.attempt,
                lease_id=activity.lease_id,
                session=activity.session,
                reason=ActivityCancelReason.TIMED_OUT.value,
            )
        )
    time_out_activity(step, activity, timeout_type)


def _passed_timeout(activity: PendingActivity, now: datetime) -> TimeoutType | None:
    """The first deadline that has passed; at the same instant, in the order of the list (rule 23)."""
    is_waiting = activity.started_time is None and activity.next_attempt_time is None
    candidates = (
        (activity.expiration_time, TimeoutType.SCHEDULE_TO_CLOSE),
        (activity.schedule_to_start_deadline if is_waiting else None, TimeoutType.SCHEDULE_TO_START),
        (activity.start_to_close_deadline, TimeoutType.START_TO_CLOSE),
        (activity.heartbeat_deadline, TimeoutType.HEARTBEAT),
    )
    passed = [(when, kind) for when, kind in candidates if when is not None and when <= now]
    return min(passed, key=lambda entry: entry[0])[1] if passed else None


def decide_sessions_lost(
    state: ExecutionState,
    is_lost: Callable[[str], bool],
    now: datetime,
    *,
    limits: Limits = LIMITS_DEFAULT,
    keeps_attempt: Callable[[str], bool] | None = None,
) -> Transition | None:
    """Workers have vanished: what they held is given to others at once; None when they held nothing of this run.

    A workflow task keeps its attempt. An activity's attempt counts as spent, because nobody knows how far it came; so
    an activity with a single attempt fails (it is at most once). Attempts of lost sessions that `keeps_attempt` names
    stay as they are: their workers cannot be reached, but may live on.
    """
    if state.close_event_id:
        return None
    step = Step(state, now, limits)
    has_changed = False
    if state.sticky_session and is_lost(state.sticky_session):
        state.sticky_session = ""
        has_changed = True
    task = state.workflow_task
    if task is not None and task.started_event_id:
        if is_lost(task.session):
            lose_task(step)
            has_changed = True
    elif task is not None and task.sticky_session and is_lost(task.sticky_session):
        task.sticky_session = ""
        announce_task(step, task)
        has_changed = True
    for activity in list(state.activities.values()):
        is_held = activity.started_time is not None and activity.session and not activity.is_closing
        if is_held and is_lost(activity.session) and not (keeps_attempt and keeps_attempt(activity.session)):
            lose_attempt(step, activity)
            has_changed = True
    return finish(step) if has_changed else None


def outstanding_tasks(state: ExecutionState) -> list[WorkflowTaskReady | ActivityTaskReady]:
    """The tasks that wait for a worker, as they are offered again after a restart."""
    tasks: list[WorkflowTaskReady | ActivityTaskReady] = []
    if state.close_event_id:
        return tasks
    task = state.workflow_task
    if task is not None and not task.started_event_id and task.not_before is None:
        tasks.append(
            WorkflowTaskReady(
                task_queue=state.task_queue,
                scheduled_event_id=task.scheduled_event_id,
                attempt=task.attempt,
                sticky_session=task.sticky_session,
            )
        )
    tasks += [
        ActivityTaskReady(
            task_queue=activity.task_queue,
            scheduled_event_id=activity.scheduled_event_id,
            attempt=activity.attempt,
            priority=activity.priority_key,
        )
        for activity in state.activities.values()
        if activity.started_time is None and activity.next_attempt_time is None and not activity.is_closing
    ]
    return tasks
