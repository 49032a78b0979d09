"""Laws about time, attempts, children and what follows a run, checked when a simulation is over.

Owns: one function a law, as in ``checkers``, which calls them. Never: asks the engine, nor uses its reckoning of time:
each wait is reckoned here anew.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any, Final

from clew.common import RetryPolicy
from clew.model import events as e
from clew.model import policies
from clew.model.failure import ApplicationInfo, CanceledInfo, RetryState, TerminatedInfo, TimeoutInfo, TimeoutType
from clew.model.policies import ParentClosePolicy
from tests.simulation.programs import pause_after
from tests.simulation.record import LawBroken, RunLog
from tests.simulation.world import World

SLACK: Final = 1e-6
"""Seconds: instants are stamped in whole microseconds."""

POLICY_SECONDS_MAX: Final = 100.0
"""Within so long of the close of a parent, or of the end of all faults, its children have felt its close policy."""

WORKER_GONE: Final = " is gone; "
"""In the message of an attempt whose worker was lost."""

BY_POLICY: Final = "by parent close policy"
RETRY, CRON = e.ContinueAsNewInitiator.RETRY, e.ContinueAsNewInitiator.CRON_SCHEDULE
CHILD_ENDS = (
    e.ChildWorkflowExecutionCompleted,
    e.ChildWorkflowExecutionFailed,
    e.ChildWorkflowExecutionCanceled,
    e.ChildWorkflowExecutionTimedOut,
    e.ChildWorkflowExecutionTerminated,
)


# --- signals ----------------------------------------------------------------------------------------------------------


def check_order_of_signals(world: World) -> None:
    """A signal that was answered before another was sent is recorded before it."""
    sent = [
        call
        for client in world.clients
        for call in client.calls
        if call.action.kind in ("signal", "stop_register", "signal_with_start") and call.is_ok
    ]
    places: dict[tuple[str, str], tuple[int, int]] = {}
    for run_key, run in sorted(world.record.runs.items()):
        for event in run.events:
            if isinstance(event, e.WorkflowExecutionSignaled) and event.request_id:
                places.setdefault((run.workflow_id, event.request_id), (run_key, event.event_id))
    for later in sent:
        for earlier in sent:
            workflow_id = later.action.values["id"]
            if earlier.action.values["id"] != workflow_id or earlier.ended_at is None:
                continue
            if not earlier.ended_at < later.began_at:
                continue
            first, second = (places.get((workflow_id, call.request_id)) for call in (earlier, later))
            _require(
                first is None or second is None or first < second,
                "law 3",
                f"{later} was sent after {earlier} was answered, and is recorded before it",
            )


# --- attempts ---------------------------------------------------------------------------------------------------------


def check_attempts(world: World) -> None:
    """No attempt above the most that the policy allows; none before the pause since the failure of the one before."""
    outside = world.outside
    for (run_id, event_id, attempt), began_at in outside.attempts.items():
        scheduled = world.record.by_run_id[run_id].events[event_id - 1]
        if not isinstance(scheduled, e.ActivityTaskScheduled):
            continue  # What it begins without is another law.
        policy = _as_common(scheduled.retry_policy)
        most = policy.maximum_attempts
        _require(not most or attempt <= most, "law 6", f"attempt {attempt} of {scheduled.activity_id}, of {most}")
        failed_at = outside.failed.get((run_id, event_id, attempt - 1))
        if failed_at is None or not world.has_one_time:
            continue
        pause = pause_after(policy, attempt - 1)
        _require(
            began_at - failed_at >= pause - SLACK,
            "law 8",
            f"attempt {attempt} of {scheduled.activity_id} begins {began_at - failed_at:g} s after the failure of the "
            f"one before; its policy says {pause:g} s",
        )


def _as_common(policy: policies.RetryPolicy | None) -> RetryPolicy:
    """The policy in force."""
    if policy is None:
        return RetryPolicy()
    return RetryPolicy(
        initial_interval=policy.initial_interval or timedelta(seconds=1),
        backoff_coefficient=policy.backoff_coefficient,
        maximum_interval=policy.maximum_interval,
        maximum_attempts=policy.maximum_attempts,
    )


# --- timeouts ---------------------------------------------------------------------------------------------------------


def check_timeouts(world: World) -> None:
    """No activity and no run runs out of time before its time is over.

    Attempts whose worker is known to be gone end at once, and say so. Workflow tasks are likewise taken back early;
    where nothing goes wrong, none may time out at all.
    """
    may_be_lost = not world.plan.is_calm
    for run in world.record.runs.values():
        scheduled: dict[int, e.ActivityTaskScheduled] = {}
        began: dict[int, datetime] = {}
        for event in run.events:
            match event:
                case e.ActivityTaskScheduled():
                    scheduled[event.event_id] = event
                case e.ActivityTaskStarted():
                    began[event.scheduled_event_id] = event.event_time
                case e.ActivityTaskTimedOut() if not (may_be_lost and WORKER_GONE in event.failure.message):
                    if world.has_one_time or not _is_of_a_later_attempt(event):
                        asked = scheduled[event.scheduled_event_id]
                        _check_timeout(run, event, asked, began.get(event.scheduled_event_id))
                case e.WorkflowExecutionTimedOut():
                    _check_run_timeout(run, event)
                case _:
                    pass


def _is_of_a_later_attempt(event: e.ActivityTaskTimedOut) -> bool:
    """Whether an attempt waited too long that was not the first: history does not say by whose clock its wait began."""
    assert isinstance(event.failure.info, TimeoutInfo), "a timeout says which"
    return event.failure.info.timeout_type is TimeoutType.SCHEDULE_TO_START and event.failure.cause is not None


def _check_timeout(
    run: RunLog, event: e.ActivityTaskTimedOut, asked: e.ActivityTaskScheduled, began_at: datetime | None
) -> None:
    assert isinstance(event.failure.info, TimeoutInfo), "a timeout says which"
    kind, wait = event.failure.info.timeout_type, timedelta()
    length = {
        TimeoutType.START_TO_CLOSE: asked.start_to_close_timeout,
        TimeoutType.SCHEDULE_TO_START: asked.schedule_to_start_timeout,
        TimeoutType.SCHEDULE_TO_CLOSE: asked.schedule_to_close_timeout,
        TimeoutType.HEARTBEAT: asked.heartbeat_timeout,
    }[kind]
    if kind is TimeoutType.SCHEDULE_TO_CLOSE:
        # It is told at once that no time is left for another attempt.
        policy = _as_common(asked.retry_policy)
        wait = timedelta(seconds=pause_after(policy, _attempt(run, asked.event_id)))
    since = began_at if kind in (TimeoutType.START_TO_CLOSE, TimeoutType.HEARTBEAT) else asked.event_time
    assert since is not None, f"{run.workflow_id}: {event} without a start"
    _require(
        event.event_time + wait - since >= length,
        "law 8",
        f"{run.workflow_id}: {kind.value} after {event.event_time - since}, and should be {length}: {event}",
    )


def _attempt(run: RunLog, scheduled_event_id: int) -> int:
    started = (ev for ev in run.events if isinstance(ev, e.ActivityTaskStarted))
    return next((ev.attempt for ev in started if ev.scheduled_event_id == scheduled_event_id), 1)


def _check_run_timeout(run: RunLog, event: e.WorkflowExecutionTimedOut) -> None:
    began = started_of(run)
    ends = [began.event_time + began.first_workflow_task_backoff + began.workflow_run_timeout]
    ends = ends if began.workflow_run_timeout else []
    if began.workflow_execution_expiration_time is not None:
        ends.append(began.workflow_execution_expiration_time)
    _require(bool(ends), "law 8", f"{run.workflow_id} ran out of time, and had no timeout")
    _require(event.event_time >= min(ends), "law 8", f"{run.workflow_id} ran out of time too early: {event}, {ends}")


# --- retries and cron -------------------------------------------------------------------------------------------------


def check_what_follows(world: World) -> None:
    """A run that failed is tried again as its policy says, one with a schedule comes back; no other is followed."""
    asked = {
        call.action.values.get("id")
        for client in world.clients
        for call in client.calls
        if call.action.kind in ("update", "update_with_start", "signal_with_start", "reset")
    }
    for run in world.record.runs.values():
        began, end = started_of(run), run.events[-1]
        _check_first_task(run, began, is_asked=run.workflow_id in asked)
        if run.is_open or run.workflow_id in asked or isinstance(end, e.WorkflowExecutionContinuedAsNew):
            continue
        new_run_id = getattr(end, "new_execution_run_id", "")
        wanted = _wanted_next(began, end)
        name = f"{run.workflow_id}, attempt {began.attempt}, which ended with {type(end).__name__}"
        _require(bool(new_run_id) == (wanted is not None), "law 2", f"{name}: next is {new_run_id!r}, wanted: {wanted}")
        if wanted is not None:
            _check_next(run, started_of(world.record.by_run_id[new_run_id]), wanted)


def _wanted_next(began: e.WorkflowExecutionStarted, end: Any) -> tuple[e.ContinueAsNewInitiator, int, datetime] | None:
    """What is to follow: why, as which attempt, and not before when."""
    expires_at = began.workflow_execution_expiration_time
    is_failure = isinstance(end, e.WorkflowExecutionFailed | e.WorkflowExecutionTimedOut)
    if isinstance(end, e.WorkflowExecutionTimedOut) and end.retry_state is RetryState.TIMEOUT:
        return None  # The time of the whole chain is over, or would be.
    if is_failure and began.retry_policy is not None and _may_be_tried_again(end):
        policy = _as_common(began.retry_policy)
        due = end.event_time + timedelta(seconds=pause_after(policy, began.attempt))
        is_left = not policy.maximum_attempts or began.attempt < policy.maximum_attempts
        if is_left and (expires_at is None or due < expires_at):
            return RETRY, began.attempt + 1, due
    if began.cron_schedule and (is_failure or isinstance(end, e.WorkflowExecutionCompleted)):
        due = next_of(began, end.event_time)
        if expires_at is None or due < expires_at:
            return CRON, 1, due
    return None


def _may_be_tried_again(end: Any) -> bool:
    info = end.failure.info if isinstance(end, e.WorkflowExecutionFailed) else None
    if isinstance(info, ApplicationInfo):
        return not info.non_retryable
    return not isinstance(info, CanceledInfo | TerminatedInfo)


def next_of(began: e.WorkflowExecutionStarted, after: datetime) -> datetime:
    """When a schedule of the plans is due next: each minute, or every so many seconds since the run was due."""
    schedule = began.cron_schedule
    if schedule == "* * * * *":
        return after.replace(second=0, microsecond=0) + timedelta(minutes=1)
    step = timedelta(seconds=int(schedule.removeprefix("@every ").removesuffix("s")))
    anchor = began.event_time + began.first_workflow_task_backoff
    due = anchor + step
    while due <= after:
        due += step
    return due


def _check_next(run: RunLog, told: e.WorkflowExecutionStarted, wanted: tuple[Any, int, datetime]) -> None:
    initiator, attempt, due = wanted
    name = f"what follows {run.workflow_id}"
    _require(told.initiator is initiator, "law 2", f"{name}: {told.initiator}, wanted: {initiator}")
    _require(told.attempt == attempt, "law 2", f"{name}: attempt {told.attempt}, wanted: {attempt}")
    _require(told.continued_execution_run_id == run.run_id, "law 2", f"{name}: does not name it")
    at = told.event_time + told.first_workflow_task_backoff
    _require(abs((at - due).total_seconds()) <= 1e-5, "law 8", f"{name}: at {at}, wanted: {due}")


def _check_first_task(run: RunLog, began: e.WorkflowExecutionStarted, *, is_asked: bool) -> None:
    """A run that has to wait before its first task waits, unless somebody wants an answer of it or its end.

    One that has not to wait may be given its first task by a node whose clock is behind that of who started it.
    """
    if not began.first_workflow_task_backoff:
        return
    tasks = (event for event in run.events if isinstance(event, e.WorkflowTaskScheduled))
    first = next(tasks, None)
    if first is None or is_asked or any(isinstance(ev, e.WorkflowExecutionCancelRequested) for ev in run.events):
        return
    due = began.event_time + began.first_workflow_task_backoff
    _require(first.event_time >= due, "law 8", f"{run.workflow_id}: its first task is of {first.event_time}, not {due}")


# --- children whose parent has closed ---------------------------------------------------------------------------------


def check_close_policies(world: World) -> None:
    """What the close of a parent has done to each child that went on: what its policy says, and nothing else."""
    chains: dict[str, list[RunLog]] = {}
    for _, run in sorted(world.record.runs.items()):
        chains.setdefault(started_of(run).first_execution_run_id, []).append(run)
    has_resets = {
        run.workflow_id
        for run in world.record.runs.values()
        if any(isinstance(event, e.WorkflowTaskFailed) and event.new_run_id for event in run.events)
    }
    for chain in chains.values():
        began = started_of(chain[0])
        if began.parent is None or {began.parent.workflow_id, chain[0].workflow_id} & has_resets:
            continue
        parent = world.record.by_run_id[began.parent.run_id]
        asked = parent.events[began.parent_initiated_event_id - 1]
        assert isinstance(asked, e.StartChildWorkflowExecutionInitiated), "what starts a child"
        _check_child(world, parent, asked, chain)


def _check_child(
    world: World, parent: RunLog, asked: e.StartChildWorkflowExecutionInitiated, chain: list[RunLog]
) -> None:
    policy, name = asked.parent_close_policy, f"{chain[0].workflow_id}, child of {parent.workflow_id}"
    is_told = any(
        isinstance(event, CHILD_ENDS) and event.initiated_event_id == asked.event_id for event in parent.events
    )
    cancels = [event for event in _of(chain, e.WorkflowExecutionCancelRequested) if _is_by(event, parent)]
    ends = [event for event in _of(chain, e.WorkflowExecutionTerminated) if event.reason == BY_POLICY]
    if parent.is_open or is_told:
        _require(
            not cancels and not ends, "law 2", f"{name}: the parent waits for it, and its close policy was applied"
        )
        return
    _require(not cancels or policy is ParentClosePolicy.REQUEST_CANCEL, "law 2", f"{name} was cancelled: {policy}")
    _require(not ends or policy is ParentClosePolicy.TERMINATE, "law 2", f"{name} was terminated: {policy}")
    if policy is ParentClosePolicy.ABANDON:
        return
    last = chain[-1]
    until = max(parent.closed_at, world.plan.seconds) + POLICY_SECONDS_MAX
    wanted = ends if policy is ParentClosePolicy.TERMINATE else cancels
    _require(
        bool(wanted) or (not last.is_open and last.closed_at <= until),
        "law 2",
        f"{name} went on until {last.closed_at:g}, although that closed at {parent.closed_at:g}: {policy}",
    )


def _of(chain: list[RunLog], kind: type[Any]) -> Iterator[Any]:
    return (event for run in chain for event in run.events if isinstance(event, kind))


def _is_by(event: e.WorkflowExecutionCancelRequested, parent: RunLog) -> bool:
    """Whether this request came of the close, and not of a command of the parent's code."""
    ref = event.external_workflow_execution
    return ref is not None and ref.run_id == parent.run_id and event.cause == BY_POLICY


