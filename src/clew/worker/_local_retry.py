"""When a local activity is tried again.

Owns: the rule, which is that of the engine for other activities (semantics 1.3), applied by the worker.
Never: waits.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from clew.common import RetryPolicy
from clew.model.failure import ApplicationInfo, CanceledInfo, Failure, TimeoutInfo, TimeoutType

INTERVALS_MAX: Final = 100
"""The longest wait, as a multiple of the first, where the policy names none."""

DEFAULT: Final = RetryPolicy()


def retry_delay(policy: RetryPolicy, failure: Failure, attempt: int) -> timedelta | None:
    """Give the wait before the next attempt; None if there is to be none.

    Args:
        policy: Of the local activity.
        failure: Why attempt number `attempt` failed.
        attempt: 1 for the first.
    """
    if policy.maximum_attempts and attempt >= policy.maximum_attempts:
        return None
    if not _is_retryable(policy, failure):
        return None
    if isinstance(failure.info, ApplicationInfo) and failure.info.next_retry_delay is not None:
        return failure.info.next_retry_delay
    longest = policy.maximum_interval or policy.initial_interval * INTERVALS_MAX
    try:
        wait = policy.initial_interval * policy.backoff_coefficient ** (attempt - 1)
    except OverflowError:
        return longest
    return min(wait, longest)


def _is_retryable(policy: RetryPolicy, failure: Failure) -> bool:
    info = failure.info
    listed = policy.non_retryable_error_types or ()
    if isinstance(info, ApplicationInfo):
        return not info.non_retryable and info.type not in listed
    if isinstance(info, TimeoutInfo):
        return info.timeout_type is TimeoutType.START_TO_CLOSE
    return not isinstance(info, CanceledInfo)
