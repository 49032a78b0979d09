"""TLS with real sockets and certificates made here: the server's, the clients', renewal, and the way to a principal."""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from clew.server.security.certificates import certificate_of, certificate_of_der
from clew.server.security.tls import LOOK_SECONDS, Renewal, TlsSettings, make_server_context
from clew.testing import ManualClock

DEADLINE_SECONDS = 10.0
BEGIN, END = datetime(2020, 1, 1, tzinfo=UTC), datetime(2100, 1, 1, tzinfo=UTC)


class Authority:
    """Makes certificates."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        certificate = (
            self._builder(self._name, self._key)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(self._key.public_key()), critical=False)
            .add_extension(_usage(is_authority=True), critical=True)
            .sign(self._key, hashes.SHA256())
        )
        self.file = folder / f"{name}.pem"
        self.file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))

    def _builder(self, subject: x509.Name, key: Any, not_after: datetime = END) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(BEGIN)
            .not_valid_after(not_after)
        )

    def issue(
        self, name: str, *alternatives: x509.GeneralName, not_after: datetime = END, file: str = ""
    ) -> tuple[Path, Path]:
        """Certificate and key as PEM files."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        authority_id = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        usages = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH])
        certificate = (
            self._builder(subject, key, not_after)
            .add_extension(x509.SubjectAlternativeName(alternatives or [x509.DNSName(name)]), critical=False)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(authority_id, critical=False)
            .add_extension(usages, critical=False)
            .sign(self._key, hashes.SHA256())
        )
        files = self._folder / f"{file or name}.crt", self._folder / f"{file or name}.key"
        files[0].write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        files[1].write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        return files


def _usage(*, is_authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True, key_cert_sign=is_authority, crl_sign=is_authority, content_commitment=False,
        key_encipherment=False, data_encipherment=False, key_agreement=False, encipher_only=False, decipher_only=False,
    )  # fmt: skip


class Place:
    """Certificates of a server and of clients, and a listener."""

    def __init__(self, folder: Path) -> None:
        self.ours = Authority(folder, "ours")
        self.theirs = Authority(folder, "theirs")
        self.certificate, self.key = self.ours.issue("localhost")
        self.seen: list[Any] = []

    def settings(self, **changes: Any) -> TlsSettings:
        return TlsSettings(**{"certificate": str(self.certificate), "key": str(self.key), **changes})

    @asynccontextmanager
    async def listener(self, context: ssl.SSLContext) -> AsyncIterator[int]:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            tls: ssl.SSLObject = writer.get_extra_info("ssl_object")
            self.seen.append((tls.getpeercert(), tls.getpeercert(binary_form=True), tls.version()))
            writer.write(b"hello")
            await writer.drain()
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
        async with server:
            yield server.sockets[0].getsockname()[1]

    async def visit(self, port: int, client: tuple[Path, Path] | None = None, **options: Any) -> str:
        """Connect as a client that knows our authority; the serial number of the server's certificate."""
        context = ssl.create_default_context(cafile=str(self.ours.file))
        context.maximum_version = options.get("maximum_version", ssl.TLSVersion.MAXIMUM_SUPPORTED)
        context.minimum_version = options.get("minimum_version", ssl.TLSVersion.TLSv1_2)
        if client is not None:
            context.load_cert_chain(*client)

        async def talk() -> str:
            reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname="localhost")
            try:
                assert await reader.readexactly(5) == b"hello"
                found = writer.get_extra_info("ssl_object").getpeercert()
                return str(found["serialNumber"])
            finally:
                writer.close()

        return await asyncio.wait_for(talk(), DEADLINE_SECONDS)


REFUSED = (ssl.SSLError, ConnectionError, asyncio.IncompleteReadError)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


async def test_a_client_gets_through_with_tls_alone(place: Place) -> None:
    async with place.listener(make_server_context(place.settings())) as port:
        await place.visit(port)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert b"hello" not in await asyncio.wait_for(reader.read(), DEADLINE_SECONDS)
        writer.close()
    assert [version for _, _, version in place.seen] == ["TLSv1.3"]


async def test_old_versions_of_tls_are_refused(place: Place) -> None:
    context = make_server_context(place.settings())
    assert context.minimum_version is ssl.TLSVersion.TLSv1_2
    async with place.listener(context) as port:
        await place.visit(port, maximum_version=ssl.TLSVersion.TLSv1_2)


