"""Several payload codecs one after the other, as one.

Owns: the order. Never: what a codec does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

from clew.converter import Payload, PayloadCodec


@final
class CodecChain(PayloadCodec):
    """Applies codecs in order on the way out, and in reverse order on the way in.

    Compress before you encrypt (what is encrypted does not compress), and store elsewhere last, so that the store holds
    only what is encrypted: ``CodecChain(compression, encryption, payload_store)``.

    Args:
        *codecs: The first is next to the program, the last next to the engine.
    """

    def __init__(self, *codecs: PayloadCodec) -> None:
        self._codecs = codecs

    async def encode(self, payloads: Sequence[Payload]) -> list[Payload]:
        """Encode with each codec in turn."""
        encoded = list(payloads)
        for codec in self._codecs:
            encoded = await codec.encode(encoded)
        return encoded

    async def decode(self, payloads: Sequence[Payload]) -> list[Payload]:
        """Decode with each codec in turn, the last first."""
        decoded = list(payloads)
        for codec in reversed(self._codecs):
            decoded = await codec.decode(decoded)
        return decoded
