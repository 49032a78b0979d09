"""How callers are known: the seam between front doors and the ways of authenticating.

Owns: the Protocol `Authenticator`, and `Security`, which front doors hold. Never: a way of authenticating (``keyring``,
``tokens``, ``certificates``), or what a call needs (``calls``).

How it works: a front door makes `Credentials` of a request or connection, `Security.authenticate` asks the
authenticators in turn, and `Security.service_for` gives the service on behalf of the principal. For a request, that
service is made and dropped; a connection that stays passes `on_end` and is told when its credential ends, and calls
`close` on it when it goes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Final, Protocol, final

import msgspec

from clew.model.access import Grant, Permission
from clew.model.inputs import ActivityTarget, TaskToken
from clew.ports.audit import AuditRecord
from clew.ports.clock import Cancellable
from clew.server.security.authorized import AuthorizedService, Guards
from clew.server.security.limits import RateLimiter
from clew.server.security.principal import ANONYMOUS, Credentials, Principal, no_credentials, unauthenticated
from clew.service.contract import Service
from clew.service.errors import RPCError

CHECK_SECONDS: Final = 1.0
"""How often connections are looked at whose credential may have ended."""

REFUSALS_PER_SECOND: Final = 5.0
REFUSALS_BURST: Final = 50.0
"""How many refused logins of one address are written down; the rest is left out, so that nobody can fill the log."""

BEARER_CHARS_MAX: Final = 16_384
"""Tokens of large organisations have some thousand characters; headers are bounded by the HTTP server, too."""

_log: Final = logging.getLogger("clew.server")


class Authenticator(Protocol):
    """One way of knowing callers."""

    async def authenticate(self, credentials: Credentials) -> Principal | None:
        """The principal; None when these are not credentials of this kind.

        Raises:
            RPCError: They are of this kind, and not good (``unauthenticated``, without saying why).
        """
        ...


class LiveKeys(Protocol):
    """Knows whether an API key is good still."""

    def is_live(self, key_id: str) -> bool:
        """Whether it is."""
        ...


@final
class Security:
    """See the module docstring. Belongs to the service loop.

    Args:
        service: The engine.
        guards: What the services of all callers share.
        authenticators: The ways of knowing callers, in the order in which they are asked; none means that everybody may
            do everything.
        keys: Knows about keys that were revoked.
    """

    def __init__(
        self,
        service: Service,
        guards: Guards,
        *,
        authenticators: Sequence[Authenticator] = (),
        keys: LiveKeys | None = None,
    ) -> None:
        self._service = service
        self._guards = guards
        self._authenticators = tuple(authenticators)
        self._keys = keys
        self._watched: set[AuthorizedService] = set()
        self._alarm: Cancellable | None = None
        self._refusals = RateLimiter(REFUSALS_PER_SECOND, REFUSALS_BURST)
        self._refusals_left_out: dict[str, int] = {}

    @property
    def is_open(self) -> bool:
        """Whether everybody may do everything."""
        return not self._authenticators

    async def authenticate(self, credentials: Credentials) -> Principal:
        """Who calls.

        Raises:
            RPCError: ``unauthenticated``.
        """
        if self.is_open:
            return ANONYMOUS
        try:
            return await self._ask(credentials)
        except RPCError as error:
            self._note_refused(credentials, error)
            raise

    async def _ask(self, credentials: Credentials) -> Principal:
        if not credentials.bearer and credentials.certificate is None:
            raise no_credentials()
        if len(credentials.bearer) > BEARER_CHARS_MAX:
            raise unauthenticated()
        for authenticator in self._authenticators:
            principal = await authenticator.authenticate(credentials)
            if principal is not None:
                if principal.expires_at is not None and principal.expires_at <= self._guards.clock.now():
                    raise unauthenticated()
                return principal
        raise unauthenticated()

    def service_for(
        self, principal: Principal, *, source: str = "", on_end: Callable[[RPCError], None] | None = None
    ) -> AuthorizedService:
        """The service on behalf of a caller.

        Args:
            principal: From `authenticate`, or `LOCAL` for whoever came in through what only the owner can open.
            source: Where the calls come from, for the audit log.
            on_end: For a connection that stays: told once when the credential ends. Pass the service to `forget` when
                the connection is gone.
        """
        service = AuthorizedService(
            self._service,
            principal,
            self._guards,
            source=source,
            is_live=self._liveness(principal),
            on_end=on_end,
        )
        if on_end is not None:
            self._watched.add(service)
            if self._alarm is None:
                self._arm()
        return service

    def service_for_callback(self, target: TaskToken | ActivityTarget, *, source: str = "") -> AuthorizedService:
        """The service on behalf of whoever holds a callback token for this activity, which is right enough to end it.

        Args:
            target: As `open_callback` gave it; its token was never outside, and so has no seal.
            source: Where the call comes from, for the audit log.
        """
        principal = Principal(
            principal_id="callback",
            name=f"callback for an activity of {target.workflow_id}",
            grants=(Grant(target.namespace, Permission.COMPLETE.value),),
        )
        guards = msgspec.structs.replace(self._guards, seals=None, limiter=None)
        return AuthorizedService(self._service, principal, guards, source=source)

    def forget(self, service: AuthorizedService) -> None:
        """The connection of this service is gone."""
        self._watched.discard(service)

    def close(self) -> None:
        """Stop watching connections."""
        self._watched.clear()
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None

    def _liveness(self, principal: Principal) -> Callable[[], bool] | None:
        keys, clock = self._keys, self._guards.clock
        expires_at, key_id = principal.expires_at, principal.key_id
        if keys is not None and key_id:
            return lambda: keys.is_live(key_id)
        if expires_at is not None:
            return lambda: clock.now() < expires_at
        return None

    def _arm(self) -> None:
        clock = self._guards.clock
        self._alarm = clock.call_at(clock.now() + timedelta(seconds=CHECK_SECONDS), self._check_watched)

    def _check_watched(self) -> None:
        self._alarm = None
        self.check_connections()
        if self._watched:
            self._arm()

    def check_connections(self) -> None:
        """End the connections of callers whose credential has ended."""
        for service in list(self._watched):
            try:
                service.check()
            except Exception:  # noqa: BLE001 - one connection's fault must not keep the others from ending
                _log.exception("security.end_failed principal=%s", service.principal.principal_id)
            if service.is_ended:
                self._watched.discard(service)

    def _note_refused(self, credentials: Credentials, error: RPCError) -> None:
        audit = self._guards.audit
        if audit is None:
            return
        source, now = credentials.source, self._guards.clock.now()
        if self._refusals.take(source, now) is not None:
            if len(self._refusals_left_out) < 1_000:
                self._refusals_left_out[source] = self._refusals_left_out.get(source, 0) + 1
            return
        left_out = self._refusals_left_out.pop(source, 0)
        if left_out:
            audit.write(AuditRecord(at=now, event="suppressed", principal="", source=source, count=left_out))
        audit.write(AuditRecord(at=now, event="login_refused", principal="", source=source, outcome=error.code.value))
