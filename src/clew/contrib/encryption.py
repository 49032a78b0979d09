"""A payload codec that encrypts (extra ``encryption``).

Owns: the encrypted form, and which key is used. Never: where keys come from, or who may have them.

How it works: each payload, metadata included, is sealed with AES-256-GCM under a key of its own, derived with
HMAC-SHA256 from one of your keys and a random salt. So the 2**32 payloads after which random nonces of one AES-GCM key
become risky (NIST SP 800-38D, 8.3), which a busy engine reaches within days, are never near. The id of your key stands
in the metadata in clear, and is authenticated together with the version of the form. New payloads use the current key;
old ones are opened with whichever key they name, so keys rotate without touching history.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping, Sequence
from typing import Final, final

from clew.adapters import SystemEntropy
from clew.contrib._inner_payload import decode_payload, encode_payload
from clew.converter import Payload, PayloadCodec
from clew.exceptions import DecodeError
from clew.model.payload import ENCODING_KEY

try:
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM
except ImportError as missing:
    raise ImportError(
        "clew.contrib.encryption needs the package 'cryptography'. Install it with: pip install 'clew[encryption]'"
    ) from missing

ENCODING: Final = b"binary/encrypted"
KEY_ID: Final = "encryption-key-id"
CIPHER: Final = "encryption-cipher"
CIPHER_NAME: Final = b"AES-256-GCM/HMAC-SHA256/1"
"""Names cipher, derivation and version of the form."""

KEY_BYTES: Final = 32
_SALT_BYTES: Final = 16
_NONCE_BYTES: Final = 12
_SHOWN_CHARS: Final = 200
"""Of a name out of a history, in messages."""


class MissingKeyError(DecodeError):
    """A payload was encrypted with a key that this process does not have.

    Attributes:
        key_id: Which.
    """

    def __init__(self, message: str, *, path: str = "$", key_id: str = "") -> None:
        super().__init__(message, path=path)
        self.key_id = key_id


def generate_key() -> bytes:
    """Make a new key; keep it where your other secrets are."""
    return SystemEntropy().token(KEY_BYTES)


@final
class EncryptionCodec(PayloadCodec):
    """Encrypts payloads with AES-256-GCM.

    To rotate: first give the new key to every process, beside the old one; then make it the current one everywhere.
    Keep an old key for as long as a history that was written with it may be read.

    Args:
        keys: Ids to keys of 32 bytes (`generate_key`). Looked up at each use, so it may be a mapping that fetches.
        current_key_id: The key for new payloads.

    Raises:
        ValueError: The current key is not among the keys, or a key has another length.
    """

    def __init__(self, keys: Mapping[str, bytes], *, current_key_id: str) -> None:
        self._keys = keys
        self._current_key_id = current_key_id
        self._entropy = SystemEntropy()
        if current_key_id not in keys:
            raise ValueError(
                f"current_key_id {current_key_id!r} is not among the keys ({_names(keys)}). Add that key, or name one "
                "of these."
            )
        for key_id in keys:
            self._key(key_id)

    async def encode(self, payloads: Sequence[Payload]) -> list[Payload]:
        """Encrypt with the current key."""
        return [self._encode(payload) for payload in payloads]

    async def decode(self, payloads: Sequence[Payload]) -> list[Payload]:
        """Decrypt what this codec encrypted, each with the key that it names.

        Raises:
            MissingKeyError: That key is not here.
            DecodeError: A payload was changed, or the key of that id is another one.
        """
        return [self._decode(p) if p.metadata.get(ENCODING_KEY) == ENCODING else p for p in payloads]

    def _encode(self, payload: Payload) -> Payload:
        key_id = self._current_key_id
        salt, nonce = self._entropy.token(_SALT_BYTES), self._entropy.token(_NONCE_BYTES)
        cipher = AESGCM(_derive(self._key(key_id), salt))
        sealed = cipher.encrypt(nonce, encode_payload(payload), _bound_to(key_id))
        metadata = {ENCODING_KEY: ENCODING, CIPHER: CIPHER_NAME, KEY_ID: key_id.encode()}
        return Payload(metadata, salt + nonce + sealed)

    def _decode(self, payload: Payload) -> Payload:
        key_id = payload.metadata.get(KEY_ID, b"").decode(errors="replace")
        shown = key_id[:_SHOWN_CHARS]
        cipher_name = payload.metadata.get(CIPHER, b"")
        if cipher_name != CIPHER_NAME:
            raise DecodeError(
                f"A payload is encrypted as {cipher_name[:_SHOWN_CHARS]!r} (key {shown!r}), but this codec reads only "
                f"{CIPHER_NAME.decode()!r}. Use the codec that made it."
            )
        if key_id not in self._keys:
            raise MissingKeyError(
                f"A payload is encrypted with key {shown!r}, which this process does not have; it has "
                f"{_names(self._keys)}. Give that key to EncryptionCodec(keys=…) of every client and worker that reads "
                "such runs, also after rotation; tasks that failed for want of it are tried again.",
                key_id=key_id,
            )
        salt, rest = payload.data[:_SALT_BYTES], payload.data[_SALT_BYTES:]
        nonce, sealed = rest[:_NONCE_BYTES], rest[_NONCE_BYTES:]
        try:
            data = AESGCM(_derive(self._key(key_id), salt)).decrypt(nonce, sealed, _bound_to(key_id))
        except (InvalidTag, ValueError) as error:
            raise DecodeError(
                f"A payload encrypted with key {key_id!r} cannot be opened: it was changed or cut, or another key has "
                "that id here. Compare the keys of the process that wrote it and of this one."
            ) from error
        return decode_payload(data, f"a payload encrypted with key {key_id!r}")

    def _key(self, key_id: str) -> bytes:
        key = self._keys[key_id]
        if len(key) != KEY_BYTES:
            raise ValueError(
                f"Key {key_id!r} has {len(key)} bytes, but must have {KEY_BYTES}. Make one: generate_key()."
            )
        return key


def _derive(key: bytes, salt: bytes) -> bytes:
    return hmac.digest(key, b"clew payload key" + salt, hashlib.sha256)


def _bound_to(key_id: str) -> bytes:
    return CIPHER_NAME + b"\0" + key_id.encode()


def _names(keys: Mapping[str, bytes]) -> str:
    return ", ".join(repr(name) for name in sorted(keys)) or "none"
