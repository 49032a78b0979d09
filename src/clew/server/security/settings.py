"""The settings of security, and what is made of them.

Owns: `SecuritySettings` and `SecurityParts`, which opens and closes everything they ask for. Never: where settings come
from (``server.settings``).
"""

from __future__ import annotations

import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Self, final

import msgspec

from clew.ports.clock import Clock
from clew.ports.store import Store
from clew.server.security.audit import JsonLinesAudit
from clew.server.security.authenticator import Authenticator, Security
from clew.server.security.authorized import Guards
from clew.server.security.certificates import CertificateAuthenticator
from clew.server.security.exposure import check_exposure
from clew.server.security.keyring import KeyRing
from clew.server.security.limits import RateLimiter
from clew.server.security.seals import TokenSeals
from clew.server.security.tls import Renewal, TlsSettings, make_server_context
from clew.server.security.tokens import TokenAuthenticator, TokenSettings
from clew.service.contract import Service


class AuditSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where mutating calls are written down.

    Args:
        path: The file; older ones beside it.
        size_bytes_max: How large one file may grow.
        kept_count: How many older ones are kept.
        is_required: Whether a mutating call is refused while the file cannot be written.
        has_tasks: Whether the answers of workers to their tasks are written down too; histories name the worker anyway.
    """

    path: str
    size_bytes_max: int = 100 * 1024 * 1024
    kept_count: int = 10
    is_required: bool = False
    has_tasks: bool = True


class RateSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How many calls a second each caller may make that has no limit of its own; tasks do not count."""

    calls_per_second: float
    burst: float | None = None


class SecuritySettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Who may do what, over what. Nothing set means: everybody may do everything, unencrypted; for loopback alone.

    Args:
        api_keys: Whether API keys are taken.
        tokens: Issuers whose tokens are taken.
        certificates: From names in clients' certificates (``URI:spiffe://…``) to grants; needs `tls` with a client
            authority.
        tls: The server's certificate.
        audit: The audit log.
        rate_limit: Calls a second.
        allowed_hosts: Further names by which the server is known.
        allowed_origins: Origins whose pages may call it.
    """

    api_keys: bool = False
    tokens: tuple[TokenSettings, ...] = ()
    certificates: dict[str, tuple[str, ...]] = msgspec.field(default_factory=dict[str, tuple[str, ...]])
    tls: TlsSettings | None = None
    audit: AuditSettings | None = None
    rate_limit: RateSettings | None = None
    allowed_hosts: tuple[str, ...] = ()
    allowed_origins: tuple[str, ...] = ()

    @property
    def has_authentication(self) -> bool:
        """Whether callers must say who they are."""
        return self.api_keys or bool(self.tokens) or bool(self.certificates)

    def check(self, host: str, *, allow_public_without_auth: bool) -> list[str]:
        """Refuse settings that contradict each other or leave the server open to all; gives warnings.

        Raises:
            ValueError: They do; the message says what to do.
        """
        if self.certificates and (self.tls is None or not self.tls.client_authority):
            raise ValueError(
                "certificates of clients are to count, but the server does not ask for any; set tls.client_authority"
            )
        return check_exposure(
            host,
            has_authentication=self.has_authentication,
            has_tls=self.tls is not None,
            is_allowed=allow_public_without_auth,
        )


@final
@dataclass
class SecurityParts:
    """What the settings ask for, at work. Belongs to the service loop.

    Attributes:
        security: For the front doors.
        tls: For the listener; None without TLS.
    """

    security: Security
    tls: ssl.SSLContext | None
    _keys: KeyRing | None = None
    _tokens: list[TokenAuthenticator] = field(default_factory=list[TokenAuthenticator])
    _audit: JsonLinesAudit | None = None
    _renewal: Renewal | None = None

    @classmethod
    async def open(
        cls,
        settings: SecuritySettings,
        service: Service,
        *,
        store: Store,
        clock: Clock,
        secret_of: Callable[[str], bytes],
    ) -> Self:
        """Begin.

        Args:
            settings: What is asked for.
            service: The engine.
            store: Where API keys are.
            clock: Time.
            secret_of: The secret of a namespace.

        Raises:
            ValueError: A setting cannot be.
            OSError: The audit log cannot be opened.
            StoreError: The keys cannot be read.
            ImportError: An extra is not installed.
        """
        tls = make_server_context(settings.tls) if settings.tls is not None else None
        limit = settings.rate_limit
        limiter = RateLimiter(limit.calls_per_second, limit.burst) if limit is not None else RateLimiter()
        tokens = [TokenAuthenticator(one, clock) for one in settings.tokens]
        certificates = [CertificateAuthenticator(settings.certificates)] if settings.certificates else []
        log = settings.audit
        audit = JsonLinesAudit(log.path, size_bytes_max=log.size_bytes_max, kept_count=log.kept_count) if log else None
        keys = KeyRing(store, clock) if settings.api_keys else None
        if keys is not None:
            try:
                await keys.start()
            except BaseException:
                if audit is not None:
                    audit.close()
                raise

        def keys_changed() -> None:
            assert keys is not None, "only keys change"
            keys.read_now(security.check_connections)

        guards = Guards(
            clock=clock,
            seals=TokenSeals(secret_of) if settings.has_authentication else None,
            limiter=limiter,
            audit=audit,
            audits_tasks=log is None or log.has_tasks,
            is_audit_required=log is not None and log.is_required,
            on_key_change=keys_changed if keys is not None else None,
        )
        asked: list[Authenticator] = [*([keys] if keys is not None else []), *tokens, *certificates]
        renewal = Renewal(tls, settings.tls, clock) if tls is not None and settings.tls is not None else None
        if renewal is not None:
            renewal.start()
        security = Security(service, guards, authenticators=asked, keys=keys)
        return cls(security, tls, keys, tokens, audit, renewal)

    async def close(self) -> None:
        """End, after the last call was answered."""
        self.security.close()
        if self._renewal is not None:
            self._renewal.close()
        for authenticator in self._tokens:
            await authenticator.close()
        if self._keys is not None:
            await self._keys.close()
        if self._audit is not None:
            self._audit.close()
