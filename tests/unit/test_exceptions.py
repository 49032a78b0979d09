"""Exceptions: pickling, causes, cancellation."""

from __future__ import annotations

import asyncio
import pickle
from datetime import timedelta

import pytest

from clew import exceptions as x
from clew.model.failure import ApplicationInfo, Failure
from clew.model.policies import WorkflowExecutionStatus


class _Unpicklable(Exception):
    def __reduce__(self) -> tuple[object, ...]:
        raise TypeError("holds a socket")


def _activity_error() -> x.ActivityError:
    return x.ActivityError(
        "activity failed",
        scheduled_event_id=5,
        started_event_id=6,
        identity="1@host",
        activity_type="pay",
        activity_id="pay-1",
        retry_state=x.RetryState.MAXIMUM_ATTEMPTS_REACHED,
    )


EVERY_ERROR = [
    x.ClewError("a"),
    x.FailureError("a", failure=Failure(message="a", info=ApplicationInfo(type="T"))),
    x.ApplicationError(
        "a",
        1,
        {"b": 2},
        type="T",
        non_retryable=True,
        next_retry_delay=timedelta(seconds=3),
        category=x.ApplicationErrorCategory.BENIGN,
    ),
    x.CancelledError("a", 1),
    x.TerminatedError("a", 1),
    x.TimeoutError("a", type=x.TimeoutType.HEARTBEAT, last_heartbeat_details=[1]),
    x.ServerError("a", non_retryable=True),
    _activity_error(),
    x.ChildWorkflowError(
        "a",
        namespace="n",
        workflow_id="w",
        run_id="r",
        workflow_type="t",
        initiated_event_id=1,
        started_event_id=2,
        retry_state=None,
    ),
    x.WorkflowAlreadyStartedError("w", "t", run_id="r"),
    x.WorkflowFailureError(cause=x.CancelledError("why")),
    x.WorkflowContinuedAsNewError("r2"),
    x.WorkflowQueryRejectedError(WorkflowExecutionStatus.COMPLETED),
    x.WorkflowQueryFailedError("a"),
    x.WorkflowUpdateFailedError(x.ApplicationError("why")),
    x.WorkflowUpdateRPCTimeoutOrCancelledError(),
    x.AsyncActivityCancelledError(),
    x.NondeterminismError("a", event_id=7, recorded="r", attempted="b", differences=["x"], source_line="f.py:1"),
    x.RestrictedWorkflowAccessError("a", qualified_name="time.time", source_line="f.py:1"),
    x.DataConversionError("a", path="$.b"),
    x.EncodeError("a", path="$.b"),
    x.DecodeError("a", path="$.b"),
    x.UnknownEncodingError("a"),
    x.ArgumentsError("a"),
]


def test_every_public_class_is_in_the_list() -> None:
    public = {getattr(x, name) for name in x.__all__}
    classes = {c for c in public if isinstance(c, type) and issubclass(c, x.ClewError)}
    assert classes == {type(error) for error in EVERY_ERROR}


@pytest.mark.parametrize("error", EVERY_ERROR, ids=lambda error: type(error).__name__)
def test_pickle_gives_back_type_text_attributes_and_cause(error: x.ClewError) -> None:
    if error.__cause__ is None:
        error.__cause__ = ValueError("below")
    error.add_note("a note")
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert again.args == error.args
    assert str(again) == str(error)
    assert str(again.cause) == str(error.cause)
    assert type(again.cause) is type(error.cause)
    assert again.__cause__ is again.cause
    assert again.__notes__ == error.__notes__

    def plain(e: x.ClewError) -> dict[str, object]:
        return {k: v for k, v in e.__dict__.items() if k != "__notes__"}

    assert plain(again) == plain(error)


def test_a_taken_id_is_told_with_its_run_if_that_is_known() -> None:
    assert "'w' is already started (run r)." in str(x.WorkflowAlreadyStartedError("w", "t", run_id="r"))
    assert "'w' is already started. Use" in str(x.WorkflowAlreadyStartedError("w", "t"))


def test_a_cycle_of_causes_pickles() -> None:
    error = x.ApplicationError("a")
    error.__cause__ = error
    again = pickle.loads(pickle.dumps(error))
    assert again.__cause__ is again


def test_a_cause_that_cannot_be_pickled_is_replaced_and_says_so() -> None:
    error = x.ApplicationError("a")
    error.__cause__ = _Unpicklable("below")
    again = pickle.loads(pickle.dumps(error))
    assert isinstance(again.cause, x.ApplicationError)
    assert (again.cause.type, again.cause.message) == ("_Unpicklable", "below")
    assert "holds a socket" in again.cause.__notes__[0]


def test_what_counts_as_cancellation() -> None:
    by_cancel = _activity_error()
    by_cancel.__cause__ = x.CancelledError()
    by_other = _activity_error()
    by_other.__cause__ = x.ApplicationError("no")
    assert x.is_cancelled_exception(by_cancel)
    assert x.is_cancelled_exception(asyncio.CancelledError())
    assert x.is_cancelled_exception(x.CancelledError())
    assert not x.is_cancelled_exception(by_other)
    assert not x.is_cancelled_exception(ValueError())


def test_user_code_cannot_catch_eviction_by_exception() -> None:
    assert not issubclass(x._WorkflowEvicted, Exception)
