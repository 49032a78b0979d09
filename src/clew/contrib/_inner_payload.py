"""A whole payload, metadata included, as bytes: what codecs encrypt, compress or store elsewhere.

Owns: that one format (msgpack of the payload's two fields). Never: any codec's own metadata.
"""

from __future__ import annotations

import msgspec

from clew.exceptions import DecodeError
from clew.model.payload import Payload

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Payload)


def encode_payload(payload: Payload) -> bytes:
    """Give `payload` as bytes."""
    return _encoder.encode(payload)


def decode_payload(data: bytes, what: str) -> Payload:
    """Give the payload back; the inverse of `encode_payload`.

    Args:
        data: What `encode_payload` made.
        what: Where it comes from, for messages: "a payload encrypted with key 'k1'".

    Raises:
        DecodeError: These bytes are something else.
    """
    try:
        return _decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise DecodeError(
            f"The inside of {what} is not a payload ({error}). It was made by another program, or by another version "
            "of this codec; use the codec that made it."
        ) from error
