"""How a client speaks TLS to a server.

Owns: `TLSConfig`, with the names of the published API. Never: opens a connection.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from tempfile import NamedTemporaryFile


@dataclass(frozen=True)
class TLSConfig:
    """Certificates of a TLS connection.

    Args:
        server_root_ca_cert: PEM of the authorities that the server's certificate may come from; those of the system
            when not given.
        domain: The name that has to stand in the server's certificate; the host of the address when not given.
        client_cert: PEM of this client's certificate, for servers that ask for one.
        client_private_key: PEM of its key.
    """

    server_root_ca_cert: bytes | None = None
    domain: str | None = None
    client_cert: bytes | None = None
    client_private_key: bytes | None = None

    def __post_init__(self) -> None:
        """Refuse what is no PEM at once.

        Raises:
            TypeError: A certificate or a key is not bytes, such as the name of its file.
        """
        for name in ("server_root_ca_cert", "client_cert", "client_private_key"):
            given = getattr(self, name)
            if given is not None and not isinstance(given, (bytes, bytearray)):
                raise TypeError(
                    f"{name} of TLSConfig is a {type(given).__name__}. Expected: bytes, the PEM itself and not the "
                    f"name of its file; read the file: {name}=Path(…).read_bytes()."
                )

    def __repr__(self) -> str:
        return f"TLSConfig(domain={self.domain!r}, …)"

    def to_context(self) -> ssl.SSLContext:
        """Give what Python's TLS goes by.

        Raises:
            ValueError: The certificate or the key is missing or unreadable.
        """
        if (self.client_cert is None) != (self.client_private_key is None):
            raise ValueError(
                "A client certificate needs its private key and the other way round; give both or neither."
            )
        try:
            context = ssl.create_default_context(
                cadata=self.server_root_ca_cert.decode() if self.server_root_ca_cert is not None else None
            )
            if self.client_cert is not None and self.client_private_key is not None:
                with NamedTemporaryFile(suffix=".pem") as file:
                    # The standard library reads a certificate chain from files only; this one has mode 0600.
                    file.write(self.client_cert.rstrip() + b"\n" + self.client_private_key)
                    file.flush()
                    context.load_cert_chain(file.name)
        except (ssl.SSLError, UnicodeDecodeError, ValueError) as error:
            raise ValueError(
                f"The TLS settings cannot be used: {error}. Expected: certificates and key in PEM."
            ) from error
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        return context
