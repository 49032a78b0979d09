"""Settings of the server, from a file, the environment and flags.

Owns: which settings there are, their defaults, and the one precedence: flags, then the environment, then the file, then
the defaults. Never: what a setting does.

How it works: a setting ``body_bytes_max`` is ``body_bytes_max = …`` in the TOML file, ``CLEW_SERVER_BODY_BYTES_MAX``
in the environment and ``--body-bytes-max`` as a flag. An unknown name is refused, so that a typo cannot pass for a
setting.
"""

from __future__ import annotations

import difflib
import math
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from clew.server.security.proxies import TrustedProxies
from clew.server.security.settings import AuditSettings, RateSettings, SecuritySettings
from clew.server.security.tls import TlsSettings
from clew.server.security.tokens import TokenSettings

ENVIRONMENT_PREFIX: Final = "CLEW_SERVER_"
PORT_DEFAULT: Final = 7233

_TABLES: Final = frozenset(
    ("tokens", "certificates", "tls", "audit", "rate_limit", "allowed_hosts", "allowed_origins", "trusted_proxies")
)  # fmt: skip
"""Settings that are more than one value: JSON in the environment."""

_SHOWN_CHARS: Final = 200
"""Of a name or value, in messages."""

_EMPTY: Final[Mapping[str, Any]] = {}


class SettingsError(ValueError):
    """A setting cannot be what it was given as; the message says where it was given."""


class ServerSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What can be set.

    Args:
        store: Connection string of the store.
        host: Address to listen on.
        port: Port to listen on; 0 takes a free one.
        allow_public_without_auth: Listen on an address that others can reach although nobody has to say who they are.
        public_url: How others reach this server; its host is one by which the server is known.
        shutdown_seconds: How long requests under way may take when the server stops.
        body_bytes_max: Larger bodies of requests are refused.
        streams_max: Server-sent event streams open at once.
        connections_max: Connections served at once; more are answered with 503.
        log_format: ``text`` or ``json``.
        log_level: Of the server's log.
        web: Whether the web view is there.
        metrics: Whether ``/metrics`` is there.
        api_keys: Whether callers come with API keys.
        tokens: Issuers whose tokens callers may come with (``[[tokens]]``).
        certificates: From names in certificates of clients to grants (``[certificates]``).
        tls: The server's certificate (``[tls]``).
        audit: Where mutating calls are written down (``[audit]``).
        rate_limit: How many calls a second each caller may make (``[rate_limit]``).
        allowed_hosts: Further names by which the server is known; ``*`` for any.
        allowed_origins: Origins whose pages may call it.
        trusted_proxies: Addresses or networks of proxies whose ``X-Forwarded-For`` and ``X-Forwarded-Proto`` are
            believed.
    """

    store: str = ""
    host: str = "127.0.0.1"
    port: int = PORT_DEFAULT
    allow_public_without_auth: bool = False
    public_url: str = ""
    shutdown_seconds: float = 10.0
    body_bytes_max: int = 8 * 1024 * 1024
    streams_max: int = 1_000
    connections_max: int = 20_000
    log_format: str = "text"
    log_level: str = "info"
    web: bool = True
    metrics: bool = True
    api_keys: bool = False
    tokens: tuple[TokenSettings, ...] = ()
    certificates: dict[str, tuple[str, ...]] = msgspec.field(default_factory=dict[str, tuple[str, ...]])
    tls: TlsSettings | None = None
    audit: AuditSettings | None = None
    rate_limit: RateSettings | None = None
    allowed_hosts: tuple[str, ...] = ()
    allowed_origins: tuple[str, ...] = ()
    trusted_proxies: tuple[str, ...] = ()

    @property
    def security(self) -> SecuritySettings:
        """Those about who may do what."""
        return SecuritySettings(**{name: getattr(self, name) for name in SecuritySettings.__struct_fields__})


def load_settings(
    *,
    file: Path | None = None,
    environment: Mapping[str, str] = _EMPTY,
    flags: Mapping[str, Any] = _EMPTY,
) -> ServerSettings:
    """The settings by the one precedence.

    Args:
        file: A TOML file.
        environment: Variables; those that begin with `ENVIRONMENT_PREFIX` count.
        flags: What was given on the command line; a value of None was not.

    Raises:
        SettingsError: A name is unknown, a value does not fit, or the file cannot be read.
    """
    merged: dict[str, Any] = {}
    for source, values in (
        (f"the file {file}", _from_file(file) if file is not None else {}),
        ("the environment", _from_environment(environment)),
        ("the flags", {name: value for name, value in flags.items() if value is not None}),
    ):
        for name, value in values.items():
            merged[name] = _checked(source, name, value)
    settings = ServerSettings(**merged)
    _check_together(settings)
    return settings


def _from_file(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text("utf-8"))
    except OSError as error:
        raise SettingsError(f"Cannot read the file of settings {file}: {error.strerror}.") from error
    except (ValueError, RecursionError) as error:
        # Of which TOMLDecodeError is one; a number of thousands of digits and very deep nesting are others.
        raise SettingsError(f"The file of settings {file} is not TOML: {error}.") from error


def _from_environment(environment: Mapping[str, str]) -> dict[str, str]:
    return {
        name.removeprefix(ENVIRONMENT_PREFIX).lower(): value
        for name, value in environment.items()
        if name.startswith(ENVIRONMENT_PREFIX)
    }


def _checked(source: str, name: str, value: Any) -> Any:
    known = {field.name: field.type for field in msgspec.structs.fields(ServerSettings)}
    if name not in known:
        close = difflib.get_close_matches(name[:_SHOWN_CHARS], known, n=1)
        hint = f"Did you mean {close[0]!r}?" if close else f"There are: {', '.join(known)}."
        raise SettingsError(f"There is no setting {name[:_SHOWN_CHARS]!r}, which {source} gives. {hint}")
    is_text = isinstance(value, str)
    try:
        if is_text and name in _TABLES:
            return msgspec.json.decode(value, type=known[name])
        return msgspec.convert(value, known[name], strict=not is_text)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise SettingsError(f"The setting {name!r} is {repr(value)[:_SHOWN_CHARS]} by {source}: {error}.") from error


def _check_together(settings: ServerSettings) -> None:
    if not 0 <= settings.port <= 65_535:
        raise SettingsError(f"The setting 'port' is {settings.port}; it may be from 0 to 65535.")
    for name in ("shutdown_seconds", "body_bytes_max", "streams_max", "connections_max"):
        value = getattr(settings, name)
        if not 0 < value < math.inf:
            raise SettingsError(f"The setting {name!r} is {value}; it must be a number greater than zero.")
    try:
        TrustedProxies(settings.trusted_proxies)
    except ValueError as error:
        raise SettingsError(f"A setting cannot be used: {error}.") from error
    if settings.log_format not in ("text", "json"):
        raise SettingsError(f"The setting 'log_format' is {settings.log_format!r}; it may be 'text' or 'json'.")
    if settings.log_level not in ("debug", "info", "warning", "error"):
        raise SettingsError(
            f"The setting 'log_level' is {settings.log_level!r}; it may be 'debug', 'info', 'warning' or 'error'."
        )
