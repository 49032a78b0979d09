"""TLS: certificates of the server and of its clients, renewed without a restart.

Owns: `TlsSettings`, the server's `ssl.SSLContext`, and looking for renewed files. Never: who a certificate stands for
(``certificates``).

How it works: TLS 1.2 or later, with the standard library's choice of ciphers. With a client authority, clients may
show a certificate (or must); one that is not of the authority ends the handshake. Renewal: every `LOOK_SECONDS` the
files are looked at; a changed pair is first tried in a context of its own, so that a half-written or mismatched one is
never taken, and then put into the one in use, which serves the next handshakes. Open connections stay as they are.
"""

from __future__ import annotations

import logging
import ssl
from datetime import timedelta
from pathlib import Path
from typing import Final, final

import msgspec

from clew.ports.clock import Cancellable, Clock

LOOK_SECONDS: Final = 10.0

_log: Final = logging.getLogger("clew.server")


class TlsSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the server shows, and what it wants to see.

    Args:
        certificate: PEM file with the server's certificate and what is between it and its authority.
        key: PEM file with its private key, not encrypted.
        client_authority: PEM file with the authorities of clients' certificates; empty when clients show none.
        needs_client_certificate: Whether a client without one is turned away in the handshake.
    """

    certificate: str
    key: str
    client_authority: str = ""
    needs_client_certificate: bool = False


def make_server_context(settings: TlsSettings) -> ssl.SSLContext:
    """The context with which the server takes connections.

    Raises:
        ValueError: A file cannot be read, or certificate and key do not belong together.
    """
    if settings.needs_client_certificate and not settings.client_authority:
        raise ValueError(
            "clients need a certificate, but no authority is named by which theirs could be known; set client_authority"
        )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
    _load_chain(context, settings)
    if settings.client_authority:
        _load_authority(context, settings)
        context.verify_mode = ssl.CERT_REQUIRED if settings.needs_client_certificate else ssl.CERT_OPTIONAL
    return context


def _load_chain(context: ssl.SSLContext, settings: TlsSettings) -> None:
    try:
        # A password callback that gives nothing, since the default one would ask on the terminal.
        context.load_cert_chain(settings.certificate, settings.key, password=lambda: "")
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        raise ValueError(
            f"the certificate {settings.certificate} with the key {settings.key} cannot be used: {error}; expected two "
            "PEM files that belong together, the key without a password"
        ) from error


def _load_authority(context: ssl.SSLContext, settings: TlsSettings) -> None:
    try:
        context.load_verify_locations(settings.client_authority)
    except OSError as error:
        raise ValueError(
            f"the authorities of clients in {settings.client_authority} cannot be used: {error}; expected a PEM file"
        ) from error


@final
class Renewal:
    """Puts renewed certificates into a context that is in use. Belongs to one event loop."""

    def __init__(self, context: ssl.SSLContext, settings: TlsSettings, clock: Clock) -> None:
        self._context = context
        self._settings = settings
        self._clock = clock
        self._seen = self._look()
        self._alarm: Cancellable | None = None

    def start(self) -> None:
        """Begin to look."""
        self._alarm = self._clock.call_at(self._clock.now() + timedelta(seconds=LOOK_SECONDS), self._wake)

    def close(self) -> None:
        """Stop looking."""
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None

    def reload_if_changed(self) -> bool:
        """Take the files if they changed and are good; whether it did."""
        now = self._look()
        if now == self._seen or not all(now):
            return False
        try:
            make_server_context(self._settings)
            _load_chain(self._context, self._settings)
            if self._settings.client_authority:
                _load_authority(self._context, self._settings)
        except ValueError as error:
            if now != self._seen:
                _log.error("tls.not_renewed error=%s", error)
            return False
        self._seen = now
        _log.info("tls.renewed certificate=%s", self._settings.certificate)
        return True

    def _wake(self) -> None:
        try:
            self.reload_if_changed()
        finally:
            self.start()

    def _look(self) -> tuple[tuple[int, int, int] | None, ...]:
        """What changes when a file is replaced or written."""
        settings = self._settings
        return tuple(
            _stamp(Path(name)) for name in (settings.certificate, settings.key, settings.client_authority) if name
        )


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
