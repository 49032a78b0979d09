"""Client certificates: the names in one, and the principal that a name stands for.

Owns: reading the names, and the mapping from names to grants. Never: verification, which the TLS library does with the
authority it was given (``tls``): a certificate that gets here is genuine.

How it works: names are written ``URI:spiffe://…``, ``DNS:worker-1.example``, ``EMAIL:…`` and ``CN:…``, the way openssl
prints them, and are looked up in that order, so that the most exact one counts. A certificate without a name in the
mapping is nobody.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from clew.model.access import Grant, parse_grants
from clew.server.security.principal import Credentials, PeerCertificate, Principal

_KINDS: Final = {"URI": "URI", "DNS": "DNS", "email": "EMAIL"}
"""What `ssl` calls the kinds of alternative names, and what we do."""

_ORDER: Final = ("URI", "DNS", "EMAIL", "CN")

NAMES_MAX: Final = 100
"""Of one certificate; further ones are not looked at."""


def certificate_of(transport_info: Mapping[str, Any] | None) -> PeerCertificate | None:
    """The certificate in what `ssl.SSLObject.getpeercert` gives; None when the peer sent none.

    An empty mapping means a certificate that was not verified, which counts as none.
    """
    if not transport_info:
        return None
    found = [
        f"{_KINDS[kind]}:{name}"
        for kind, name in transport_info.get("subjectAltName", ())
        if kind in _KINDS and isinstance(name, str)
    ]
    for part in transport_info.get("subject", ()):
        found += [f"CN:{value}" for key, value in part if key == "commonName"]
    ends = transport_info.get("notAfter")
    not_after = datetime.fromtimestamp(ssl.cert_time_to_seconds(ends), UTC) if isinstance(ends, str) else None
    return _certificate(found, not_after)


def certificate_of_der(der: bytes | None) -> PeerCertificate | None:
    """The certificate in what the TLS library gives in binary form; None when the peer sent none, or it is unreadable.

    Raises:
        ImportError: The extra ``auth`` is not installed.
    """
    if not der:
        return None
    try:
        from cryptography import x509
        from cryptography.x509.oid import NameOID
    except ImportError as error:
        raise ImportError(
            "Client certificates need the library cryptography, which is not installed; install it with: "
            "pip install 'clew[auth]'"
        ) from error
    try:
        parsed = x509.load_der_x509_certificate(der)
        found = [f"CN:{name.value!s}" for name in parsed.subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
        not_after = parsed.not_valid_after_utc
        try:
            alternatives = parsed.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        except x509.ExtensionNotFound:
            alternatives = None
    except ValueError:
        return None
    for prefix, kind in (("URI", x509.UniformResourceIdentifier), ("DNS", x509.DNSName), ("EMAIL", x509.RFC822Name)):
        found += [f"{prefix}:{name}" for name in alternatives.get_values_for_type(kind)] if alternatives else []
    return _certificate(found, not_after)


def _certificate(found: list[str], not_after: datetime | None) -> PeerCertificate:
    found.sort(key=lambda name: _ORDER.index(name.partition(":")[0]))
    return PeerCertificate(tuple(found[:NAMES_MAX]), not_after)


class CertificateAuthenticator:
    """Knows callers by their certificates.

    Args:
        grants_by_name: ``KIND:name`` to grants as text.

    Raises:
        ValueError: A name has no known kind, or a grant is none.
    """

    def __init__(self, grants_by_name: Mapping[str, Sequence[str]]) -> None:
        for name in grants_by_name:
            kind, colon, rest = name.partition(":")
            if not colon or kind not in _ORDER or not rest:
                raise ValueError(
                    f"{name!r} names no certificate; expected one of {', '.join(_ORDER)}, a colon and a name, as in "
                    "URI:spiffe://example/worker"
                )
        self._grants: dict[str, tuple[Grant, ...]] = {
            name: parse_grants(grants) for name, grants in grants_by_name.items()
        }

    async def authenticate(self, credentials: Credentials) -> Principal | None:
        """The principal of the certificate; None when there is none, or it stands for nobody."""
        certificate = credentials.certificate
        if certificate is None:
            return None
        for name in certificate.names:
            grants = self._grants.get(name)
            if grants is not None:
                return Principal(
                    principal_id=f"certificate:{name}", name=name, grants=grants, expires_at=certificate.not_after
                )
        return None
