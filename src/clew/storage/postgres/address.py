"""The connection string of a PostgreSQL store: what is Clew's in it, and what is the driver's.

Owns: `Address` and its text form. Never: connects.

How it works: a connection string is a URL as every PostgreSQL client takes it. Clew's own options are parameters of its
query part with the names below; all other parameters are handed to the driver. The text form without the password names
the store in messages.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta
from typing import Final
from urllib.parse import SplitResult, parse_qsl, urlencode, urlsplit, urlunsplit

import msgspec

from clew.ports.store import StoreIncompatible

_DIGITS_MAX: Final = 20
"""Of a whole number; Python refuses to read very long ones in words of its own."""

SCHEMES: Final = ("postgresql", "postgres")

_SCHEMA: Final = re.compile(r"[a-z_][a-z0-9_]{0,62}")
_FORM: Final = "Expected: postgresql://user:password@host:5432/database, and options behind a question mark"


class Address(msgspec.Struct, frozen=True, kw_only=True):
    """Where a store is and how to talk to it.

    Args:
        dsn: What the driver gets.
        name: The connection string without the password and without options: it names the store for people.
        schema: The schema with Clew's tables.
        pool_size: Connections of one engine, besides the one that listens for hints.
        is_pooled: Whether a proxy in transaction mode (such as PgBouncer) stands between: nothing may outlive a
            transaction then, so statements are not prepared and settings not kept.
        command_timeout: How long one statement may take before its connection is given up.
        patience: How long a call waits for a database that is away before it fails as unavailable.
        lease: How long an engine that is silent keeps its place in the fleet.
        shard_count: Fixed when the store is made; later values are ignored.
    """

    dsn: str
    name: str
    schema: str = "clew"
    pool_size: int = 6
    is_pooled: bool = False
    command_timeout: timedelta = timedelta(seconds=10)
    patience: timedelta = timedelta(seconds=10)
    shard_count: int = 64
    lease: timedelta = timedelta(seconds=10)

    def driver_options(self) -> list[str]:
        """The names of the options that are not Clew's own."""
        return [key for key, _ in parse_qsl(urlsplit(self.dsn).query, keep_blank_values=True)]


def parse_address(text: str) -> Address:
    """Read a connection string.

    Raises:
        StoreIncompatible: It is none, or an option has a value that makes no sense.
    """
    parts = _split(text)
    if parts is None or parts.scheme not in SCHEMES:
        raise StoreIncompatible(f"{without_password(text)!r} is not the address of a PostgreSQL database. {_FORM}")
    for option in parts.query.split("&"):
        if option and "=" not in option:
            raise StoreIncompatible(
                f"the option {option!r} of the connection string has no value. Expected: option=value, with & between"
            )
    own: dict[str, object] = {}
    rest: list[tuple[str, str]] = []
    for key, value in parse_qsl(parts.query, keep_blank_values=True):
        if key in _OPTIONS:
            field, read = _OPTIONS[key]
            own[field] = read(key, value)
        else:
            rest.append((key, value))
    dsn = urlunsplit((parts.scheme, parts.netloc, parts.path, urlencode(rest), ""))
    return Address(dsn=dsn, name=without_password(text), **own)  # type: ignore[arg-type]


def without_password(text: str) -> str:
    """A connection string without password and options, for people to read."""
    parts = _split(text)
    if parts is None:
        return f"{text.partition(':')[0][:20]}://…"  # what is password in it nobody can tell
    user, at, host = parts.netloc.rpartition("@")
    return urlunsplit((parts.scheme, user.partition(":")[0] + at + host, parts.path, "", ""))


def _split(text: str) -> SplitResult | None:
    """The parts of a URL; None when it is none, whose reason is not told, as it may have the password in it."""
    try:
        return urlsplit(text)
    except ValueError:
        return None


def _schema(key: str, value: str) -> str:
    if not _SCHEMA.fullmatch(value):
        raise StoreIncompatible(
            f"the option {key}={value!r} of the connection string is no name of a schema. Expected: lower-case "
            "letters, digits and underscores, at most 63"
        )
    return value


def _count(least: int, most: int) -> Callable[[str, str], int]:
    def read(key: str, value: str) -> int:
        if not value.isdecimal() or len(value) > _DIGITS_MAX or not least <= int(value) <= most:
            raise StoreIncompatible(
                f"the option {key}={value[:80]!r} of the connection string cannot be used. Expected: a whole number "
                f"from {least} to {most}"
            )
        return int(value)

    return read


def _seconds(key: str, value: str) -> timedelta:
    try:
        seconds = float(value)
    except ValueError:
        seconds = -1.0
    if not 0 < seconds <= 86_400:
        raise StoreIncompatible(
            f"the option {key}={value!r} of the connection string cannot be used. Expected: seconds, more than 0 and "
            "at most 86400"
        )
    return timedelta(seconds=seconds)


def _is_pooled(key: str, value: str) -> bool:
    if value not in ("session", "transaction"):
        raise StoreIncompatible(
            f"the option {key}={value!r} of the connection string cannot be used. Expected: 'session' (a connection of "
            "one's own, the default) or 'transaction' (behind a proxy such as PgBouncer in transaction mode)"
        )
    return value == "transaction"


_OPTIONS: Final[dict[str, tuple[str, Callable[[str, str], object]]]] = {
    "schema": ("schema", _schema),
    "pool_mode": ("is_pooled", _is_pooled),
    "pool_size": ("pool_size", _count(2, 1_000)),
    "command_timeout": ("command_timeout", _seconds),
    "patience": ("patience", _seconds),
    "lease": ("lease", _seconds),
    "shards": ("shard_count", _count(1, 4_096)),
}
