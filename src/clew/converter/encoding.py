"""Values to JSON.

Owns: which Python values become which JSON (docs/reference/data-conversion.md has the table).
Never: looks at type hints; what a value becomes depends on the value alone.

How it works: a value is first brought to what JSON has (`ValueEncoder.to_builtins`), by one handler a type that is
found once and kept; msgspec then writes the bytes. Containers whose items are all plain are handed on untouched. What
cannot come back exactly is refused here, with its path, rather than changed silently: NaN and infinities, keys that are
no text, enums with members that look alike, objects of unknown types, values nested deeper than `DEPTH_MAX` (so also
cycles).
"""

# Values and hints are of any type here, by nature; what is found inside them has no static type.
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false, reportUnknownMemberType=false
# pyright: reportUnknownLambdaType=false

from __future__ import annotations

import collections
import dataclasses
import enum
import ipaddress
import math
import os
import pathlib
import uuid
from collections.abc import Callable, Iterable, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Final, TypeAlias, final

import msgspec

from clew.common import RawValue
from clew.converter.annotations import has_init_vars, is_named_tuple, is_pydantic
from clew.converter.misfit import Misfit, item_step, key_step, shown, type_name
from clew.exceptions import EncodeError
from clew.model.payload import is_strict_json

DEPTH_MAX: Final = 200
"""Deeper nesting is refused: far beyond real data, far below the recursion limits of Python and other JSON parsers."""

_PLAIN: Final = frozenset({str, int, bool, type(None)})
_TEXT: Final = frozenset({str})
_IP_TYPES: Final = (
    ipaddress.IPv4Address,
    ipaddress.IPv6Address,
    ipaddress.IPv4Network,
    ipaddress.IPv6Network,
    ipaddress.IPv4Interface,
    ipaddress.IPv6Interface,
)
TEXT_TYPES: Final[tuple[type[Any], ...]] = (pathlib.PurePath, *_IP_TYPES)
"""Types whose text gives back the value, by calling the type with it."""

REMEDY: Final = (
    "Pass values made of dataclasses, pydantic or msgspec models, enums and the types of the standard library that "
    "docs/reference/data-conversion.md lists, or give the JSON converter a custom type converter."
)

Handler: TypeAlias = Callable[[Any, int], Any]
Fallback: TypeAlias = Callable[[Any], Any]

_encoder: Final = msgspec.json.Encoder()
_ordered_encoder: Final = msgspec.json.Encoder(order="deterministic")


