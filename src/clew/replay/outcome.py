"""What the end of `run` (or of a handler) means for the run.

Owns: the outcome rule (semantics §3, 0.8). Never: builds the command for it (the machine does).

The rule, for an exception that leaves workflow code:

* continue-as-new continues as new;
* what means cancellation, after the run was asked to cancel, ends the run as cancelled;
* failures (`FailureError`, `asyncio.TimeoutError`, and the types named by workflow or worker) fail the run;
* a group of exceptions is decided by its leaves: if all are failures, the run fails with the whole group, each leaf
  visible; cancellations among them do not count against it; one leaf that is neither decides for the group;
* anything else is an error of the code: it fails the workflow *task*, which is tried again until a deployment heals
  it.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Iterator, Sequence
from typing import cast

from clew.exceptions import FailureError, RestrictedWorkflowAccessError, is_cancelled_exception
from clew.workflow._runtime import ContinueAsNewError


class Outcome(enum.Enum):
    """What becomes of the run."""

    CONTINUE_AS_NEW = enum.auto()
    CANCEL = enum.auto()
    FAIL = enum.auto()
    TASK_FAILURE = enum.auto()


def decide_outcome(
    error: BaseException, *, is_cancel_requested: bool, failure_types: Sequence[type[BaseException]]
) -> Outcome:
    """Say what an exception that left workflow code does to the run.

    Args:
        error: What was raised.
        is_cancel_requested: Whether the run was asked to cancel.
        failure_types: Types that workflow and worker name as failures.
    """
    if isinstance(error, ContinueAsNewError):
        return Outcome.CONTINUE_AS_NEW
    leaves = list(leaves_of(error))
    if is_cancel_requested and all(is_cancellation(leaf) for leaf in leaves):
        return Outcome.CANCEL
    if isinstance(error, tuple(failure_types)):
        return Outcome.FAIL
    if is_cancel_requested or isinstance(error, BaseExceptionGroup):
        leaves = [leaf for leaf in leaves if not is_cancellation(leaf)] or leaves
    if all(is_failure(leaf, failure_types) for leaf in leaves):
        return Outcome.FAIL
    return Outcome.TASK_FAILURE


def deciding_leaf(error: BaseException, failure_types: Sequence[type[BaseException]]) -> BaseException:
    """Give the exception within `error` that makes it an error of the code."""
    for leaf in leaves_of(error):
        if not is_cancellation(leaf) and not is_failure(leaf, failure_types):
            return leaf
    return error


def is_failure(error: BaseException, failure_types: Sequence[type[BaseException]]) -> bool:
    """Whether one exception (no group) fails the run in place of the workflow task."""
    if isinstance(error, RestrictedWorkflowAccessError):
        return isinstance(error, tuple(failure_types))
    return isinstance(error, (FailureError, asyncio.TimeoutError, *failure_types))


def is_cancellation(error: BaseException) -> bool:
    """Whether an exception means cancellation; a group does if all its leaves do."""
    return all(is_cancelled_exception(leaf) for leaf in leaves_of(error))


def leaves_of(error: BaseException) -> Iterator[BaseException]:
    """Give the exceptions within nested groups; a plain one gives itself."""
    if isinstance(error, BaseExceptionGroup):
        inner: Sequence[BaseException] = cast("BaseExceptionGroup[BaseException]", error).exceptions
        for one in inner:
            yield from leaves_of(one)
    else:
        yield error
