"""Exceptions to failures and back, kind by kind."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import msgspec
import pytest

from clew import exceptions as x
from clew.converter import DefaultFailureConverter, PayloadConverter
from clew.model.failure import ApplicationInfo, CanceledInfo, Failure, ResetWorkflowInfo

CONVERTER = PayloadConverter.default
FAILURES = DefaultFailureConverter()


def round_trip(error: BaseException) -> BaseException:
    data = msgspec.json.encode(FAILURES.to_failure(error, CONVERTER))
    return FAILURES.from_failure(msgspec.json.decode(data, type=Failure), CONVERTER)


def public(error: BaseException) -> dict[str, object]:
    names = [n for n in dir(type(error)) if isinstance(getattr(type(error), n), property)]
    return {name: getattr(error, name) for name in names if name not in ("cause", "failure")}


ERRORS: list[x.FailureError] = [
    x.ApplicationError(
        "a",
        1,
        {"b": [2]},
        type="T",
        non_retryable=True,
        next_retry_delay=timedelta(seconds=3),
        category=x.ApplicationErrorCategory.BENIGN,
    ),
    x.ApplicationError("plain"),
    x.CancelledError("c", 1),
    x.TimeoutError("t", type=x.TimeoutType.SCHEDULE_TO_CLOSE, last_heartbeat_details=[1]),
    x.TerminatedError("gone"),
    x.ServerError("s", non_retryable=True),
    x.ActivityError(
        "a",
        scheduled_event_id=5,
        started_event_id=6,
        identity="i",
        activity_type="t",
        activity_id="t-1",
        retry_state=x.RetryState.TIMEOUT,
    ),
    x.ChildWorkflowError(
        "c",
        namespace="n",
        workflow_id="w",
        run_id="r",
        workflow_type="t",
        initiated_event_id=1,
        started_event_id=2,
        retry_state=None,
    ),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda e: type(e).__name__)
def test_each_kind_comes_back_with_everything(error: x.FailureError) -> None:
    error.__cause__ = ValueError("below")
    found = round_trip(error)
    assert type(found) is type(error)
    assert public(found) == public(error)
    assert isinstance(found.__cause__, x.ApplicationError)
    assert (found.__cause__.type, found.__cause__.message) == ("ValueError", "below")


def test_a_failure_out_of_history_goes_back_unchanged() -> None:
    failure = FAILURES.to_failure(x.ApplicationError("a", type="T"), CONVERTER)
    assert FAILURES.to_failure(FAILURES.from_failure(failure, CONVERTER), CONVERTER) is failure


def test_a_new_error_around_one_out_of_history_keeps_it_whole() -> None:
    inner = FAILURES.to_failure(x.ApplicationError("a", 5, type="T"), CONVERTER)
    outer = x.ApplicationError("outer")
    outer.__cause__ = FAILURES.from_failure(inner, CONVERTER)
    assert FAILURES.to_failure(outer, CONVERTER).cause is inner


def test_foreign_exceptions_become_application_errors_of_their_class_name() -> None:
    failure = FAILURES.to_failure(KeyError("k"), CONVERTER)
    assert failure.info == ApplicationInfo(type="KeyError")
    assert FAILURES.to_failure(asyncio.CancelledError(), CONVERTER).info == CanceledInfo()
    assert FAILURES.to_failure(TimeoutError("slow"), CONVERTER).info == ApplicationInfo(type="TimeoutError")


def test_the_stack_trace_names_the_line_and_comes_along_as_a_note() -> None:
    def broken() -> None:
        raise ValueError("here")

    with pytest.raises(ValueError, match="here") as caught:
        broken()
    failure = FAILURES.to_failure(caught.value, CONVERTER)
    assert "in broken" in failure.stack_trace
    assert 'raise ValueError("here")' in failure.stack_trace
    found = FAILURES.from_failure(failure, CONVERTER)
    assert "in broken" in found.__notes__[0]


def test_a_group_is_final_when_a_leaf_is() -> None:
    group = ExceptionGroup("g", [ValueError("a"), x.ApplicationError("b", non_retryable=True)])
    info = FAILURES.to_failure(group, CONVERTER).info
    assert isinstance(info, ApplicationInfo)
    assert info.non_retryable


def test_a_group_of_activity_errors_shows_the_reasons() -> None:
    def activity_error(reason: str) -> x.ActivityError:
        error = x.ActivityError(
            "Activity task failed",
            scheduled_event_id=1,
            started_event_id=2,
            identity="",
            activity_type="pay",
            activity_id="1",
            retry_state=None,
        )
        error.__cause__ = x.ApplicationError(reason, type="Refused")
        return error

    failure = FAILURES.to_failure(ExceptionGroup("tasks", [activity_error("one"), activity_error("two")]), CONVERTER)
    assert "Refused: one" in failure.message
    assert "Refused: two" in failure.message
    assert failure.cause is not None
    assert failure.cause.cause is not None
    assert failure.cause.cause.message == "one"


def test_a_reset_shows_as_an_application_error() -> None:
    failure = Failure(message="reset", info=ResetWorkflowInfo(last_heartbeat_details=(msgspec.Raw(b"7"),)))
    found = FAILURES.from_failure(failure, CONVERTER)
    assert isinstance(found, x.ApplicationError)
    assert (found.type, list(found.details)) == ("ResetWorkflow", [7])


def test_a_failure_of_no_kind_is_the_base_class() -> None:
    found = FAILURES.from_failure(Failure(message="m"), CONVERTER)
    assert type(found) is x.FailureError
    assert found.message == "m"
