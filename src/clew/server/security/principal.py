"""Who calls, as far as the server was able to find out, and what that one may do.

Owns: `Principal`, `Credentials` and the refusals that name them. Never: finding out (the authenticators do).

How it works: a front door (the HTTP API, the link) makes `Credentials` of what came with a request, an authenticator
turns them into a `Principal`, and `AuthorizedService` acts for that principal. Credentials never show in a text.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final

import msgspec

from clew.model.access import EVERYWHERE, ROLE_PERMISSIONS, Grant, Permission, Role
from clew.model.rejection import Rejection, RejectionCode
from clew.service.errors import RPCError


class PeerCertificate(msgspec.Struct, frozen=True):
    """A verified certificate of the other side.

    Args:
        names: As ``KIND:name``.
        not_after: When it expires.
    """

    names: tuple[str, ...]
    not_after: datetime | None = None


class Credentials(msgspec.Struct, frozen=True, kw_only=True):
    """What came with a connection or a request.

    Args:
        bearer: The API key or token, without ``Bearer``; empty when none came.
        certificate: The client's certificate, already verified by the TLS library.
        source: The address it came from, for the audit log.
    """

    bearer: str = ""
    certificate: PeerCertificate | None = None
    source: str = ""

    def __repr__(self) -> str:
        shown = "…" if self.bearer else ""
        return f"Credentials(bearer={shown!r}, certificate={self.certificate!r}, source={self.source!r})"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return [("bearer", "…" if self.bearer else ""), ("certificate", self.certificate), ("source", self.source)]


class Principal(msgspec.Struct, frozen=True, kw_only=True):
    """A caller that is known.

    Args:
        principal_id: Stable: ``key:<id>``, ``token:<issuer>:<subject>``, ``certificate:<name>``, ``local``,
            ``anonymous``.
        name: For people.
        grants: What it may do.
        expires_at: When the credential ends; None for not by itself.
        calls_per_second_max: Its own rate limit; None for that of the server.
        key_id: Of the API key, if it is one.
    """

    principal_id: str
    name: str = ""
    grants: tuple[Grant, ...] = ()
    expires_at: datetime | None = None
    calls_per_second_max: float | None = None
    key_id: str = ""

    def permissions_in(self, namespace: str) -> frozenset[Permission]:
        """Everything that its grants allow in a namespace (or on what belongs to none: `EVERYWHERE`)."""
        allowed: frozenset[Permission] = frozenset()
        for grant in self.grants:
            if grant.covers(namespace):
                allowed |= grant.permissions
        return allowed

    def may_serve(self, namespace: str, task_queue: str) -> bool:
        """Whether one of its grants lets it work on this task queue."""
        return any(
            grant.covers(namespace) and Permission.WORK in grant.permissions and grant.task_queue in ("", task_queue)
            for grant in self.grants
        )

    def __str__(self) -> str:
        return f"{self.name!r} ({self.principal_id})" if self.name else self.principal_id


_EVERYTHING: Final = (Grant(EVERYWHERE, Role.ADMIN.value),)

LOCAL: Final = Principal(principal_id="local", name="this machine's user", grants=_EVERYTHING)
"""Whoever reaches the server through what only the owner of its files can: a socket of mode 0600, the same process."""

ANONYMOUS: Final = Principal(principal_id="anonymous", grants=_EVERYTHING)
"""Every caller of a server without authentication."""


def unauthenticated(message: str = "") -> RPCError:
    """The refusal of a caller that is not known. It says the same whatever was wrong with the credentials."""
    return RPCError(
        Rejection(
            code=RejectionCode.UNAUTHENTICATED,
            message=message
            or "the credentials are not genuine, or they have expired or were revoked; the call was refused; "
            "give an API key, a token or a client certificate that this server accepts",
        )
    )


def no_credentials() -> RPCError:
    """The refusal of a caller that does not say who it is."""
    return unauthenticated(
        "no credentials came with the call, and this server wants some; give an API key (clew_…) or a token as "
        "`Authorization: Bearer …`, or a client certificate"
    )


def permission_denied(principal: Principal, call: str, namespace: str, needed: frozenset[Permission]) -> RPCError:
    """The refusal of a caller that may not do this."""
    wanted = sorted(permission.value for permission in needed)
    roles = [role.value for role, permissions in ROLE_PERMISSIONS.items() if permissions & needed]
    where = "outside of any namespace" if namespace == EVERYWHERE else f"in namespace {namespace!r}"
    return RPCError(
        Rejection(
            code=RejectionCode.PERMISSION_DENIED,
            message=f"{principal} may not call {call} {where}: it needs the permission {' or '.join(wanted)}, which "
            f"the roles {', '.join(roles)} have; ask an admin for a key with it",
            details={"call": call, "namespace": namespace, "permission": " or ".join(wanted)},
        )
    )
