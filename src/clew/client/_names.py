"""What a call names: the workflow, signal, query or update behind a function or a string.

Owns: turning either into a name with types, the check of the argument count, and ``arg`` against ``args``.
Never: definitions themselves (``workflow`` has them).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, cast

from clew.converter.signature import CallableSignature
from clew.workflow._definition import (
    Definition,
    QueryDefinition,
    SignalDefinition,
    UpdateDefinition,
)


class _Unset:
    def __repr__(self) -> str:
        return "(not given)"


UNSET: Final[Any] = _Unset()
"""Marks an argument that was not given, since None is a value."""


class Target(NamedTuple):
    """A named thing to call, with what is known of its types."""

    name: str
    signature: CallableSignature | None = None
    """Of the function; None when only a name was given."""

    @property
    def result_type(self) -> Any | None:
        """What a result is converted to; None if unknown."""
        return self.signature.return_type if self.signature is not None else None

    def check(self, args: Sequence[Any]) -> Sequence[Any]:
        """Give `args` back if the function takes that many.

        Raises:
            ArgumentsError: It does not.
        """
        if self.signature is not None:
            self.signature.check_count(len(args))
        return args


def arguments(arg: Any, args: Any) -> Sequence[Any]:
    """Give the arguments of a call: one, or several.

    Raises:
        TypeError: Both were given, or `args` is no sequence of arguments.
    """
    if isinstance(args, (str, bytes)) or not isinstance(args, Sequence):
        raise TypeError(f"args must be a list of arguments, but is {args!r}. Pass a single argument without args=.")
    given: Sequence[Any] = list(cast(Any, args))
    if arg is UNSET:
        return given
    if given:
        raise TypeError("Give either one argument, or several by args=[...], but not both.")
    return [arg]


def workflow_target(workflow: str | Callable[..., Any]) -> Target:
    """Find what a start names.

    Raises:
        TypeError: It is neither a run method nor a string.
        ValueError: It is the run method of no workflow, or of the dynamic one.
    """
    if isinstance(workflow, str):
        return Target(_given_name(workflow, "workflow"))
    if inspect.isclass(workflow):
        raise TypeError(
            f"{workflow.__qualname__} is a class; pass its run method (the one with @workflow.run), or a name."
        )
    name, _ = Definition.get_name_and_result_type(workflow)
    return Target(name, Definition.must_from_run_fn(workflow).signature)


def signal_target(signal: str | Callable[..., Any]) -> Target:
    """Find what a signal names.

    Raises:
        TypeError: It is neither a signal method nor a string.
        ValueError: It is the dynamic handler, which has no name.
    """
    return _handler_target(signal, "signal", SignalDefinition.must_name_from_fn_or_str)


def query_target(query: str | Callable[..., Any]) -> Target:
    """Find what a query names; raises as `signal_target`."""
    return _handler_target(query, "query", QueryDefinition.must_name_from_fn_or_str)


def update_target(update: str | Callable[..., Any]) -> Target:
    """Find what an update names; raises as `signal_target`."""
    return _handler_target(update, "update", UpdateDefinition.must_name_from_fn_or_str)


def _handler_target(handler: str | Callable[..., Any], kind: str, find_name: Callable[[Any], str]) -> Target:
    if isinstance(handler, str):
        return Target(_given_name(handler, kind))
    name = find_name(handler)
    definition = getattr(handler, f"__clew_{kind}_definition")
    return Target(name, definition.signature)


def _given_name(name: str, kind: str) -> str:
    if not name:
        raise ValueError(f"The name of the {kind} is empty.")
    return name
