"""Exceptions that users of Clew meet, in the tree below.

Owns: every exception class that crosses the API, and how it pickles.
Never: the failure as data (``model.failure``) or the way between the two (``converter``); refusals of the service are
`clew.service.errors.RPCError`.

::

    ClewError                                   everything of ours that is an Exception
    ├── FailureError                            lies in history as a Failure
    │   ├── ApplicationError                    raised by user code
    │   ├── CancelledError                      ended because cancellation was requested
    │   ├── TerminatedError                     ended from outside
    │   ├── TimeoutError                        a deadline ran out
    │   ├── ServerError                         an error of the engine itself
    │   ├── ActivityError                       an activity closed badly; the reason is its cause
    │   ├── ChildWorkflowError                  a child closed badly; the reason is its cause
    │   └── WorkflowAlreadyStartedError         the workflow id is taken
    ├── WorkflowFailureError                    a run whose result was asked for did not complete; see cause
    ├── WorkflowContinuedAsNewError             a run whose result was asked for went on as another
    ├── WorkflowQueryRejectedError              the state of the run forbids the query
    ├── WorkflowQueryFailedError                the query's handler raised
    ├── WorkflowUpdateFailedError               the update was rejected or its handler failed; see cause
    ├── WorkflowUpdateRPCTimeoutOrCancelledError   waiting for an update ended; the update may still happen
    ├── AsyncActivityCancelledError             heartbeat of an activity that is to stop
    ├── NondeterminismError                     workflow code no longer fits its history
    │   └── RestrictedWorkflowAccessError       workflow code reached for the clock, chance, a thread or I/O
    └── DataConversionError (also a ValueError) a value and its payload do not fit each other
        ├── EncodeError                         a value cannot become a payload
        ├── DecodeError                         a payload cannot become the expected type
        │   └── UnknownEncodingError            no converter for the payload's encoding
        └── ArgumentsError (also a TypeError)   a function was given too few or too many arguments

How it works: the cause of each is its ``__cause__``, whether it was raised here or came out of history, so that
tracebacks and `except` clauses see the same chain. All of them survive pickling with their attributes and causes.
Outside `Exception` stands only what user code must not catch by accident: `_WorkflowEvicted`, and the two control flows
of the published API (continue-as-new, complete-asynchronously), which live with the functions that raise them.
"""

from __future__ import annotations

import asyncio
import enum
import pickle
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from clew.model.failure import Failure, RetryState, TimeoutType
from clew.model.policies import WorkflowExecutionStatus

__all__ = [
    "ActivityError",
    "ApplicationError",
    "ApplicationErrorCategory",
    "ArgumentsError",
    "AsyncActivityCancelledError",
    "CancelledError",
    "ChildWorkflowError",
    "ClewError",
    "DataConversionError",
    "DecodeError",
    "EncodeError",
    "FailureError",
    "NondeterminismError",
    "RestrictedWorkflowAccessError",
    "RetryState",
    "ServerError",
    "TerminatedError",
    "TimeoutError",
    "TimeoutType",
    "UnknownEncodingError",
    "WorkflowAlreadyStartedError",
    "WorkflowContinuedAsNewError",
    "WorkflowFailureError",
    "WorkflowQueryFailedError",
    "WorkflowQueryRejectedError",
    "WorkflowUpdateFailedError",
    "WorkflowUpdateRPCTimeoutOrCancelledError",
    "is_cancelled_exception",
]


class ClewError(Exception):
    """Base of every exception of Clew that user code may catch."""

    @property
    def cause(self) -> BaseException | None:
        """What brought this about, which is also ``__cause__``."""
        return self.__cause__

    def __reduce__(self) -> tuple[Any, ...]:
        # The cause goes with the state, which pickle writes after it knows the object: so cycles of causes end.
        return (_new_error, (type(self), self.args), self.__dict__ | {"__cause__": _picklable(self.__cause__)})

    def __setstate__(self, state: dict[str, Any] | None) -> None:
        attributes = dict(state or {})
        self.__cause__ = attributes.pop("__cause__", None)
        self.__dict__.update(attributes)


class FailureError(ClewError):
    """Base of what lies in history as a failure.

    Args:
        message: What happened.
        failure: The failure this was made from, if it came out of history.
        exc_args: ``args`` of the exception; by default the message alone.
    """

    def __init__(
        self, message: str, *, failure: Failure | None = None, exc_args: tuple[Any, ...] | None = None
    ) -> None:
        super().__init__(*(exc_args if exc_args is not None else (message,)))
        self._message = message
        self._failure = failure

    @property
    def message(self) -> str:
        """What happened."""
        return self._message

    @property
    def failure(self) -> Failure | None:
        """The failure this was made from; None for one that was not in history yet."""
        return self._failure


