"""What a function takes and gives, by its annotations.

Owns: reading the signature of a workflow, activity or handler function, and the messages for calls that do not fit it.
Never: converts values (``converter.values`` does).

How it works: annotations are resolved when they are first needed, not when the decorator runs, so that a function may
name classes that are defined further down in its module. A parameter without annotation takes `typing.Any`, which means
the plain JSON value.
"""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Callable, Sequence
from typing import Any, Final, final

from clew.exceptions import ArgumentsError

_POSITIONAL: Final = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


@final
class CallableSignature:
    """The positional parameters and the result of one function.

    Args:
        fn: A function, bound method or callable object.
        skip_self: Leave out the first parameter (for a function that is to become a method). By default it is left out
            when `fn` is a plain function and the parameter is named ``self``.

    Raises:
        TypeError: `fn` requires keyword-only arguments, or cannot be inspected.
    """

    def __init__(self, fn: Callable[..., Any], *, skip_self: bool | None = None) -> None:
        self._fn = fn
        self.name: str = _describe(fn)
        """The function with its place, for messages."""
        parameters = _parameters(fn, skip_self)
        positional = [p for p in parameters if p.kind in _POSITIONAL]
        variadic = [p for p in parameters if p.kind is inspect.Parameter.VAR_POSITIONAL]
        _refuse_required_keywords(self.name, parameters)
        self.arg_names: tuple[str, ...] = tuple(p.name for p in positional)
        self.required_count: int = sum(1 for p in positional if p.default is inspect.Parameter.empty)
        self.args_max: int | None = None if variadic else len(positional)
        """How many arguments it can take; None if there is no limit."""
        self._variadic_name = variadic[0].name if variadic else None

    @functools.cached_property
    def exact_count(self) -> int:
        """How many arguments it takes, if that is always the same number; else -1."""
        return self.required_count if self.args_max == self.required_count == len(self.arg_names) else -1

    @functools.cached_property
    def _hints(self) -> dict[str, Any]:
        return _resolve_hints(self._fn, self.name)

    @functools.cached_property
    def arg_types(self) -> tuple[Any, ...]:
        """The type of each positional parameter; `Any` where there is no annotation."""
        return tuple(self._hints.get(name, Any) for name in self.arg_names)

    @functools.cached_property
    def variadic_type(self) -> Any:
        """The type of each further argument, when `args_max` is None."""
        return self._hints.get(self._variadic_name, Any) if self._variadic_name else Any

    @functools.cached_property
    def return_type(self) -> Any | None:
        """The type of the result; None without annotation (and `NoneType` for ``-> None``)."""
        return self._hints.get("return")

    def resolve(self) -> None:
        """Resolve the annotations, which is otherwise done when they are first asked for.

        Raises:
            TypeError: One cannot be resolved.
        """
        for _ in (self.arg_types, self.return_type):
            pass

    def types_for(self, count: int) -> Sequence[Any]:
        """Give the types of the first `count` arguments."""
        known = self.arg_types
        if count <= len(known):
            return known[:count]
        return [*known, *[self.variadic_type] * (count - len(known))]

    def check_count(self, count: int) -> None:
        """Make sure that the function can be called with `count` positional arguments.

        Raises:
            ArgumentsError: It cannot; the message says what it takes.
        """
        if count < self.required_count or (self.args_max is not None and count > self.args_max):
            raise ArgumentsError(
                f"{self.name} takes {self._expected()}, but was given {_plural(count)}. "
                "Pass what its signature asks for; give new parameters a default so that older calls still fit."
            )

    def _expected(self) -> str:
        names = f" ({', '.join(self.arg_names)})" if self.arg_names else ""
        if self.args_max is None:
            return f"at least {_plural(self.required_count)}{names}"
        if self.args_max == self.required_count:
            return f"{_plural(self.args_max)}{names}" if self.args_max else "no arguments"
        return f"{self.required_count} to {_plural(self.args_max)}{names}"


def _plural(count: int) -> str:
    return "1 argument" if count == 1 else f"{count} arguments"


def _underlying(fn: Callable[..., Any]) -> Callable[..., Any]:
    """The object that carries annotations and code: the function itself, or `__call__` of a callable object."""
    if isinstance(fn, functools.partial):
        return _underlying(fn.func)
    if inspect.isroutine(fn) or inspect.isclass(fn):
        return fn
    return type(fn).__call__


def _describe(fn: Callable[..., Any]) -> str:
    inner = inspect.unwrap(_underlying(fn))
    name = getattr(inner, "__qualname__", None) or repr(fn)
    code = getattr(inner, "__code__", None)
    return f"{name}() at {code.co_filename}:{code.co_firstlineno}" if code is not None else f"{name}()"


def _parameters(fn: Callable[..., Any], skip_self: bool | None) -> list[inspect.Parameter]:
    try:
        parameters = list(inspect.signature(fn).parameters.values())
    except (TypeError, ValueError) as error:
        raise TypeError(f"Cannot read the signature of {fn!r}: {error}. Use a function written in Python.") from error
    if skip_self is None:
        skip_self = inspect.isfunction(fn) and bool(parameters) and parameters[0].name == "self"
    return parameters[1:] if skip_self else parameters


def _refuse_required_keywords(name: str, parameters: Sequence[inspect.Parameter]) -> None:
    required = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY and p.default is p.empty]
    if required:
        raise TypeError(
            f"{name} requires the keyword-only argument {required[0]!r}, but arguments travel by position. "
            "Make it positional, or take one dataclass with named fields."
        )


def _resolve_hints(fn: Callable[..., Any], name: str) -> dict[str, Any]:
    inner = _underlying(fn)
    try:
        return typing.get_type_hints(inner, include_extras=True)
    except NameError as error:
        raise TypeError(
            f"Cannot resolve the annotations of {name}: {error}. They are needed to convert arguments and results: "
            "import the name outside of `if TYPE_CHECKING`, and define classes at module level."
        ) from error
