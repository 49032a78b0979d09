"""Task tokens that nobody can make up.

Owns: the seal of a `TaskToken` and its check. Never: whether the token's lease still holds (``core`` decides).

How it works: a token names a task by numbers that can be guessed. Towards callers that are not trusted, the server
adds a seal: the first 16 bytes of HMAC-SHA256 over the token's fields, with a key derived from the namespace's secret.
So any node of the store makes and checks the same seal, nothing is stored, and a token is good for its namespace alone.
A worker may hand its token on (asynchronous completion); that is what tokens are for.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable
from typing import Final

import msgspec

from clew.model.inputs import TaskToken
from clew.model.rejection import Rejection, RejectionCode
from clew.service.errors import RPCError

SEAL_BYTES: Final = 16

_KEY_LABEL: Final = b"clew task token, version 1"
"""Keeps these from all else that is made with the same secret."""

_encoder: Final = msgspec.msgpack.Encoder()


class TokenSeals:
    """See the module docstring.

    Args:
        secret_of: The secret of a namespace; raises `RPCError` when there is no such namespace.
    """

    def __init__(self, secret_of: Callable[[str], bytes]) -> None:
        self._secret_of = secret_of
        self._keys: dict[str, bytes] = {}

    def seal(self, token: TaskToken) -> TaskToken:
        """The token with its seal, as it leaves the server."""
        return msgspec.structs.replace(token, seal=self._seal_of(token))

    def open(self, token: TaskToken) -> TaskToken:
        """The token without its seal, as the engine knows it.

        Raises:
            RPCError: ``permission_denied``: this server did not give it away.
        """
        if not self._is_genuine(token):
            raise RPCError(
                Rejection(
                    code=RejectionCode.PERMISSION_DENIED,
                    message="this task token does not come from this server; nothing was done; pass the token of the "
                    "task unchanged (an attempt begun before authentication was turned on must be named by its ids)",
                )
            )
        return msgspec.structs.replace(token, seal=b"")

    def _is_genuine(self, token: TaskToken) -> bool:
        try:
            return hmac.compare_digest(self._seal_of(token), token.seal)
        except (OverflowError, ValueError):
            return False  # its numbers or texts are none that a real one can have

    def _seal_of(self, token: TaskToken) -> bytes:
        key = self._keys.get(token.namespace)
        if key is None:
            key = hmac.digest(self._secret_of(token.namespace), _KEY_LABEL, hashlib.sha256)
            self._keys[token.namespace] = key
        fields = (
            token.namespace,
            token.workflow_id,
            token.run_id,
            token.shard,
            token.run_key,
            token.scheduled_event_id,
            token.attempt,
            token.lease_id,
            token.started_event_id,
            token.activity_id,
        )
        return hmac.digest(key, _encoder.encode(fields), hashlib.sha256)[:SEAL_BYTES]
