"""Tokens of an identity provider (JWT, RFC 7519; OpenID Connect): who they are about, and what that one may do.

Owns: `TokenAuthenticator`, the mapping from claims to grants. Never: fetching keys (``jwks``), what a grant allows.

How it works: a token is looked at only if it says that it comes from this issuer. It must be signed by a key of the
issuer with one of the allowed algorithms, all of them public-key ones (so neither ``none`` nor a public key taken for a
shared secret can pass); be for one of the audiences; be in its time, by the store's clock and a leeway; and ask for no
extension (``crit``). Grants come from one claim: each of its values is looked up in a mapping, or is itself a grant
where the settings say that the issuer may write them. A token with no grant is known, and may do nothing.
"""

from __future__ import annotations

import base64
import binascii
import importlib
import logging
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, cast, final

import msgspec

from clew.model.access import GRANTS_MAX, Grant, parse_grant, parse_grants
from clew.ports.clock import Clock
from clew.server.security.jwks import Fetch, Jwks
from clew.server.security.principal import Credentials, Principal, unauthenticated

if TYPE_CHECKING:
    from jwt import PyJWK

ALGORITHMS: Final = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
"""Those there are to choose from: signatures with a public key (RFC 7518 §3.1, RFC 8037)."""

_KEY_TYPES: Final = {"RS": "RSA", "PS": "RSA", "ES": "EC", "Ed": "OKP"}

TOKEN_CHARS_MAX: Final = 16_384
NAME_CHARS_MAX: Final = 200

_log: Final = logging.getLogger("clew.server")


class TokenSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One issuer of tokens.

    Args:
        issuer: What its tokens have as ``iss``, to the letter.
        audience: What they must be for (``aud``): one of these.
        jwks_url: Where its keys are; found by OpenID discovery when empty.
        algorithms: Those allowed, of `ALGORITHMS`.
        leeway_seconds: How far its clock may be from ours.
        roles_claim: The claim with what somebody may do; a dot leads into an object (``realm_access.roles``).
        grants: From a value of that claim to grants.
        trusts_grants: Whether a value that is itself a grant (``payments:worker``) counts as one.
        name_claim: The claim with a name for people.
    """

    issuer: str
    audience: tuple[str, ...]
    jwks_url: str = ""
    algorithms: tuple[str, ...] = ("RS256", "ES256", "EdDSA")
    leeway_seconds: float = 30.0
    roles_claim: str = "permissions"
    grants: dict[str, tuple[str, ...]] = msgspec.field(default_factory=dict[str, tuple[str, ...]])
    trusts_grants: bool = False
    name_claim: str = ""


class _Header(msgspec.Struct):
    alg: str
    kid: str = ""
    crit: object = msgspec.UNSET


class _Claims(msgspec.Struct):
    iss: str = ""


class _BadToken(Exception):
    """Why a token is refused; for the log alone."""


@final
class TokenAuthenticator:
    """See the module docstring. Implements ``authenticator.Authenticator``; belongs to one event loop.

    Raises:
        ValueError: A setting cannot be.
        ImportError: The extra ``auth`` is not installed.
    """

    def __init__(self, settings: TokenSettings, clock: Clock, *, fetch: Fetch | None = None) -> None:
        _need_library()
        unknown = [name for name in settings.algorithms if name not in ALGORITHMS]
        if unknown or not settings.algorithms:
            raise ValueError(
                f"the algorithms {', '.join(unknown) or '(none)'} cannot sign tokens here; choose from "
                f"{', '.join(ALGORITHMS)}"
            )
        if not settings.issuer or not settings.audience:
            raise ValueError("tokens need an issuer and an audience; a token for somebody else must not count here")
        self._settings = settings
        self._clock = clock
        self._grants: Mapping[str, tuple[Grant, ...]] = {
            value: parse_grants(grants) for value, grants in settings.grants.items()
        }
        self._jwks = Jwks(settings.jwks_url, settings.issuer, clock, fetch=fetch)

    async def close(self) -> None:
        """Let go of what is under way."""
        await self._jwks.close()

    async def authenticate(self, credentials: Credentials) -> Principal | None:
        """Whom the token is about; None when it is no token, or of another issuer.

        Raises:
            RPCError: It is of this issuer, and not good (``unauthenticated``, without saying why).
        """
        token = credentials.bearer
        if token.count(".") != 2 or len(token) > TOKEN_CHARS_MAX or not token.isascii():
            return None
        header_text, claims_text, _ = token.split(".")
        try:
            header = msgspec.json.decode(_decode_part(header_text), type=_Header)
            claims = msgspec.json.decode(_decode_part(claims_text), type=_Claims)
        except (ValueError, RecursionError):
            return None
        if claims.iss != self._settings.issuer:
            return None
        try:
            return await self._verify(token, header)
        except _BadToken as why:
            _log.info("token.refused issuer=%s reason=%s", self._settings.issuer, why)
            raise unauthenticated() from None

    async def _verify(self, token: str, header: _Header) -> Principal:
        if header.crit is not msgspec.UNSET:
            raise _BadToken("it asks for an extension")
        if header.alg not in self._settings.algorithms:
            raise _BadToken("its algorithm is not allowed")
        key = await self._jwks.find(header.kid)
        if key is None or key.key_type != _KEY_TYPES[header.alg[:2]]:
            raise _BadToken("its key is not one of the issuer's for this algorithm")
        claims = self._signed_claims(token, key, header.alg)
        expires_at = self._check_times(claims)
        subject = claims.get("sub")
        if not isinstance(subject, str) or not subject:
            raise _BadToken("it is about nobody")
        name = _claim(claims, self._settings.name_claim) if self._settings.name_claim else ""
        return Principal(
            principal_id=f"token:{self._settings.issuer}:{subject}"[:1_000],
            name=name[:NAME_CHARS_MAX] if isinstance(name, str) and name.isprintable() else "",
            grants=self._grants_in(claims),
            expires_at=expires_at,
        )

    def _signed_claims(self, token: str, key: PyJWK, algorithm: str) -> dict[str, Any]:
        import jwt

        try:
            claims: dict[str, Any] = jwt.decode(
                token,
                key.key,
                algorithms=[algorithm],
                audience=list(self._settings.audience),
                issuer=self._settings.issuer,
                # The times are checked by our own clock.
                options={
                    "require": ["exp", "iss", "aud", "sub"], "verify_exp": False, "verify_nbf": False,
                    "verify_iat": False,
                },
            )  # fmt: skip
        except (jwt.PyJWTError, ValueError, TypeError, RecursionError) as error:
            raise _BadToken(type(error).__name__) from None
        return claims

    def _check_times(self, claims: dict[str, Any]) -> datetime:
        now, leeway = self._clock.now().timestamp(), self._settings.leeway_seconds
        expires = _number(claims, "exp")
        assert expires is not None, "a token without exp was refused"
        if now >= expires + leeway:
            raise _BadToken("it has expired")
        for name in ("nbf", "iat"):
            begins = _number(claims, name)
            if begins is not None and now < begins - leeway:
                raise _BadToken("its time has not come")
        try:
            return datetime.fromtimestamp(expires + leeway, UTC)
        except (OverflowError, ValueError, OSError):
            raise _BadToken("it never expires") from None

    def _grants_in(self, claims: dict[str, Any]) -> tuple[Grant, ...]:
        values = _claim(claims, self._settings.roles_claim)
        texts: list[Any] = []
        if isinstance(values, str):
            texts = list(values.split())
        elif isinstance(values, list):
            texts = cast("list[Any]", values)
        grants: list[Grant] = []
        for text in texts[:GRANTS_MAX]:
            if not isinstance(text, str):
                continue
            if text in self._grants:
                grants.extend(self._grants[text])
            elif self._settings.trusts_grants:
                try:
                    grants.append(parse_grant(text))
                except ValueError:
                    continue  # a role of some other system
        return tuple(dict.fromkeys(grants))[:GRANTS_MAX]


def _claim(claims: dict[str, Any], path: str) -> Any:
    if path in claims:
        return claims[path]
    value: Any = claims
    for name in path.split("."):
        value = cast("dict[str, Any]", value).get(name) if isinstance(value, dict) else None
    return value


def _number(claims: dict[str, Any], name: str) -> float | None:
    value = claims.get(name)
    if value is None and name != "exp":
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e15:
        raise _BadToken(f"its {name} is no time")
    return float(value)


def _decode_part(text: str) -> bytes:
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except binascii.Error as error:
        raise ValueError(str(error)) from error


def _need_library() -> None:
    try:
        importlib.import_module("cryptography")
        importlib.import_module("jwt")
    except ImportError as error:
        raise ImportError(
            "Tokens of an identity provider need PyJWT and cryptography, which are not installed; "
            "install them with: pip install 'clew[auth]'"
        ) from error
