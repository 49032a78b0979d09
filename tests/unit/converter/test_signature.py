"""Reading the signatures of functions."""

from __future__ import annotations

import functools
from typing import Any

import pytest

from clew.converter import CallableSignature
from clew.exceptions import ArgumentsError


class Later:
    pass


def plain(a: int, b, c: Later | None = None) -> str:  # type: ignore[no-untyped-def]
    return ""


class Service:
    async def method(self, a: int) -> None: ...

    def __call__(self, a: Later) -> bool:
        return True


def variadic(a: int, *rest: str) -> None: ...


def keyword(a: int, *, b: int) -> None: ...


def optional_keyword(a: int, *, b: int = 1) -> None: ...


def unresolvable(a: Missing) -> None: ...  # type: ignore[name-defined]  # noqa: F821


def test_types_by_position_with_any_for_what_has_none() -> None:
    signature = CallableSignature(plain)
    assert signature.arg_names == ("a", "b", "c")
    assert signature.arg_types == (int, Any, Later | None)
    assert signature.return_type is str
    assert (signature.required_count, signature.args_max) == (2, 3)
    assert "plain() at " in signature.name
    assert __file__ in signature.name


@pytest.mark.parametrize("fn", [Service().method, Service.method])
def test_self_is_no_argument(fn: Any) -> None:
    assert CallableSignature(fn).arg_types == (int,)
    assert CallableSignature(fn).return_type is type(None)


def test_callable_objects_partials_and_wrapped_functions() -> None:
    assert CallableSignature(Service()).arg_types == (Later,)
    assert CallableSignature(functools.partial(plain, 1)).arg_names == ("b", "c")

    @functools.wraps(plain)
    def wrapper(*args: Any) -> Any:
        return plain(*args)

    assert CallableSignature(wrapper).arg_types == (int, Any, Later | None)


def test_variadic_functions_take_any_number() -> None:
    signature = CallableSignature(variadic)
    assert signature.args_max is None
    assert list(signature.types_for(3)) == [int, str, str]
    signature.check_count(9)
    with pytest.raises(ArgumentsError, match=r"at least 1 argument \(a\), but was given 0 arguments"):
        signature.check_count(0)


def test_what_cannot_be_called_by_position_is_refused() -> None:
    with pytest.raises(TypeError, match="keyword-only argument 'b'"):
        CallableSignature(keyword)
    assert CallableSignature(optional_keyword).arg_names == ("a",)


def test_annotations_are_resolved_late_and_their_error_names_the_function() -> None:
    signature = CallableSignature(unresolvable)
    with pytest.raises(TypeError, match=r"unresolvable\(\).*Missing.*module level"):
        _ = signature.arg_types
