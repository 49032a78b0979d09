"""Whether the server may listen where it is told to.

Owns: what counts as an address that only this machine can reach, and the refusal to listen elsewhere unprotected.
"""

from __future__ import annotations

import ipaddress


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a listener on `host`; an empty host is every address."""
    if host.strip().lower().rstrip(".") == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip().strip("[]").partition("%")[0]).is_loopback
    except ValueError:
        return False  # a name may lead anywhere


def check_exposure(host: str, *, has_authentication: bool, has_tls: bool, is_allowed: bool) -> list[str]:
    """Refuse to let everybody in from everywhere; gives warnings about what is allowed but hardly meant.

    Args:
        host: The address to listen on.
        has_authentication: Whether callers must say who they are.
        has_tls: Whether what they say is encrypted on the way.
        is_allowed: Whether the settings say that this is meant (``allow_public_without_auth``).

    Raises:
        ValueError: Others can reach the address, and nobody has to say who they are.
    """
    if is_loopback(host):
        return []
    if not has_authentication and not is_allowed:
        raise ValueError(
            f"the server would listen on {host or 'every address'}, which others can reach, and let each of them do "
            "everything; turn authentication on (set api_keys, and make one with `clew key create`), listen on "
            "127.0.0.1, or say that this is meant with --allow-public-without-auth"
        )
    warnings: list[str] = []
    if not has_authentication:
        warnings.append(f"everybody who reaches {host or 'this machine'} may do everything: there is no authentication")
    if has_authentication and not has_tls:
        warnings.append(
            "keys and payloads travel unencrypted: there is no TLS; let a proxy in front of this server do it, or set "
            "certificate and key"
        )
    return warnings
