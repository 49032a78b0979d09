"""Payloads: user data as bytes plus metadata, and the one form in which they are stored.

Owns: the `Payload` a converter makes, and the *stored form* that events, commands and requests carry.
Never: interprets user data, beyond checking that what is stored as JSON is JSON.

How it works: stored JSON must be readable by people and by plain SQL, and must never be decoded on the way through the
engine. So events carry a payload as `StoredPayload`, a slice of JSON text that is copied untouched:

* data whose only metadata is ``encoding: json/plain`` is stored as that very JSON;
* everything else (binary, encrypted, null, data with further metadata, text that is not strict JSON or has white space
  around it) is stored as
  ``{"$payload": {"metadata": {name: base64}, "data": base64}}``;
* JSON that happens to contain the text ``"$payload"`` takes the second road too, so that the two never mix.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final, TypeAlias

import msgspec

from clew.model.payload_wire import decode_payload, encode_payload

StoredPayload: TypeAlias = msgspec.Raw
"""One payload as a slice of JSON text (see the module docstring)."""

if TYPE_CHECKING:
    OptionalPayload: TypeAlias = StoredPayload | None
else:
    # msgspec decodes "Raw or None" as null only; "Raw or unset" is what it understands as "may be left out".
    OptionalPayload = msgspec.Raw | msgspec.UnsetType
"""One payload, or None; for fields with the default None, which are left out of the JSON then."""

Payloads: TypeAlias = tuple[StoredPayload, ...]
"""The arguments or results of one call, in order."""

ENCODING_KEY: Final = "encoding"
JSON_PLAIN: Final = b"json/plain"
_MARK: Final = b'"$payload"'
_WHITESPACE: Final = b" \t\n\r"
"""What may stand around a JSON value and is lost when the value becomes a slice of a larger text."""


class Payload(msgspec.Struct, gc=False, frozen=True):
    """Bytes with metadata, as converters and codecs make and read them.

    Args:
        metadata: Names to bytes; ``encoding`` says which converter can read the data.
        data: The encoded value.
    """

    metadata: dict[str, bytes]
    data: bytes = b""

    def SerializeToString(self) -> bytes:  # noqa: N802 - the name of the published message class
        """Give the whole payload as bytes, in the protobuf encoding of the published API: what a codec can wrap."""
        return encode_payload(self.metadata, self.data)

    @staticmethod
    def FromString(s: bytes) -> Payload:  # noqa: N802 - the name of the published message class
        """Read what `SerializeToString` gave, here or in the published SDK.

        Raises:
            ValueError: These bytes are something else.
        """
        return Payload(*decode_payload(s))


class _Wrapped(msgspec.Struct, gc=False, frozen=True):
    metadata: dict[str, bytes]
    data: bytes = b""


class _Envelope(msgspec.Struct, gc=False, frozen=True, rename={"payload": "$payload"}):
    payload: _Wrapped


_encoder = msgspec.json.Encoder()
_raw_decoder = msgspec.json.Decoder(msgspec.Raw)
_envelope_decoder = msgspec.json.Decoder(_Envelope)


def is_strict_json(data: bytes) -> bool:
    """Whether `data` is one JSON document by RFC 8259 (so no NaN, no trailing text), in UTF-8."""
    try:
        _raw_decoder.decode(data)
        data.decode()
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return True


def to_stored(payload: Payload, *, trusted: bool = False) -> StoredPayload:
    """Give the stored form of `payload`.

    Args:
        payload: What a converter or codec made.
        trusted: The caller made the data with a JSON encoder itself, so it need not be checked again.
    """
    if (
        len(payload.metadata) == 1
        and payload.metadata.get(ENCODING_KEY) == JSON_PLAIN
        and _MARK not in payload.data
        and (trusted or (payload.data.strip(_WHITESPACE) == payload.data and is_strict_json(payload.data)))
    ):
        return msgspec.Raw(payload.data)
    return msgspec.Raw(_encoder.encode(_Envelope(_Wrapped(payload.metadata, payload.data))))


def from_stored(stored: StoredPayload) -> Payload:
    """Give back the payload whose stored form is `stored`; the exact inverse of `to_stored`."""
    data = bytes(stored)
    if _MARK in data[:32]:
        return_ = _envelope_decoder.decode(data).payload
        return Payload(return_.metadata, return_.data)
    return Payload({ENCODING_KEY: JSON_PLAIN}, data)


def payloads_size(payloads: Iterable[StoredPayload]) -> int:
    """The bytes that these payloads take in storage, which is what the size limits count."""
    total = 0
    for payload in payloads:
        total += memoryview(payload).nbytes
    return total


def base64_text(data: bytes) -> str:
    """Standard base64 of `data` as text, as stored payloads use it."""
    return base64.b64encode(data).decode("ascii")
