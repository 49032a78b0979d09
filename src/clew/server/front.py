"""What stands between the port and the engine: who may come in, from where, and over what.

Owns: putting the parts of ``security`` where the front ends ask for them. Never: judges anything itself.
"""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, Self, final

from starlette.middleware import Middleware
from starlette.requests import HTTPConnection
from uvicorn.protocols.http.h11_impl import H11Protocol

from clew.engine import Engine
from clew.link.admission import Admit
from clew.model.access import EVERYWHERE, Grant, Permission, Role
from clew.server.gate import Admission
from clew.server.security.authenticator import Security
from clew.server.security.doors import Cut, credentials_of_scope, link_admission
from clew.server.security.origins import HostAndOriginMiddleware, hosts_for
from clew.server.security.peer import with_certificates
from clew.server.security.principal import Principal
from clew.server.security.proxies import TrustedProxies
from clew.server.security.settings import SecurityParts
from clew.server.settings import ServerSettings, SettingsError
from clew.service.contract import Service

if TYPE_CHECKING:
    from websockets.http11 import Request

CALLBACK: Final = Principal(
    principal_id="callback",
    name="whoever holds a callback token",
    grants=(Grant(EVERYWHERE, Role.ADMIN.value),),
)
"""On whose behalf the server opens callback tokens, which are right enough by themselves, and reads its own metrics."""


def check_security(settings: ServerSettings) -> list[str]:
    """Refuse settings that leave the server open to all; gives warnings.

    Raises:
        SettingsError: They do.
    """
    try:
        return settings.security.check(settings.host, allow_public_without_auth=settings.allow_public_without_auth)
    except ValueError as error:
        raise SettingsError(f"{str(error)[:1].upper()}{str(error)[1:]}.") from error


@final
class SecurityGate:
    """Lets in whom the security knows (implements ``gate.Gate``)."""

    def __init__(self, security: Security) -> None:
        self._security = security

    async def admit(self, connection: HTTPConnection) -> Admission:
        """What this caller may use.

        Raises:
            RPCError: ``unauthenticated``.
        """
        credentials = credentials_of_scope(connection.scope)
        principal = await self._security.authenticate(credentials)
        return Admission(
            self._security.service_for(principal, source=credentials.source),
            identity="" if self._security.is_open else principal.name or principal.principal_id,
            may_see_metrics=Permission.READ in principal.permissions_in(EVERYWHERE),
        )


@final
class Front:
    """See the module docstring; made by `open`. Belongs to the service loop.

    Attributes:
        gate: For HTTP.
        middleware: Round the application.
        public: The service for what needs no credentials but a callback token.
        tls: For the listener.
        http_protocol: uvicorn's class of that name.
    """

    def __init__(self, settings: ServerSettings, parts: SecurityParts) -> None:
        self._parts = parts
        self._proxies = TrustedProxies(settings.trusted_proxies)
        hosts = hosts_for(settings.host, public_url=settings.public_url, extra=settings.allowed_hosts)
        if settings.security.has_authentication and not settings.allowed_hosts:
            # A page that renamed itself to this server comes without credentials, and gets nowhere.
            hosts = {"*"}
        places: dict[str, Any] = {"hosts": hosts, "origins": settings.allowed_origins}
        self._places = HostAndOriginMiddleware(_nowhere, **places)
        self.gate = SecurityGate(parts.security)
        self.middleware: Sequence[Middleware] = [Middleware(HostAndOriginMiddleware, **places)]
        self.public: Service = parts.security.service_for(CALLBACK)
        self.tls: ssl.SSLContext | None = parts.tls
        shows_certificates = settings.tls is not None and settings.tls.client_authority
        self.http_protocol: Any = with_certificates(H11Protocol) if shows_certificates else "auto"

    @classmethod
    async def open(cls, settings: ServerSettings, engine: Engine, service: Service) -> Self:
        """Begin.

        Args:
            settings: Of the server.
            engine: The engine.
            service: The engine as front ends use it, perhaps measured.

        Raises:
            SettingsError: A setting cannot be.
            StoreError: The keys cannot be read.
        """
        try:
            parts = await SecurityParts.open(
                settings.security,
                service,
                store=engine.store,
                clock=engine.clock,
                secret_of=engine.namespaces.secret_of,
            )
        except (ValueError, OSError, ImportError) as error:
            raise SettingsError(f"The settings of security cannot be used: {error}.") from error
        return cls(settings, parts)

    def admission(self, cut: Cut) -> Admit:
        """What the link asks about each client."""
        return link_admission(self._parts.security, cut, self._proxies)

    def judge(self, request: Request) -> str | None:
        """Why the handshake of a WebSocket is refused, by its host and origin; None when it is not."""
        raw = request.headers.raw_items()
        headers = [(name.lower().encode(), value.encode("latin-1", "replace")) for name, value in raw]
        if not any(name == b"origin" for name, _ in headers):
            return None  # no browser: they always say where a handshake comes from
        scheme = "wss" if self.tls is not None else "ws"
        refusal = self._places.refusal({"type": "websocket", "scheme": scheme, "headers": headers})
        return refusal.message if refusal is not None else None

    async def close(self) -> None:
        """End, after the last call was answered."""
        await self._parts.close()


async def _nowhere(*_: Any) -> None:
    raise AssertionError("this one only judges")
