"""Options of the wrong type are refused in words that say what to write."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from clew.common import Priority, RetryPolicy
from clew.model.option_types import check_durations, check_kinds, check_policy_types, check_texts


@pytest.mark.parametrize(
    ("check", "told"),
    [
        (lambda: check_durations("activity 'a'", run_timeout=5), "run_timeout=timedelta(seconds=5)"),
        (lambda: check_durations("activity 'a'", start_to_close_timeout="5"), "(of type str) instead of a timedelta"),
        (lambda: check_texts("activity 'a'", task_queue=5), "task_queue='5'"),
        (lambda: check_kinds("activity 'a'", priority=(3, Priority)), "instead of a Priority"),
        (lambda: check_policy_types("activity 'a'", {"maximum_attempts": 1}), "Write RetryPolicy(…)"),
        (lambda: check_policy_types("activity 'a'", _policy(initial_interval=1)), "=timedelta(seconds=1)"),
        (lambda: check_policy_types("activity 'a'", _policy(maximum_attempts="3")), "maximum_attempts has '3'"),
        (lambda: check_policy_types("activity 'a'", _policy(maximum_attempts=True)), "maximum_attempts has True"),
        (lambda: check_policy_types("activity 'a'", _policy(backoff_coefficient=None)), "backoff_coefficient has None"),
        (lambda: check_policy_types("activity 'a'", _policy(non_retryable_error_types=[ValueError])), "'ValueError'"),
    ],
)  # fmt: skip
def test_a_wrong_type_is_refused(check: Callable[[], None], told: str) -> None:
    with pytest.raises(TypeError, match=r"^activity 'a'") as caught:
        check()
    assert told in str(caught.value)


def test_what_fits_or_is_left_out_passes() -> None:
    check_durations("x", a=None, b=timedelta(0))
    check_texts("x", a=None, b="")
    check_kinds("x", a=(None, Priority), b=(Priority(), Priority))
    check_policy_types("x", None)
    check_policy_types("x", RetryPolicy(backoff_coefficient=2, non_retryable_error_types=["ValueError"]))


def _policy(**options: Any) -> RetryPolicy:
    return RetryPolicy(**options)
