"""API keys as admins make and take them back.

Owns: their life (made, listed, revoked, rotated) and the rows in the store. Never: whether a caller may do it, or who a
key that is shown belongs to (``server.security``).

How it works: a key is one row, changed by compare-and-swap on its revision. A rotation writes the new key first and
shortens the life of the old one second: a crash between the two leaves one key too many, never one too few.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Final

import msgspec

from clew.core.api_keys import (
    ID_BYTES,
    NAME_CHARS_MAX,
    SALT_BYTES,
    SECRET_BYTES,
    KeyRecord,
    decode_record,
    digest_of,
    encode_record,
    key_id_of,
    write_key,
)
from clew.model.access import Grant, parse_grants
from clew.model.events import ZERO
from clew.model.limits import DURATION_MAX
from clew.model.rejection import Rejection, RejectionCode
from clew.ports.clock import Clock
from clew.ports.entropy import Entropy
from clew.ports.store import ApiKeyRow, Store
from clew.service import keys as k
from clew.service.errors import RPCError

KEYS_MAX: Final = 10_000
"""Live and ended ones together; each node keeps them all in memory."""

_TRIES_MAX: Final = 10
"""Of a change that others came before; each try is one more change that really happened."""


class ApiKeys:
    """See the module docstring. All methods belong to the engine's loop."""

    def __init__(self, store: Store, clock: Clock, entropy: Entropy) -> None:
        self._store = store
        self._clock = clock
        self._entropy = entropy

    async def create(self, request: k.CreateApiKeyRequest) -> k.CreateApiKeyResponse:
        """Make a key.

        Raises:
            RPCError: ``invalid_argument``: a grant, the name or a duration cannot be; ``limit_exceeded``.
        """
        _check_duration("expires_in", request.expires_in)
        name = request.name
        if not name.strip() or len(name) > NAME_CHARS_MAX or not name.isprintable():
            raise _refused(f"a key's name must have 1 to {NAME_CHARS_MAX} printable characters, not {len(name)}")
        rate = request.calls_per_second_max
        if rate is not None and not 0 < rate < 1e9:
            raise _refused(f"calls_per_second_max is {rate}; it must be above 0, or left out")
        try:
            grants = parse_grants(request.grants)
        except ValueError as error:
            raise _refused(str(error)) from error
        if not grants:
            raise _refused("a key without grants allows nothing; give at least one, such as default:client")
        if len(await self._store.list_api_keys()) >= KEYS_MAX:
            raise RPCError(
                Rejection(
                    code=RejectionCode.LIMIT_EXCEEDED,
                    message=f"there are {KEYS_MAX} keys already, ended ones included; nothing was made",
                )
            )
        return await self._make(name, grants, request.expires_in, rate, request.identity)

    async def list_all(self, request: k.ListApiKeysRequest) -> k.ListApiKeysResponse:
        """The keys, by name and age."""
        now = self._clock.now()
        infos = [_info(row.key_id, decode_record(row.body), now) for row in await self._store.list_api_keys()]
        kept = [info for info in infos if request.include_ended or info.is_live]
        return k.ListApiKeysResponse(keys=tuple(sorted(kept, key=lambda info: (info.name, info.created_at))))

    async def revoke(self, request: k.RevokeApiKeyRequest) -> k.ApiKeyInfo:
        """Take a key back.

        Raises:
            RPCError: ``api_key_not_found``.
        """
        now = self._clock.now()

        def change(record: KeyRecord) -> KeyRecord:
            if record.revoked_at is not None:
                return record
            return msgspec.structs.replace(record, revoked_at=now, revoked_by=request.identity)

        return _info(request.key_id, await self._change(request.key_id, change), now)

    async def rotate(self, request: k.RotateApiKeyRequest) -> k.CreateApiKeyResponse:
        """Make a key in place of another.

        Raises:
            RPCError: ``api_key_not_found``; ``invalid_argument``: the old one is revoked or expired.
        """
        _check_duration("overlap", request.overlap)
        _check_duration("expires_in", request.expires_in)
        now = self._clock.now()
        old = decode_record((await self._find(request.key_id)).body)
        if not old.is_live(now):
            raise _refused(f"key {request.key_id} ({old.name!r}) has ended; make a new one with create")
        made = await self._make(old.name, old.grants, request.expires_in, old.calls_per_second_max, request.identity)
        ends_at = now + request.overlap

        def shorten(record: KeyRecord) -> KeyRecord:
            until = ends_at if record.expires_at is None else min(record.expires_at, ends_at)
            return msgspec.structs.replace(record, expires_at=until, replaced_by=made.info.key_id)

        await self._change(request.key_id, shorten)
        return made

    async def _make(
        self, name: str, grants: tuple[Grant, ...], expires_in: timedelta, rate: float | None, identity: str
    ) -> k.CreateApiKeyResponse:
        now = self._clock.now()
        salt, secret = self._entropy.token(SALT_BYTES), self._entropy.token(SECRET_BYTES)
        record = KeyRecord(
            name=name,
            salt=salt,
            digest=digest_of(salt, secret),
            grants=grants,
            created_at=now,
            created_by=identity,
            expires_at=now + expires_in if expires_in else None,
            calls_per_second_max=rate,
        )
        while True:
            key_id = key_id_of(self._entropy.token(ID_BYTES))
            row = ApiKeyRow(key_id=key_id, revision=1, body=encode_record(record))
            if await self._store.put_api_key_if_revision(row):
                return k.CreateApiKeyResponse(info=_info(key_id, record, now), key=write_key(key_id, secret))

    async def _find(self, key_id: str) -> ApiKeyRow:
        row = await self._store.get_api_key(key_id)
        if row is None:
            raise RPCError(
                Rejection(
                    code=RejectionCode.API_KEY_NOT_FOUND,
                    message=f"there is no API key {key_id!r} here; `clew key list --all` shows those there are",
                    details={"key_id": key_id},
                )
            )
        return row

    async def _change(self, key_id: str, change: Callable[[KeyRecord], KeyRecord]) -> KeyRecord:
        for _ in range(_TRIES_MAX):
            row = await self._find(key_id)
            record = decode_record(row.body)
            changed = change(record)
            if changed == record:
                return record
            after = ApiKeyRow(key_id=key_id, revision=row.revision + 1, body=encode_record(changed))
            if await self._store.put_api_key_if_revision(after):
                return changed
        raise RPCError(
            Rejection(
                code=RejectionCode.UNAVAILABLE,
                message=f"API key {key_id!r} was changed by others {_TRIES_MAX} times meanwhile; try again",
            )
        )


def _info(key_id: str, record: KeyRecord, now: datetime) -> k.ApiKeyInfo:
    return k.ApiKeyInfo(
        key_id=key_id,
        name=record.name,
        grants=tuple(str(grant) for grant in record.grants),
        created_at=record.created_at,
        created_by=record.created_by,
        expires_at=record.expires_at,
        revoked_at=record.revoked_at,
        replaced_by=record.replaced_by,
        last_used_at=record.last_used_at,
        calls_per_second_max=record.calls_per_second_max,
        is_live=record.is_live(now),
    )


def _check_duration(name: str, duration: timedelta) -> None:
    if not ZERO <= duration <= DURATION_MAX:
        raise _refused(f"{name} is {duration}; it must be from 0 to {DURATION_MAX.days} days")


def _refused(message: str) -> RPCError:
    return RPCError(Rejection(code=RejectionCode.INVALID_ARGUMENT, message=message))
