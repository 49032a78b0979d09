"""Answers without payloads, for callers that may know of a run but not what it is about.

Owns: what counts as a payload in an answer, and its replacement. Never: who gets which (``authorized``).

How it works: a payload in a struct of the contract is a slice of JSON (`msgspec.Raw`), wherever it stands, so the walk
replaces every such slice it meets: a field that a later version adds is covered without being named here. The one
exception are search attributes: they exist to be searched by whoever may list. In place of a payload stands one with
the encoding `REDACTED`, which no converter reads, so that a redacted value is never taken for a real one. Texts of
failures stay, as they say why a run is stuck; a failure converter that encodes them makes payloads of them, too.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final, TypeVar, cast

import msgspec

from clew.model.payload import ENCODING_KEY, Payload, to_stored

T = TypeVar("T")

REDACTED: Final = b"clew/redacted"
"""The encoding of a payload that was taken out."""

REDACTED_PAYLOAD: Final = to_stored(Payload({ENCODING_KEY: REDACTED}))

_KEPT_FIELDS: Final = frozenset({"search_attributes"})


def without_payloads(answer: T) -> T:
    """The same answer, with every payload in it replaced."""
    result: T = _walk(answer)
    return result


def _walk(value: Any) -> Any:
    kind = cast("type[Any]", type(value))
    if kind is msgspec.Raw:
        return REDACTED_PAYLOAD
    if kind is tuple:
        return _walk_items(value)
    if kind is list:
        return list(_walk_items(tuple(value)))
    if kind is dict:
        return {key: _walk(item) for key, item in value.items()}
    if isinstance(value, msgspec.Struct):
        return _walk_struct(value)
    return value


def _walk_items(items: tuple[Any, ...]) -> tuple[Any, ...]:
    walked = tuple(_walk(item) for item in items)
    return items if all(new is old for new, old in zip(walked, items, strict=True)) else walked


def _walk_struct(struct: msgspec.Struct) -> msgspec.Struct:
    changes: dict[str, Any] = {}
    for name in _fields(type(struct)):
        before = getattr(struct, name)
        after = _walk(before)
        if after is not before:
            changes[name] = after
    return msgspec.structs.replace(struct, **changes) if changes else struct


@lru_cache(maxsize=1024)
def _fields(kind: type[msgspec.Struct]) -> tuple[str, ...]:
    return tuple(name for name in kind.__struct_fields__ if name not in _KEPT_FIELDS)
