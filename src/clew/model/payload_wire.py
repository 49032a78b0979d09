"""A payload as one byte string, in the protobuf encoding of the published API (``temporal.api.common.v1.Payload``).

Owns: that encoding, so that what a codec of the published SDK has wrapped can be unwrapped here, and the reverse.
Never: the form in which payloads are stored (``model.payload``).

How it works: field 1 is the metadata, one length-delimited entry a name (name in field 1, bytes in field 2); field 2 is
the data. Unknown fields are skipped, as protobuf asks (https://protobuf.dev/programming-guides/encoding/).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

_METADATA: Final = 0x0A
_DATA: Final = 0x12
_KEY: Final = 0x0A
_VALUE: Final = 0x12
_VARINT_BYTES_MAX: Final = 10
_FIXED_BYTES: Final = {1: 8, 5: 4}
"""Bytes of the wire types that have a fixed length."""


def encode_payload(metadata: dict[str, bytes], data: bytes) -> bytes:
    """Give metadata and data as bytes."""
    parts = [_field(_METADATA, _field(_KEY, name.encode()) + _field(_VALUE, value)) for name, value in metadata.items()]
    if data:
        parts.append(_field(_DATA, data))
    return b"".join(parts)


def decode_payload(encoded: bytes) -> tuple[dict[str, bytes], bytes]:
    """Give metadata and data back.

    Raises:
        ValueError: These bytes are something else.
    """
    metadata: dict[str, bytes] = {}
    data = b""
    for tag, content in _fields(encoded):
        if tag == _METADATA:
            entry = dict(_fields(content))
            metadata[entry.get(_KEY, b"").decode()] = entry.get(_VALUE, b"")
        elif tag == _DATA:
            data = content
    return metadata, data


def _field(tag: int, content: bytes) -> bytes:
    return bytes([tag]) + _varint(len(content)) + content


def _varint(number: int) -> bytes:
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


def _fields(encoded: bytes) -> Iterator[tuple[int, bytes]]:
    """The length-delimited fields, each with its tag; others are skipped."""
    at = 0
    while at < len(encoded):
        tag, at = _read_varint(encoded, at)
        wire_type = tag & 0x07
        if tag >> 3 == 0:
            raise ValueError(f"byte {at} begins a field without a number; these bytes are not a payload")
        if wire_type == 0:
            _, at = _read_varint(encoded, at)
            continue
        if wire_type == 2:
            length, at = _read_varint(encoded, at)
        elif wire_type in _FIXED_BYTES:
            length = _FIXED_BYTES[wire_type]
        else:
            raise ValueError(f"byte {at} begins a field of wire type {wire_type}; these bytes are not a payload")
        if at + length > len(encoded):
            raise ValueError(f"a field at byte {at} should have {length} bytes, but there are {len(encoded) - at}")
        if wire_type == 2:
            yield tag, encoded[at : at + length]
        at += length


def _read_varint(encoded: bytes, at: int) -> tuple[int, int]:
    number = 0
    for position in range(_VARINT_BYTES_MAX):
        if at >= len(encoded):
            break
        byte = encoded[at]
        at += 1
        number |= (byte & 0x7F) << 7 * position
        if byte < 0x80:
            return number, at
    raise ValueError(f"the number that ends at byte {at} is not whole; these bytes are not a payload")