class ApplicationErrorCategory(enum.IntEnum):
    """How an application error is reported; it has no influence on retries."""

    UNSPECIFIED = 0
    BENIGN = 1
    """Expected: logged at DEBUG and not counted as an error by metrics."""


class ApplicationError(FailureError):
    """An error of user code, with what the other side may want to know about it.

    Args:
        message: What happened.
        *details: Any convertible values, for `details`.
        type: A name to select by, in `RetryPolicy.non_retryable_error_types` and in code.
        non_retryable: Whether it must not be tried again.
        next_retry_delay: Wait before the next attempt, in place of what the retry policy says.
        category: How it is reported.
    """

    def __init__(
        self,
        message: str,
        *details: Any,
        type: str | None = None,
        non_retryable: bool = False,
        next_retry_delay: timedelta | None = None,
        category: ApplicationErrorCategory = ApplicationErrorCategory.UNSPECIFIED,
    ) -> None:
        super().__init__(message, exc_args=(f"{type}: {message}" if type else message,))
        self._details = details
        self._type = type
        self._non_retryable = non_retryable
        self._next_retry_delay = next_retry_delay
        self._category = category

    @property
    def details(self) -> Sequence[Any]:
        """The values given with the error."""
        return self._details

    @property
    def type(self) -> str | None:
        """The name to select by."""
        return self._type

    @property
    def non_retryable(self) -> bool:
        """Whether it must not be tried again. An error type named in the retry policy is not retried either."""
        return self._non_retryable

    @property
    def next_retry_delay(self) -> timedelta | None:
        """Wait before the next attempt, in place of what the retry policy says."""
        return self._next_retry_delay

    @property
    def category(self) -> ApplicationErrorCategory:
        """How it is reported."""
        return self._category


class CancelledError(FailureError):
    """Ended because cancellation was requested.

    Args:
        message: What happened.
        *details: Any convertible values.
    """

    def __init__(self, message: str = "Cancelled", *details: Any) -> None:
        super().__init__(message)
        self._details = details

    @property
    def details(self) -> Sequence[Any]:
        """The values given with the cancellation."""
        return self._details


class TerminatedError(FailureError):
    """Ended from outside, without a say.

    Args:
        message: The reason given.
        *details: Any convertible values.
    """

    def __init__(self, message: str, *details: Any) -> None:
        super().__init__(message)
        self._details = details

    @property
    def details(self) -> Sequence[Any]:
        """The values given with the termination."""
        return self._details


class TimeoutError(FailureError):
    """A deadline ran out.

    Args:
        message: What happened.
        type: Which deadline.
        last_heartbeat_details: What the last heartbeat that arrived said, if it was an activity's.
    """

    def __init__(
        self,
        message: str,
        *,
        type: TimeoutType | None,
        last_heartbeat_details: Sequence[Any] = (),
    ) -> None:
        super().__init__(message)
        self._type = type
        self._last_heartbeat_details = last_heartbeat_details

    @property
    def type(self) -> TimeoutType | None:
        """Which deadline."""
        return self._type

    @property
    def last_heartbeat_details(self) -> Sequence[Any]:
        """What the last heartbeat that arrived said."""
        return self._last_heartbeat_details


class ServerError(FailureError):
    """An error of the engine itself.

    Args:
        message: What happened.
        non_retryable: Whether trying again is useless.
    """

    def __init__(self, message: str, *, non_retryable: bool = False) -> None:
        super().__init__(message)
        self._non_retryable = non_retryable

    @property
    def non_retryable(self) -> bool:
        """Whether trying again is useless."""
        return self._non_retryable


