"""The decorator that makes a function an activity, and what it notes down.

Owns: `defn` and `_Definition`. Never: runs an activity (``worker`` does).
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar, overload

from clew.converter.signature import CallableSignature

CallableT = TypeVar("CallableT", bound=Callable[..., Any])

_ATTRIBUTE: Final = "__clew_activity_definition"


@dataclass(frozen=True)
class _Definition:
    """What is known of an activity function.

    Args:
        name: The activity type; None for the dynamic activity, which takes every type that has no own.
        fn: What to call: the function, bound method or callable object.
        is_async: Whether `fn` is a coroutine function.
        no_thread_cancel_exception: Whether cancellation must not be raised inside a running thread of it.
    """

    name: str | None
    fn: Callable[..., Any]
    is_async: bool
    no_thread_cancel_exception: bool

    @functools.cached_property
    def signature(self) -> CallableSignature:
        """Parameters and result of `fn`, with their types."""
        return CallableSignature(self.fn)

    @property
    def is_dynamic(self) -> bool:
        """Whether it takes every type that has no activity of its own."""
        return self.name is None

    @property
    def arg_types(self) -> tuple[Any, ...]:
        """The type of each parameter; `Any` where there is no annotation."""
        return self.signature.arg_types

    @property
    def ret_type(self) -> Any | None:
        """The type of the result; None without annotation."""
        return self.signature.return_type

    @staticmethod
    def from_callable(fn: Callable[..., Any]) -> _Definition | None:
        """Give the definition noted on `fn`, bound to `fn`; None if it is not an activity."""
        found = getattr(fn, _ATTRIBUTE, None) or getattr(getattr(fn, "__call__", None), _ATTRIBUTE, None)  # noqa: B004
        if not isinstance(found, _Definition):
            return None
        return found if found.fn is fn else replace(found, fn=fn)

    @staticmethod
    def must_from_callable(fn: Callable[..., Any]) -> _Definition:
        """Give the definition noted on `fn`.

        Raises:
            TypeError: `fn` is not an activity.
        """
        found = _Definition.from_callable(fn)
        if found is None:
            raise TypeError(
                f"{getattr(fn, '__qualname__', fn)!s} is not an activity. Decorate it with @activity.defn, "
                "or pass the name of an activity type instead."
            )
        return found


@overload
def defn(fn: CallableT) -> CallableT: ...
@overload
def defn(
    *, name: str | None = None, no_thread_cancel_exception: bool = False, dynamic: bool = False
) -> Callable[[CallableT], CallableT]: ...
def defn(
    fn: CallableT | None = None,
    *,
    name: str | None = None,
    no_thread_cancel_exception: bool = False,
    dynamic: bool = False,
) -> CallableT | Callable[[CallableT], CallableT]:
    """Make a function an activity: ordinary code with side effects, tried again by the retry policy.

    Args:
        fn: The function; it may be async, or plain (it then runs in the worker's executor).
        name: The activity type; by default the function's name.
        no_thread_cancel_exception: Do not raise cancellation inside the thread; ask `is_cancelled` instead.
        dynamic: Take every activity type that has no function of its own. The function then takes one parameter, of
            type ``Sequence[RawValue]``.

    Raises:
        TypeError: The function cannot be an activity.
        ValueError: The options exclude each other, or it is an activity already.
    """
    if name is not None and dynamic:
        raise ValueError("An activity cannot have a name and be dynamic; give one of the two.")
    if name == "":
        raise ValueError("The name of an activity is empty; leave it out to use the function's name.")

    def decorate(decorated: CallableT) -> CallableT:
        return _define(decorated, name, no_thread_cancel_exception, dynamic)

    return decorate if fn is None else decorate(fn)


def _define(fn: CallableT, name: str | None, no_thread_cancel_exception: bool, dynamic: bool) -> CallableT:
    if inspect.isclass(fn) or not hasattr(fn, "__name__"):
        raise TypeError(f"@activity.defn is for functions, not for {fn!r}. Decorate its method instead.")
    if _ATTRIBUTE in getattr(fn, "__dict__", {}):
        raise ValueError(f"{fn.__qualname__} is an activity already; decorate it once.")
    if inspect.isgeneratorfunction(fn) or inspect.isasyncgenfunction(fn):
        raise TypeError(
            f"{fn.__qualname__} is a generator; an activity returns one result. Return a list, or heartbeat."
        )
    definition = _Definition(
        name=None if dynamic else name or fn.__name__,
        fn=fn,
        is_async=inspect.iscoroutinefunction(fn),
        no_thread_cancel_exception=no_thread_cancel_exception,
    )
    signature = definition.signature  # reads the parameters now, so that a bad one is blamed on its decorator
    if dynamic and len(signature.arg_names) != 1:
        raise TypeError(f"{signature.name} is a dynamic activity and must take one parameter, of Sequence[RawValue].")
    setattr(fn, _ATTRIBUTE, definition)
    return fn