@final
class ValueEncoder:
    """Encodes values, with a memory of how each type is done.

    Args:
        fallback: Turns a value of an unknown type into one of a known type, or raises TypeError.
    """

    def __init__(self, fallback: Fallback | None = None) -> None:
        self._fallback = fallback
        self._handlers: dict[type[Any], Handler] = {}

    def encode(self, value: Any) -> bytes:
        """Encode one value as strict JSON in UTF-8.

        Raises:
            EncodeError: It would not come back as it is; the message has the path, the reason and the remedy.
        """
        try:
            if type(value) in _PLAIN:
                return _encoder.encode(value)
            return _encoder.encode(self.to_builtins(value))
        except Misfit as misfit:
            raise _refusal(value, misfit.path, misfit.problem, misfit.remedy) from misfit.__cause__
        except RecursionError as error:
            raise _refusal(value, "$", "it is nested too deeply", "Flatten it, or look for a cycle.") from error
        except (UnicodeEncodeError, TypeError, ValueError, OverflowError) as error:
            raise _refusal(value, "$", str(error), "") from error

    def encode_ordered(self, value: Any) -> bytes:
        """Encode with sorted keys, so that equal values give equal bytes.

        Raises:
            Misfit: It cannot be encoded.
        """
        return _ordered_encoder.encode(self.to_builtins(value))

    def to_builtins(self, value: Any, depth: int = 0) -> Any:
        """Bring a value to what JSON has; the same object where there is nothing to do.

        Raises:
            Misfit: It cannot be encoded.
        """
        kind = type(value)
        if kind in _PLAIN:
            return value
        handler = self._handlers.get(kind)
        if handler is None:
            handler = self._handlers[kind] = self._make_handler(kind)
        return handler(value, depth)

    # --- containers --------------------------------------------------------------------------------------------------

    def _items(self, value: Iterable[Any], depth: int) -> list[Any]:
        _check_depth(depth)
        items = value if type(value) is list else list(value)
        if set(map(type, items)) <= _PLAIN:
            return items
        converted: list[Any] = []
        for item in items:
            try:
                converted.append(self.to_builtins(item, depth + 1))
            except Misfit as misfit:
                raise misfit.inside(item_step(len(converted)))  # noqa: B904 (the same exception goes on)
        return converted

    def _set_items(self, value: Iterable[Any], depth: int) -> list[Any]:
        # Sets have no order of their own, and payloads must not depend on the hash seed.
        items = self._items(value, depth)
        kinds = set(map(type, items))
        return sorted(items) if kinds in ({str}, {int}) else sorted(items, key=_ordered_encoder.encode)

    def _mapping(self, value: Mapping[Any, Any], depth: int) -> dict[str, Any]:
        _check_depth(depth)
        if type(value) is dict and set(map(type, value.values())) <= _PLAIN and set(map(type, value)) <= _TEXT:
            return value
        converted: dict[str, Any] = {}
        for key, item in value.items():
            text = key if type(key) is str else self._key_text(key)
            try:
                converted[text] = self.to_builtins(item, depth + 1)
            except Misfit as misfit:
                raise misfit.inside(key_step(text))  # noqa: B904 (the same exception goes on)
        if len(converted) != len(value):
            raise Misfit("two keys have the same text in JSON", "Use keys of one type.")
        return converted

    def _key_text(self, key: Any) -> str:
        inner = key.value if isinstance(key, enum.Enum) else key
        built = self.to_builtins(inner)
        if isinstance(built, str):
            return str(built)
        if isinstance(built, (bool, type(None), list, dict, bytes)) or not isinstance(
            built, (int, float, date, time, uuid.UUID, Decimal)
        ):
            raise Misfit(
                f"a key of type {type_name(type(key))} ({shown(key)}) has no text that gives it back",
                "JSON has only texts as keys: use str, int, enum, UUID, date or Decimal keys, or a list of pairs.",
            )
        text: str = msgspec.json.decode(_encoder.encode({built: None}), type=dict[str, None]).popitem()[0]
        return text

    # --- one handler a type ------------------------------------------------------------------------------------------

    def _make_handler(self, kind: type[Any]) -> Handler:
        for make in (self._special_handler, self._record_handler, self._container_handler, self._scalar_handler):
            handler = make(kind)
            if handler is not None:
                return handler
        return self._foreign

    def _special_handler(self, kind: type[Any]) -> Handler | None:
        if issubclass(kind, RawValue):
            return _refuse_raw_value
        if issubclass(kind, enum.Enum):
            return self._enum_handler(kind)
        if is_pydantic(kind):
            return _pydantic
        if issubclass(kind, msgspec.Struct):
            return _struct
        return None

    def _record_handler(self, kind: type[Any]) -> Handler | None:
        if not dataclasses.is_dataclass(kind):
            return None
        if has_init_vars(kind):
            raise Misfit(
                f"the dataclass {type_name(kind)} takes InitVar arguments, which it does not keep",
                "Keep them as fields, so that the value can be made again.",
            )
        names = tuple(field.name for field in dataclasses.fields(kind))

        def record(value: Any, depth: int) -> dict[str, Any]:
            _check_depth(depth)
            converted: dict[str, Any] = {}
            for name in names:
                item = getattr(value, name)
                if type(item) in _PLAIN:
                    converted[name] = item
                    continue
                try:
                    converted[name] = self.to_builtins(item, depth + 1)
                except Misfit as misfit:
                    raise misfit.inside(f".{name}")  # noqa: B904 (the same exception goes on)
            return converted

        return record

    def _container_handler(self, kind: type[Any]) -> Handler | None:
        if kind in (list, tuple, collections.deque) or is_named_tuple(kind):
            return self._items
        if kind in (set, frozenset):
            return self._set_items
        if issubclass(kind, (dict, Mapping)):
            return self._mapping
        if issubclass(kind, (list, tuple, collections.deque)):
            return self._items
        if issubclass(kind, (set, frozenset)):
            return self._set_items
        return None

    def _scalar_handler(self, kind: type[Any]) -> Handler | None:
        if issubclass(kind, float):
            return _float
        if kind in (bytes, bytearray, uuid.UUID, Decimal, date, timedelta):
            return _as_is
        if kind is datetime:
            return _datetime
        if kind is time:
            return _time
        for base in (str, int, bytes):
            if issubclass(kind, base):
                # A subclass has the value of its base in JSON; a hint that names the subclass makes it again.
                plain = base.__str__ if base is str else base
                return lambda value, depth: plain(value)
        if issubclass(kind, pathlib.PurePath):
            return lambda value, depth: os.fspath(value)
        if issubclass(kind, _IP_TYPES):
            return lambda value, depth: str(value)
        return None

    def _enum_handler(self, kind: type[enum.Enum]) -> Handler:
        if not issubclass(kind, enum.Flag):
            texts: dict[bytes, enum.Enum] = {}
            for member in kind:
                twin = texts.setdefault(self.encode_ordered(member.value), member)
                if twin is not member:
                    raise Misfit(
                        f"{twin} and {member} have the same value in JSON", "Give the members values that differ."
                    )
        return lambda value, depth: self.to_builtins(value.value, depth)

    def _foreign(self, value: Any, depth: int) -> Any:
        _check_depth(depth)
        if self._fallback is not None:
            try:
                replaced = self._fallback(value)
            except TypeError as error:
                raise Misfit(str(error)) from error
            return self.to_builtins(replaced, depth + 1)
        raise Misfit(
            f"a value of type {type_name(type(value))} ({shown(value)}) has no form in JSON that gives it back"
        )


