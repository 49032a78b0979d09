"""Activities as workers meet them: taken, completed, failed, cancelled, given back, heartbeats (semantics 1.3; 2.4).

Owns: the decisions on an attempt's start and its end, and `retry_or_close`, which timeouts use as well.
Never: fires timeouts (``core.due`` does) or runs anything.

How it works: attempts leave no event. Started and the outcome are written together when the activity closes, Started
with the attempt's true start time. An outcome is taken only from the holder of the attempt's lease, or from a caller
that names the activity by id (law 6).
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Final

import msgspec

from clew.core.checks import check_payloads, refuse, sentence
from clew.core.closing import finish
from clew.core.pending import AttemptRecord, PendingActivity
from clew.core.replies import HeartbeatReply, StartedActivity
from clew.core.retry import RetryVerdict, cut_failure, decide_retry
from clew.core.state import ExecutionState
from clew.core.step import Step
from clew.core.tables import ActivityInput, ActivityPhase, activity_phases_taking
from clew.core.tasks import expect_news, want_task
from clew.core.transition import ITEM_ACTIVITY, ActivityTaskReady, Transition
from clew.model import events as e
from clew.model.failure import Failure, RetryState, ServerInfo, TimeoutInfo, TimeoutType
from clew.model.inputs import (
    ActivityTarget,
    CancelActivityRequest,
    CompleteActivityRequest,
    FailActivityRequest,
    HeartbeatActivityRequest,
    ReleaseActivityRequest,
    TaskToken,
)
from clew.model.limits import LIMITS_DEFAULT, Limits
from clew.model.rejection import Rejection, RejectionCode

LOST_MESSAGE: Final = "The worker {worker!r} that ran attempt {attempt} is gone; how far the attempt came is not known."

_MAY_BE_TAKEN: Final = activity_phases_taking(ActivityInput.TAKE)
_MAY_END: Final = activity_phases_taking(ActivityInput.END)
_MAY_END_BY_ID: Final = activity_phases_taking(ActivityInput.END_BY_ID)
_MAY_FAIL: Final = activity_phases_taking(ActivityInput.FAIL)
_MAY_BE_RELEASED: Final = activity_phases_taking(ActivityInput.RELEASE)
_MAY_HEARTBEAT: Final = activity_phases_taking(ActivityInput.HEARTBEAT)


def decide_start_activity(
    state: ExecutionState, *, scheduled_event_id: int, attempt: int, session: str, identity: str, now: datetime
) -> Transition | Rejection:
    """Give an attempt to a worker; only facts change, there is no event.

    Reply: `StartedActivity`.
    """
    activity = state.activities.get(scheduled_event_id)
    if activity is None or activity.attempt != attempt or activity.phase not in _MAY_BE_TAKEN:
        return refuse(
            RejectionCode.ACTIVITY_NOT_FOUND,
            f"Attempt {attempt} of the activity scheduled by event {scheduled_event_id} no longer waits for a worker.",
        )
    state.lease_count += 1
    activity.lease_id = state.lease_count
    activity.session = session
    activity.identity = identity
    activity.started_time = now
    activity.last_heartbeat_time = None
    activity.release_reason = ""
    state.arm(ITEM_ACTIVITY, scheduled_event_id)
    return Transition(
        dirty_items={(ITEM_ACTIVITY, scheduled_event_id)},
        reply=StartedActivity(
            lease_id=activity.lease_id, attempt=attempt, key_generation=state.key_generation, activity=activity
        ),
    )


def decide_complete_activity(
    state: ExecutionState, request: CompleteActivityRequest, now: datetime, *, limits: Limits = LIMITS_DEFAULT
) -> Transition | Rejection:
    """Take the result of an activity."""
    activity = _find(state, request.token, _MAY_END, _MAY_END_BY_ID)
    if isinstance(activity, Rejection):
        return activity
    step = Step(state, now, limits)
    finding = check_payloads(f"the result of activity {activity.activity_id!r}", request.result, limits)
    if finding:
        # Refusing the report would leave the workflow waiting for a result that cannot come.
        failure = Failure(message=sentence(finding), info=ServerInfo(non_retryable=True))
        _fail(step, activity, failure, request.identity)
        return finish(step)

    def outcome(event_id: int, started_event_id: int) -> e.Event:
        return e.ActivityTaskCompleted(
            event_id=event_id,
            event_time=now,
            scheduled_event_id=activity.scheduled_event_id,
            started_event_id=started_event_id,
            result=request.result,
            identity=request.identity,
        )

    close_activity(step, activity, outcome, identity=request.identity)
    return finish(step)


def decide_fail_activity(
    state: ExecutionState, request: FailActivityRequest, now: datetime, *, limits: Limits = LIMITS_DEFAULT
) -> Transition | Rejection:
    """Take the failure of an attempt: it is tried again, or the activity fails for good."""
    activity = _find(state, request.token, _MAY_FAIL, _MAY_END_BY_ID)
    if isinstance(activity, Rejection):
        return activity
    step = Step(state, now, limits)
    if request.last_heartbeat_details is not None:
        activity.heartbeat_details = request.last_heartbeat_details
    _fail(step, activity, cut_failure(request.failure, limits.payload_bytes_max), request.identity)
    return finish(step)


def _fail(step: Step, activity: PendingActivity, failure: Failure, identity: str) -> None:
    """The attempt failed: it is tried again, or the activity closes as failed."""
    verdict = _verdict(step, activity, failure)
    if verdict.is_retried:
        begin_next_attempt(step, activity, failure, verdict)
        return

    def outcome(event_id: int, started_event_id: int) -> e.Event:
        return e.ActivityTaskFailed(
            event_id=event_id,
            event_time=step.now,
            scheduled_event_id=activity.scheduled_event_id,
            started_event_id=started_event_id,
            failure=failure,
            identity=identity,
            retry_state=verdict.state,
        )

    close_activity(step, activity, outcome, identity=identity)


def decide_cancel_activity(
    state: ExecutionState, request: CancelActivityRequest, now: datetime, *, limits: Limits = LIMITS_DEFAULT
) -> Transition | Rejection:
    """Take the report that an activity ended because it was asked to."""
    activity = _find(state, request.token, _MAY_END, _MAY_END_BY_ID)
    if isinstance(activity, Rejection):
        return activity
    if not activity.is_cancel_requested:
        return refuse(
            RejectionCode.INVALID_ARGUMENT,
            f"Activity {activity.activity_id!r} was reported as cancelled, but nobody asked for that. "
            "Report a failure instead.",
        )
    step = Step(state, now, limits)

    def outcome(event_id: int, started_event_id: int) -> e.Event:
        return e.ActivityTaskCanceled(
            event_id=event_id,
            event_time=now,
            scheduled_event_id=activity.scheduled_event_id,
            started_event_id=started_event_id,
            details=request.details,
            latest_cancel_requested_event_id=activity.cancel_requested_event_id,
            identity=request.identity,
        )

    close_activity(step, activity, outcome, identity=request.identity)
    return finish(step)


def decide_release_activity(
    state: ExecutionState, request: ReleaseActivityRequest, now: datetime
) -> Transition | Rejection:
    """Take back an attempt that never ran: it waits for another worker, and no attempt is spent."""
    activity = _find(state, request.token, _MAY_BE_RELEASED, _MAY_END_BY_ID)
    if isinstance(activity, Rejection):
        return activity
    step = Step(state, now, LIMITS_DEFAULT)
    _let_go(activity)
    activity.release_reason = request.reason
    offer_attempt(step, activity)
    return finish(step)


def decide_detach_activity(state: ExecutionState, token: TaskToken, now: datetime) -> Transition | Rejection:
    """The attempt will be completed from elsewhere: it no longer depends on the session that began it."""
    activity = _find(state, token, _MAY_HEARTBEAT, _MAY_HEARTBEAT)
    if isinstance(activity, Rejection):
        return activity
    activity.session = ""
    return Transition(dirty_items={(ITEM_ACTIVITY, activity.scheduled_event_id)})


def decide_adopt_attempt(
    state: ExecutionState, token: TaskToken, session: str, now: datetime
) -> Transition | Rejection:
    """A worker that came to another node, or to the same one restarted, still has this attempt: it goes on there.

    One that it has let go of (`decide_detach_activity`), and does not know yet that this was heard, stays free.

    Reply: `HeartbeatReply`.
    """
    activity = _find(state, token, _MAY_HEARTBEAT, _MAY_HEARTBEAT)
    if isinstance(activity, Rejection):
        return activity
    if not activity.session:
        return Transition(reply=HeartbeatReply(cancel_requested=False))
    activity.session = session
    return Transition(
        dirty_items={(ITEM_ACTIVITY, activity.scheduled_event_id)},
        reply=HeartbeatReply(cancel_requested=activity.is_cancel_requested),
    )


def decide_heartbeat_activity(
    state: ExecutionState, request: HeartbeatActivityRequest, now: datetime
) -> Transition | Rejection:
    """Note that an attempt is alive, and how far it has come.

    Reply: `HeartbeatReply`.
    """
    activity = _find(state, request.token, _MAY_HEARTBEAT, _MAY_HEARTBEAT)
    if isinstance(activity, Rejection):
        return activity
    activity.heartbeat_details = request.details
    activity.last_heartbeat_time = now
    return Transition(
        dirty_items={(ITEM_ACTIVITY, activity.scheduled_event_id)},
        reply=HeartbeatReply(cancel_requested=activity.is_cancel_requested),
    )


def _find(
    state: ExecutionState,
    token: TaskToken | ActivityTarget,
    phases: tuple[ActivityPhase, ...],
    phases_by_id: tuple[ActivityPhase, ...],
) -> PendingActivity | Rejection:
    """The activity that the caller may report on: the holder of its lease, or anyone who names it by id."""
    if isinstance(token, TaskToken):
        activity = state.activities.get(token.scheduled_event_id)
        if activity is not None and not (activity.lease_id == token.lease_id and activity.attempt == token.attempt):
            activity = None
    else:
        activity = state.activities.get(state.derived.activity_ids.get(token.activity_id, 0))
        phases = phases_by_id
    if activity is None or activity.phase not in phases:
        return refuse(
            RejectionCode.ACTIVITY_NOT_FOUND,
            f"Activity {token.activity_id!r} of workflow {state.workflow_id!r} does not wait for this attempt: it has "
            "closed, timed out, was given to another worker, or its run has closed. Stop working on it.",
        )
    return activity


# --- shared with timeouts --------------------------------------------------------------------------------------------


def close_activity(
    step: Step,
    activity: PendingActivity,
    outcome: Callable[[int, int], e.Event],
    *,
    identity: str = "",
    has_started: bool = True,
) -> None:
    """Record the activity's start, if it had one, and its outcome; and make sure that the workflow sees it.

    Args:
        step: The transition in the making.
        activity: It stays pending while its outcome is buffered.
        outcome: Makes the closing event from its id and the id of the Started event.
        identity: Who reports, for a start that is made up because the activity is completed by id before any attempt.
        has_started: Whether there is a start to record. An outcome that is reported has one, even if it is made up.
    """
    expect_news(step)
    started_time = activity.started_time
    if has_started:
        step.record(
            e.ActivityTaskStarted(
                event_id=step.outside_event_id,
                event_time=started_time or step.now,
                scheduled_event_id=activity.scheduled_event_id,
                identity=activity.identity or identity,
                attempt=activity.attempt,
                last_failure=activity.last_failure,
            )
        )
    event = outcome(step.outside_event_id, activity.started_event_id)
    step.record(event)
    if event.event_id == 0:
        activity.is_closing = True
        step.touch_activity(activity.scheduled_event_id)
    want_task(step)


def _verdict(step: Step, activity: PendingActivity, failure: Failure, *, is_immediate: bool = False) -> RetryVerdict:
    return decide_retry(
        activity.retry_policy,
        activity.attempt,
        failure,
        step.now,
        expiration_time=activity.expiration_time,
        is_cancel_requested=activity.is_cancel_requested,
        is_immediate=is_immediate,
    )


def begin_next_attempt(step: Step, activity: PendingActivity, failure: Failure, verdict: RetryVerdict) -> None:
    """The attempt failed and is tried again, after the delay of the verdict; no event says so."""
    kept = cut_failure(failure, step.limits.retry_failure_bytes_max)
    note_failed_attempt(step, activity, kept)
    activity.last_failure = kept
    activity.attempt += 1
    _let_go(activity)
    if not verdict.delay:
        offer_attempt(step, activity)
        return
    activity.next_attempt_time = activity.attempt_scheduled_time = step.now + verdict.delay
    step.state.derived.backing_off.add(activity.scheduled_event_id)
    step.state.arm(ITEM_ACTIVITY, activity.scheduled_event_id)
    step.touch_activity(activity.scheduled_event_id)


def note_failed_attempt(step: Step, activity: PendingActivity, failure: Failure) -> None:
    """Keep a failed attempt for people to see."""
    record = AttemptRecord(
        attempt=activity.attempt,
        started_at=activity.started_time,
        failed_at=step.now,
        worker_identity=activity.identity,
        failure=failure,
    )
    activity.attempts = [*activity.attempts, record][-step.limits.attempts_kept :]


def offer_attempt(step: Step, activity: PendingActivity) -> None:
    """The current attempt may be taken by a worker from now on."""
    activity.next_attempt_time = None
    activity.attempt_scheduled_time = step.now
    step.state.derived.backing_off.discard(activity.scheduled_event_id)
    step.state.arm(ITEM_ACTIVITY, activity.scheduled_event_id)
    step.touch_activity(activity.scheduled_event_id)
    step.effects.append(
        ActivityTaskReady(
            task_queue=activity.task_queue,
            scheduled_event_id=activity.scheduled_event_id,
            attempt=activity.attempt,
            priority=activity.priority_key,
        )
    )


def _let_go(activity: PendingActivity) -> None:
    activity.last_identity = activity.identity or activity.last_identity
    activity.started_time = None
    activity.session = ""
    activity.identity = ""
    activity.last_heartbeat_time = None


def lose_attempt(step: Step, activity: PendingActivity) -> None:
    """The worker that ran the attempt is gone: the next attempt begins at once, if there may be one."""
    failure = Failure(
        message=LOST_MESSAGE.format(worker=activity.identity, attempt=activity.attempt),
        info=TimeoutInfo(timeout_type=TimeoutType.START_TO_CLOSE, last_heartbeat_details=activity.heartbeat_details),
    )
    verdict = _verdict(step, activity, failure, is_immediate=True)
    if verdict.is_retried:
        begin_next_attempt(step, activity, failure, verdict)
    else:
        close_timed_out(step, activity, failure, verdict.state)


def time_out_activity(step: Step, activity: PendingActivity, timeout_type: TimeoutType) -> None:
    """A deadline of the activity passed: it is tried again, or closes as timed out."""
    failure = Failure(
        message=f"Activity {activity.activity_id!r} ran into its {timeout_type.value} timeout.",
        info=TimeoutInfo(timeout_type=timeout_type, last_heartbeat_details=activity.heartbeat_details),
    )
    verdict = _verdict(step, activity, failure)
    if verdict.is_retried:
        begin_next_attempt(step, activity, failure, verdict)
        return
    if (
        verdict.state is RetryState.TIMEOUT
        and timeout_type is not TimeoutType.SCHEDULE_TO_START
        and timeout_type is not TimeoutType.SCHEDULE_TO_CLOSE
    ):
        failure = Failure(
            message=f"Activity {activity.activity_id!r} ran into its {timeout_type.value} timeout, and its "
            "ScheduleToClose timeout leaves no time for another attempt.",
            info=TimeoutInfo(
                timeout_type=TimeoutType.SCHEDULE_TO_CLOSE, last_heartbeat_details=activity.heartbeat_details
            ),
        )
    close_timed_out(step, activity, failure, verdict.state)


def close_timed_out(step: Step, activity: PendingActivity, failure: Failure, retry_state: RetryState) -> None:
    """The activity closes as timed out; the failure that was last retried is the cause."""
    if activity.last_failure is not None:
        failure = msgspec.structs.replace(failure, cause=activity.last_failure)

    def outcome(event_id: int, started_event_id: int) -> e.Event:
        return e.ActivityTaskTimedOut(
            event_id=event_id,
            event_time=step.now,
            scheduled_event_id=activity.scheduled_event_id,
            started_event_id=started_event_id,
            failure=failure,
            retry_state=retry_state,
        )

    close_activity(step, activity, outcome, has_started=activity.started_time is not None)
