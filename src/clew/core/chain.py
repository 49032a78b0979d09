"""The runs of a chain: how a close command ends one, and how the next begins (semantics 1.1, 1.7).

Owns: continue-as-new, workflow retries and cron runs. Never: the first run of a chain (``core.start``).

How it works: whoever closes a run asks here whether another follows. A run that follows is made in the same transition
and committed in the same unit, so that a chain never has a gap.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any, Final

import msgspec

from clew.core import deadlines
from clew.core.checks import cap
from clew.core.closing import close_run
from clew.core.cron import next_cron_time
from clew.core.evolve import begin, is_null_payload
from clew.core.retry import decide_retry
from clew.core.state import ExecutionState
from clew.core.step import Step
from clew.core.tasks import want_task
from clew.core.transition import Transition
from clew.core.updates import want_update_task
from clew.model import commands as c
from clew.model import events as e
from clew.model.events import ZERO, ContinueAsNewInitiator
from clew.model.failure import Failure, RetryState
from clew.model.limits import WORKFLOW_TASK_TIMEOUT_MAX
from clew.model.payload import Payloads, StoredPayload
from clew.model.policies import DeploymentVersion, VersioningBehavior

NEXT_RUN_BACKOFF_MIN: Final = timedelta(seconds=1)
"""Runs that continue as new without having met anything begin at least so far apart (semantics 1.1, ADR 7)."""

_FIRST_COMPLETED_EVENT_ID: Final = 4
"""Where the first workflow task completes when nothing but the start came before."""

EARLIER_UPDATES_KEPT: Final = 50
"""Some times what may be in flight at once; a repeat comes within seconds."""

REPEAT_WINDOW: Final = timedelta(minutes=1)
"""A caller that lost its answer has asked again by then; what is older is not handed on to a third run."""

NewRun = tuple[ExecutionState, Transition]


def complete_run(
    step: Step,
    command: c.Command,
    completed_event_id: int,
    *,
    new_run_id: Callable[[], str],
    started: e.WorkflowExecutionStarted | None,
) -> None:
    """Close the run as its last command says."""
    match command:
        case c.CompleteWorkflowExecution():
            _complete(step, command, completed_event_id, new_run_id, started)
        case c.FailWorkflowExecution():
            _fail(step, command, completed_event_id, new_run_id, started)
        case c.CancelWorkflowExecution():
            event = e.WorkflowExecutionCanceled(
                event_id=step.state.next_event_id,
                event_time=step.now,
                details=command.details,
                workflow_task_completed_event_id=completed_event_id,
            )
            close_run(step, event)
        case c.ContinueAsNewWorkflowExecution():
            _continue(step, command, completed_event_id, new_run_id(), started)
        case _:
            raise AssertionError(f"{type(command).__name__} does not close a run")


def _complete(
    step: Step,
    command: c.CompleteWorkflowExecution,
    completed_event_id: int,
    new_run_id: Callable[[], str],
    started: e.WorkflowExecutionStarted | None,
) -> None:
    new_run = _cron_run(step, new_run_id, started, result=command.result, failure=None)
    event = e.WorkflowExecutionCompleted(
        event_id=step.state.next_event_id,
        event_time=step.now,
        result=command.result,
        workflow_task_completed_event_id=completed_event_id,
        new_execution_run_id=_run_id_of(new_run),
    )
    close_run(step, event, new_run=new_run)


def _fail(
    step: Step,
    command: c.FailWorkflowExecution,
    completed_event_id: int,
    new_run_id: Callable[[], str],
    started: e.WorkflowExecutionStarted | None,
) -> None:
    retry_state, new_run = run_after_failure(step, command.failure, new_run_id, started)
    event = e.WorkflowExecutionFailed(
        event_id=step.state.next_event_id,
        event_time=step.now,
        failure=command.failure,
        retry_state=retry_state,
        workflow_task_completed_event_id=completed_event_id,
        new_execution_run_id=_run_id_of(new_run),
    )
    close_run(step, event, new_run=new_run)


def _run_id_of(new_run: NewRun | None) -> str:
    return new_run[0].run_id if new_run is not None else ""


def run_after_failure(
    step: Step,
    failure: Failure,
    new_run_id: Callable[[], str],
    started: e.WorkflowExecutionStarted | None,
) -> tuple[RetryState, NewRun | None]:
    """The run that follows one that failed or timed out: a retry, else the next cron run, else none."""
    state = step.state
    verdict = decide_retry(
        state.retry_policy, state.attempt, failure, step.now, expiration_time=state.execution_deadline
    )
    if not verdict.is_retried:
        return verdict.state, _cron_run(step, new_run_id, started, result=None, failure=failure)
    first = _first_event(state, started)
    event = msgspec.structs.replace(
        _same_again(step, first, verdict.delay),
        initiator=ContinueAsNewInitiator.RETRY,
        attempt=state.attempt + 1,
        continued_failure=failure,
        key_generation=state.key_generation,
    )
    return verdict.state, _begin_next(step, event, new_run_id())


def _cron_run(
    step: Step,
    new_run_id: Callable[[], str],
    started: e.WorkflowExecutionStarted | None,
    *,
    result: Payloads | None,
    failure: Failure | None,
) -> NewRun | None:
    state = step.state
    if not state.cron_schedule:
        return None
    wait = max(next_cron_time(state.cron_schedule, step.now, state.execution_time) - step.now, ZERO)
    if state.execution_deadline is not None and step.now + wait >= state.execution_deadline:
        return None
    first = _first_event(state, started)
    run_id = new_run_id()
    event = msgspec.structs.replace(
        _same_again(step, first, wait),
        initiator=ContinueAsNewInitiator.CRON_SCHEDULE,
        attempt=1,
        inherited_pinned_version=None,
        continued_failure=failure,
        last_completion_result=first.last_completion_result if result is None else result,
        key_generation=run_id,
    )
    return _begin_next(step, event, run_id)


def _first_event(state: ExecutionState, started: e.WorkflowExecutionStarted | None) -> e.WorkflowExecutionStarted:
    assert started is not None, f"the next run of {state.workflow_id!r} needs its first event; pass it as `started`"
    return started


def _same_again(step: Step, first: e.WorkflowExecutionStarted, wait: timedelta) -> e.WorkflowExecutionStarted:
    """The first event of a run that takes the same input."""
    state = step.state
    return msgspec.structs.replace(
        first,
        event_id=1,
        event_time=step.now,
        continued_execution_run_id=state.run_id,
        # Not the one of the first event: a reset begins the timeouts anew, and copies that event as it is.
        workflow_execution_expiration_time=state.execution_deadline,
        first_workflow_task_backoff=wait,
        memo=state.memo or None,
        search_attributes=state.search_attributes or None,
        versioning_override=state.versioning_override,
        request_id="",
        eager_execution_accepted=False,
    )


def _begin_next(step: Step, event: e.WorkflowExecutionStarted, run_id: str) -> NewRun:
    """The run that `event` begins, with its first workflow task or the wait for it."""
    old = step.state
    event = msgspec.structs.replace(event, original_execution_run_id=run_id)
    state = begin(event, namespace=old.namespace, run_id=run_id)
    following = Step(state, step.now, step.limits)
    following.events.append(event)
    for deadline in (deadlines.KIND_FIRST_TASK, deadlines.KIND_RUN_TIMEOUT, deadlines.KIND_EXECUTION_TIMEOUT):
        state.arm(deadline)
    state.earlier_updates = _earlier_updates(old, step.now)
    state.earlier_request_ids = _earlier_request_ids(old, step)
    state.resets = dict(old.resets)
    if old.start_request_id:
        # A start sent again after its run has gone on is answered with the chain, not with another one.
        known = [*old.attached_request_ids, old.start_request_id]
        state.attached_request_ids = known[-step.limits.request_ids_kept :]
    else:
        state.attached_request_ids = list(old.attached_request_ids)
    for update in old.updates.values():
        if not update.accepted_event_id:
            unsent = msgspec.structs.replace(update, sent_lease_id=0, admitted_after_event_id=0)
            state.updates[update.update_id] = unsent
    want_task(following)
    if state.updates:
        want_update_task(following)
    return state, following.transition()


def _earlier_request_ids(old: ExecutionState, step: Step) -> list[str]:
    """The same for signals: what was delivered to this chain is not delivered again."""
    earlier = old.earlier_request_ids if step.now - old.start_time < REPEAT_WINDOW else []
    return [*earlier, *old.recent_request_ids][-step.limits.request_ids_kept :]


def _earlier_updates(old: ExecutionState, now: datetime) -> dict[str, str]:
    """The updates that the chain took of late, so that one sent again after its run has gone on is not taken twice."""
    earlier = dict(old.earlier_updates) if now - old.start_time < REPEAT_WINDOW else {}
    for completed in old.completed_updates.values():
        earlier[completed.update_id] = old.run_id
    for update in old.updates.values():
        if update.accepted_event_id:
            earlier[update.update_id] = old.run_id
    return dict(list(earlier.items())[-EARLIER_UPDATES_KEPT:])


def _continue(
    step: Step,
    command: c.ContinueAsNewWorkflowExecution,
    completed_event_id: int,
    run_id: str,
    started: e.WorkflowExecutionStarted | None,
) -> None:
    state = step.state
    run_timeout = cap(command.workflow_run_timeout) or state.workflow_run_timeout
    task_timeout = min(cap(command.workflow_task_timeout) or state.workflow_task_timeout, WORKFLOW_TASK_TIMEOUT_MAX)
    memo = _with(state.memo, command.memo)
    attributes = _with(state.search_attributes, command.search_attributes)
    wait = max(cap(command.backoff_start_interval), _apart(state, completed_event_id, step.now))
    shared: dict[str, Any] = {
        "workflow_type": command.workflow_type or state.workflow_type,
        "task_queue": command.task_queue or state.task_queue,
        "input": command.input,
        "workflow_run_timeout": run_timeout,
        "workflow_task_timeout": task_timeout,
        "memo": memo or None,
        "search_attributes": attributes or None,
        "header": command.header,
    }
    first = e.WorkflowExecutionStarted(
        event_id=1,
        event_time=step.now,
        workflow_id=state.workflow_id,
        workflow_execution_timeout=state.workflow_execution_timeout,
        workflow_execution_expiration_time=state.execution_deadline,
        parent=state.parent,
        parent_initiated_event_id=state.parent_initiated_event_id,
        root=state.root_ref,
        continued_execution_run_id=state.run_id,
        initiator=command.initiator,
        first_execution_run_id=state.first_execution_run_id,
        retry_policy=command.retry_policy or state.retry_policy,
        cron_schedule=command.cron_schedule or state.cron_schedule,
        first_workflow_task_backoff=wait,
        last_completion_result=started.last_completion_result if started is not None else None,
        priority=state.priority,
        versioning_override=state.versioning_override,
        inherited_pinned_version=_handed_on(state, command),
        key_generation=run_id,
        **shared,
    )
    event = e.WorkflowExecutionContinuedAsNew(
        event_id=state.next_event_id,
        event_time=step.now,
        new_execution_run_id=run_id,
        backoff_start_interval=wait,
        initiator=command.initiator,
        workflow_task_completed_event_id=completed_event_id,
        **shared,
    )
    close_run(step, event, new_run=_begin_next(step, first, run_id))


def _handed_on(state: ExecutionState, command: c.ContinueAsNewWorkflowExecution) -> DeploymentVersion | None:
    """The version that the next run is pinned to: that of this one, if it stays on its task queue."""
    if command.initial_versioning_behavior is VersioningBehavior.AUTO_UPGRADE:
        return None
    if state.versioning_behavior is not VersioningBehavior.PINNED or command.task_queue not in ("", state.task_queue):
        return None
    return state.deployment_version


def _with(carried: dict[str, StoredPayload], changes: dict[str, StoredPayload] | None) -> dict[str, StoredPayload]:
    merged = {**carried, **(changes or {})}
    return {key: value for key, value in merged.items() if not is_null_payload(value)}


def _apart(state: ExecutionState, completed_event_id: int, now: datetime) -> timedelta:
    """How long the next run must wait so that a chain does not spin."""
    if completed_event_id > _FIRST_COMPLETED_EVENT_ID or state.updates or state.completed_updates:
        return ZERO
    return max(state.execution_time + NEXT_RUN_BACKOFF_MIN - now, ZERO)