def _refusal(value: Any, path: str, problem: str, remedy: str) -> EncodeError:
    message = f"Cannot convert a value of type {type_name(type(value))} to a payload: at {path}, {problem}. "
    return EncodeError(message + (remedy or REMEDY), path=path)


def _check_depth(depth: int) -> None:
    if depth >= DEPTH_MAX:
        raise Misfit(f"it is nested deeper than {DEPTH_MAX} levels", "Flatten it, or look for a cycle.")


def _as_is(value: Any, depth: int) -> Any:
    return value


def _float(value: float, depth: int) -> float:
    if not math.isfinite(value):
        raise Misfit(f"{float(value)!r} has no form in JSON", "Pass None, a Decimal or a text in its place.")
    return float(value)


def _datetime(value: datetime, depth: int) -> Any:
    if value.tzinfo is None:
        return value
    offset = value.utcoffset()
    if offset is None:
        raise Misfit(f"the time zone {shown(value.tzinfo)} has no offset at {value}", "Use a zone that has one.")
    # The encoder rounds offsets to minutes; some historic zones have seconds.
    return value.isoformat() if offset.seconds % 60 or offset.microseconds else value


def _time(value: time, depth: int) -> Any:
    if value.tzinfo is None:
        return value
    if value.utcoffset() is None:
        raise Misfit(
            f"a time of day in the zone {shown(value.tzinfo)} has no fixed offset",
            "Pass a datetime, or the time without zone and the name of the zone.",
        )
    return value.isoformat()


def _refuse_raw_value(value: Any, depth: int) -> Any:
    raise Misfit("a RawValue stands inside a value", "Pass it as an argument or result of its own.")


def _struct(value: msgspec.Struct, depth: int) -> msgspec.Raw:
    _check_depth(depth)
    try:
        data = _encoder.encode(value)
    except (TypeError, ValueError) as error:
        raise Misfit(f"msgspec cannot encode {type_name(type(value))}: {error}") from error
    if b"null" in data:
        _refuse_non_finite(msgspec.to_builtins(value))
    return msgspec.Raw(data)


def _pydantic(value: Any, depth: int) -> msgspec.Raw:
    _check_depth(depth)
    serializer = type(value).__pydantic_serializer__
    try:
        data: bytes = serializer.to_json(value, by_alias=True, round_trip=True)
    except ValueError as error:
        raise Misfit(f"pydantic cannot encode {type_name(type(value))}: {error}") from error
    if b"null" in data or not is_strict_json(data):
        _refuse_non_finite(serializer.to_python(value, by_alias=True, round_trip=True))
    if not is_strict_json(data):
        raise Misfit(f"pydantic did not write strict JSON for {type_name(type(value))}", "Look at its serializers.")
    return msgspec.Raw(data)


def _refuse_non_finite(value: Any) -> None:
    """Look for what JSON writers turn into null without a word."""
    if isinstance(value, float):
        _float(value, 0)
    elif isinstance(value, Mapping):
        for key, item in value.items():
            try:
                _refuse_non_finite(item)
            except Misfit as misfit:
                raise misfit.inside(key_step(key))  # noqa: B904 (the same exception goes on)
    elif isinstance(value, (list, tuple, set, frozenset)):
        for index, item in enumerate(value):
            try:
                _refuse_non_finite(item)
            except Misfit as misfit:
                raise misfit.inside(item_step(index))  # noqa: B904 (the same exception goes on)


DEFAULT_ENCODER: Final = ValueEncoder()
