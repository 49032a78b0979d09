"""API keys: how one is written, what is kept of it, and whether one that is shown is it.

Owns: the text of a key, the record that the store keeps, and the comparison. Never: chance or time (both are
arguments), the store, or what a key allows (``model.access``).

How it works: a key is ``clew_<id>_<secret>``: the id is public and finds the record, the secret is 32 bytes from the
system's random source. The record keeps a salt and ``HMAC-SHA256(salt, secret)``; with 256 bits of chance in the secret
there is nothing to guess at, so a slow hash would buy nothing and cost every call. Comparison takes the same time
wherever the two differ, and as long when there is no such key.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from datetime import UTC, datetime
from typing import Final

import msgspec

from clew.model.access import Grant

PREFIX: Final = "clew_"
"""By it, scanners of source code and logs can know a key."""

ID_BYTES: Final = 9
SECRET_BYTES: Final = 32
SALT_BYTES: Final = 16

_ID_CHARS: Final = 18
_SECRET_CHARS: Final = 43

NAME_CHARS_MAX: Final = 200


class KeyRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the store keeps of one key; nobody can make the key from it.

    Args:
        name: For people.
        salt: Of the digest.
        digest: ``HMAC-SHA256(salt, secret)``.
        grants: What the key allows.
        created_at: When it was made.
        created_by: By whom.
        expires_at: From when on it is good for nothing; None for never.
        revoked_at: When it was taken back.
        revoked_by: By whom.
        replaced_by: The id of the key that a rotation made in its place.
        last_used_at: About when it was last used: to the hour or so, so that use costs no writes.
        calls_per_second_max: Its own rate limit; None for that of the server.
    """

    name: str
    salt: bytes
    digest: bytes
    grants: tuple[Grant, ...]
    created_at: datetime
    created_by: str = ""
    expires_at: datetime | None = None
    revoked_at: datetime | None = None
    revoked_by: str = ""
    replaced_by: str = ""
    last_used_at: datetime | None = None
    calls_per_second_max: float | None = None

    def is_live(self, now: datetime) -> bool:
        """Whether the key is good at `now`."""
        return self.revoked_at is None and (self.expires_at is None or now < self.expires_at)


_encoder: Final = msgspec.json.Encoder()
_decoder: Final = msgspec.json.Decoder(KeyRecord)


def encode_record(record: KeyRecord) -> bytes:
    """The body of the key's row."""
    return _encoder.encode(record)


def decode_record(body: bytes) -> KeyRecord:
    """The record in the body of a row."""
    return _decoder.decode(body)


def key_id_of(chance: bytes) -> str:
    """The public id made of `ID_BYTES` of chance."""
    assert len(chance) == ID_BYTES, "an id has nine bytes"
    return chance.hex()


def write_key(key_id: str, secret: bytes) -> str:
    """The key as its owner gets it, once."""
    return f"{PREFIX}{key_id}_{base64.urlsafe_b64encode(secret).decode('ascii').rstrip('=')}"


def read_key(text: str) -> tuple[str, bytes] | None:
    """Id and secret of a key; None when `text` is not written like one."""
    if len(text) != len(PREFIX) + _ID_CHARS + 1 + _SECRET_CHARS or not text.startswith(PREFIX):
        return None
    key_id, separator, secret = text[len(PREFIX) :][:_ID_CHARS], text[len(PREFIX) + _ID_CHARS], text[-_SECRET_CHARS:]
    if separator != "_" or not key_id.isascii() or not secret.isascii():
        return None
    try:
        decoded = base64.b64decode(secret + "=", altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        return None
    return key_id, decoded


def digest_of(salt: bytes, secret: bytes) -> bytes:
    """What is kept of a secret."""
    return hmac.digest(salt, secret, hashlib.sha256)


_NOBODY: Final = KeyRecord(
    name="", salt=bytes(SALT_BYTES), digest=bytes(32), grants=(), created_at=datetime(1970, 1, 1, tzinfo=UTC)
)


def is_secret_of(record: KeyRecord | None, secret: bytes) -> bool:
    """Whether `secret` is that of `record`; takes as long, and is False, when there is no record."""
    kept = record if record is not None else _NOBODY
    is_same = hmac.compare_digest(digest_of(kept.salt, secret), kept.digest)
    return is_same and record is not None
