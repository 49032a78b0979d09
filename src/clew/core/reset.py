"""Going on from an earlier point of a run, as a new run (semantics 1.9).

Owns: `decide_reset`: which point is meant, the state there, and what of the time after it comes along.
Never: reads histories, or finds runs (``engine.resets`` does).

How it works: the new run's history is the old one's up to the point, event by event, and its state the fold of that. A
workflow task is always pending there; it fails with the cause ResetWorkflow, which every reader of the history takes
as the seam (`evolve` starts the clocks of the run anew, ``replay`` its randomness). What came from outside after the
point is recorded again behind the seam: signals, updates, and the outcomes of whatever was pending at the point. The
latest run of the workflow id is terminated if it is open, in the same unit as the new run begins.

Keys of idempotency stay what they were, since the first event hands on the generation. Effects on other executions
that were asked for before the point are asked for again in the name of the run that asked first (`recorded_by`), so
that they are felt once.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, TypeAlias

import msgspec

from clew.core.activities import offer_attempt
from clew.core.chain import EARLIER_UPDATES_KEPT
from clew.core.checks import check_id, refuse, sentence
from clew.core.closing import ENGINE_IDENTITY, close_run, finish
from clew.core.codec import item_keys
from clew.core.evolve import fold
from clew.core.state import ExecutionState, Origin
from clew.core.step import OUTCOME_EVENTS, Step
from clew.core.tasks import drop_task, want_task
from clew.core.transition import CancelExternal, ReportChild, SignalExternal, StartChild, Transition
from clew.model import events as e
from clew.model.failure import Failure, ResetWorkflowInfo, RetryState
from clew.model.inputs import ResetReapplyExcludeType, ResetType, ResetWorkflowRequest
from clew.model.limits import LIMITS_DEFAULT, Limits
from clew.model.rejection import Rejection, RejectionCode

REAPPLIED: Final = "Reapply"
"""The origin of an update that a reset admitted again."""

RESETS_KEPT: Final = 10
"""Resets of a chain whose request ids are known; a repeat comes within seconds."""

_CHILD_OUTCOMES: Final = (
    e.ChildWorkflowExecutionCompleted,
    e.ChildWorkflowExecutionFailed,
    e.ChildWorkflowExecutionCanceled,
    e.ChildWorkflowExecutionTimedOut,
    e.ChildWorkflowExecutionTerminated,
)

_SIGNAL_OUTCOMES: Final = (e.ExternalWorkflowExecutionSignaled, e.SignalExternalWorkflowExecutionFailed)

_ANSWERS: Final = (
    e.ChildWorkflowExecutionStarted,
    e.StartChildWorkflowExecutionFailed,
    *_CHILD_OUTCOMES,
    *_SIGNAL_OUTCOMES,
    e.ExternalWorkflowExecutionCancelRequested,
    e.RequestCancelExternalWorkflowExecutionFailed,
)
"""What another execution has answered."""

RunEvents: TypeAlias = "tuple[ExecutionState, Sequence[e.Event]]"


class ResetSource(msgspec.Struct, kw_only=True):
    """What a reset goes back to.

    Args:
        base: The run with the point, or what is known of it.
        events: Its history, from event 1 to the end.
        later: The runs that came after it in its chain, by following it or by resets, each with its history, in order.
        earlier: The runs that it followed, each with its history, if a later one goes on with one of these: what they
            had taken is not brought again.
    """

    base: ExecutionState
    events: Sequence[e.Event]
    later: Sequence[RunEvents] = ()
    earlier: Sequence[RunEvents] = ()


def check_reset(request: ResetWorkflowRequest, limits: Limits = LIMITS_DEFAULT) -> Rejection | None:
    """The refusal of a request that means nothing, whatever the run."""
    ways = (request.event_id != 0, request.reset_type is not ResetType.UNSPECIFIED, bool(request.build_id))
    if sum(ways) != 1:
        what = "no point to reset to is given" if not any(ways) else "the point to reset to is given in several ways"
        finding = f"{what}; give one of event_id, reset_type and build_id"
    elif not request.reason.strip():
        finding = "the reason of the reset is empty; say why, it stays in both histories"
    else:
        finding = check_id("the workflow id", request.workflow_id, limits) or check_id(
            "the request id", request.request_id, limits
        )
    return refuse(RejectionCode.INVALID_ARGUMENT, sentence(finding)) if finding else None


def made_by_reset(state: ExecutionState, request: ResetWorkflowRequest) -> str:
    """The run that this very request made before; empty when it is new."""
    return state.resets.get(request.request_id, "") if request.request_id else ""


def decide_reset(
    state: ExecutionState,
    request: ResetWorkflowRequest,
    source: ResetSource,
    now: datetime,
    *,
    run_id: str,
    limits: Limits = LIMITS_DEFAULT,
) -> Transition | Rejection:
    """Begin a run at an earlier point of another, and terminate the latest one if it is open.

    Args:
        state: The latest run of the workflow id.
        request: The reset; it has passed `check_reset`.
        source: Where it goes back to. When the latest run is among it, its history is whole: all of `state`.
        now: The instant of the transition.
        run_id: Of the new run.
        limits: Of the namespace.
    """
    event_id = _find_point(request, source.events)
    if isinstance(event_id, Rejection):
        return event_id
    copied = source.events[: event_id - 1]
    new = fold(copied, namespace=state.namespace, run_id=run_id)
    if new.workflow_task is None:
        return _no_boundary(request, source, event_id)
    following = Step(new, now, limits)
    new.origins = _origins(source.base, event_id)
    _fail_task(following, request, source.base.run_id)
    _settle_activities(following, request)
    reapply = _Reapply(following, request.reapply_exclude)
    for earlier, events in ((source.base, copied), *source.earlier):
        reapply.note_taken(earlier, events)
    for later, events in ((source.base, source.events[event_id - 1 :]), *source.later):
        reapply.run(later, events)
        if later.run_id == state.run_id:
            reapply.run(later, _without_ids(state))
    reapply.forget_rejected((source.base, state))
    _inherit(new, state, source.base, request, limits, reapply.taken_updates)
    _ask_again(following)
    want_task(following)
    following.dirty.update(item_keys(new))
    begun = finish(following)
    if not new.is_open or new.next_event_id >= limits.history_events_max:
        return _too_long(request, event_id, new, limits)
    begun.events = [*copied, *begun.events]
    if not state.is_open:
        return Transition(new_run=(new, begun))
    closing = Step(state, now, limits)
    drop_task(closing)
    _terminate(closing, request, source.base, (new, begun), reapply.outcomes)
    return finish(closing)


# --- the point -------------------------------------------------------------------------------------------------------


def _find_point(request: ResetWorkflowRequest, events: Sequence[e.Event]) -> int | Rejection:
    """The event up to which the history is copied, without it."""
    last = events[-1].event_id
    if request.event_id:
        if 1 < request.event_id <= last:
            return request.event_id
        return refuse(
            RejectionCode.INVALID_ARGUMENT,
            f"Event {request.event_id} is not in the history of workflow {request.workflow_id!r}, which ends with "
            f"event {last}. A reset goes to a workflow task: give the id of a WorkflowTaskCompleted, or use "
            "reset_type.",
        )
    if request.build_id:
        for event in events:
            if isinstance(event, e.WorkflowTaskCompleted) and _build_of(event) == request.build_id:
                return event.event_id
        return refuse(
            RejectionCode.INVALID_ARGUMENT,
            f"Build {request.build_id!r} completed no workflow task of workflow {request.workflow_id!r}, so there is "
            "no point to reset to. Look at the history, and give an event id.",
        )
    return _task_point(request, events)


def _build_of(event: e.WorkflowTaskCompleted) -> str:
    return event.deployment_version.build_id if event.deployment_version is not None else ""


def _task_point(request: ResetWorkflowRequest, events: Sequence[e.Event]) -> int | Rejection:
    completed = [event.event_id for event in events if isinstance(event, e.WorkflowTaskCompleted)]
    if completed:
        return completed[0] if request.reset_type is ResetType.FIRST_WORKFLOW_TASK else completed[-1]
    scheduled = [event.event_id for event in events if isinstance(event, e.WorkflowTaskScheduled)]
    if scheduled and scheduled[0] < events[-1].event_id:
        return scheduled[0] + 1
    return refuse(
        RejectionCode.INVALID_ARGUMENT,
        f"Workflow {request.workflow_id!r} has completed no workflow task, so there is nothing to go back from. Wait "
        "for one, or terminate the workflow and start it again.",
    )


def _no_boundary(request: ResetWorkflowRequest, source: ResetSource, event_id: int) -> Rejection:
    completed = [event.event_id for event in source.events if isinstance(event, e.WorkflowTaskCompleted)]
    near = ", ".join(str(one) for one in sorted(sorted(completed, key=lambda one: abs(one - event_id))[:3]))
    return refuse(
        RejectionCode.INVALID_ARGUMENT,
        f"Event {event_id} of workflow {request.workflow_id!r} is no boundary of a workflow task: none is pending just "
        "before it. Give an event from behind a WorkflowTaskScheduled to just behind its WorkflowTaskStarted"
        + (f"; the nearest completed tasks are events {near}." if near else "."),
    )


def _too_long(request: ResetWorkflowRequest, event_id: int, new: ExecutionState, limits: Limits) -> Rejection:
    """The refusal of a point that leaves the new run no room: it would be ended as soon as it begins."""
    return refuse(
        RejectionCode.LIMIT_EXCEEDED,
        f"A reset of workflow {request.workflow_id!r} to event {event_id} would begin a run whose history is too long "
        f"from the start (over {limits.history_events_max} events or {limits.history_bytes_max} bytes, with the "
        "signals and updates that came since), so it would be closed at once; nothing was done. Reset to an earlier "
        "event, exclude signals or updates (reapply_exclude), or raise the limit of the namespace.",
    )


def _origins(base: ExecutionState, event_id: int) -> list[Origin]:
    earlier = [Origin(one.run_id, min(one.until_event_id, event_id)) for one in base.origins]
    return [*earlier, Origin(base.run_id, event_id)]


# --- what was pending at the point -----------------------------------------------------------------------------------


def _fail_task(step: Step, request: ResetWorkflowRequest, base_run_id: str) -> None:
    """The seam: the task that is pending at the point fails."""
    state = step.state
    task = state.workflow_task
    assert task is not None, "a reset goes to a point where a workflow task is pending"
    if not task.started_event_id:
        step.append(
            e.WorkflowTaskStarted(
                event_id=state.next_event_id,
                event_time=step.now,
                scheduled_event_id=task.scheduled_event_id,
                identity=ENGINE_IDENTITY,
            )
        )
    step.append(
        e.WorkflowTaskFailed(
            event_id=state.next_event_id,
            event_time=step.now,
            scheduled_event_id=task.scheduled_event_id,
            started_event_id=task.started_event_id,
            cause=e.WorkflowTaskFailedCause.RESET_WORKFLOW,
            failure=_failure(request),
            identity=ENGINE_IDENTITY,
            base_run_id=base_run_id,
            new_run_id=state.run_id,
        )
    )


def _failure(request: ResetWorkflowRequest) -> Failure:
    return Failure(message=request.reason, info=ResetWorkflowInfo())


def _settle_activities(step: Step, request: ResetWorkflowRequest) -> None:
    """Activities that nobody began are offered again; those begun fail, those asked to stop are cancelled."""
    state = step.state
    for activity in list(state.activities.values()):
        common: dict[str, Any] = {
            "event_id": state.next_event_id,
            "event_time": step.now,
            "scheduled_event_id": activity.scheduled_event_id,
            "started_event_id": activity.started_event_id,
        }
        if activity.started_event_id:
            failure, never = _failure(request), RetryState.NON_RETRYABLE_FAILURE
            step.append(e.ActivityTaskFailed(**common, failure=failure, retry_state=never, identity=ENGINE_IDENTITY))
        elif activity.cancel_requested_event_id:
            requested = activity.cancel_requested_event_id
            step.append(
                e.ActivityTaskCanceled(**common, latest_cancel_requested_event_id=requested, identity=ENGINE_IDENTITY)
            )
        else:
            offer_attempt(step, activity)


def _ask_again(step: Step) -> None:
    """What is pending with other executions still."""
    state = step.state
    for initiated_event_id, child in state.children.items():
        kind = ReportChild if child.started_event_id else StartChild
        step.effects.append(kind(initiated_event_id=initiated_event_id))
    for initiated_event_id in state.external_signals:
        step.effects.append(SignalExternal(initiated_event_id=initiated_event_id))
    for initiated_event_id in state.external_cancels:
        step.effects.append(CancelExternal(initiated_event_id=initiated_event_id))


# --- what came after the point ---------------------------------------------------------------------------------------


class _Reapply:
    """Records again what came from outside; cancel requests and terminations are left behind.

    A signal that the new run has already, by its request id, is not repeated: runs that resets made hold copies.
    """

    def __init__(self, step: Step, excluded: tuple[ResetReapplyExcludeType, ...]) -> None:
        self._step = step
        self._excluded = excluded
        self._runs: set[str] = set()
        self._signals: set[str] = set()
        self._accepted: set[str] = set()
        self.taken_updates: set[str] = set()
        self.outcomes: dict[str, e.UpdateOutcome] = {}

    def note_taken(self, source: ExecutionState, events: Sequence[e.Event]) -> None:
        """What a run had before the point is not brought again."""
        self._runs.add(source.run_id)
        for event in events:
            if isinstance(event, e.WorkflowExecutionSignaled):
                self._signals.add(event.request_id)
            elif isinstance(event, e.WorkflowExecutionUpdateAccepted):
                self.taken_updates.add(event.protocol_instance_id)
            elif isinstance(event, e.WorkflowExecutionUpdateCompleted):
                self.outcomes[event.update_id] = event.outcome

    def run(self, source: ExecutionState, events: Sequence[e.Event]) -> None:
        """Take over what one run had, in order."""
        own_from = 0
        if source.origins and source.origins[-1].run_id in self._runs:
            own_from = source.origins[-1].until_event_id  # What it copied has been seen where it was recorded.
        self._runs.add(source.run_id)
        for event in events:
            if event.event_id < own_from:
                continue
            if isinstance(event, e.WorkflowExecutionUpdateAdmitted):
                self._readmit(source.run_id, event.request)
            elif isinstance(event, e.WorkflowExecutionUpdateAccepted):
                self._accepted.add(event.protocol_instance_id)
                if event.accepted_request is not None:  # Else its admission is an event, which stands before it.
                    self._readmit(source.run_id, event.accepted_request)
            elif isinstance(event, e.WorkflowExecutionSignaled):
                self._signal(event)
            elif isinstance(event, e.WorkflowExecutionOptionsUpdated):
                _append_again(self._step, event)
            else:
                _settle_pending(self._step, source, event)

    def _signal(self, event: e.WorkflowExecutionSignaled) -> None:
        if ResetReapplyExcludeType.SIGNAL in self._excluded:
            return
        if event.request_id:
            if event.request_id in self._signals:
                return
            self._signals.add(event.request_id)
        _append_again(self._step, event)

    def _readmit(self, run_id: str, request: e.UpdateRequest) -> None:
        """Admit an update again, unless it was accepted before the point, or is admitted already."""
        state = self._step.state
        update_id = request.update_id
        if update_id in state.updates or update_id in self.taken_updates:
            return
        if ResetReapplyExcludeType.UPDATE in self._excluded:
            state.earlier_updates.setdefault(update_id, run_id)
            return
        self._step.append(
            e.WorkflowExecutionUpdateAdmitted(
                event_id=state.next_event_id, event_time=self._step.now, request=request, origin=REAPPLIED
            )
        )

    def forget_rejected(self, askers: Sequence[ExecutionState]) -> None:
        """Ask nothing again that was rejected: its caller was told, and history only has that it was admitted.

        Args:
            askers: The runs in which an update that is in flight may be.
        """
        updates = self._step.state.updates
        for update in list(updates.values()):
            if (
                not update.accepted_event_id
                and update.update_id not in self._accepted
                and not any(update.update_id in asker.updates for asker in askers)
            ):
                del updates[update.update_id]


def _append_again(step: Step, event: e.Event, **changes: Any) -> None:
    step.append(msgspec.structs.replace(event, event_id=step.state.next_event_id, event_time=step.now, **changes))


def _without_ids(state: ExecutionState) -> list[e.Event]:
    """What has come to a run while a worker holds its task, in the order in which its history will have it."""
    buffered = state.buffered_events
    late = [event for event in buffered if type(event) in OUTCOME_EVENTS]
    early = [event for event in buffered if type(event) not in OUTCOME_EVENTS]
    return [msgspec.structs.replace(event, event_id=state.next_event_id) for event in (*early, *late)]


def _settle_pending(step: Step, source: ExecutionState, event: e.Event) -> None:
    """What another execution has answered since to what was pending at the point.

    It may have answered any run that has the event by which it was asked: not each reset went back as far.
    """
    state = step.state
    if not isinstance(event, _ANSWERS) or (
        source.recorded_by(event.initiated_event_id) != state.recorded_by(event.initiated_event_id)
    ):
        return
    if isinstance(event, e.ChildWorkflowExecutionStarted):
        child = state.children.get(event.initiated_event_id)
        if child is not None and not child.started_event_id:
            _append_again(step, event)
    elif isinstance(event, e.StartChildWorkflowExecutionFailed):
        if event.initiated_event_id in state.children:
            _append_again(step, event)
    elif isinstance(event, _CHILD_OUTCOMES):
        child = state.children.get(event.initiated_event_id)
        if child is not None:
            _append_again(step, event, started_event_id=child.started_event_id)
    elif isinstance(event, _SIGNAL_OUTCOMES):
        if event.initiated_event_id in state.external_signals:
            _append_again(step, event)
    elif event.initiated_event_id in state.external_cancels:
        _append_again(step, event)


def _inherit(
    new: ExecutionState,
    latest: ExecutionState,
    base: ExecutionState,
    request: ResetWorkflowRequest,
    limits: Limits,
    taken_updates: Container[str],
) -> None:
    """Facts without events: by which repeats are recognised, and updates that wait to be accepted."""
    earlier = {**base.earlier_updates, **new.earlier_updates}
    new.earlier_updates = dict(list(earlier.items())[-EARLIER_UPDATES_KEPT:])
    seen = [*base.earlier_request_ids, *base.recent_request_ids]
    if latest is not base:
        seen += [*latest.earlier_request_ids, *latest.recent_request_ids]
    new.earlier_request_ids = _latest(seen, 2 * limits.request_ids_kept)
    answered = [*base.attached_request_ids, *latest.attached_request_ids, latest.start_request_id]
    answered = [request_id for request_id in answered if request_id not in ("", new.start_request_id)]
    new.attached_request_ids = _latest(answered, limits.request_ids_kept)
    resets = {**base.resets, **latest.resets, request.request_id: new.run_id}
    new.resets = dict(list(resets.items())[-RESETS_KEPT:])
    if not latest.is_open:
        return
    for update in latest.updates.values():
        if update.update_id in taken_updates or update.update_id in new.updates:
            continue
        if not update.accepted_event_id:
            unsent = msgspec.structs.replace(update, sent_lease_id=0, admitted_after_event_id=0, admitted_event_id=0)
            new.updates[update.update_id] = unsent


def _latest(request_ids: list[str], count: int) -> list[str]:
    return list(dict.fromkeys(request_ids))[-count:]


def _terminate(
    step: Step,
    request: ResetWorkflowRequest,
    base: ExecutionState,
    new_run: tuple[ExecutionState, Transition],
    outcomes: Mapping[str, e.UpdateOutcome],
) -> None:
    """End the latest run, which goes on in the new one; what it has pending beyond the point is let go."""
    state, new = step.state, new_run[0]
    for update_id in state.updates:
        if update_id in new.updates or update_id in new.derived.update_ids:
            state.earlier_updates[update_id] = new.run_id
    event = e.WorkflowExecutionTerminated(
        event_id=state.next_event_id,
        event_time=step.now,
        reason=request.reason,
        identity=request.identity or ENGINE_IDENTITY,
    )
    close_run(step, event, new_run=new_run, keeps_children=state.goes_on_with(base.run_id), outcomes=outcomes)
