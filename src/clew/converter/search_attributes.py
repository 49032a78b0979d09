"""Search attributes to payloads and back.

Owns: their form: plain JSON with the indexed type in the metadata. Never: runs them through a user's converter or
codec, since the engine itself must read them.
"""

from __future__ import annotations

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
    kind = key.indexed_value_type
    is_text_list = kind is SearchAttributeIndexedValueType.KEYWORD_LIST
    if is_text_list and isinstance(value, Sequence) and not isinstance(value, str):
        if all(isinstance(item, str) for item in value):
            return list(value)
    elif kind is SearchAttributeIndexedValueType.DATETIME and isinstance(value, datetime) and value.tzinfo is not None:
        return value.astimezone(UTC)
    elif kind is SearchAttributeIndexedValueType.DOUBLE and type(value) in (int, float):
        if value - value == 0:  # neither an infinity nor NaN
            return float(value)
    elif not is_text_list and type(value) is key.value_type and kind is not SearchAttributeIndexedValueType.DATETIME:
        return value
    raise EncodeError(
        f"Search attribute {key.name!r} is a {kind.metadata_name} and cannot hold {value!r}. {_TYPE_ADVICE}"
    )


def _encode_untyped(name: str, values: Sequence[Any]) -> StoredPayload:
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
    except msgspec.MsgspecError as error:
        raise DecodeError(
            f"Search attribute {key.name!r} is stored as {key.indexed_value_type.metadata_name}, "
            f"but holds another value: {error}."
        ) from error
