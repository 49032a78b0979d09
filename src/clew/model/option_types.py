"""Whether options have the types they are declared with, told in words to whoever gave them.

Owns: the checks that calls of workflow code and of clients share. Never: what a value of the right type must be.

How it works: Python takes any value for any option. A wrong one that got further would be found by the engine, far from
the line that gave it, or only when a stored run is read again. So it is refused at the call.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import Final, cast

from clew.model.policies import RetryPolicy

_TEXT_OR_NONE: Final = frozenset({str, type(None)})


def check_durations(what: str, **options: object) -> None:
    """Refuse what is neither a timedelta nor None.

    Raises:
        TypeError: Names the option, what was given and what to write.
    """
    for name, value in options.items():
        if value is not None and not isinstance(value, timedelta):
            remedy = f"timedelta(seconds={value})" if isinstance(value, (int, float)) else "timedelta(seconds=…)"
            raise TypeError(f"{what}: {_given(name, value)} instead of a timedelta. Write {name}={remedy}.")


def check_texts(what: str, **options: object) -> None:
    """Refuse what is neither a str nor None.

    Raises:
        TypeError: Names the option and what was given.
    """
    if set(map(type, options.values())) <= _TEXT_OR_NONE:
        return
    for name, value in options.items():
        if value is not None and not isinstance(value, str):
            raise TypeError(f"{what}: {_given(name, value)} instead of a str. Write {name}={str(value)!r}.")


def check_ids(what: str, **options: object) -> None:
    """Refuse what is neither text that is valid UTF-8 nor None.

    Raises:
        TypeError: Names the option and what was given.
        ValueError: Names the option with half of a surrogate pair in it.
    """
    check_texts(what, **options)
    for name, value in options.items():
        if isinstance(value, str) and not value.isascii():
            try:
                value.encode()
            except UnicodeEncodeError as error:
                raise ValueError(
                    f"{what}: {_given(name, value)} with half of a surrogate pair. Give text that is valid UTF-8."
                ) from error


def check_kinds(what: str, **options: tuple[object, type[object]]) -> None:
    """Refuse what is neither of the class given beside it nor None.

    Raises:
        TypeError: Names the option, what was given and the class.
    """
    for name, (value, kind) in options.items():
        if value is not None and not isinstance(value, kind):
            raise TypeError(f"{what}: {_given(name, value)} instead of a {kind.__name__}.")


def check_policy_types(what: str, policy: object) -> None:
    """Refuse what is no `RetryPolicy`, or one with fields of other types.

    Raises:
        TypeError: Names the field, what was given and what to write.
    """
    if policy is None:
        return
    if not isinstance(policy, RetryPolicy):
        raise TypeError(f"{what}: {_given('retry_policy', policy)} instead of a RetryPolicy. Write RetryPolicy(…).")
    where = f"{what}, retry_policy"
    check_durations(where, initial_interval=policy.initial_interval, maximum_interval=policy.maximum_interval)
    for name, kinds in (("maximum_attempts", int), ("backoff_coefficient", (int, float))):
        value = getattr(policy, name)
        if not isinstance(value, kinds) or isinstance(value, bool):
            raise TypeError(f"{where}: {_given(name, value)} instead of a number.")
    named = cast("Iterable[object]", policy.non_retryable_error_types or ())
    for error_type in named:
        if not isinstance(error_type, str):
            name = error_type.__name__ if isinstance(error_type, type) else "ErrorType"
            raise TypeError(
                f"{where}: {_given('non_retryable_error_types', error_type)} in it. Errors are named there, as they "
                f"may come from other languages: write {name!r}."
            )


def _given(name: str, value: object) -> str:
    return f"{name} has {value!r:.80} (of type {type(value).__name__})"
