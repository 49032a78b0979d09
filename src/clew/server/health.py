"""Asks a node of this machine whether it lives: for the health check of a container, or a script.

Owns: the one question, over whatever the node speaks by its settings. Never: more than ``/healthz`` tells.

How it works: a node that wants to see a certificate turns this one away, which has none. So much shows that it lives.
"""

from __future__ import annotations

import http.client
import ssl
from typing import Final

from clew.server.settings import ServerSettings

SECONDS_MAX: Final = 3.0
_EVERYWHERE: Final = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}
_NO_CERTIFICATE: Final = ("CERTIFICATE_REQUIRED", "HANDSHAKE_FAILURE")
"""How OpenSSL names the alert of a node that wants to see a certificate (TLS 1.3, and 1.2): it lives."""


def why_not_alive(settings: ServerSettings, *, path: str = "/healthz", seconds: float = SECONDS_MAX) -> str:
    """Why the node of these settings does not live; empty when it does.

    Args:
        settings: Of the node.
        path: ``/healthz``, or ``/readyz`` to ask whether calls can succeed.
        seconds: How long the answer may take.
    """
    host = _EVERYWHERE.get(settings.host, settings.host)
    place = f"{host}:{settings.port}"
    connection = _connection(settings, host, seconds)
    needs_certificate = settings.tls is not None and settings.tls.needs_client_certificate
    try:
        connection.connect()
        if needs_certificate:
            return ""
        connection.request("GET", path, headers={"host": f"localhost:{settings.port}"})
        answer = connection.getresponse()
        text = answer.read().decode(errors="replace").strip()
    except ssl.SSLError as error:
        is_turned_away = needs_certificate and any(name in str(error.reason) for name in _NO_CERTIFICATE)
        return "" if is_turned_away else f"{place}: {error}"
    except (OSError, http.client.HTTPException) as error:
        return f"{place} does not answer: {error!r}"
    finally:
        connection.close()
    return "" if answer.status == http.client.OK else f"{place} answers {answer.status}: {text}"


def _connection(settings: ServerSettings, host: str, seconds: float) -> http.client.HTTPConnection:
    if settings.tls is None:
        return http.client.HTTPConnection(host, settings.port, timeout=seconds)
    # The certificate is for the name by which others know the node; from here it is asked by its address.
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return http.client.HTTPSConnection(host, settings.port, timeout=seconds, context=context)
