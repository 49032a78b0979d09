"""Decoding of single values: numbers, texts, instants, enums, literals, and the keys of objects.

Owns: the strict rule of each type. Never: accepts one type for another, except a whole number for a float.
"""

from __future__ import annotations

import base64
import binascii
import enum
import uuid
from collections.abc import Callable
from datetime import date, datetime, time, timedelta
from decimal import Decimal, InvalidOperation
from typing import Any, Final, Literal, get_args, get_origin

import msgspec

from clew.converter.annotations import NoneType, is_enum, is_union, unwrap
from clew.converter.encoding import TEXT_TYPES, ValueEncoder
from clew.converter.misfit import Misfit, shown, type_name

Decode = Callable[[Any], Any]

_ordered: Final = msgspec.json.Encoder(order="deterministic")


def compile_scalar(cls: type[Any]) -> Decode:
    """Give the decoder of a class that is one value in JSON.

    Raises:
        Misfit: The class is not one that a payload can become.
    """
    if cls in _SCALARS:
        return _SCALARS[cls]
    for base in (str, int, float, bytes):
        if issubclass(cls, base) and cls is not bool:
            decode_base = _SCALARS[base]
            return lambda value: _make(cls, decode_base(value))
    if issubclass(cls, TEXT_TYPES):
        return lambda value: _make(cls, _text(value))
    raise Misfit(
        f"{type_name(cls)} is no type that a payload can become",
        "Use a dataclass, a pydantic or msgspec model, or give the JSON converter a custom type converter.",
    )


def compile_enum(cls: type[enum.Enum], encoder: ValueEncoder) -> Decode:
    """Give the decoder of an enum: the member with that very value, or the class's own `_missing_`."""
    if issubclass(cls, enum.Flag):
        return lambda value: _make(cls, _int(value))
    members = {encoder.encode_ordered(member.value): member for member in cls}
    has_own_missing = getattr(cls._missing_, "__func__", None) is not getattr(enum.Enum._missing_, "__func__", None)

    def decode(value: Any) -> Any:
        member = members.get(_ordered.encode(value))
        if member is not None:
            return member
        if has_own_missing:
            return _make(cls, value)
        known = ", ".join(shown(member.value) for member in list(cls)[:20])
        raise Misfit(f"{shown(value)} is no value of {type_name(cls)} (it has {known})")

    return decode


def compile_literal(hint: Any, encoder: ValueEncoder) -> Decode:
    """Give the decoder of a `Literal`: the listed value with that very JSON."""
    choices = {encoder.encode_ordered(choice): choice for choice in _literal_values(hint)}

    def decode(value: Any) -> Any:
        key = _ordered.encode(value)
        if key not in choices:
            raise Misfit(f"{shown(value)} is none of {', '.join(shown(choice) for choice in choices.values())}")
        return choices[key]

    return decode


def compile_key(hint: Any, compile_hint: Callable[[Any], Decode], encoder: ValueEncoder) -> Decode | None:
    """Give the decoder of an object's keys, which are texts in JSON; None for keys that are just texts."""
    hint = unwrap(hint)
    if hint in (str, Any, object):
        return None
    if is_union(hint):
        raise Misfit(f"keys of type {hint} cannot be told apart, since all keys are texts in JSON", "Use one key type.")
    if is_enum(hint) or get_origin(hint) is Literal:
        choices = list(hint) if is_enum(hint) else _literal_values(hint)
        by_text = {_key_text(choice, encoder): choice for choice in choices}
        return lambda text: _choose(by_text, text, hint)
    if isinstance(hint, type) and issubclass(hint, (int, float)) and hint is not bool:
        decode_number = compile_hint(hint)
        return lambda text: decode_number(_number(text))
    return compile_hint(hint)


def _literal_values(hint: Any) -> list[Any]:
    values: list[Any] = []
    for arg in get_args(hint):
        values.extend(_literal_values(arg) if get_origin(arg) is Literal else [arg])
    return values


def _key_text(choice: Any, encoder: ValueEncoder) -> str:
    text: str = next(iter(encoder.to_builtins({choice: None})))
    return text


def _choose(by_text: dict[str, Any], text: str, hint: Any) -> Any:
    if text not in by_text:
        raise Misfit(f"the key {shown(text)} is none of {type_name(hint)}")
    return by_text[text]


def _number(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except msgspec.MsgspecError as error:
        raise Misfit(f"the key {shown(text)} is no number") from error


def _make(cls: Any, value: Any) -> Any:
    try:
        return cls(value)
    except Exception as error:
        raise Misfit(f"{type_name(cls)} refuses {shown(value)}: {error}") from error


def _expect(value: Any, kind: type[Any], name: str) -> None:
    if type(value) is not kind:
        raise Misfit(f"expected {name}, got {type(value).__name__} ({shown(value)})")


def _text(value: Any) -> str:
    _expect(value, str, "str")
    return str(value)


def _int(value: Any) -> int:
    _expect(value, int, "int")
    return int(value)


def _float(value: Any) -> float:
    if type(value) is int:
        try:
            return float(value)
        except OverflowError as error:
            raise Misfit(f"{shown(value)} is too large for a float") from error
    _expect(value, float, "float")
    return float(value)


def _bool(value: Any) -> bool:
    _expect(value, bool, "bool")
    return bool(value)


def _none(value: Any) -> None:
    _expect(value, NoneType, "null")


def _bytes(value: Any) -> bytes:
    try:
        return base64.b64decode(_text(value), validate=True)
    except (binascii.Error, ValueError) as error:
        raise Misfit(f"expected base64, got {shown(value)}") from error


def _bytearray(value: Any) -> bytearray:
    return bytearray(_bytes(value))


def _decimal(value: Any) -> Decimal:
    if type(value) not in (int, float):
        _expect(value, str, "a decimal number as text")
    try:
        return Decimal(str(value))
    except InvalidOperation as error:
        raise Misfit(f"expected a decimal number, got {shown(value)}") from error


def _datetime(value: Any) -> datetime:
    text = _text(value)
    try:
        if len(text) <= len("2000-01-01"):
            raise ValueError("it has no time of day")
        return datetime.fromisoformat(text)
    except ValueError as error:
        raise Misfit(f"expected an ISO 8601 date and time, got {shown(value)}: {error}") from error


def _date(value: Any) -> date:
    text = _text(value)
    try:
        return date.fromisoformat(text)
    except ValueError as error:
        raise Misfit(f"expected an ISO 8601 date, got {shown(value)}") from error


def _time(value: Any) -> time:
    text = _text(value)
    try:
        return time.fromisoformat(text)
    except ValueError as error:
        raise Misfit(f"expected an ISO 8601 time of day, got {shown(value)}") from error


def _timedelta(value: Any) -> timedelta:
    try:
        return msgspec.convert(_text(value), timedelta)
    except msgspec.ValidationError as error:
        raise Misfit(f"expected an ISO 8601 duration, got {shown(value)}") from error


def _uuid(value: Any) -> uuid.UUID:
    try:
        return msgspec.convert(_text(value), uuid.UUID)
    except msgspec.ValidationError as error:
        raise Misfit(f"expected a UUID, got {shown(value)}") from error


_SCALARS: Final[dict[type[Any], Decode]] = {
    str: _text,
    int: _int,
    float: _float,
    bool: _bool,
    NoneType: _none,
    bytes: _bytes,
    bytearray: _bytearray,
    Decimal: _decimal,
    datetime: _datetime,
    date: _date,
    time: _time,
    timedelta: _timedelta,
    uuid.UUID: _uuid,
}
