"""The wait before the next attempt of a local activity."""

from __future__ import annotations

from datetime import timedelta

import pytest

from clew.common import RetryPolicy
from clew.model.failure import ApplicationInfo, CanceledInfo, Failure, FailureInfo, TimeoutInfo, TimeoutType
from clew.worker._local_retry import retry_delay

SECOND = timedelta(seconds=1)
APPLICATION = ApplicationInfo(type="Bad")


def delay(info: FailureInfo | None, attempt: int = 1, **policy: object) -> timedelta | None:
    return retry_delay(RetryPolicy(**policy), Failure(message="no", info=info), attempt)  # type: ignore[arg-type]


@pytest.mark.parametrize(("attempt", "seconds"), [(1, 1), (2, 2), (3, 4), (7, 64), (8, 100), (5_000, 100)])
def test_waits_double_up_to_a_hundred_times_the_first(attempt: int, seconds: int) -> None:
    assert delay(APPLICATION, attempt) == seconds * SECOND


def test_the_policy_s_own_numbers_hold() -> None:
    assert delay(APPLICATION, 3, initial_interval=2 * SECOND, backoff_coefficient=3.0) == 18 * SECOND
    assert delay(APPLICATION, 3, maximum_interval=3 * SECOND) == 3 * SECOND
    assert delay(APPLICATION, 2, maximum_attempts=3) == 2 * SECOND
    assert delay(APPLICATION, 3, maximum_attempts=3) is None


@pytest.mark.parametrize(
    "info",
    [
        ApplicationInfo(type="Bad", non_retryable=True),
        ApplicationInfo(type="Listed"),
        CanceledInfo(),
        TimeoutInfo(timeout_type=TimeoutType.SCHEDULE_TO_CLOSE),
        TimeoutInfo(timeout_type=TimeoutType.SCHEDULE_TO_START),
    ],
)
def test_some_failures_are_final(info: FailureInfo) -> None:
    assert delay(info, non_retryable_error_types=["Listed"]) is None


def test_a_hung_attempt_is_tried_again() -> None:
    assert delay(TimeoutInfo(timeout_type=TimeoutType.START_TO_CLOSE)) == SECOND


def test_the_error_itself_can_name_the_wait() -> None:
    named = ApplicationInfo(type="Bad", next_retry_delay=timedelta(hours=1))
    assert delay(named, maximum_interval=SECOND) == timedelta(hours=1)
