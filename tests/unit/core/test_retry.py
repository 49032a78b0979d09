"""The retry decision, reason by reason, in the published order (semantics 1.3)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from clew.core.retry import RETRY_POLICY_DEFAULT, backoff_interval, check_policy, cut_failure, decide_retry
from clew.model.failure import (
    ApplicationInfo,
    CanceledInfo,
    Failure,
    FailureInfo,
    RetryState,
    ServerInfo,
    TerminatedInfo,
    TimeoutInfo,
    TimeoutType,
)
from clew.model.policies import RetryPolicy

NOW = datetime(2026, 1, 1, tzinfo=UTC)
SECOND = timedelta(seconds=1)


def verdict(
    info: FailureInfo | None, policy: RetryPolicy | None = RETRY_POLICY_DEFAULT, **options: object
) -> RetryState:
    attempt = options.pop("attempt", 1)
    return decide_retry(policy, attempt, Failure(info=info), NOW, **options).state  # type: ignore[arg-type]


def timed_out(kind: TimeoutType) -> TimeoutInfo:
    return TimeoutInfo(timeout_type=kind)


LISTED = RetryPolicy(non_retryable_error_types=["ValueError", "TemporalTimeout:Heartbeat"])


@pytest.mark.parametrize(
    ("info", "policy", "state"),
    [
        (None, None, RetryState.RETRY_POLICY_NOT_SET),
        (None, RetryPolicy(), RetryState.IN_PROGRESS),
        (ApplicationInfo(type="KeyError"), LISTED, RetryState.IN_PROGRESS),
        (ApplicationInfo(type="ValueError"), LISTED, RetryState.NON_RETRYABLE_FAILURE),
        (ApplicationInfo(non_retryable=True), RetryPolicy(), RetryState.NON_RETRYABLE_FAILURE),
        (timed_out(TimeoutType.START_TO_CLOSE), LISTED, RetryState.IN_PROGRESS),
        (timed_out(TimeoutType.HEARTBEAT), RetryPolicy(), RetryState.IN_PROGRESS),
        (timed_out(TimeoutType.HEARTBEAT), LISTED, RetryState.NON_RETRYABLE_FAILURE),
        (timed_out(TimeoutType.SCHEDULE_TO_START), RetryPolicy(), RetryState.TIMEOUT),
        (timed_out(TimeoutType.SCHEDULE_TO_CLOSE), RetryPolicy(), RetryState.TIMEOUT),
        (ServerInfo(), RetryPolicy(), RetryState.IN_PROGRESS),
        (ServerInfo(non_retryable=True), RetryPolicy(), RetryState.NON_RETRYABLE_FAILURE),
        (CanceledInfo(), RetryPolicy(), RetryState.NON_RETRYABLE_FAILURE),
        (TerminatedInfo(), RetryPolicy(), RetryState.NON_RETRYABLE_FAILURE),
    ],
)
def test_kinds_of_failure(info: FailureInfo | None, policy: RetryPolicy | None, state: RetryState) -> None:
    assert verdict(info, policy) is state


def test_order_of_the_reasons() -> None:
    final = ApplicationInfo(non_retryable=True)
    assert verdict(final, is_cancel_requested=True) is RetryState.CANCEL_REQUESTED
    assert verdict(final, RetryPolicy(maximum_attempts=1)) is RetryState.NON_RETRYABLE_FAILURE
    late = {"expiration_time": NOW}
    assert verdict(None, RetryPolicy(maximum_attempts=1), **late) is RetryState.MAXIMUM_ATTEMPTS_REACHED
    assert verdict(None, RetryPolicy(maximum_attempts=2), **late) is RetryState.TIMEOUT


def test_no_attempt_begins_at_the_expiration() -> None:
    assert verdict(None, expiration_time=NOW + SECOND) is RetryState.TIMEOUT
    assert verdict(None, expiration_time=NOW + SECOND * 1.001) is RetryState.IN_PROGRESS
    assert verdict(None, expiration_time=NOW + SECOND, is_immediate=True) is RetryState.IN_PROGRESS


def test_a_failure_may_name_its_delay() -> None:
    failure = Failure(info=ApplicationInfo(next_retry_delay=timedelta(hours=7)))
    assert decide_retry(RetryPolicy(), 1, failure, NOW).delay == timedelta(hours=7)


@pytest.mark.parametrize(
    ("policy", "waits"),
    [
        (RetryPolicy(), [1, 2, 4, 8, 16, 32, 64, 100, 100]),
        (RetryPolicy(backoff_coefficient=1.0), [1, 1, 1]),
        (RetryPolicy(initial_interval=3 * SECOND, maximum_interval=5 * SECOND), [3, 5, 5]),
        (RetryPolicy(initial_interval=timedelta(0)), [1, 2]),
    ],
)
def test_waits(policy: RetryPolicy, waits: list[float]) -> None:
    assert [backoff_interval(policy, n).total_seconds() for n in range(1, len(waits) + 1)] == waits


def test_the_wait_of_a_late_attempt_does_not_overflow() -> None:
    assert backoff_interval(RetryPolicy(), 100_000) == 100 * SECOND
    assert backoff_interval(RetryPolicy(initial_interval=timedelta(days=36_500)), 2) == timedelta(days=73_000)


@pytest.mark.parametrize(
    ("policy", "finding"),
    [
        (RetryPolicy(), ""),
        (RetryPolicy(backoff_coefficient=0.5), "backoff_coefficient"),
        (RetryPolicy(initial_interval=-SECOND), "initial_interval"),
        (RetryPolicy(maximum_attempts=-1), "maximum_attempts"),
        (RetryPolicy(initial_interval=2 * SECOND, maximum_interval=SECOND), "maximum_interval"),
    ],
)
def test_what_is_wrong_with_a_policy_is_said(policy: RetryPolicy, finding: str) -> None:
    assert finding in check_policy(policy)
    assert bool(finding) is bool(check_policy(policy))


def test_a_failure_is_cut_to_size() -> None:
    small = Failure(message="m", info=ApplicationInfo(type="T"))
    assert cut_failure(small, 4096) is small
    big = Failure(
        message="ü" * 5_000,
        stack_trace="line\n" * 5_000,
        cause=Failure(message="x" * 9_000),
        info=ApplicationInfo(type="T", details=(msgspec.Raw(b'"' + b"d" * 9_000 + b'"'),)),
    )
    cut = cut_failure(big, 4096)
    assert len(msgspec.json.encode(cut)) <= 4096
    assert cut.info == ApplicationInfo(type="T")
    assert big.message.startswith(cut.message)
    assert cut.message
