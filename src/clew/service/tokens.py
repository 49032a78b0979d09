"""Task tokens as opaque bytes, for code that hands one to somebody else.

Owns: how a `TaskToken` is written as bytes and read back. Never: whether a token is still good (``core`` decides by the
lease it names).
"""

from __future__ import annotations

from typing import Final

import msgspec

from clew.model.inputs import TaskToken

_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(TaskToken)


def encode_task_token(token: TaskToken) -> bytes:
    """Give `token` as bytes."""
    return _encoder.encode(token)


def decode_task_token(data: bytes) -> TaskToken:
    """Give the token that `encode_task_token` wrote.

    Raises:
        ValueError: These bytes are not a task token.
    """
    try:
        return _decoder.decode(data)
    except msgspec.DecodeError as error:
        raise ValueError(
            f"These {len(data)} bytes are not a task token ({error}). Pass activity.info().task_token unchanged."
        ) from error