async def test_a_client_certificate_of_our_authority_is_known(place: Place) -> None:
    worker = place.ours.issue(
        "worker-1",
        x509.UniformResourceIdentifier("spiffe://example/worker"),
        x509.DNSName("worker-1.example"),
        x509.RFC822Name("ops@example"),
    )
    settings = place.settings(client_authority=str(place.ours.file), needs_client_certificate=True)
    async with place.listener(make_server_context(settings)) as port:
        await place.visit(port, worker)
    read, der, _ = place.seen[0]
    certificate = certificate_of(read)
    assert certificate is not None
    assert certificate.names == (
        "URI:spiffe://example/worker", "DNS:worker-1.example", "EMAIL:ops@example", "CN:worker-1",
    )  # fmt: skip
    assert certificate.not_after == END
    assert certificate_of_der(der) == certificate  # both ways of reading say the same


async def test_no_other_certificate_gets_through(place: Place) -> None:
    foreign = place.theirs.issue("worker-1")
    expired = place.ours.issue("worker-2", not_after=datetime(2021, 1, 1, tzinfo=UTC))
    settings = place.settings(client_authority=str(place.ours.file), needs_client_certificate=True)
    async with place.listener(make_server_context(settings)) as port:
        for client in (None, foreign, expired):
            with pytest.raises(REFUSED):
                await place.visit(port, client)
    assert place.seen == []


async def test_where_certificates_are_optional_a_bad_one_is_refused_all_the_same(place: Place) -> None:
    settings = place.settings(client_authority=str(place.ours.file))
    async with place.listener(make_server_context(settings)) as port:
        await place.visit(port)
        with pytest.raises(REFUSED):
            await place.visit(port, place.theirs.issue("worker-1"))
    assert [certificate_of(read) for read, _, _ in place.seen] == [None]
    assert certificate_of_der(place.seen[0][1]) is None


def test_what_is_no_certificate_is_none() -> None:
    assert certificate_of_der(b"") is None
    assert certificate_of_der(b"\x30\x03nonsense") is None


async def test_a_renewed_certificate_serves_the_next_connection(place: Place) -> None:
    manual = ManualClock()
    context = make_server_context(place.settings())
    renewal = Renewal(context, place.settings(), manual.attach(asyncio.get_running_loop()))
    renewal.start()
    async with place.listener(context) as port:
        first = await place.visit(port)
        place.ours.issue("localhost")
        assert await place.visit(port) == first
        manual.advance(timedelta(seconds=LOOK_SECONDS))

        async def until_new() -> str:
            while (found := await place.visit(port)) == first:
                manual.advance(timedelta(seconds=LOOK_SECONDS))
            return found

        second = await asyncio.wait_for(until_new(), DEADLINE_SECONDS)
        assert second != first
        assert not renewal.reload_if_changed()
    renewal.close()


async def test_a_pair_that_does_not_fit_is_not_taken(place: Place) -> None:
    clock = ManualClock().attach(asyncio.get_running_loop())
    context = make_server_context(place.settings())
    renewal = Renewal(context, place.settings(), clock)
    async with place.listener(context) as port:
        first = await place.visit(port)
        key = place.key.read_bytes()
        place.ours.issue("localhost")
        new_key = place.key.read_bytes()
        place.key.write_bytes(key)  # the certificate is new, the key is not yet
        assert not renewal.reload_if_changed()
        assert await place.visit(port) == first
        place.key.write_bytes(b"half a k")
        assert not renewal.reload_if_changed()
        os.unlink(place.key)
        assert not renewal.reload_if_changed()
        assert await place.visit(port) == first
        place.key.write_bytes(new_key)
        assert renewal.reload_if_changed()
        assert await place.visit(port) != first


async def test_settings_that_cannot_work_are_refused(place: Place, tmp_path: Path) -> None:
    _, other_key = place.ours.issue("other")
    locked = tmp_path / "locked.key"
    locked.write_bytes(
        ec.generate_private_key(ec.SECP256R1()).private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"password"),
        )
    )
    for changes in (
        {"key": str(other_key)},
        {"key": str(locked)},
        {"certificate": str(tmp_path / "missing")},
        {"client_authority": str(tmp_path / "missing")},
        {"client_authority": str(place.key)},
        {"needs_client_certificate": True},
    ):
        with pytest.raises(ValueError, match=r"expected|authority"):
            make_server_context(place.settings(**changes))
