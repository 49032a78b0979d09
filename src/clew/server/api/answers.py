"""Answers of the contract as JSON for programs that have no library of ours.

Owns: how an answer looks. Never: what is in it.

How it works: contract and store leave out whatever has its default, which is compact, and harmless for a reader that
knows the defaults. A reader of HTTP does not: so every list and every map of an answer is there, empty or not. Search
attributes, which are stored as payloads with a type in their metadata, are shown as ``{"type": …, "value": …}``, the
form in which they may be given. Other payloads are shown as they are stored: JSON where they are JSON.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, Final, NamedTuple, cast

import msgspec

from clew.model.payload import from_stored

SEARCH_ATTRIBUTES: Final = "search_attributes"

_TYPE_KEY: Final = "type"
_CONTAINERS: Final = frozenset((tuple, list, dict, set, frozenset))


def encode(value: Any) -> bytes:
    """An answer as JSON."""
    return msgspec.json.encode(_shown(value))


class _Field(NamedTuple):
    name: str
    key: str
    default: Any
    is_attributes: bool


@functools.cache
def _layout(kind: type[msgspec.Struct]) -> tuple[dict[str, Any], tuple[_Field, ...], bool]:
    """The tag of a struct, its fields, and whether those with defaults are left out."""
    configuration = kind.__struct_config__
    tag = {configuration.tag_field: configuration.tag} if configuration.tag is not None else {}
    fields = tuple(
        _Field(field.name, field.encode_name, field.default, field.name == SEARCH_ATTRIBUTES)
        for field in msgspec.structs.fields(kind)
    )
    return cast("dict[str, Any]", tag), fields, configuration.omit_defaults


def _shown(value: Any) -> Any:
    if isinstance(value, msgspec.Struct):
        return value if value.__struct_config__.array_like else _shown_struct(value)
    if isinstance(value, dict):
        return {key: _shown(item) for key, item in cast("dict[Any, Any]", value).items()}
    if isinstance(value, (tuple, list)):
        return [_shown(item) for item in cast("list[Any]", value)]
    return value


def _shown_struct(value: msgspec.Struct) -> dict[str, Any]:
    tag, fields, omits_defaults = _layout(type(value))
    shown = dict(tag)
    for name, key, default, is_attributes in fields:
        held: Any = getattr(value, name)
        is_default = type(held) is type(default) and held == default
        if omits_defaults and is_default and type(held) not in _CONTAINERS:
            continue
        shown[key] = _shown_attributes(held) if is_attributes and held else _shown(held)
    return shown


def _shown_attributes(attributes: Mapping[str, msgspec.Raw]) -> dict[str, Any]:
    """Search attributes with their types; one that is not stored as such is shown as it is."""
    shown: dict[str, Any] = {}
    for name, raw in attributes.items():
        payload = from_stored(raw)
        kind = payload.metadata.get(_TYPE_KEY)
        if kind is None:
            shown[name] = raw
        else:
            shown[name] = {"type": kind.decode(), "value": msgspec.Raw(payload.data)}
    return shown
