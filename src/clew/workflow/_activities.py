"""Activities as workflow code calls them.

Owns: `start_activity`, `execute_activity`, their local, class and method forms, options and handles.
Never: schedules anything itself (the runtime does).

How it works: every form ends in one input struct; what the function's signature tells (argument and result types)
goes with it. Checks that need no history are made here, at the call, so that their errors stand where the mistake is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from enum import IntEnum
from typing import Any, Final, TypedDict, TypeVar, Unpack, cast, overload

from clew.activity._definition import _Definition as ActivityDefinition
from clew.common import Priority, RetryPolicy
from clew.model.option_types import check_durations, check_kinds, check_policy_types, check_texts
from clew.types import (
    CallableAsyncNoParam,
    CallableAsyncSingleParam,
    CallableSyncNoParam,
    CallableSyncSingleParam,
    MethodAsyncNoParam,
    MethodAsyncSingleParam,
    MethodSyncNoParam,
    MethodSyncSingleParam,
    ParamType,
    ReturnType,
    SelfType,
)
from clew.workflow._interceptor import StartActivityInput
from clew.workflow._runtime import current

UNSET: Final[Any] = object()
"""Stands for an argument that was not given, since None is a value."""

ResultT = TypeVar("ResultT")


class ActivityCancellationType(IntEnum):
    """What cancelling an activity, from workflow code, waits for."""

    TRY_CANCEL = 0
    """Ask the activity to stop and go on at once."""
    WAIT_CANCELLATION_COMPLETED = 1
    """Ask the activity to stop and wait for what it then does."""
    ABANDON = 2
    """Go on at once and let the activity run."""


class ActivityHandle(asyncio.Task[ResultT]):
    """A started activity: a task that ends with its result. Cancel it to cancel the activity."""


class ActivityConfig(TypedDict, total=False):
    """Options of an activity, all but the arguments; at least one of the first and the third is required.

    ``schedule_to_close_timeout`` bounds all attempts together, ``start_to_close_timeout`` each one,
    ``schedule_to_start_timeout`` the wait for a worker, ``heartbeat_timeout`` the silence of a running attempt.
    """

    task_queue: str | None
    schedule_to_close_timeout: timedelta | None
    schedule_to_start_timeout: timedelta | None
    start_to_close_timeout: timedelta | None
    heartbeat_timeout: timedelta | None
    retry_policy: RetryPolicy | None
    cancellation_type: ActivityCancellationType
    activity_id: str | None
    versioning_intent: Any
    summary: str | None
    priority: Priority | None


class LocalActivityConfig(TypedDict, total=False):
    """Options of a local activity, all but the arguments; at least one of the first and the third is required."""

    schedule_to_close_timeout: timedelta | None
    schedule_to_start_timeout: timedelta | None
    start_to_close_timeout: timedelta | None
    retry_policy: RetryPolicy | None
    local_retry_threshold: timedelta | None
    cancellation_type: ActivityCancellationType
    activity_id: str | None
    summary: str | None
    durable: str


# --- activities -------------------------------------------------------------------------------------------


@overload
def start_activity(
    activity: CallableAsyncNoParam[ReturnType], **options: Unpack[ActivityConfig]
) -> ActivityHandle[ReturnType]: ...
@overload
def start_activity(
    activity: CallableSyncNoParam[ReturnType], **options: Unpack[ActivityConfig]
) -> ActivityHandle[ReturnType]: ...
@overload
def start_activity(
    activity: CallableAsyncSingleParam[ParamType, ReturnType], arg: ParamType, **options: Unpack[ActivityConfig]
) -> ActivityHandle[ReturnType]: ...
@overload
def start_activity(
    activity: CallableSyncSingleParam[ParamType, ReturnType], arg: ParamType, **options: Unpack[ActivityConfig]
) -> ActivityHandle[ReturnType]: ...
@overload
def start_activity(
    activity: Callable[..., Awaitable[ReturnType]], *, args: Sequence[Any], **options: Unpack[ActivityConfig]
) -> ActivityHandle[ReturnType]: ...
@overload
def start_activity(
    activity: Callable[..., ReturnType], *, args: Sequence[Any], **options: Unpack[ActivityConfig]
) -> ActivityHandle[ReturnType]: ...
@overload
def start_activity(
    activity: str,
    arg: Any = ...,
    *,
    args: Sequence[Any] = ...,
    result_type: type[Any] | None = ...,
    **options: Unpack[ActivityConfig],
) -> ActivityHandle[Any]: ...
def start_activity(
    activity: Any, arg: Any = UNSET, *, args: Sequence[Any] = (), result_type: type[Any] | None = None, **options: Any
) -> ActivityHandle[Any]:
    """Start an activity and give its handle, which can be awaited and cancelled.

    Args:
        activity: The function, or the name of an activity type.
        arg: Its one argument.
        args: Its arguments, if there are several.
        result_type: What to decode the result to, for an activity given by name.
        **options: See `ActivityConfig`.

    Raises:
        ValueError: No timeout is given, or both ``arg`` and ``args`` are.
        TypeError: It is not an activity, or an option does not exist.
        EncodeError: An argument cannot be converted, or is too large.
    """
    return current().start_activity(activity_input(activity, arg, args, result_type, **options))


@overload
async def execute_activity(
    activity: CallableAsyncNoParam[ReturnType], **options: Unpack[ActivityConfig]
) -> ReturnType: ...
@overload
async def execute_activity(
    activity: CallableSyncNoParam[ReturnType], **options: Unpack[ActivityConfig]
) -> ReturnType: ...
@overload
async def execute_activity(
    activity: CallableAsyncSingleParam[ParamType, ReturnType], arg: ParamType, **options: Unpack[ActivityConfig]
) -> ReturnType: ...
@overload
async def execute_activity(
    activity: CallableSyncSingleParam[ParamType, ReturnType], arg: ParamType, **options: Unpack[ActivityConfig]
) -> ReturnType: ...
@overload
async def execute_activity(
    activity: Callable[..., Awaitable[ReturnType]], *, args: Sequence[Any], **options: Unpack[ActivityConfig]
) -> ReturnType: ...
@overload
async def execute_activity(
    activity: Callable[..., ReturnType], *, args: Sequence[Any], **options: Unpack[ActivityConfig]
) -> ReturnType: ...
@overload
async def execute_activity(
    activity: str,
    arg: Any = ...,
    *,
    args: Sequence[Any] = ...,
    result_type: type[Any] | None = ...,
    **options: Unpack[ActivityConfig],
) -> Any: ...
async def execute_activity(
    activity: Any, arg: Any = UNSET, *, args: Sequence[Any] = (), result_type: type[Any] | None = None, **options: Any
) -> Any:
    """Run an activity and give its result; see `start_activity`.

    Raises:
        ActivityError: It failed, timed out or was cancelled for good; its cause says why.
    """
    runtime = current()
    take = runtime.take_recorded_activity
    if take is not None and (result := take((activity, arg, args, result_type, options))) is not UNSET:
        return result
    return await runtime.execute_activity(activity_input(activity, arg, args, result_type, **options))


@overload
def start_activity_class(
    activity: type[CallableAsyncNoParam[ReturnType]], **options: Unpack[ActivityConfig]
) -> ActivityHandle[ReturnType]: ...
@overload
def start_activity_class(
    activity: type[CallableSyncNoParam[ReturnType]], **options: Unpack[ActivityConfig]
) -> ActivityHandle[ReturnType]: ...
@overload
def start_activity_class(
    activity: type[CallableAsyncSingleParam[ParamType, ReturnType]], arg: ParamType, **options: Unpack[ActivityConfig]
) -> ActivityHandle[ReturnType]: ...
@overload
def start_activity_class(
    activity: type[CallableSyncSingleParam[ParamType, ReturnType]], arg: ParamType, **options: Unpack[ActivityConfig]
) -> ActivityHandle[ReturnType]: ...
@overload
def start_activity_class(
    activity: type[Any], *, args: Sequence[Any], **options: Unpack[ActivityConfig]
) -> ActivityHandle[Any]: ...
def start_activity_class(
    activity: type[Any], arg: Any = UNSET, *, args: Sequence[Any] = (), **options: Any
) -> ActivityHandle[Any]:
    """Start an activity that is the ``__call__`` of a class; see `start_activity`."""
    return current().start_activity(activity_input(_call_of(activity), arg, args, None, **options))


@overload
async def execute_activity_class(
    activity: type[CallableAsyncNoParam[ReturnType]], **options: Unpack[ActivityConfig]
) -> ReturnType: ...
@overload
async def execute_activity_class(
    activity: type[CallableSyncNoParam[ReturnType]], **options: Unpack[ActivityConfig]
) -> ReturnType: ...
@overload
async def execute_activity_class(
    activity: type[CallableAsyncSingleParam[ParamType, ReturnType]], arg: ParamType, **options: Unpack[ActivityConfig]
) -> ReturnType: ...
@overload
async def execute_activity_class(
    activity: type[CallableSyncSingleParam[ParamType, ReturnType]], arg: ParamType, **options: Unpack[ActivityConfig]
) -> ReturnType: ...
@overload
async def execute_activity_class(
    activity: type[Any], *, args: Sequence[Any], **options: Unpack[ActivityConfig]
) -> Any: ...
async def execute_activity_class(
    activity: type[Any], arg: Any = UNSET, *, args: Sequence[Any] = (), **options: Any
) -> Any:
    """Run an activity that is the ``__call__`` of a class; see `execute_activity`."""
    runtime = current()
    take = runtime.take_recorded_activity
    if take is not None and (result := take((_call_of(activity), arg, args, None, options))) is not UNSET:
        return result
    return await runtime.execute_activity(activity_input(_call_of(activity), arg, args, None, **options))


@overload
def start_activity_method(
    activity: MethodAsyncNoParam[SelfType, ReturnType], **options: Unpack[ActivityConfig]
) -> ActivityHandle[ReturnType]: ...
@overload
def start_activity_method(
    activity: MethodSyncNoParam[SelfType, ReturnType], **options: Unpack[ActivityConfig]
) -> ActivityHandle[ReturnType]: ...
@overload
def start_activity_method(
    activity: MethodAsyncSingleParam[SelfType, ParamType, ReturnType],
    arg: ParamType,
    **options: Unpack[ActivityConfig],
) -> ActivityHandle[ReturnType]: ...
@overload
def start_activity_method(
    activity: MethodSyncSingleParam[SelfType, ParamType, ReturnType],
    arg: ParamType,
    **options: Unpack[ActivityConfig],
) -> ActivityHandle[ReturnType]: ...
@overload
def start_activity_method(
    activity: Callable[..., Awaitable[ReturnType]], *, args: Sequence[Any], **options: Unpack[ActivityConfig]
) -> ActivityHandle[ReturnType]: ...
@overload
def start_activity_method(
    activity: Callable[..., ReturnType], *, args: Sequence[Any], **options: Unpack[ActivityConfig]
) -> ActivityHandle[ReturnType]: ...
def start_activity_method(
    activity: Any, arg: Any = UNSET, *, args: Sequence[Any] = (), **options: Any
) -> ActivityHandle[Any]:
    """Start an activity that is a method, given unbound as ``Class.method``; see `start_activity`."""
    return current().start_activity(activity_input(activity, arg, args, None, **options))


@overload
async def execute_activity_method(
    activity: MethodAsyncNoParam[SelfType, ReturnType], **options: Unpack[ActivityConfig]
) -> ReturnType: ...
@overload
async def execute_activity_method(
    activity: MethodSyncNoParam[SelfType, ReturnType], **options: Unpack[ActivityConfig]
) -> ReturnType: ...
@overload
async def execute_activity_method(
    activity: MethodAsyncSingleParam[SelfType, ParamType, ReturnType],
    arg: ParamType,
    **options: Unpack[ActivityConfig],
) -> ReturnType: ...
@overload
async def execute_activity_method(
    activity: MethodSyncSingleParam[SelfType, ParamType, ReturnType],
    arg: ParamType,
    **options: Unpack[ActivityConfig],
) -> ReturnType: ...
@overload
async def execute_activity_method(
    activity: Callable[..., Awaitable[ReturnType]], *, args: Sequence[Any], **options: Unpack[ActivityConfig]
) -> ReturnType: ...
@overload
async def execute_activity_method(
    activity: Callable[..., ReturnType], *, args: Sequence[Any], **options: Unpack[ActivityConfig]
) -> ReturnType: ...
async def execute_activity_method(activity: Any, arg: Any = UNSET, *, args: Sequence[Any] = (), **options: Any) -> Any:
    """Run an activity that is a method, given unbound as ``Class.method``; see `execute_activity`."""
    runtime = current()
    take = runtime.take_recorded_activity
    if take is not None and (result := take((activity, arg, args, None, options))) is not UNSET:
        return result
    return await runtime.execute_activity(activity_input(activity, arg, args, None, **options))


# --- from a call to its input -----------------------------------------------------------------------------


def activity_input(
    activity: Any,
    arg: Any,
    args: Sequence[Any],
    result_type: Any | None,
    *,
    task_queue: str | None = None,
    schedule_to_close_timeout: timedelta | None = None,
    schedule_to_start_timeout: timedelta | None = None,
    start_to_close_timeout: timedelta | None = None,
    heartbeat_timeout: timedelta | None = None,
    retry_policy: RetryPolicy | None = None,
    cancellation_type: ActivityCancellationType = ActivityCancellationType.TRY_CANCEL,
    activity_id: str | None = None,
    versioning_intent: Any = None,
    summary: str | None = None,
    priority: Priority | None = None,
) -> StartActivityInput:
    """Read one call of an activity; see `start_activity`."""
    name, arg_types, ret_type = activity_name_and_types(activity, result_type)
    if start_to_close_timeout is None and schedule_to_close_timeout is None:
        raise ValueError(no_timeout_message(name))
    # Most calls give one timeout and nothing else; they need no look at each option.
    if (
        type(start_to_close_timeout) is not timedelta
        or schedule_to_close_timeout is not None
        or schedule_to_start_timeout is not None
        or heartbeat_timeout is not None
    ):
        check_durations(
            f"activity {name!r}",
            schedule_to_close_timeout=schedule_to_close_timeout,
            schedule_to_start_timeout=schedule_to_start_timeout,
            start_to_close_timeout=start_to_close_timeout,
            heartbeat_timeout=heartbeat_timeout,
        )
    if task_queue is not None or activity_id is not None or summary is not None:
        check_texts(f"activity {name!r}", task_queue=task_queue, activity_id=activity_id, summary=summary)
    if retry_policy is not None:
        check_policy_types(f"activity {name!r}", retry_policy)
    if priority is not None or type(cancellation_type) is not ActivityCancellationType:
        check_kinds(
            f"activity {name!r}",
            priority=(priority, Priority),
            cancellation_type=(cancellation_type, ActivityCancellationType),
        )
    return StartActivityInput(
        name,
        (arg,) if arg is not UNSET and not args else one_or_many(arg, args, f"activity {name!r}"),
        activity_id,
        task_queue,
        schedule_to_close_timeout,
        schedule_to_start_timeout,
        start_to_close_timeout,
        heartbeat_timeout,
        retry_policy,
        cancellation_type,
        {},
        False,
        versioning_intent,
        summary,
        priority,
        arg_types,
        ret_type,
    )


def no_timeout_message(name: str) -> str:
    """What to tell the author of an activity call without a timeout."""
    return (
        f"Activity {name!r} was called without a timeout, so a lost attempt would never be noticed. "
        "Give start_to_close_timeout (for each attempt) or schedule_to_close_timeout (for all attempts together)."
    )


_known: dict[Any, tuple[str, Sequence[Any] | None, Any | None]] = {}
"""Activities whose signature was read already, by function (they live as long as their modules)."""


def activity_name_and_types(activity: Any, result_type: Any | None) -> tuple[str, Sequence[Any] | None, Any | None]:
    """Give name, argument types and result type of an activity that is named by its function or directly.

    Raises:
        TypeError: It is neither a name nor an activity.
        ValueError: It is a dynamic activity, which has no name.
    """
    if isinstance(activity, str):
        return activity, None, result_type
    try:
        return _known[activity]
    except (KeyError, TypeError):
        pass
    if not callable(activity):
        raise TypeError(f"An activity is given as its function or by name, not as {activity!r}.")
    definition = ActivityDefinition.must_from_callable(cast("Callable[..., Any]", activity))
    if definition.name is None:
        raise ValueError(
            f"{definition.signature.name} is a dynamic activity, which has no name; give the type as text."
        )
    found = (definition.name, definition.arg_types, definition.ret_type)
    if hasattr(activity, "__code__"):
        _known[activity] = found
    return found


def one_or_many(arg: Any, args: Sequence[Any], what: str) -> Sequence[Any]:
    """Give the arguments of a call that takes ``arg`` or ``args``.

    Raises:
        ValueError: Both were given.
    """
    if arg is UNSET:
        return args
    if args:
        raise ValueError(f"Both arg and args were given to {what}; give one argument as arg, several as args.")
    return (arg,)


def _call_of(activity: Any) -> Callable[..., Any]:
    call = getattr(activity, "__call__", None)  # noqa: B004 (the function is wanted, not whether there is one)
    if not isinstance(activity, type) or not callable(call):
        raise TypeError(f"{activity!r} is not a class with an activity as its __call__.")
    return cast("Callable[..., Any]", call)
