"""Workflow tasks as workers meet them: taken, completed, failed (semantics 2.4, rules 1 to 7, 12 to 20).

Owns: the decisions on a task's start and its answer. Never: the life of a task between those (``core.tasks``).

How it works: an answer is checked whole before anything is done. Then everything it says becomes one transition:
WorkflowTaskCompleted, an event for each command, the buffered events, and the next task if there is news. Anything at
fault makes WorkflowTaskFailed instead, and the caller hears why.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Final

from clew.core import deadlines
from clew.core.chain import complete_run
from clew.core.checks import refuse
from clew.core.closing import finish
from clew.core.command_checks import CommandCheck, Problem, check_commands
from clew.core.commands import apply_command
from clew.core.pending import PendingWorkflowTask
from clew.core.replies import DroppedWorkflowTask, StartedWorkflowTask
from clew.core.state import ExecutionState
from clew.core.step import Step
from clew.core.tables import WorkflowTaskInput, task_phases_taking
from clew.core.tasks import fail_task, scheduled_event, started_event, time_out_task, want_task, write_down
from clew.core.transition import Transition
from clew.core.updates import Messages, has_admitted, reject_unanswered, send_updates, want_update_task
from clew.model import commands as c
from clew.model import events as e
from clew.model.events import WorkflowTaskFailedCause
from clew.model.failure import ApplicationInfo, Failure
from clew.model.inputs import CompleteWorkflowTaskRequest, FailWorkflowTaskRequest, TaskToken
from clew.model.limits import LIMITS_DEFAULT, Limits
from clew.model.rejection import Rejection, RejectionCode

TASK_EXTENSION_MAX: Final = timedelta(minutes=30)
"""How long a worker may extend a workflow task by answers that say nothing but "more time" (semantics 1.3)."""

UPDATES_SUGGEST_SHARE: Final = 0.9
"""Continue-as-new is suggested from this share of the updates that one run takes."""

_MAY_BE_TAKEN: Final = task_phases_taking(WorkflowTaskInput.TAKE)


def decide_start_workflow_task(
    state: ExecutionState,
    *,
    scheduled_event_id: int,
    attempt: int,
    session: str,
    identity: str,
    now: datetime,
    request_id: str = "",
    limits: Limits = LIMITS_DEFAULT,
) -> Transition | Rejection:
    """Give the scheduled workflow task to a worker.

    Args:
        state: The run.
        scheduled_event_id: Of the task, as offered.
        attempt: Of the task, as offered.
        session: The worker's session.
        identity: The worker's name for people.
        now: The instant of the start.
        request_id: Names this start in history.
        limits: Of the namespace.

    Reply: `StartedWorkflowTask`.
    """
    task = state.workflow_task
    if (
        task is None
        or task.scheduled_event_id != scheduled_event_id
        or task.attempt != attempt
        or task.phase not in _MAY_BE_TAKEN
    ):
        return task_not_found(state)
    step = Step(state, now, limits)
    state.lease_count += 1
    task.lease_id = state.lease_count
    task.session = session
    task.identity = identity
    task.request_id = request_id
    task.history_size_bytes = state.history_size_bytes
    reasons = suggest_reasons(state, limits)
    if reasons:
        task.suggest_continue_as_new = True
        task.suggest_continue_as_new_reasons = reasons
    synthetic: tuple[e.WorkflowTaskScheduled | e.WorkflowTaskStarted, ...] = ()
    if task.is_virtual:
        task.started_event_id = task.scheduled_event_id + 1
        task.started_time = now
        synthetic = (scheduled_event(step, task), started_event(task))
    else:
        task.started_event_id = state.next_event_id
        task.started_time = now
        step.append(started_event(task))
    state.arm(deadlines.KIND_WORKFLOW_TASK)
    step.reply = StartedWorkflowTask(
        lease_id=task.lease_id,
        scheduled_event_id=task.scheduled_event_id,
        started_event_id=task.started_event_id,
        attempt=attempt,
        previous_started_event_id=state.previous_started_event_id,
        scheduled_time=task.scheduled_time,
        started_time=now,
        synthetic_events=synthetic,
        updates=send_updates(state, task) if state.updates else (),
    )
    return step.transition()


def suggest_reasons(state: ExecutionState, limits: Limits) -> tuple[str, ...]:
    """Why the run should continue as new, if it should."""
    if (
        state.next_event_id <= limits.history_events_suggest
        and state.history_size_bytes < limits.history_bytes_suggest
        and not state.completed_updates
    ):
        return ()
    reasons: list[str] = []
    if state.history_size_bytes >= limits.history_bytes_suggest:
        reasons.append("HistorySizeTooLarge")
    if state.history_length >= limits.history_events_suggest:
        reasons.append("TooManyHistoryEvents")
    update_count = len(state.updates) + len(state.completed_updates)
    if update_count >= limits.updates_per_run_max * UPDATES_SUGGEST_SHARE:
        reasons.append("TooManyUpdates")
    return tuple(reasons)


def task_not_found(state: ExecutionState) -> Rejection:
    """The refusal of whoever no longer holds the task."""
    return refuse(
        RejectionCode.WORKFLOW_TASK_NOT_FOUND,
        f"Workflow task not found: the run {state.run_id!r} of {state.workflow_id!r} no longer waits for this attempt "
        "(it timed out, was answered, or the run closed). Drop the cached run.",
    )


def held_task(state: ExecutionState, token: TaskToken) -> PendingWorkflowTask | None:
    """The started task that this token holds."""
    task = state.workflow_task
    if (
        task is None
        or not task.started_event_id
        or task.lease_id != token.lease_id
        or task.scheduled_event_id != token.scheduled_event_id
        or task.attempt != token.attempt
    ):
        return None
    return task


def decide_complete_workflow_task(
    state: ExecutionState,
    request: CompleteWorkflowTaskRequest,
    now: datetime,
    *,
    session: str,
    new_run_id: Callable[[], str],
    started: e.WorkflowExecutionStarted | None = None,
    limits: Limits = LIMITS_DEFAULT,
) -> Transition | Rejection:
    """Take a worker's answer to a workflow task.

    Commands that are at fault, or a close that events have overtaken, give a transition too: the task failed. Its reply
    is then the `Rejection` for the caller.

    Args:
        state: The run.
        request: The answer.
        now: The instant of the transition.
        session: The worker's session; it gets the next task if the answer says that it keeps the run.
        new_run_id: Makes a run id, for a run that follows.
        started: Event 1; must be given when ``state.needs_started_event``.
        limits: Of the namespace.

    Reply: None, `DroppedWorkflowTask`, or a `Rejection`.
    """
    task = held_task(state, request.token)
    if task is None:
        return task_not_found(state)
    step = Step(state, now, limits)
    check = CommandCheck(state, limits)
    commands = request.commands
    messages = Messages(request)
    problem = check_commands(state, commands, limits, check) if commands else None
    if problem is None and (messages.by_id or any(type(command) is c.ProtocolMessage for command in commands)):
        problem = messages.check(state, request, limits) or _unknown_message(commands, messages)
    if problem is not None:
        return refuse_answer(step, problem, request.identity)
    closes = bool(commands) and isinstance(commands[-1], c.CLOSE_COMMANDS)
    if closes and state.buffered_events and not _all_cancelled(state, check):
        return _refuse_close(step, request)
    if request.force_create_new_workflow_task and not commands:
        state.extended_since = state.extended_since or task.recorded_time or task.scheduled_time
        if now - state.extended_since > TASK_EXTENSION_MAX:
            return _end_extension(step)
    else:
        state.extended_since = None
    state.last_workflow_task_failure = None
    state.waiting_on = request.waiting_on
    state.sticky_session = session if request.is_sticky else ""
    if task.is_speculative and not _leaves_a_trace(state, request):
        return _drop_speculative(step, task, messages)
    write_down(step, task)
    completed_event_id = state.next_event_id
    step.append(
        e.WorkflowTaskCompleted(
            event_id=completed_event_id,
            event_time=now,
            scheduled_event_id=task.scheduled_event_id,
            started_event_id=task.started_event_id,
            identity=request.identity,
            sdk_metadata=request.sdk_metadata,
            versioning_behavior=request.versioning_behavior,
            deployment_version=request.deployment_version,
        )
    )
    state.workflow_task_attempt = 1
    state.is_close_attempted = False
    _apply(step, commands, messages, completed_event_id)
    if state.updates and (commands or not request.force_create_new_workflow_task):
        reject_unanswered(step, task.lease_id)
    if closes:
        state.buffered_bytes = 0
        state.buffered_events = []  # a cancellation of an activity that nobody ran, made by this very task
        complete_run(step, commands[-1], completed_event_id, new_run_id=new_run_id, started=started)
        return finish(step)
    if step.flush() or request.force_create_new_workflow_task:
        want_task(step)
    elif state.updates and has_admitted(state):
        want_update_task(step)
    return finish(step)


def _apply(step: Step, commands: tuple[c.Command, ...], messages: Messages, completed_event_id: int) -> None:
    """The events of the commands, up to a close, and of the messages."""
    for command in commands:
        kind = type(command)
        if kind is c.ProtocolMessage:
            messages.process(step, command.message_id)  # type: ignore[union-attr]
        elif kind not in c.CLOSE_COMMANDS:
            apply_command(step, command, completed_event_id)
    if messages.by_id:
        messages.process_rest(step)


def _unknown_message(commands: tuple[c.Command, ...], messages: Messages) -> Problem | None:
    for command in commands:
        if isinstance(command, c.ProtocolMessage) and command.message_id not in messages.by_id:
            return Problem(
                WorkflowTaskFailedCause.BAD_UPDATE_MESSAGE,
                f"ProtocolMessage names message {command.message_id!r}, which this answer does not hold.",
            )
    return None


def _leaves_a_trace(state: ExecutionState, request: CompleteWorkflowTaskRequest) -> bool:
    return bool(
        request.commands
        or request.force_create_new_workflow_task
        or request.acceptances
        or request.completions
        or state.buffered_events
    )


def _drop_speculative(step: Step, task: PendingWorkflowTask, messages: Messages) -> Transition:
    """All updates of a task made for them were rejected: nothing has happened."""
    state = step.state
    state.workflow_task = None
    messages.process_rest(step)
    reject_unanswered(step, task.lease_id)
    step.reply = DroppedWorkflowTask(reset_event_id=state.previous_started_event_id)
    if has_admitted(state):
        want_update_task(step)
    return finish(step)


def _end_extension(step: Step) -> Transition:
    """The worker asked for more time too often: the task is taken from it and goes to any worker."""
    step.state.extended_since = None
    time_out_task(step)
    step.reply = task_not_found(step.state)
    return finish(step)


def _all_cancelled(state: ExecutionState, check: CommandCheck) -> bool:
    """Whether the task itself cancels every timer whose firing is all that is buffered."""
    return all(
        type(event) is e.TimerFired and event.timer_id in check.cancelled_timers for event in state.buffered_events
    )


def refuse_answer(step: Step, problem: Problem, identity: str) -> Transition:
    """Fail the task because of what its worker sent; the reply says so."""
    fail_task(step, problem.cause, _failure_of(problem), identity=identity)
    step.reply = refuse(RejectionCode.BAD_COMMANDS, problem.message, cause=problem.cause.value)
    return finish(step)


def _refuse_close(step: Step, request: CompleteWorkflowTaskRequest) -> Transition:
    names = sorted({type(event).__name__ for event in step.state.buffered_events})
    problem = Problem(
        WorkflowTaskFailedCause.UNHANDLED_COMMAND,
        f"The run cannot close yet: {', '.join(names)} came while this workflow task ran. It gets another task.",
    )
    fail_task(step, problem.cause, _failure_of(problem), identity=request.identity)
    step.state.is_close_attempted = True
    step.reply = refuse(RejectionCode.UNHANDLED_COMMAND, problem.message, cause=problem.cause.value)
    return finish(step)


def _failure_of(problem: Problem) -> Failure:
    return Failure(message=problem.message, info=ApplicationInfo(type=problem.cause.value))


def decide_fail_workflow_task(
    state: ExecutionState,
    request: FailWorkflowTaskRequest,
    now: datetime,
    *,
    limits: Limits = LIMITS_DEFAULT,
) -> Transition | Rejection:
    """Take a worker's report that it could not complete a workflow task; there will be another attempt."""
    if held_task(state, request.token) is None:
        return task_not_found(state)
    step = Step(state, now, limits)
    fail_task(step, request.cause, request.failure, identity=request.identity)
    return finish(step)
