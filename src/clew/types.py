"""Type variables and callable shapes that the typed overloads of the API are written in.

Owns: the names below, which follow the published API. Never: behaviour.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, ParamSpec, Protocol, TypeVar

__all__ = [
    "CallableAsyncNoParam",
    "CallableAsyncSingleParam",
    "CallableAsyncType",
    "CallableSyncNoParam",
    "CallableSyncOrAsyncNoParam",
    "CallableSyncOrAsyncReturnNoneType",
    "CallableSyncOrAsyncSingleParam",
    "CallableSyncOrAsyncType",
    "CallableSyncSingleParam",
    "CallableType",
    "ClassType",
    "LocalReturnType",
    "MethodAsyncNoParam",
    "MethodAsyncSingleParam",
    "MethodSyncNoParam",
    "MethodSyncOrAsyncNoParam",
    "MethodSyncOrAsyncSingleParam",
    "MethodSyncSingleParam",
    "MultiParamSpec",
    "ParamType",
    "ReturnType",
    "SelfType",
]

SelfType = TypeVar("SelfType")
ClassType = TypeVar("ClassType", bound=type)
ParamType = TypeVar("ParamType")
ReturnType = TypeVar("ReturnType")
LocalReturnType = TypeVar("LocalReturnType")
MultiParamSpec = ParamSpec("MultiParamSpec")

CallableType = TypeVar("CallableType", bound=Callable[..., Any])
CallableAsyncType = TypeVar("CallableAsyncType", bound=Callable[..., Awaitable[Any]])
CallableSyncOrAsyncType = TypeVar("CallableSyncOrAsyncType", bound=Callable[..., Any])
CallableSyncOrAsyncReturnNoneType = TypeVar(
    "CallableSyncOrAsyncReturnNoneType", bound=Callable[..., "Awaitable[None] | None"]
)

_Self = TypeVar("_Self", contravariant=True)
_Param = TypeVar("_Param", contravariant=True)
_Return = TypeVar("_Return", covariant=True)


class CallableAsyncNoParam(Protocol[_Return]):
    """An async function without parameters."""

    def __call__(self) -> Awaitable[_Return]: ...


class CallableSyncNoParam(Protocol[_Return]):
    """A function without parameters."""

    def __call__(self) -> _Return: ...


class CallableSyncOrAsyncNoParam(Protocol[_Return]):
    """A function without parameters, async or not."""

    def __call__(self) -> _Return | Awaitable[_Return]: ...


class CallableAsyncSingleParam(Protocol[_Param, _Return]):
    """An async function with one parameter."""

    def __call__(self, arg: _Param, /) -> Awaitable[_Return]: ...


class CallableSyncSingleParam(Protocol[_Param, _Return]):
    """A function with one parameter."""

    def __call__(self, arg: _Param, /) -> _Return: ...


class CallableSyncOrAsyncSingleParam(Protocol[_Param, _Return]):
    """A function with one parameter, async or not."""

    def __call__(self, arg: _Param, /) -> _Return | Awaitable[_Return]: ...


class MethodAsyncNoParam(Protocol[_Self, _Return]):
    """An async method without parameters but self."""

    def __call__(self, __self: _Self, /) -> Awaitable[_Return]: ...


class MethodSyncNoParam(Protocol[_Self, _Return]):
    """A method without parameters but self."""

    def __call__(self, __self: _Self, /) -> _Return: ...


class MethodAsyncSingleParam(Protocol[_Self, _Param, _Return]):
    """An async method with one parameter beside self."""

    def __call__(self, __self: _Self, arg: _Param, /) -> Awaitable[_Return]: ...


class MethodSyncSingleParam(Protocol[_Self, _Param, _Return]):
    """A method with one parameter beside self."""

    def __call__(self, __self: _Self, arg: _Param, /) -> _Return: ...


class MethodSyncOrAsyncNoParam(Protocol[_Self, _Return]):
    """A method without parameters but self, async or not."""

    def __call__(self, __self: _Self, /) -> _Return | Awaitable[_Return]: ...


class MethodSyncOrAsyncSingleParam(Protocol[_Self, _Param, _Return]):
    """A method with one parameter beside self, async or not."""

    def __call__(self, __self: _Self, arg: _Param, /) -> _Return | Awaitable[_Return]: ...
