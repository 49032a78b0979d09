"""The public keys of an issuer of tokens (RFC 7517), fetched and kept.

Owns: `Jwks`: which keys there are now, and how often the issuer is asked. Never: what a token says (``tokens``).

How it works: keys are fetched when the first token comes and again when they are `FRESH_SECONDS` old, or when a token
names a key that is not among them (the issuer has rotated), then not more often than every `UNKNOWN_SECONDS`: made-up
key names cannot make this server ask. One fetch runs at a time, in a thread, with a bound to time and size and without
following redirects. While the issuer is away the keys known last are good for `STALE_SECONDS_MAX`. Only keys for
signatures of public-key algorithms are taken: a secret key in the set, or an RSA key of less than 2,048 bits, is left
out, so that no token can be checked with one.
"""

from __future__ import annotations

import asyncio
import logging
import urllib.request
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, final
from urllib.parse import urlsplit

import msgspec

from clew.ports.clock import Clock

if TYPE_CHECKING:
    from jwt import PyJWK

FRESH_SECONDS: Final = 600.0
UNKNOWN_SECONDS: Final = 10.0
STALE_SECONDS_MAX: Final = 3_600.0
FETCH_SECONDS_MAX: Final = 10.0
SOCKET_SECONDS_MAX: Final = 5.0
BYTES_MAX: Final = 1024 * 1024
KEYS_MAX: Final = 100
RSA_BITS_MIN: Final = 2_048
"""RFC 7518 §3.3."""

_LOOPBACK: Final = ("localhost", "127.0.0.1", "::1")

_log: Final = logging.getLogger("clew.server")

Fetch = Callable[[str], Awaitable[bytes]]
"""Gets the body at a URL; raises `OSError` or `ValueError` when there is none to be had."""


class _KeySet(msgspec.Struct):
    keys: list[dict[str, Any]]


class _Discovery(msgspec.Struct):
    issuer: str
    jwks_uri: str


@final
class Jwks:
    """See the module docstring. Belongs to one event loop.

    Args:
        url: Of the key set; found by OpenID discovery below the issuer when empty.
        issuer: Who issues the tokens.
        clock: Time.
        fetch: Gets what is at a URL.

    Raises:
        ValueError: The URL is neither https nor of this machine.
    """

    def __init__(self, url: str, issuer: str, clock: Clock, *, fetch: Fetch | None = None) -> None:
        check_url(url or issuer)
        self._url = url
        self._issuer = issuer
        self._clock = clock
        self._fetch = fetch if fetch is not None else fetch_url
        self._keys: dict[str, PyJWK] = {}
        self._fetched_at: datetime | None = None
        self._tried_at: datetime | None = None
        self._fetching: asyncio.Task[None] | None = None

    async def find(self, key_id: str) -> PyJWK | None:
        """The key of this name; with an empty name, the only key there is."""
        found = self._at_hand(key_id)
        if (found is None or self._age() >= FRESH_SECONDS) and self._may_try(is_unknown=found is None):
            await self._refresh()
            found = self._at_hand(key_id)
        return found if self._age() < STALE_SECONDS_MAX else None

    async def close(self) -> None:
        """Let go of a fetch that is under way."""
        if self._fetching is not None:
            self._fetching.cancel()
            await asyncio.wait({self._fetching})

    def _at_hand(self, key_id: str) -> PyJWK | None:
        if key_id:
            return self._keys.get(key_id)
        return next(iter(self._keys.values())) if len(self._keys) == 1 else None

    def _age(self) -> float:
        return float("inf") if self._fetched_at is None else (self._clock.now() - self._fetched_at).total_seconds()

    def _may_try(self, *, is_unknown: bool) -> bool:
        if self._fetching is not None:
            return is_unknown  # whoever has a key goes on with it meanwhile
        return self._tried_at is None or (self._clock.now() - self._tried_at).total_seconds() >= UNKNOWN_SECONDS

    async def _refresh(self) -> None:
        if self._fetching is None:
            self._tried_at = self._clock.now()
            self._fetching = asyncio.get_running_loop().create_task(self._fetch_keys(), name="clew-jwks")
            self._fetching.add_done_callback(self._forget_fetching)
        await asyncio.wait({self._fetching}, timeout=FETCH_SECONDS_MAX)

    def _forget_fetching(self, _: asyncio.Task[None]) -> None:
        self._fetching = None

    async def _fetch_keys(self) -> None:
        try:
            url = self._url or await self._discover()
            decoded = msgspec.json.decode(await self._fetch(url), type=_KeySet)
        except (OSError, ValueError, RecursionError) as error:
            _log.warning("jwks.fetch_failed issuer=%s error=%s", self._issuer, error)
            return
        keys: dict[str, PyJWK] = {}
        for data in decoded.keys[:KEYS_MAX]:
            key = _public_key(data)
            if key is not None:
                name = data.get("kid", "")
                keys[name if isinstance(name, str) else ""] = key
        self._keys, self._fetched_at = keys, self._clock.now()
        _log.info("jwks.fetched issuer=%s count=%d", self._issuer, len(keys))

    async def _discover(self) -> str:
        """Where the issuer says that its keys are (OpenID Connect Discovery 1.0 §4)."""
        url = self._issuer.rstrip("/") + "/.well-known/openid-configuration"
        found = msgspec.json.decode(await self._fetch(url), type=_Discovery)
        if found.issuer != self._issuer:
            raise ValueError(f"{url} is about issuer {found.issuer!r}, not {self._issuer!r}")
        check_url(found.jwks_uri)
        return found.jwks_uri


def _public_key(data: dict[str, Any]) -> PyJWK | None:
    """The key, if tokens can be checked with it."""
    from jwt import PyJWK
    from jwt.exceptions import PyJWTError

    if data.get("kty") not in ("RSA", "EC", "OKP") or data.get("use", "sig") != "sig" or "d" in data:
        return None
    try:
        key = PyJWK(data)
    except (PyJWTError, ValueError, TypeError) as error:
        _log.warning("jwks.key_unreadable error=%s", type(error).__name__)
        return None
    bits = getattr(key.key, "key_size", RSA_BITS_MIN) if data["kty"] == "RSA" else RSA_BITS_MIN
    return key if bits >= RSA_BITS_MIN else None


def check_url(url: str) -> None:
    """Refuse a URL from which keys could be forged on the way.

    Raises:
        ValueError: It is neither https nor http on this machine.
    """
    parts = urlsplit(url)
    if parts.scheme == "https" and parts.hostname:
        return
    if parts.scheme == "http" and parts.hostname in _LOOPBACK:
        return
    raise ValueError(
        f"keys of tokens cannot be fetched from {url!r}: whoever is on the way could put in their own; expected an "
        "https URL (http only on this machine)"
    )


async def fetch_url(url: str) -> bytes:
    """The body at a URL, without redirects and within `BYTES_MAX`.

    Raises:
        OSError: It cannot be reached, or does not answer with it.
        ValueError: It is too large.
    """
    return await asyncio.to_thread(_fetch_blocking, url)


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


def _fetch_blocking(url: str) -> bytes:
    opener = urllib.request.build_opener(_NoRedirects())
    request = urllib.request.Request(url, headers={"Accept": "application/json", "User-Agent": "clew"})
    with opener.open(request, timeout=SOCKET_SECONDS_MAX) as response:
        body: bytes = response.read(BYTES_MAX + 1)
    if len(body) > BYTES_MAX:
        raise ValueError(f"{url} answers with more than {BYTES_MAX} bytes")
    return body