def check_terminations(world: World) -> None:
    """No run is terminated that nobody asked to terminate."""
    calls = [call for client in world.clients for call in client.calls]
    asked = {call.request_id for call in calls if call.action.kind in ("terminate", "end_cron")}
    replaced = {
        call.action.values["id"]
        for call in calls
        if call.action.kind == "reset" or call.action.values.get("policy") == "replace"
    }
    for run in world.record.runs.values():
        end = run.events[-1]
        if isinstance(end, e.WorkflowExecutionTerminated):
            is_asked = end.reason in asked or end.reason == BY_POLICY or run.workflow_id in replaced
            _require(is_asked, "law 2", f"{run.workflow_id} was terminated, which nobody asked for: {end}")


# --- small parts ------------------------------------------------------------------------------------------------------


def _require(holds: bool, law: str, text: str) -> None:
    if not holds:
        raise LawBroken(f"{law}: {text}")


def started_of(run: RunLog) -> e.WorkflowExecutionStarted:
    """The first event of a run."""
    first = run.events[0]
    assert isinstance(first, e.WorkflowExecutionStarted), "event 1 starts the run"
    return first


LIFE_CHECKS = (
    check_order_of_signals, check_attempts, check_timeouts, check_what_follows, check_close_policies,
    check_terminations,
)  # fmt: skip
