"""A payload codec that compresses.

Owns: what is worth compressing, and the bound on what a compressed payload may become.
Never: decides by what a payload says of its own size: whoever can write a payload can lie.

How it works: a payload of some size is compressed whole, metadata included, and kept compressed only if that is
smaller. On the way in the decompressor is asked for at most the allowed bytes plus one, so a "bomb" costs that much
memory and an error, whatever it would have become. One layer is undone, never what is found inside.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Final, final

from clew.contrib._inner_payload import decode_payload, encode_payload
from clew.converter import Payload, PayloadCodec
from clew.exceptions import DecodeError
from clew.model.payload import ENCODING_KEY

ENCODING: Final = b"binary/zlib"
"""What marks a compressed payload; the name that the published samples use for zlib."""

BYTES_MIN_DEFAULT: Final = 1024
"""Below this, what compression saves is less than one page of storage and not worth the time."""

DECODED_BYTES_MAX_DEFAULT: Final = 64 * 1024 * 1024
"""Thirty times the default limit of a payload: more than any honest program needs, and harmless to a worker."""


@final
class CompressionCodec(PayloadCodec):
    """Compresses payloads with zlib.

    Args:
        bytes_min: Smaller payloads are left as they are.
        level: 1 (fast) to 9 (small).
        decoded_bytes_max: Most bytes that one payload may have when decompressed.
    """

    def __init__(
        self,
        *,
        bytes_min: int = BYTES_MIN_DEFAULT,
        level: int = 6,
        decoded_bytes_max: int = DECODED_BYTES_MAX_DEFAULT,
    ) -> None:
        if level not in range(1, 10):
            raise ValueError(f"level is {level!r}; it must be a whole number from 1 (fast) to 9 (small).")
        if bytes_min < 0 or decoded_bytes_max <= 0:
            raise ValueError(f"bytes_min ({bytes_min}) must not be negative, decoded_bytes_max must be positive.")
        self._bytes_min = bytes_min
        self._level = level
        self._decoded_bytes_max = decoded_bytes_max

    async def encode(self, payloads: Sequence[Payload]) -> list[Payload]:
        """Compress what is large enough and becomes smaller by it."""
        return [self._encode(payload) for payload in payloads]

    async def decode(self, payloads: Sequence[Payload]) -> list[Payload]:
        """Decompress what this codec compressed.

        Raises:
            DecodeError: One is damaged, or larger than allowed.
        """
        return [self._decode(p) if p.metadata.get(ENCODING_KEY) == ENCODING else p for p in payloads]

    def _encode(self, payload: Payload) -> Payload:
        if len(payload.data) < self._bytes_min:
            return payload
        compressed = zlib.compress(encode_payload(payload), self._level)
        if len(compressed) >= len(payload.data):
            return payload
        return Payload({ENCODING_KEY: ENCODING}, compressed)

    def _decode(self, payload: Payload) -> Payload:
        decompressor = zlib.decompressobj()
        try:
            data = decompressor.decompress(payload.data, self._decoded_bytes_max + 1)
        except zlib.error as error:
            raise DecodeError(
                f"A compressed payload of {len(payload.data)} bytes is damaged ({error}). Look at its event, and at "
                "what wrote it."
            ) from error
        if len(data) > self._decoded_bytes_max:
            raise DecodeError(
                f"A compressed payload of {len(payload.data)} bytes becomes more than {self._decoded_bytes_max} bytes, "
                "which this codec allows. If it is honest, raise decoded_bytes_max; else find who wrote it."
            )
        if not decompressor.eof or decompressor.unused_data:
            raise DecodeError(
                f"A compressed payload of {len(payload.data)} bytes does not end where its data ends. Look at its "
                "event, and at what wrote it."
            )
        return decode_payload(data, "a compressed payload")
