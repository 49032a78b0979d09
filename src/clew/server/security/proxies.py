"""Proxies in front of the server, and what they say about whoever calls through them.

Owns: `TrustedProxies`: whose ``X-Forwarded-For`` is believed, and which address in it is the caller's. Never: who may
come in: an address is for the audit log and the logs alone.

How it works: each proxy appends the address that it sees to the header. Read from the end, the first address that is
not that of a trusted proxy was seen by one that is; whatever stands before it may have been made up by the caller. For
HTTP, uvicorn's own middleware does this, and takes over the scheme (``X-Forwarded-Proto``) too.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from typing import final


@final
class TrustedProxies:
    """See the module docstring.

    Args:
        places: Addresses, or networks such as ``10.0.0.0/8``.

    Raises:
        ValueError: One is neither; the message names it.
    """

    def __init__(self, places: Iterable[str] = ()) -> None:
        self._networks = [_network(place) for place in places]

    def caller(self, address: str, forwarded_for: str) -> str:
        """Who calls.

        Args:
            address: Of the other end of the connection, with or without a port.
            forwarded_for: The header, empty when there is none.
        """
        if not self._networks or not forwarded_for or not self._is_trusted(address):
            return address
        hops = [hop for part in forwarded_for.split(",") if (hop := part.strip())]
        for hop in reversed(hops):
            if not self._is_trusted(hop):
                return hop
        return hops[0] if hops else address

    def _is_trusted(self, address: str) -> bool:
        try:
            found = ipaddress.ip_address(_without_port(address))
        except ValueError:
            return False
        return any(found in network for network in self._networks)


def _network(place: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network:
    try:
        return ipaddress.ip_network(place)
    except ValueError as error:
        raise ValueError(f"{place!r} in trusted_proxies is neither an address nor a network ({error})") from error


def _without_port(address: str) -> str:
    if address.startswith("["):
        return address[1:].partition("]")[0]
    return address.rpartition(":")[0] if address.count(":") == 1 else address
