"""Where msgspec's own decoder gives exactly what the rules of ``decoding`` give.

Owns: the judgement `is_exact`. Never: a second set of rules; what is not surely the same takes the slow way.
"""

# Values and hints are of any type here, by nature; what is found inside them has no static type.
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false, reportUnknownMemberType=false
# pyright: reportUnknownLambdaType=false

from __future__ import annotations

import dataclasses
import enum
import typing
import uuid
from collections.abc import Callable
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any, Final, get_args, get_origin

import msgspec

from clew.converter.annotations import NoneType, has_init_vars, is_enum, is_union, union_branches, unwrap

_SCALARS: Final[frozenset[Any]] = frozenset(
    {str, int, float, bool, NoneType, Any, uuid.UUID, date, datetime, timedelta, Decimal}
)
_IN_UNIONS: Final[frozenset[Any]] = frozenset({str, int, float, bool, NoneType})
"""Types that are told apart by how they look in JSON."""

_PLAIN_OBJECT_METHODS: Final = ("__new__", "__setattr__", "__getattribute__")


def is_exact(hint: Any) -> bool:
    """Whether msgspec decodes `hint` as our rules do, wherever it does not refuse."""
    try:
        return _is_exact(hint, set())
    except (TypeError, NameError):  # a hint that cannot be hashed or resolved
        return False


def with_fallback(hint: Any, slow: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    """Give a decoder that takes the fast way, and the slow one for what the fast one refuses."""
    try:
        decode = msgspec.json.Decoder(hint).decode
    except (TypeError, NameError, RecursionError):
        return slow

    def fast(data: bytes) -> Any:
        try:
            return decode(data)
        except Exception:  # noqa: BLE001 (whatever it was, also from a user's __post_init__: the slow way says it better)
            return slow(data)

    return fast


def _is_exact(hint: Any, seen: set[Any]) -> bool:
    hint = unwrap(hint)
    if hint in _SCALARS:
        return True
    if is_union(hint):
        return _is_exact_union(hint, seen)
    origin, args = get_origin(hint), get_args(hint)
    if (origin or hint) in (list, set, frozenset):
        return not args or _is_exact(args[0], seen)
    if (origin or hint) is dict:
        return not args or (args[0] in (str, Any) and _is_exact(args[1], seen))
    if origin is tuple:
        return bool(args) and args != ((),) and all(a is Ellipsis or _is_exact(a, seen) for a in args)
    if origin is not None or not isinstance(hint, type):
        return False
    cls: type[Any] = hint
    if issubclass(cls, msgspec.Struct):
        return True
    return _is_exact_enum(cls) if is_enum(cls) else _is_exact_dataclass(cls, seen)


def _is_exact_union(hint: Any, seen: set[Any]) -> bool:
    branches = union_branches(hint)
    others = [branch for branch in branches if branch not in _IN_UNIONS]
    if not others:
        return True
    # One further type beside None is no choice.
    return len(others) == 1 and all(b is NoneType or b is others[0] for b in branches) and _is_exact(others[0], seen)


def _is_exact_enum(cls: type[enum.Enum]) -> bool:
    if issubclass(cls, enum.Flag) or "_missing_" in vars(cls):
        return False
    kinds = {type(member.value) for member in cls}
    return kinds in ({str}, {int})


def _is_exact_dataclass(cls: type[Any], seen: set[Any]) -> bool:
    if cls in seen:
        return True
    if "__dataclass_params__" not in vars(cls) or not vars(cls)["__dataclass_params__"].init or has_init_vars(cls):
        return False
    if hasattr(cls, "__pydantic_validator__") or hasattr(cls, "__orig_bases__"):
        return False
    if any(getattr(cls, name) is not getattr(object, name) for name in _PLAIN_OBJECT_METHODS if not _frozen(cls, name)):
        return False
    if any(not field.init or field.name.startswith("_") for field in dataclasses.fields(cls)):
        return False
    seen.add(cls)
    hints = typing.get_type_hints(cls, localns={cls.__name__: cls}, include_extras=True)
    return all(_is_exact(hints[field.name], seen) for field in dataclasses.fields(cls))


def _frozen(cls: type[Any], method: str) -> bool:
    return method == "__setattr__" and bool(vars(cls)["__dataclass_params__"].frozen)