class ActivityError(FailureError):
    """An activity closed without a result; `cause` says why.

    Args:
        message: What happened.
        scheduled_event_id: The event that scheduled it.
        started_event_id: The event that started its last attempt; 0 if none did.
        identity: The worker that ran its last attempt.
        activity_type: Its type.
        activity_id: Its id.
        retry_state: Why it is not tried again.
    """

    def __init__(
        self,
        message: str,
        *,
        scheduled_event_id: int,
        started_event_id: int,
        identity: str,
        activity_type: str,
        activity_id: str,
        retry_state: RetryState | None,
    ) -> None:
        super().__init__(message)
        self._scheduled_event_id = scheduled_event_id
        self._started_event_id = started_event_id
        self._identity = identity
        self._activity_type = activity_type
        self._activity_id = activity_id
        self._retry_state = retry_state

    @property
    def scheduled_event_id(self) -> int:
        """The event that scheduled it."""
        return self._scheduled_event_id

    @property
    def started_event_id(self) -> int:
        """The event that started its last attempt; 0 if none did."""
        return self._started_event_id

    @property
    def identity(self) -> str:
        """The worker that ran its last attempt."""
        return self._identity

    @property
    def activity_type(self) -> str:
        """Its type."""
        return self._activity_type

    @property
    def activity_id(self) -> str:
        """Its id."""
        return self._activity_id

    @property
    def retry_state(self) -> RetryState | None:
        """Why it is not tried again."""
        return self._retry_state


class ChildWorkflowError(FailureError):
    """A child workflow closed without a result; `cause` says why.

    Args:
        message: What happened.
        namespace: Of the child.
        workflow_id: Of the child.
        run_id: Of the child.
        workflow_type: Of the child.
        initiated_event_id: The event that asked for it.
        started_event_id: The event that says it started; 0 if none does.
        retry_state: Why it is not tried again.
    """

    def __init__(
        self,
        message: str,
        *,
        namespace: str,
        workflow_id: str,
        run_id: str,
        workflow_type: str,
        initiated_event_id: int,
        started_event_id: int,
        retry_state: RetryState | None,
    ) -> None:
        super().__init__(message)
        self._namespace = namespace
        self._workflow_id = workflow_id
        self._run_id = run_id
        self._workflow_type = workflow_type
        self._initiated_event_id = initiated_event_id
        self._started_event_id = started_event_id
        self._retry_state = retry_state

    @property
    def namespace(self) -> str:
        """Namespace of the child."""
        return self._namespace

    @property
    def workflow_id(self) -> str:
        """Workflow id of the child."""
        return self._workflow_id

    @property
    def run_id(self) -> str:
        """Run id of the child."""
        return self._run_id

    @property
    def workflow_type(self) -> str:
        """Type of the child."""
        return self._workflow_type

    @property
    def initiated_event_id(self) -> int:
        """The event that asked for it."""
        return self._initiated_event_id

    @property
    def started_event_id(self) -> int:
        """The event that says it started; 0 if none does."""
        return self._started_event_id

    @property
    def retry_state(self) -> RetryState | None:
        """Why it is not tried again."""
        return self._retry_state


class WorkflowAlreadyStartedError(FailureError):
    """The workflow id is taken: by an open run, or by a closed one that the reuse policy respects.

    Args:
        workflow_id: The id.
        workflow_type: The type that was to be started.
        run_id: The run that has the id, if known.
    """

    def __init__(self, workflow_id: str, workflow_type: str, *, run_id: str | None = None) -> None:
        run = f" (run {run_id})" if run_id else ""
        super().__init__(
            f"Workflow {workflow_id!r} is already started{run}. "
            "Use another id, or say by id_reuse_policy / id_conflict_policy what should happen."
        )
        self.workflow_id = workflow_id
        self.workflow_type = workflow_type
        self.run_id = run_id


class WorkflowFailureError(ClewError):
    """A run whose result was asked for failed, or was cancelled, terminated or timed out; `cause` says why."""

    def __init__(self, *, cause: BaseException) -> None:
        super().__init__(f"Workflow execution failed: {cause}")
        self.__cause__ = cause

    @property
    def cause(self) -> BaseException:
        """Why the run did not complete."""
        assert self.__cause__ is not None, "a workflow failure always has a cause"
        return self.__cause__


class WorkflowContinuedAsNewError(ClewError):
    """A run whose own result was asked for (`follow_runs=False`) went on as another run."""

    def __init__(self, new_execution_run_id: str) -> None:
        super().__init__(f"Workflow continued as new run {new_execution_run_id}; ask for the result of that run.")
        self.new_execution_run_id = new_execution_run_id


class WorkflowQueryRejectedError(ClewError):
    """The reject condition of the query forbids it in the state the run is in."""

    def __init__(self, status: WorkflowExecutionStatus | None) -> None:
        super().__init__(f"Query rejected: the run is {status.value if status else 'in an unknown state'}.")
        self.status = status


