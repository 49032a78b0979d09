"""Search attributes to payloads and back.

Owns: their form: plain JSON with the indexed type in the metadata. Never: runs them through a user's converter or
codec, since the engine itself must read them.
"""

# Values and hints are of any type here, by nature; what is found inside them has no static type.
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false, reportUnknownMemberType=false
# pyright: reportUnknownLambdaType=false

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from clew.common import (
    SearchAttributeIndexedValueType,
    SearchAttributeKey,
    SearchAttributePair,
    SearchAttributes,
    SearchAttributeUpdate,
    TypedSearchAttributes,
)
from clew.exceptions import DecodeError, EncodeError
from clew.model.payload import ENCODING_KEY, JSON_PLAIN, Payload, StoredPayload, from_stored, to_stored

_TYPE_KEY: Final = "type"
_TYPES_BY_NAME: Final = {kind.metadata_name: kind for kind in SearchAttributeIndexedValueType}
_TYPE_ADVICE: Final = "Search attributes hold str, int, float, bool, an aware datetime or a sequence of str."


def encode_search_attributes(
    attributes: TypedSearchAttributes | SearchAttributes | Sequence[SearchAttributeUpdate[Any]] | None,
) -> dict[str, StoredPayload] | None:
    """Give the stored form of search attributes, or of updates to them; None for None.

    Raises:
        EncodeError: A value is not of its key's type.
    """
    if attributes is None:
        return None
    if isinstance(attributes, TypedSearchAttributes):
        return {pair.key.name: encode_search_attribute(pair.key, pair.value) for pair in attributes}
    if isinstance(attributes, Mapping):
        return {name: _encode_untyped(name, values) for name, values in attributes.items()}
    return {update.key.name: encode_search_attribute(update.key, update.value) for update in attributes}


def encode_search_attribute(key: SearchAttributeKey[Any], value: Any) -> StoredPayload:
    """Give the stored form of one value; None removes the attribute.

    Raises:
        EncodeError: The value is not of the key's type.
    """
    plain = None if value is None else _checked(key, value)
    metadata = {ENCODING_KEY: JSON_PLAIN, _TYPE_KEY: key.indexed_value_type.metadata_name.encode()}
    return to_stored(Payload(metadata, msgspec.json.encode(plain)))


def decode_typed_search_attributes(stored: Mapping[str, StoredPayload] | None) -> TypedSearchAttributes:
    """Give back the typed attributes; those without a known type or value are left out.

    Raises:
        DecodeError: A payload is not what its metadata says.
    """
    pairs: list[SearchAttributePair[Any]] = []
    for name, raw in (stored or {}).items():
        payload = from_stored(raw)
        kind = _TYPES_BY_NAME.get(payload.metadata.get(_TYPE_KEY, b"").decode("ascii", "replace"))
        if kind is None:
            continue
        key: SearchAttributeKey[Any] = SearchAttributeKey(name, kind)
        value = _decode(key, payload)
        if value is not None:
            pairs.append(SearchAttributePair(key, value))
    return TypedSearchAttributes(pairs)


def _checked(key: SearchAttributeKey[Any], value: Any) -> Any:
    made = _value_for(key.indexed_value_type, key.value_type, value)
    if made is None:
        name = key.indexed_value_type.metadata_name
        raise EncodeError(f"Search attribute {key.name!r} is a {name} and cannot hold {value!r}. {_TYPE_ADVICE}")
    return made


def _value_for(kind: SearchAttributeIndexedValueType, value_type: type[Any], value: Any) -> Any | None:
    """The value as JSON will have it; None if it is not of the kind."""
    match kind:
        case SearchAttributeIndexedValueType.KEYWORD_LIST:
            is_list = isinstance(value, Sequence) and not isinstance(value, str)
            return list(value) if is_list and all(isinstance(item, str) for item in value) else None
        case SearchAttributeIndexedValueType.DATETIME:
            is_aware = isinstance(value, datetime) and value.tzinfo is not None
            return value.astimezone(UTC) if is_aware else None
        case SearchAttributeIndexedValueType.DOUBLE:
            is_finite = type(value) in (int, float) and math.isfinite(value)
            return float(value) if is_finite else None
        case _:
            return value if type(value) is value_type else None


def _encode_untyped(name: str, values: Any) -> StoredPayload:
    if isinstance(values, str) or not isinstance(values, Sequence):
        raise EncodeError(f"Search attribute {name!r} must be a list of values in the untyped form, got {values!r}.")
    if not values:
        return to_stored(Payload({ENCODING_KEY: JSON_PLAIN}, b"[]"))
    first = values[0]
    if isinstance(first, str):
        if len(values) == 1:
            return encode_search_attribute(SearchAttributeKey.for_keyword(name), first)
        return encode_search_attribute(SearchAttributeKey.for_keyword_list(name), values)
    makers: dict[type[Any], Any] = {
        bool: SearchAttributeKey.for_bool,
        int: SearchAttributeKey.for_int,
        float: SearchAttributeKey.for_float,
        datetime: SearchAttributeKey.for_datetime,
    }
    maker = makers.get(type(first))
    if maker is None or len(values) != 1:
        raise EncodeError(f"Search attribute {name!r} cannot hold {values!r}. {_TYPE_ADVICE}")
    return encode_search_attribute(maker(name), first)


def _decode(key: SearchAttributeKey[Any], payload: Payload) -> Any:
    value_type: Any = list[str] if key.value_type is list else key.value_type
    try:
        return msgspec.json.decode(payload.data, type=value_type | None)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise DecodeError(
            f"Search attribute {key.name!r} is stored as {key.indexed_value_type.metadata_name}, "
            f"but holds another value: {error}."
        ) from error
