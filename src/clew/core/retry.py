"""Whether, and when, what failed is tried again (semantics 1.3).

Owns: the retry decision of activities and of workflow runs, and the cutting of failures that are kept between attempts.
Never: a clock; the caller says what time it is.

How it works: the checks come in the published order, and the first that says no names the retry state.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final, NamedTuple

import msgspec

from clew.model.events import ZERO
from clew.model.failure import (
    ApplicationInfo,
    CanceledInfo,
    Failure,
    RetryState,
    ServerInfo,
    TerminatedInfo,
    TimeoutInfo,
    TimeoutType,
)
from clew.model.policies import RetryPolicy

RETRY_POLICY_DEFAULT: Final = RetryPolicy()
"""What an activity gets that names no policy."""

MAXIMUM_INTERVAL_FACTOR: Final = 100
"""The longest wait is this many times the first, unless the policy says otherwise."""

TIMEOUT_TYPE_PREFIX: Final = "TemporalTimeout:"
"""``TemporalTimeout:StartToClose`` among the non-retryable types makes that timeout final."""

_SCHEDULE_TIMEOUTS: Final = (TimeoutType.SCHEDULE_TO_START, TimeoutType.SCHEDULE_TO_CLOSE)
_encoder: Final = msgspec.json.Encoder()


class RetryVerdict(NamedTuple):
    """`state` is InProgress when there is another attempt, after `delay`."""

    state: RetryState
    delay: timedelta = ZERO

    @property
    def is_retried(self) -> bool:
        """Whether there is another attempt."""
        return self.state is RetryState.IN_PROGRESS


def check_policy(policy: RetryPolicy) -> str:
    """What is wrong with a policy, in words; empty when nothing is."""
    if policy.initial_interval < ZERO:
        return f"initial_interval is {policy.initial_interval}; it must not be negative"
    if policy.backoff_coefficient < 1:
        return f"backoff_coefficient is {policy.backoff_coefficient}; it must be at least 1"
    if policy.maximum_attempts < 0:
        return f"maximum_attempts is {policy.maximum_attempts}; it must not be negative (0 means no limit)"
    longest = policy.maximum_interval
    if longest is not None and (longest < ZERO or (longest and longest < policy.initial_interval)):
        return f"maximum_interval is {longest}; it must not be shorter than initial_interval {policy.initial_interval}"
    return ""


def backoff_interval(policy: RetryPolicy, attempt: int) -> timedelta:
    """The wait between attempt `attempt` (1-based) and the next."""
    initial = policy.initial_interval or RETRY_POLICY_DEFAULT.initial_interval
    longest = policy.maximum_interval or initial * MAXIMUM_INTERVAL_FACTOR
    try:
        wait = initial * policy.backoff_coefficient ** (attempt - 1)
    except OverflowError:
        return longest
    return min(wait, longest)


def is_retryable(failure: Failure, policy: RetryPolicy) -> bool:
    """Whether this kind of failure may be tried again at all."""
    listed = policy.non_retryable_error_types or ()
    match failure.info:
        case ApplicationInfo(type=type_, non_retryable=non_retryable):
            return not non_retryable and type_ not in listed
        case TimeoutInfo(timeout_type=timeout_type):
            return timeout_type not in _SCHEDULE_TIMEOUTS and TIMEOUT_TYPE_PREFIX + timeout_type.value not in listed
        case ServerInfo(non_retryable=non_retryable):
            return not non_retryable
        case CanceledInfo() | TerminatedInfo():
            return False
        case _:
            return True


def decide_retry(
    policy: RetryPolicy | None,
    attempt: int,
    failure: Failure,
    now: datetime,
    *,
    expiration_time: datetime | None = None,
    is_cancel_requested: bool = False,
    is_immediate: bool = False,
) -> RetryVerdict:
    """Whether there is another attempt after attempt `attempt` failed with `failure`.

    Args:
        policy: None when nothing is ever retried.
        attempt: The attempt that failed, 1-based.
        failure: Why.
        now: The instant of the failure.
        expiration_time: No attempt may begin at or after it.
        is_cancel_requested: Whether the workflow asked for cancellation.
        is_immediate: The next attempt does not wait (the worker was lost; the code did not fail).
    """
    if policy is None:
        return RetryVerdict(RetryState.RETRY_POLICY_NOT_SET)
    if is_cancel_requested:
        return RetryVerdict(RetryState.CANCEL_REQUESTED)
    info = failure.info
    if isinstance(info, TimeoutInfo) and info.timeout_type in _SCHEDULE_TIMEOUTS:
        return RetryVerdict(RetryState.TIMEOUT)
    if not is_retryable(failure, policy):
        return RetryVerdict(RetryState.NON_RETRYABLE_FAILURE)
    if policy.maximum_attempts and attempt >= policy.maximum_attempts:
        return RetryVerdict(RetryState.MAXIMUM_ATTEMPTS_REACHED)
    delay = ZERO if is_immediate else backoff_interval(policy, attempt)
    if isinstance(info, ApplicationInfo) and info.next_retry_delay is not None:
        delay = max(info.next_retry_delay, ZERO)
    if expiration_time is not None and now + delay >= expiration_time:
        return RetryVerdict(RetryState.TIMEOUT)
    return RetryVerdict(RetryState.IN_PROGRESS, delay)


def cut_failure(failure: Failure, bytes_max: int) -> Failure:
    """The failure as it is kept between attempts: whole when it fits, else without what takes most room."""
    if len(_encoder.encode(failure)) <= bytes_max:
        return failure
    replace = msgspec.structs.replace
    info = failure.info
    if isinstance(info, ApplicationInfo):
        info = replace(info, details=())
    cut = replace(failure, info=info, cause=None, encoded_attributes=None, notes=())
    spare = max(bytes_max - len(_encoder.encode(replace(cut, message="", stack_trace=""))) - 16, 0)
    # One character of text takes at most six bytes of JSON.
    message = failure.message[: max(spare // 12, 1)]
    return replace(cut, message=message, stack_trace=failure.stack_trace[-(spare // 12) :] if spare >= 12 else "")