class WorkflowQueryFailedError(ClewError):
    """The query's handler raised, or there is no such query."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class WorkflowUpdateFailedError(ClewError):
    """The update was rejected, or its handler failed; `cause` says why."""

    def __init__(self, cause: BaseException) -> None:
        super().__init__(f"Workflow update failed: {cause}")
        self.__cause__ = cause

    @property
    def cause(self) -> BaseException:
        """Why the update has no result."""
        assert self.__cause__ is not None, "a failed update always has a cause"
        return self.__cause__


class WorkflowUpdateRPCTimeoutOrCancelledError(ClewError):
    """Waiting for an update ended before the update did. It may still happen: ask again with the same update id."""

    def __init__(self, message: str = "Waiting for the update ended before the update did") -> None:
        super().__init__(message)


class AsyncActivityCancelledError(ClewError):
    """A heartbeat of an asynchronously completed activity learned that the activity is to stop."""

    def __init__(self, details: Any = None) -> None:
        super().__init__("Activity is to be cancelled")
        self.details = details


class NondeterminismError(ClewError):
    """Workflow code does something else than its history says it did.

    Args:
        message: What differs, what was expected, what to do.
        event_id: The event that does not fit; 0 if history has no event left for it.
        recorded: What history has there.
        attempted: What the code asked for.
        differences: The fields that differ, one line each.
        source_line: ``file:line`` of the workflow code, if known.
    """

    def __init__(
        self,
        message: str,
        *,
        event_id: int = 0,
        recorded: str = "",
        attempted: str = "",
        differences: Sequence[str] = (),
        source_line: str = "",
    ) -> None:
        super().__init__(message)
        self.message = message
        self.event_id = event_id
        self.recorded = recorded
        self.attempted = attempted
        self.differences = tuple(differences)
        self.source_line = source_line


class RestrictedWorkflowAccessError(NondeterminismError):
    """Workflow code called something whose answer no history can repeat; the call was refused before it did anything.

    Args:
        message: What was called and where, why not, what to use instead.
        qualified_name: What was called, as ``time.time``.
        source_line: ``file:line`` of the workflow code.
    """

    def __init__(self, message: str, *, qualified_name: str = "", source_line: str = "") -> None:
        super().__init__(message, attempted=qualified_name, source_line=source_line)
        self.qualified_name = qualified_name


class DataConversionError(ClewError, ValueError):
    """A value and its payload do not fit each other.

    Args:
        message: What happened, what was expected, what to do.
        path: Where in the value, as ``$.field[0]``; ``$`` is the whole.
    """

    def __init__(self, message: str, *, path: str = "$") -> None:
        super().__init__(message)
        self.message = message
        self.path = path


class EncodeError(DataConversionError):
    """A value cannot become a payload that gives it back."""


class DecodeError(DataConversionError):
    """A payload cannot become a value of the expected type."""


class UnknownEncodingError(DecodeError):
    """No converter of this process knows the payload's encoding."""


class ArgumentsError(DataConversionError, TypeError):
    """A function was given more or fewer arguments than it takes."""


class _WorkflowEvicted(BaseException):  # pyright: ignore[reportUnusedClass]
    """Unwinds a run that leaves the cache. Never an outcome of anything; user code must not see it."""


def is_cancelled_exception(exception: BaseException) -> bool:
    """Say whether this exception means cancellation, in workflow or activity code.

    True for `asyncio.CancelledError`, for `CancelledError`, and for an activity or child error caused by the latter.
    """
    if isinstance(exception, (ActivityError, ChildWorkflowError)):
        return isinstance(exception.cause, CancelledError)
    return isinstance(exception, (asyncio.CancelledError, CancelledError))


def _new_error(cls: type[ClewError], args: tuple[Any, ...]) -> ClewError:
    error = cls.__new__(cls, *args)
    error.args = args
    return error


def _picklable(cause: BaseException | None) -> BaseException | None:
    """Stand-in for a foreign cause that cannot be pickled, so that it never costs the error that it explains."""
    if cause is None or isinstance(cause, ClewError):
        return cause
    try:
        pickle.loads(pickle.dumps(cause))
    except Exception as problem:  # noqa: BLE001 (a foreign __reduce__ may raise anything; the note tells)
        stand_in = ApplicationError(str(cause), type=type(cause).__name__)
        stand_in.add_note(f"Stands for an exception that could not be pickled ({problem}).")
        return stand_in
    return cause
