"""Callback tokens: a signed, expiring right to end one activity, for somebody without other credentials.

Owns: how such a token is written, signed and checked. Never: whether the activity still runs (``core`` decides).

How it works: a token is ``<namespace>.<body>.<signature>`` in unpadded base64url. The body is msgpack of the target and
the instant of expiry; the signature is HMAC-SHA256 with a key derived from the namespace's secret, so that any node of
the store can check it, and nothing is stored. What a token allows ends by itself when its activity closes.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

import msgspec

from clew.model.inputs import ActivityTarget, TaskToken
from clew.model.rejection import Rejection, RejectionCode
from clew.service.errors import RPCError

TOKEN_CHARS_MAX: Final = 8_192
"""Ids are at most 1,000 bytes each (`Limits.id_bytes_max`), so a genuine token is far shorter."""

_KEY_LABEL: Final = b"clew callback token, version 1"
"""Keeps these signatures apart from the idempotency keys, which use the same secret."""


class _Body(msgspec.Struct, frozen=True, array_like=True):
    target: TaskToken | ActivityTarget
    expires_at: int
    """Seconds since the epoch."""


_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(_Body)


def sign_callback(secret: bytes, target: TaskToken | ActivityTarget, expires_at: datetime) -> str:
    """The token for `target`, good until `expires_at` (whole seconds)."""
    signed = f"{_text(target.namespace.encode())}.{_text(_encoder.encode(_Body(target, int(expires_at.timestamp()))))}"
    return f"{signed}.{_text(_signature(secret, signed))}"


def open_callback(
    token: str, secret_of: Callable[[str], bytes], now: datetime
) -> tuple[TaskToken | ActivityTarget, datetime]:
    """The target of a genuine token, and when it expires.

    Args:
        token: As `sign_callback` gave it.
        secret_of: The secret of a namespace; raises `RPCError` when there is no such namespace.
        now: The present instant.

    Raises:
        RPCError: ``callback_refused``: it is not genuine, or too old. The message does not say which part is wrong.
    """
    signed, _, signature = token.rpartition(".")
    namespace, _, body = signed.partition(".")
    if len(token) > TOKEN_CHARS_MAX or not body:
        raise _not_genuine()
    try:
        secret = secret_of(_bytes(namespace).decode())
        given = _bytes(signature)
    except (ValueError, RPCError) as error:
        raise _not_genuine() from error
    if not hmac.compare_digest(_signature(secret, signed), given):
        raise _not_genuine()
    try:
        decoded = _decoder.decode(_bytes(body))
    except (ValueError, msgspec.DecodeError) as error:
        raise _not_genuine() from error
    if decoded.target.namespace != _bytes(namespace).decode():
        raise _not_genuine()
    expires_at = datetime.fromtimestamp(decoded.expires_at, UTC)
    if now >= expires_at:
        raise RPCError(
            Rejection(
                code=RejectionCode.CALLBACK_REFUSED,
                message=f"this callback token expired at {expires_at:%Y-%m-%dT%H:%M:%SZ}; ask whoever gave it for a "
                "fresh one",
                details={"reason": "expired"},
            )
        )
    return decoded.target, expires_at


def _signature(secret: bytes, signed: str) -> bytes:
    key = hmac.digest(secret, _KEY_LABEL, hashlib.sha256)
    return hmac.digest(key, signed.encode("ascii", "replace"), hashlib.sha256)


def _text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode("ascii").rstrip("=")


def _bytes(text: str) -> bytes:
    if len(text) % 4 == 1:
        raise ValueError("no base64 text has this length")
    try:
        data = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except binascii.Error as error:
        raise ValueError(str(error)) from error
    if _text(data) != text:
        raise ValueError("not the one text that these bytes have")
    return data


def _not_genuine() -> RPCError:
    return RPCError(
        Rejection(
            code=RejectionCode.CALLBACK_REFUSED,
            message="this is not a callback token that this store gave; pass the token unchanged, to the store that "
            "gave it",
            details={"reason": "not_genuine"},
        )
    )
