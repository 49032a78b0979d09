"""Unions: which branch a JSON value belongs to.

Owns: the rule. Never: takes the first branch that happens to fit.

How it works: every branch is tried. Of those that fit, the one that would be encoded to the very same JSON is taken; so
a class with more fields wins when those fields are there, and 1 is an int for ``int | float``. When that leaves none or
several, the value is refused rather than guessed. Branches that share a form for every value, such as ``str | date``,
are refused before any value comes.
"""

from __future__ import annotations

import enum
import ipaddress
import pathlib
import uuid
from collections.abc import Callable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Final

import msgspec

from clew.converter.annotations import NoneType, is_enum, union_branches
from clew.converter.encoding import TEXT_TYPES, ValueEncoder
from clew.converter.misfit import Misfit, shown, type_name

Decode = Callable[[Any], Any]

_SHAPED_TEXTS: Final[tuple[type[Any], ...]] = (
    date,
    datetime,
    time,
    timedelta,
    uuid.UUID,
    Decimal,
    *(t for t in TEXT_TYPES if t.__module__ == ipaddress.__name__),
)
_ANY_TEXTS: Final = (str, bytes, bytearray, pathlib.PurePath)

_ordered: Final = msgspec.json.Encoder(order="deterministic")


def compile_union(hint: Any, compile_hint: Callable[[Any], Decode], encoder: ValueEncoder) -> Decode:
    """Give the decoder of a union.

    Raises:
        Misfit: Two branches can never be told apart.
    """
    branches = union_branches(hint)
    is_optional = NoneType in branches
    others = [branch for branch in branches if branch is not NoneType]
    _refuse_alike(others)
    decodes = [(branch, compile_hint(branch)) for branch in others]

    if is_optional and len(decodes) == 1:
        decode_only = decodes[0][1]
        return lambda value: None if value is None else decode_only(value)

    def union(value: Any) -> Any:
        if value is None and is_optional:
            return None
        fitting: list[Any] = []
        problems: list[str] = []
        for branch, decode in decodes:
            try:
                fitting.append(decode(value))
            except Misfit as misfit:
                at = "" if misfit.path == "$" else f" at {misfit.path}"
                problems.append(f"{type_name(branch)}:{at} {misfit.problem}")
        if not fitting:
            raise Misfit(f"{shown(value)} fits no branch of the union ({'; '.join(problems)})")
        return fitting[0] if len(fitting) == 1 else _the_same(value, fitting, encoder)

    return union


def _the_same(value: Any, fitting: list[Any], encoder: ValueEncoder) -> Any:
    wanted = _ordered.encode(value)
    exact = [found for found in fitting if _encodes_to(found, wanted, encoder)]
    if exact and all(type(found) is type(exact[0]) and found == exact[0] for found in exact):
        return exact[0]
    names = " and ".join(type_name(type(found)) for found in exact or fitting)
    raise Misfit(
        f"{shown(value)} fits {names} alike",
        "Tell the branches apart by a field with a Literal type that differs, or use a tagged union.",
    )


def _encodes_to(found: Any, wanted: bytes, encoder: ValueEncoder) -> bool:
    try:
        return _in_order(encoder.encode_ordered(found)) == wanted
    except Misfit:
        return False


def _in_order(data: bytes) -> bytes:
    """Models write their own JSON, in the order of their fields; compare without it."""
    return _ordered.encode(msgspec.json.decode(data))


def _refuse_alike(branches: list[Any]) -> None:
    texts = [branch for branch in branches if _is_text(branch)]
    loose = [branch for branch in texts if _is_any_text(branch)]
    if loose and len(texts) > 1:
        other = next(branch for branch in texts if branch is not loose[0])
        raise Misfit(
            f"{type_name(loose[0])} and {type_name(other)} are both texts in JSON and cannot be told apart",
            "Use one of the two, or a dataclass with a field for each.",
        )


def _is_any_text(branch: Any) -> bool:
    return isinstance(branch, type) and issubclass(branch, _ANY_TEXTS) and not is_enum(branch)


def _is_text(branch: Any) -> bool:
    if not isinstance(branch, type):
        return False
    if issubclass(branch, enum.Enum):
        return any(isinstance(member.value, (str, *_SHAPED_TEXTS)) for member in branch)
    return issubclass(branch, (*_ANY_TEXTS, *_SHAPED_TEXTS))
