"""How a run ends, and how every transition ends.

Owns: `close_run` (what a close does to everything that is pending) and `finish`, through which every decision leaves:
it enforces the limits that a transition may have crossed. Never: decides that a run ends, except by those limits.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Any, Final

from clew.core.codec import item_keys
from clew.core.evolve import CLOSE_STATUS
from clew.core.state import ExecutionState
from clew.core.step import Step
from clew.core.tasks import drop_task, fail_task
from clew.core.transition import (
    ActivityCancelWanted,
    ActivityTaskReady,
    ApplyParentClosePolicy,
    NotifyParent,
    RunClosed,
    Transition,
    UpdateSettled,
    WorkflowTaskDropped,
    WorkflowTaskReady,
)
from clew.model import events as e
from clew.model.failure import ApplicationInfo, Failure
from clew.model.inputs import ActivityCancelReason
from clew.model.policies import ParentClosePolicy

ENGINE_IDENTITY: Final = "clew-engine"
"""Who wrote the events that no caller asked for."""

UPDATE_ABANDONED_TYPE: Final = "AcceptedUpdateCompletedWorkflow"
"""Error type of an update that was accepted and had not ended when its run closed (semantics 1.5)."""

_NO_OUTCOMES: Final[Mapping[str, e.UpdateOutcome]] = {}

_READY: Final = (ActivityTaskReady, WorkflowTaskReady)


def close_run(
    step: Step,
    event: e.Event,
    *,
    new_run: tuple[ExecutionState, Transition] | None = None,
    keeps_children: bool = False,
    outcomes: Mapping[str, e.UpdateOutcome] = _NO_OUTCOMES,
) -> None:
    """Append the close event, and let go of everything that is pending.

    The workflow task must be gone (completed, or taken by `tasks.drop_task`). With `new_run`, the chain goes on: the
    parent hears nothing, and updates that the new run has taken over stay open. `keeps_children`: no close policy is
    applied, since the run goes on in another. `outcomes`: of updates in flight that had ended where the run goes on.
    """
    state = step.state
    assert not state.buffered_events, "a run closes with buffered events"
    # What this very step made ready (an activity asked for ahead of the close) is of no use to anyone.
    step.effects[:] = [effect for effect in step.effects if type(effect) not in _READY]
    _tell_activities(step)
    for child in () if keeps_children else state.children.values():
        if child.run_id and child.parent_close_policy is not ParentClosePolicy.ABANDON:
            step.effects.append(ApplyParentClosePolicy(child=child.ref, policy=child.parent_close_policy.value))
    _settle_updates(step, new_run[0].updates if new_run is not None else (), outcomes)
    if state.is_wide:
        step.dirty.update(item_keys(state))
    step.append(event)
    state.sticky_session = ""
    state.is_first_task_held = False
    state.waiting_on = ()
    step.effects.append(RunClosed(status=CLOSE_STATUS[type(event)]))
    if new_run is not None:
        step.new_run = new_run
    if state.parent is not None and (new_run is None or not _has_same_parent(state, new_run[0])):
        step.effects.append(
            NotifyParent(parent=state.parent, initiated_event_id=state.parent_initiated_event_id, closing=event)
        )


def _tell_activities(step: Step) -> None:
    """Attempts that heartbeat would learn of the close with the next one; tell them now. Others run to their end."""
    for activity in step.state.activities.values():
        if activity.started_time is None or not activity.session or activity.is_closing:
            continue
        if activity.heartbeat_timeout or activity.last_heartbeat_time is not None:
            step.effects.append(
                ActivityCancelWanted(
                    scheduled_event_id=activity.scheduled_event_id,
                    attempt=activity.attempt,
                    lease_id=activity.lease_id,
                    session=activity.session,
                    reason=ActivityCancelReason.NOT_FOUND.value,
                )
            )


def _has_same_parent(state: ExecutionState, following: ExecutionState) -> bool:
    """Whether the run that follows will tell the parent; a reset may go back to a run that had another parent."""
    return (state.parent, state.parent_initiated_event_id) == (following.parent, following.parent_initiated_event_id)


def _settle_updates(step: Step, moved: Container[str], outcomes: Mapping[str, e.UpdateOutcome]) -> None:
    for update in step.state.updates.values():
        if update.update_id in moved:
            continue
        if update.update_id in outcomes:
            step.effects.append(UpdateSettled(update_id=update.update_id, outcome=outcomes[update.update_id]))
        elif update.accepted_event_id:
            step.effects.append(UpdateSettled(update_id=update.update_id, outcome=abandoned_outcome(update.update_id)))
        else:
            step.effects.append(UpdateSettled(update_id=update.update_id, rejected=True))


def abandoned_outcome(update_id: str) -> e.UpdateOutcome:
    """What becomes of an update that its run had accepted and did not complete before it closed."""
    failure = Failure(
        message=f"The workflow run ended before update {update_id!r}, which it had accepted, did.",
        info=ApplicationInfo(type=UPDATE_ABANDONED_TYPE, non_retryable=True),
    )
    return e.UpdateOutcome(failure=failure)


def terminate_run(step: Step, *, reason: str, details: tuple[Any, ...] = (), identity: str = ENGINE_IDENTITY) -> None:
    """Close the run from outside, whatever it is doing."""
    drop_task(step)
    close_run(
        step,
        e.WorkflowExecutionTerminated(
            event_id=step.state.next_event_id,
            event_time=step.now,
            reason=reason,
            details=details,
            identity=identity,
        ),
    )


def finish(step: Step) -> Transition:
    """End a decision: enforce the limits, and give the transition."""
    state = step.state
    if not state.close_event_id:
        limits = step.limits
        if state.buffered_events and _is_buffer_full(step):
            task = state.workflow_task
            assert task is not None
            lease_id, session = task.lease_id, task.session
            fail_task(step, e.WorkflowTaskFailedCause.FORCE_CLOSE_COMMAND, identity=ENGINE_IDENTITY)
            step.effects.insert(0, WorkflowTaskDropped(lease_id=lease_id, session=session))
        if state.next_event_id > limits.history_events_max:
            terminate_run(step, reason=_too_long(state.history_length, "events", limits.history_events_max))
        elif state.history_size_bytes > limits.history_bytes_max:
            terminate_run(step, reason=_too_long(state.history_size_bytes, "bytes", limits.history_bytes_max))
    return step.transition()


def _is_buffer_full(step: Step) -> bool:
    # An activity's Started and its outcome are buffered together; they count once.
    state, limits = step.state, step.limits
    if state.buffered_bytes > limits.buffered_bytes_max:
        return True
    count = len(state.buffered_events)
    if count <= limits.buffered_events_max:
        return False
    return count - sum(type(event) is e.ActivityTaskStarted for event in state.buffered_events) > (
        limits.buffered_events_max
    )


def _too_long(size: int, unit: str, size_max: int) -> str:
    return (
        f"History limit: the run has {size} {unit} of history, {size_max} are allowed, so it was closed before it "
        "could harm a worker. Continue as new in time (workflow.info().is_continue_as_new_suggested())."
    )
