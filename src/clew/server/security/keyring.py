"""API keys as the server checks them.

Owns: `KeyRing`, which knows the keys of the store and says whose a key is. Never: making or revoking keys
(``engine.api_keys``), or what a grant allows.

How it works: all keys are kept in memory and read again every `REFRESH_SECONDS`, so that a call is checked without the
store, and a key that was revoked on any node is refused on all within that time (and connections that used it end); on
the very node that revoked it at once (`read_now`). A key that is not known yet makes one more reading at once, shared
by all who wait, and not more often than every `UNKNOWN_SECONDS`: however many made-up keys come, the store is asked as
often. While the store cannot be read, what is known goes on being believed for `STALE_SECONDS_MAX`, then every key is
refused.

When a key was last used is written at most once in `LAST_USED_SECONDS`, with the refresh.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Final, final

import msgspec

from clew.core.api_keys import KeyRecord, decode_record, encode_record, is_secret_of, read_key
from clew.ports.clock import Cancellable, Clock
from clew.ports.store import ApiKeyRow, Store, StoreError
from clew.server.security.principal import Credentials, Principal, unauthenticated

REFRESH_SECONDS: Final = 5.0
UNKNOWN_SECONDS: Final = 0.25
STALE_SECONDS_MAX: Final = 300.0
LAST_USED_SECONDS: Final = 3_600.0

_log: Final = logging.getLogger("clew.server")


@final
class KeyRing:
    """See the module docstring. Implements ``authenticator.Authenticator``; belongs to one event loop.

    Args:
        store: Where the keys are.
        clock: Time.
    """

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._records: dict[str, tuple[int, KeyRecord]] = {}
        self._read_at: datetime | None = None
        self._failing_since: datetime | None = None
        self._reading: asyncio.Task[None] | None = None
        self._begun_count = 0
        self._done_count = 0
        self._used: dict[str, datetime] = {}
        self._alarm: Cancellable | None = None
        self._refreshing: asyncio.Task[None] | None = None
        self._changed: set[asyncio.Task[None]] = set()
        self._is_closed = False

    async def start(self) -> None:
        """Read the keys, and go on doing so.

        Raises:
            StoreError: They cannot be read.
        """
        await self._read()
        self._arm()

    async def close(self) -> None:
        """Stop reading, and write down what was used."""
        self._is_closed = True
        if self._alarm is not None:
            self._alarm.cancel()
        for task in (self._refreshing, self._reading, *self._changed):
            if task is not None:
                await asyncio.wait({task})
        await self._write_used()

    async def authenticate(self, credentials: Credentials) -> Principal | None:
        """The owner of an API key; None when what came is not written like one.

        Raises:
            RPCError: It is no key of this store, or one that has ended.
        """
        read = read_key(credentials.bearer)
        if read is None:
            return None
        key_id, secret = read
        if key_id not in self._records:
            await self._read_for_unknown()
        found = self._records.get(key_id)
        record = found[1] if found is not None else None
        now = self._clock.now()
        is_genuine = is_secret_of(record, secret)
        if record is None or not is_genuine or not record.is_live(now) or self._is_stale(now):
            raise unauthenticated()
        if record.last_used_at is None or now - record.last_used_at >= timedelta(seconds=LAST_USED_SECONDS):
            self._used[key_id] = now
        return Principal(
            principal_id=f"key:{key_id}",
            name=record.name,
            grants=record.grants,
            expires_at=record.expires_at,
            calls_per_second_max=record.calls_per_second_max,
            key_id=key_id,
        )

    def read_now(self, then: Callable[[], None]) -> None:
        """Read the keys again without waiting for the next refresh, since one has changed.

        Args:
            then: Told when they were read.
        """
        if self._is_closed:
            return
        task = asyncio.get_running_loop().create_task(self._read_now(then), name="clew-api-keys-changed")
        self._changed.add(task)
        task.add_done_callback(self._changed.discard)

    async def _read_now(self, then: Callable[[], None]) -> None:
        try:
            await self._read()
        except StoreError as error:
            _log.warning("api_keys.read_failed error=%s", error)
            return
        then()

    def is_live(self, key_id: str) -> bool:
        """Whether the key is good now, as far as is known."""
        found = self._records.get(key_id)
        now = self._clock.now()
        return found is not None and found[1].is_live(now) and not self._is_stale(now)

    def _is_stale(self, now: datetime) -> bool:
        """Whether reading has failed for too long (and not merely that this process was stopped for a while)."""
        return self._failing_since is not None and now - self._failing_since > timedelta(seconds=STALE_SECONDS_MAX)

    # --- reading ----------------------------------------------------------------------------------------------------

    async def _read(self) -> None:
        at = self._clock.now()
        try:
            rows = await self._store.list_api_keys()
        except StoreError:
            self._failing_since = self._failing_since if self._failing_since is not None else at
            raise
        records: dict[str, tuple[int, KeyRecord]] = {}
        for row in rows:
            try:
                records[row.key_id] = (row.revision, decode_record(row.body))
            except msgspec.DecodeError:
                _log.error("api_key.unreadable key_id=%s", row.key_id)
        self._records, self._read_at, self._failing_since = records, at, None

    async def _read_for_unknown(self) -> None:
        """Wait for a reading that begins after now; all who come before it begins share it."""
        wanted = self._begun_count + 1
        while self._done_count < wanted:
            if self._reading is None:
                self._reading = asyncio.get_running_loop().create_task(self._read_soon(), name="clew-api-keys")
                self._reading.add_done_callback(self._forget_reading)
            await asyncio.wait({self._reading})

    async def _read_soon(self) -> None:
        if self._read_at is not None:
            age = (self._clock.now() - self._read_at).total_seconds()
            await asyncio.sleep(max(0.0, UNKNOWN_SECONDS - age))
        self._begun_count += 1
        try:
            await self._read()
        except StoreError as error:
            _log.warning("api_keys.read_failed error=%s", error)
        finally:
            self._done_count = self._begun_count

    def _forget_reading(self, _: asyncio.Task[None]) -> None:
        self._reading = None

    # --- refreshing -------------------------------------------------------------------------------------------------

    def _arm(self) -> None:
        self._alarm = self._clock.call_at(self._clock.now() + timedelta(seconds=REFRESH_SECONDS), self._wake)

    def _wake(self) -> None:
        self._refreshing = asyncio.get_running_loop().create_task(self._refresh(), name="clew-api-keys-refresh")

    async def _refresh(self) -> None:
        try:
            await self._write_used()
            await self._read()
        except StoreError as error:
            _log.warning("api_keys.read_failed error=%s", error)
        finally:
            if not self._is_closed:
                self._arm()

    async def _write_used(self) -> None:
        used, self._used = self._used, {}
        for key_id, at in used.items():
            found = self._records.get(key_id)
            if found is None:
                continue
            revision, record = found
            body = encode_record(msgspec.structs.replace(record, last_used_at=at))
            try:
                # A loser writes nothing: whoever changed the key has made it known with that, and the next use counts.
                await self._store.put_api_key_if_revision(ApiKeyRow(key_id=key_id, revision=revision + 1, body=body))
            except StoreError as error:
                _log.warning("api_key.use_not_written key_id=%s error=%s", key_id, error)
