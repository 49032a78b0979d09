"""Local activities: cheap durable steps that run in the workflow's own worker (semantics 0.5).

Owns: their start and execute forms. Never: runs one (``worker`` does).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Unpack, overload

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
from clew.workflow._activities import (
    UNSET,
    ActivityHandle,
    LocalActivityConfig,
    _call_of,
)
from clew.workflow._local_calls import local_activity_call, local_arguments
from clew.workflow._runtime import current


@overload
def start_local_activity(
    activity: CallableAsyncNoParam[ReturnType], **options: Unpack[LocalActivityConfig]
) -> ActivityHandle[ReturnType]: ...
@overload
def start_local_activity(
    activity: CallableSyncNoParam[ReturnType], **options: Unpack[LocalActivityConfig]
) -> ActivityHandle[ReturnType]: ...
@overload
def start_local_activity(
    activity: CallableAsyncSingleParam[ParamType, ReturnType], arg: ParamType, **options: Unpack[LocalActivityConfig]
) -> ActivityHandle[ReturnType]: ...
@overload
def start_local_activity(
    activity: CallableSyncSingleParam[ParamType, ReturnType], arg: ParamType, **options: Unpack[LocalActivityConfig]
) -> ActivityHandle[ReturnType]: ...
@overload
def start_local_activity(
    activity: Callable[..., Awaitable[ReturnType]], *, args: Sequence[Any], **options: Unpack[LocalActivityConfig]
) -> ActivityHandle[ReturnType]: ...
@overload
def start_local_activity(
    activity: Callable[..., ReturnType], *, args: Sequence[Any], **options: Unpack[LocalActivityConfig]
) -> ActivityHandle[ReturnType]: ...
@overload
def start_local_activity(
    activity: str,
    arg: Any = ...,
    *,
    args: Sequence[Any] = ...,
    result_type: type[Any] | None = ...,
    **options: Unpack[LocalActivityConfig],
) -> ActivityHandle[Any]: ...
def start_local_activity(
    activity: Any, arg: Any = UNSET, *, args: Sequence[Any] = (), result_type: type[Any] | None = None, **options: Any
) -> ActivityHandle[Any]:
    """Start a local activity and give its handle.

    Args:
        activity: The function, or the name of an activity type that this worker has.
        arg: Its one argument.
        args: Its arguments, if there are several.
        result_type: What to decode the result to, for an activity given by name.
        **options: See `LocalActivityConfig`. ``durable="step"`` (the default) makes each finished local activity
            durable before anything else happens; ``"batch"`` records it with the workflow task.

    Raises:
        ValueError: No timeout is given, or both ``arg`` and ``args`` are.
        TypeError: It is not an activity, or an option does not exist.
        EncodeError: An argument cannot be converted, or is too large.
    """
    call = local_activity_call(activity, result_type, options)
    return current().start_local_activity(call, local_arguments(call, arg, args))


@overload
async def execute_local_activity(
    activity: CallableAsyncNoParam[ReturnType], **options: Unpack[LocalActivityConfig]
) -> ReturnType: ...
@overload
async def execute_local_activity(
    activity: CallableSyncNoParam[ReturnType], **options: Unpack[LocalActivityConfig]
) -> ReturnType: ...
@overload
async def execute_local_activity(
    activity: CallableAsyncSingleParam[ParamType, ReturnType], arg: ParamType, **options: Unpack[LocalActivityConfig]
) -> ReturnType: ...
@overload
async def execute_local_activity(
    activity: CallableSyncSingleParam[ParamType, ReturnType], arg: ParamType, **options: Unpack[LocalActivityConfig]
) -> ReturnType: ...
@overload
async def execute_local_activity(
    activity: Callable[..., Awaitable[ReturnType]], *, args: Sequence[Any], **options: Unpack[LocalActivityConfig]
) -> ReturnType: ...
@overload
async def execute_local_activity(
    activity: Callable[..., ReturnType], *, args: Sequence[Any], **options: Unpack[LocalActivityConfig]
) -> ReturnType: ...
@overload
async def execute_local_activity(
    activity: str,
    arg: Any = ...,
    *,
    args: Sequence[Any] = ...,
    result_type: type[Any] | None = ...,
    **options: Unpack[LocalActivityConfig],
) -> Any: ...
async def execute_local_activity(
    activity: Any, arg: Any = UNSET, *, args: Sequence[Any] = (), result_type: type[Any] | None = None, **options: Any
) -> Any:
    """Run a local activity and give its result; see `start_local_activity`.

    Raises:
        ActivityError: It failed for good; its cause says why.
    """
    runtime = current()
    take = runtime.take_recorded_step
    if take is not None and (result := take((activity, arg, args, result_type, options))) is not UNSET:
        return result
    call = local_activity_call(activity, result_type, options)
    return await runtime.execute_local_activity(call, local_arguments(call, arg, args))


_execute: Any = execute_local_activity
"""Without its overloads, which the forms below have in their own shape."""


def start_local_activity_class(
    activity: type[Any], arg: Any = UNSET, *, args: Sequence[Any] = (), **options: Unpack[LocalActivityConfig]
) -> ActivityHandle[Any]:
    """Start a local activity that is the ``__call__`` of a class; see `start_local_activity`."""
    call = local_activity_call(_call_of(activity), None, options)
    return current().start_local_activity(call, local_arguments(call, arg, args))


async def execute_local_activity_class(
    activity: type[Any], arg: Any = UNSET, *, args: Sequence[Any] = (), **options: Unpack[LocalActivityConfig]
) -> Any:
    """Run a local activity that is the ``__call__`` of a class; see `execute_local_activity`."""
    return await _execute(_call_of(activity), arg, args=args, **options)


@overload
def start_local_activity_method(
    activity: MethodAsyncNoParam[SelfType, ReturnType], **options: Unpack[LocalActivityConfig]
) -> ActivityHandle[ReturnType]: ...
@overload
def start_local_activity_method(
    activity: MethodSyncNoParam[SelfType, ReturnType], **options: Unpack[LocalActivityConfig]
) -> ActivityHandle[ReturnType]: ...
@overload
def start_local_activity_method(
    activity: MethodAsyncSingleParam[SelfType, ParamType, ReturnType],
    arg: ParamType,
    **options: Unpack[LocalActivityConfig],
) -> ActivityHandle[ReturnType]: ...
@overload
def start_local_activity_method(
    activity: MethodSyncSingleParam[SelfType, ParamType, ReturnType],
    arg: ParamType,
    **options: Unpack[LocalActivityConfig],
) -> ActivityHandle[ReturnType]: ...
@overload
def start_local_activity_method(
    activity: Callable[..., Any], *, args: Sequence[Any], **options: Unpack[LocalActivityConfig]
) -> ActivityHandle[Any]: ...
def start_local_activity_method(
    activity: Any, arg: Any = UNSET, *, args: Sequence[Any] = (), **options: Any
) -> ActivityHandle[Any]:
    """Start a local activity that is a method, given unbound as ``Class.method``; see `start_local_activity`."""
    call = local_activity_call(activity, None, options)
    return current().start_local_activity(call, local_arguments(call, arg, args))


@overload
async def execute_local_activity_method(
    activity: MethodAsyncNoParam[SelfType, ReturnType], **options: Unpack[LocalActivityConfig]
) -> ReturnType: ...
@overload
async def execute_local_activity_method(
    activity: MethodSyncNoParam[SelfType, ReturnType], **options: Unpack[LocalActivityConfig]
) -> ReturnType: ...
@overload
async def execute_local_activity_method(
    activity: MethodAsyncSingleParam[SelfType, ParamType, ReturnType],
    arg: ParamType,
    **options: Unpack[LocalActivityConfig],
) -> ReturnType: ...
@overload
async def execute_local_activity_method(
    activity: MethodSyncSingleParam[SelfType, ParamType, ReturnType],
    arg: ParamType,
    **options: Unpack[LocalActivityConfig],
) -> ReturnType: ...
@overload
async def execute_local_activity_method(
    activity: Callable[..., Any], *, args: Sequence[Any], **options: Unpack[LocalActivityConfig]
) -> Any: ...
async def execute_local_activity_method(
    activity: Any, arg: Any = UNSET, *, args: Sequence[Any] = (), **options: Any
) -> Any:
    """Run a local activity that is a method, given unbound as ``Class.method``; see `execute_local_activity`."""
    return await _execute(activity, arg, args=args, **options)
