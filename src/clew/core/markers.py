"""Markers that are recorded while their workflow task goes on: finished local steps (semantics 0.5, docs/adr/0016).

Owns: `decide_record_markers`. Never: reads a marker.

How it works: what the worker says of a step becomes one event at once, between WorkflowTaskStarted and the end of the
task; a task that is not in history yet is written down first. Whatever comes from outside stays buffered as ever. The
call is a sign of life, so the task's time runs anew, and the answer says when the task had better end. A repeat of the
call is known by the place that it names, and answered as before.
"""

from __future__ import annotations

from datetime import datetime

from clew.core import deadlines
from clew.core.checks import refuse
from clew.core.closing import finish
from clew.core.command_checks import CommandCheck, check_commands
from clew.core.commands import apply_command
from clew.core.pending import PendingWorkflowTask
from clew.core.replies import RecordedMarkers
from clew.core.state import ExecutionState
from clew.core.step import Step
from clew.core.tasks import write_down
from clew.core.transition import Transition
from clew.core.workflow_tasks import held_task, refuse_answer, suggest_reasons, task_not_found
from clew.model.inputs import RecordMarkersRequest
from clew.model.limits import LIMITS_DEFAULT, Limits
from clew.model.rejection import Rejection, RejectionCode


def decide_record_markers(
    state: ExecutionState, request: RecordMarkersRequest, now: datetime, *, limits: Limits = LIMITS_DEFAULT
) -> Transition | Rejection:
    """Record markers of a started workflow task, and let it go on.

    Markers that are at fault give a transition too: the task failed, as it does for commands at fault.

    Reply: `RecordedMarkers`, or a `Rejection`.
    """
    task = held_task(state, request.token)
    if task is None:
        return task_not_found(state)
    if _is_repeat(task, request):
        assert task.recorded_time is not None, "a task with a recorded marker has its time"
        return Transition(reply=_reply(state, task, task.recorded_event_id, task.recorded_time, limits))
    last_event_id = task.started_event_id if task.is_virtual else state.next_event_id - 1
    if request.after_event_id != last_event_id or not request.markers:
        return refuse(
            RejectionCode.INVALID_ARGUMENT,
            f"Markers to be recorded after event {request.after_event_id} ({len(request.markers)} of them) do not fit: "
            f"the last event of the workflow task is {last_event_id}. Send at least one, after that event.",
        )
    step = Step(state, now, limits)
    problem = check_commands(state, request.markers, limits, CommandCheck(state, limits))
    if problem is not None:
        return refuse_answer(step, problem, request.identity)
    write_down(step, task)
    for marker in request.markers:
        apply_command(step, marker, 0)
    task.recorded_event_id = state.next_event_id - 1
    task.recorded_time = now
    state.extended_since = None
    state.arm(deadlines.KIND_WORKFLOW_TASK)
    step.reply = _reply(state, task, task.recorded_event_id, now, limits)
    return finish(step)


def _is_repeat(task: PendingWorkflowTask, request: RecordMarkersRequest) -> bool:
    return bool(
        task.recorded_event_id
        and request.markers
        and request.after_event_id + len(request.markers) == task.recorded_event_id
    )


def _reply(
    state: ExecutionState, task: PendingWorkflowTask, last_event_id: int, event_time: datetime, limits: Limits
) -> RecordedMarkers:
    return RecordedMarkers(
        last_event_id=last_event_id,
        event_time=event_time,
        is_end_wanted=bool(state.buffered_events)
        or (bool(state.updates) and _has_unsent_updates(state, task))
        or (not task.suggest_continue_as_new and bool(suggest_reasons(state, limits))),
    )


def _has_unsent_updates(state: ExecutionState, task: PendingWorkflowTask) -> bool:
    return any(
        not update.accepted_event_id and update.sent_lease_id != task.lease_id for update in state.updates.values()
    )
