"""Whole binary messages of a WebSocket, read and written without the library.

Owns: `PlainFrames`: the one kind of WebSocket frame that links send (RFC 6455 §5.2: final, binary, no extension).
Never: handshakes, control frames, fragments, or what breaks the rules: those are the library's, which takes over for
the rest of the connection with the first byte that is not of that one kind.

How it works: the library reads any WebSocket, through generators and objects for every frame; for what two of our own
ends say to each other that costs more than everything else that is done with a frame. `take` gives whole messages
while there are such, and then what is left for the library, from a frame's first byte on, so that it sees a connection
on which nothing came before.
"""

from __future__ import annotations

import importlib
import random
from collections.abc import Callable
from typing import Any, Final, cast, final

_PLAIN: Final = 0x82
"""The first byte of a final binary frame without extensions."""

_MASKED: Final = 0x80
_SHORT_MAX: Final = 125
_MEDIUM: Final = 126
_LONG: Final = 127
_MEDIUM_MAX: Final = 0xFFFF

_KEY_BYTES: Final = 4
_KEYS_BYTES: Final = 256 * _KEY_BYTES
"""Keys are asked of the system so many at a time."""

Mask = Callable[[bytes, bytes], bytes]


def _load_mask() -> Mask:
    """The library's masking: in C, where it was built."""
    try:
        module: Any = importlib.import_module("websockets.speedups")
    except ImportError:
        module = importlib.import_module("websockets.utils")
    return cast(Mask, module.apply_mask)


@final
class PlainFrames:
    """See the module docstring; of one end of one connection.

    Args:
        is_client: A client's frames are masked, a server's are not.
        bytes_max: A longer one is left to the library, which refuses it.
    """

    __slots__ = ("_buffer", "_bytes_max", "_is_client", "_keys", "_keys_at", "_mask", "_new_keys")

    def __init__(self, *, is_client: bool, bytes_max: int) -> None:
        self._is_client = is_client
        self._bytes_max = bytes_max
        self._buffer = b""
        self._mask = _load_mask()
        # Such that nobody on the way can foretell them (§5.3).
        self._new_keys = random.SystemRandom().randbytes
        self._keys = b""
        self._keys_at = 0

    def frame(self, message: bytes) -> bytes:
        """The frame of one message."""
        length = len(message)
        bit = _MASKED if self._is_client else 0
        if length <= _SHORT_MAX:
            head = bytes((_PLAIN, bit | length))
        elif length <= _MEDIUM_MAX:
            head = bytes((_PLAIN, bit | _MEDIUM)) + length.to_bytes(2, "big")
        else:
            head = bytes((_PLAIN, bit | _LONG)) + length.to_bytes(8, "big")
        if not self._is_client:
            return head + message
        at = self._keys_at
        if at == len(self._keys):
            self._keys, at = self._new_keys(_KEYS_BYTES), 0
        self._keys_at = at + _KEY_BYTES
        key = self._keys[at : at + _KEY_BYTES]
        return b"".join((head, key, self._mask(message, key)))

    def take(self, data: bytes, on_message: Callable[[bytes], None]) -> bytes | None:
        """Pass on the messages that are there.

        Returns:
            None while all that came was of the one kind; else what the library has to read, which has the rest of the
            connection from then on.
        """
        if self._buffer:
            data, self._buffer = self._buffer + data, b""
        at, end = 0, len(data)
        while end - at >= 2:
            second = data[at + 1]
            if data[at] != _PLAIN or (second >= _MASKED) is self._is_client:
                return data[at:]
            start, length = at + 2, second & ~_MASKED
            if length >= _MEDIUM:
                size = 2 if length == _MEDIUM else 8
                if end - start < size:
                    break
                length = int.from_bytes(data[start : start + size], "big")
                start += size
            if length > self._bytes_max:
                return data[at:]
            if not self._is_client:
                start += 4
            if end - start < length:
                break
            message = data[start : start + length]
            if not self._is_client:
                message = self._mask(message, data[start - 4 : start])
            at = start + length
            on_message(message)
        self._buffer = data[at:]
        return None

    def rest(self) -> bytes:
        """What came of a frame that is not complete; for the library, when no more comes."""
        rest, self._buffer = self._buffer, b""
        return rest
