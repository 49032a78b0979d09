"""The link over TLS, with certificates of both ends."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from clew.client import Client
from clew.link import Admission, Hello, Peer
from clew.linked import connect_server
from clew.model.rejection import Rejection, RejectionCode
from clew.service import TLSConfig
from clew.service.errors import RPCError
from tests.link.node import Node

Pair = tuple[bytes, bytes]
"""Certificate and key, in PEM."""


def make_pair(name: str, *, by: Pair | None = None) -> Pair:
    """A certificate for a name and for loopback, signed by another or by itself."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    issuer = x509.load_pem_x509_certificate(by[0]).subject if by else subject
    signer = serialization.load_pem_private_key(by[1], None) if by else key
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(hours=1))
        .add_extension(x509.BasicConstraints(ca=by is None, path_length=None), critical=True)
        .add_extension(
            x509.SubjectAlternativeName([x509.DNSName(name), x509.IPAddress(ip_address("127.0.0.1"))]), critical=False
        )
        .sign(signer, hashes.SHA256())  # type: ignore[arg-type]
    )
    return (
        certificate.public_bytes(serialization.Encoding.PEM),
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()),
    )


@pytest.fixture(scope="module")
def authority() -> Pair:
    return make_pair("authority")


def server_context(authority: Pair, folder: Path, *, wants_client: bool = False) -> ssl.SSLContext:
    certificate, key = make_pair("node", by=authority)
    (folder / "node.pem").write_bytes(certificate + key)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "node.pem")
    if wants_client:
        context.load_verify_locations(cadata=authority[0].decode())
        context.verify_mode = ssl.CERT_REQUIRED
    return context


async def test_a_client_that_knows_the_authority_gets_in(authority: Pair, tmp_path: Path) -> None:
    async with Node(tls=server_context(authority, tmp_path)) as node:
        tls = TLSConfig(server_root_ca_cert=authority[0])
        async with await Client.connect(node.address, tls=tls) as client:
            assert (await client.count_workflows()).count == 0
        async with await Client.connect(node.address, tls=TLSConfig(authority[0], domain="node")) as client:
            assert (await client.count_workflows()).count == 0


async def test_a_client_refuses_a_node_that_it_does_not_know(authority: Pair, tmp_path: Path) -> None:
    stranger = make_pair("stranger")
    async with Node(tls=server_context(authority, tmp_path)) as node:
        for tls in (TLSConfig(server_root_ca_cert=stranger[0]), TLSConfig(authority[0], domain="elsewhere")):
            with pytest.raises(RPCError, match=r"certificate verify failed.*server_root_ca_cert.*server_root_ca_file"):
                await connect_server([("127.0.0.1", node.port)], tls=tls, connect_seconds=0.1)
        with pytest.raises(RPCError, match="No node can be reached"):
            await connect_server([("127.0.0.1", node.port)], connect_seconds=0.1)


async def test_a_node_sees_the_certificate_and_the_key_of_its_client(authority: Pair, tmp_path: Path) -> None:
    seen: list[tuple[str, str]] = []

    async def admit(hello: Hello, peer: Peer) -> Admission:
        assert peer.certificate is not None
        subject = x509.load_der_x509_certificate(peer.certificate).subject.rfc4514_string()
        seen.append((subject, hello.token))
        if hello.token != "good":
            raise RPCError(Rejection(code=RejectionCode.WORKFLOW_NOT_READY, message="not with this key"))
        return Admission(node.engine, principal=subject)

    node = Node(tls=server_context(authority, tmp_path, wants_client=True))
    node.admit = admit
    certificate, key = make_pair("worker", by=authority)
    tls = TLSConfig(server_root_ca_cert=authority[0], client_cert=certificate, client_private_key=key)
    async with node:
        async with await Client.connect(node.address, tls=tls, api_key="good") as client:
            assert (await client.count_workflows()).count == 0
        with pytest.raises(RPCError, match="not with this key"):
            await Client.connect(node.address, tls=tls, api_key="bad")
        with pytest.raises(RPCError, match="No node can be reached"):
            await connect_server([("127.0.0.1", node.port)], tls=TLSConfig(authority[0]), connect_seconds=0.1)
    assert seen == [("CN=worker", "good"), ("CN=worker", "bad")]


def test_settings_that_make_no_sense(authority: Pair) -> None:
    with pytest.raises(ValueError, match="both or neither"):
        TLSConfig(client_cert=authority[0]).to_context()
    with pytest.raises(ValueError, match="cannot be used"):
        TLSConfig(server_root_ca_cert=b"no certificate").to_context()
    for name in ("server_root_ca_cert", "client_cert", "client_private_key"):
        with pytest.raises(TypeError, match=rf"{name} of TLSConfig is a str\. Expected: bytes"):
            TLSConfig(**{name: "tls.crt"})  # type: ignore[arg-type]
    assert "PRIVATE" not in repr(TLSConfig(client_cert=authority[0], client_private_key=authority[1]))
