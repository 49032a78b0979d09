"""The S3 store against a small server, and its signatures against the examples that AWS publishes."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from clew.adapters import wall_now
from clew.contrib import s3
from clew.contrib._sigv4 import sign
from clew.contrib.payload_store import PayloadStoreCodec
from clew.contrib.s3 import Credentials, PayloadStoreError, S3PayloadStore, credentials_from_environment
from clew.converter import Payload

EXAMPLE = Credentials("AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY")
KEY = "ab" * 32


def signature_of(headers: dict[str, str]) -> str:
    return headers["authorization"].rpartition("Signature=")[2]


def test_published_example_of_a_get() -> None:
    headers = {"Host": "examplebucket.s3.amazonaws.com", "Range": "bytes=0-9"}
    at = datetime(2013, 5, 24, tzinfo=UTC)
    signed = sign("GET", "/test.txt", headers, b"", credentials=EXAMPLE, region="us-east-1", now=at)
    assert signature_of(signed) == "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41"


def test_published_example_of_a_put() -> None:
    headers = {
        "Host": "examplebucket.s3.amazonaws.com",
        "Date": "Fri, 24 May 2013 00:00:00 GMT",
        "x-amz-storage-class": "REDUCED_REDUNDANCY",
    }
    at = datetime(2013, 5, 24, tzinfo=UTC)
    signed = sign(
        "PUT", "/test$file.text", headers, b"Welcome to Amazon S3.", credentials=EXAMPLE, region="us-east-1", now=at
    )
    assert signature_of(signed) == "98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd"


class FakeS3(ThreadingHTTPServer):
    """Keeps objects in memory; checks each signature; answers with `faults` first."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.objects: dict[str, bytes] = {}
        self.faults: list[int] = []
        self.requests_count = 0
        self.secret = EXAMPLE

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: FakeS3

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_PUT(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        if self._accepts(body):
            self.server.objects[self.path] = body
            self._answer(200)

    def do_GET(self) -> None:
        if self._accepts(b""):
            found = self.server.objects.get(self.path)
            self._answer(404 if found is None else 200, found or b"<Code>NoSuchKey</Code>")

    def _accepts(self, body: bytes) -> bool:
        self.server.requests_count += 1
        if self.server.faults:
            status = self.server.faults.pop(0)
            if not status:
                self.close_connection = True
                return False
            self._answer(status, b"<Code>SlowDown</Code>")
            return False
        if not self._is_signed(body):
            self._answer(403, b"<Code>SignatureDoesNotMatch</Code>")
            return False
        return True

    def _is_signed(self, body: bytes) -> bool:
        found = re.search(r"SignedHeaders=([^,]+),", self.headers["authorization"])
        assert found is not None
        names = [name for name in found[1].split(";") if name not in ("x-amz-content-sha256", "x-amz-date")]
        now = datetime.strptime(self.headers["x-amz-date"], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
        assert abs(now - wall_now()) < timedelta(minutes=15)
        expected = sign(
            self.command,
            self.path,
            {name: self.headers[name] for name in names},
            body,
            credentials=Credentials(self.server.secret.access_key_id, self.server.secret.secret_access_key),
            region="eu-central-1",
            now=now,
        )
        return expected["authorization"] == self.headers["authorization"]

    def _answer(self, status: int, body: bytes = b"") -> None:
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture
def server() -> Iterator[FakeS3]:
    fake = FakeS3()
    thread = threading.Thread(target=fake.serve_forever, args=(0.01,))
    thread.start()
    yield fake
    fake.shutdown()
    thread.join()
    fake.server_close()


@pytest.fixture(autouse=True)
def no_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(s3, "_FIRST_WAIT_SECONDS", 0.001)


def store(server: FakeS3, credentials: Credentials = EXAMPLE) -> S3PayloadStore:
    return S3PayloadStore(
        "claims", region="eu-central-1", endpoint=server.url, prefix="clew/", credentials=lambda: credentials
    )


async def test_large_payloads_go_to_s3_and_come_back(server: FakeS3) -> None:
    codec = PayloadStoreCodec(store(server), threshold_bytes=10)
    payload = Payload({"encoding": b"binary/plain"}, b"p" * 100_000)
    [check] = await codec.encode([payload])
    [path] = server.objects
    assert path.startswith("/claims/clew/")
    assert await codec.decode([check]) == [payload]


async def test_temporary_credentials_are_sent_and_signed(server: FakeS3) -> None:
    temporary = Credentials(EXAMPLE.access_key_id, EXAMPLE.secret_access_key, session_token="token/1=")
    await store(server, temporary).put(KEY, b"x")
    assert await store(server, temporary).get(KEY) == b"x"


@pytest.mark.parametrize("faults", [[503], [0], [500, 0, 429]])
async def test_passing_faults_are_met_by_another_try(server: FakeS3, faults: list[int]) -> None:
    server.faults = list(faults)
    await store(server).put(KEY, b"x")
    server.faults = list(faults)
    assert await store(server).get(KEY) == b"x"


async def test_faults_that_stay_are_told(server: FakeS3) -> None:
    server.faults = [503] * 10
    with pytest.raises(PayloadStoreError, match=r"PUT of payload abab.*status 503.*SlowDown") as caught:
        await store(server).put(KEY, b"x")
    assert caught.value.status == 503
    assert server.requests_count == s3.TRIES_MAX


async def test_no_answer_is_told(server: FakeS3) -> None:
    server.faults = [0] * 10
    with pytest.raises(PayloadStoreError, match=r"got no answer in 4 tries.*Check that the service can be reached"):
        await store(server).get(KEY)


async def test_a_refusal_is_told_at_once(server: FakeS3) -> None:
    wrong = Credentials(EXAMPLE.access_key_id, "wrong")
    with pytest.raises(PayloadStoreError, match=r"status 403.*SignatureDoesNotMatch.*Check bucket, region"):
        await store(server, wrong).get(KEY)
    assert server.requests_count == 1


async def test_a_missing_object_is_a_key_error(server: FakeS3) -> None:
    with pytest.raises(KeyError, match=KEY):
        await store(server).get(KEY)


@pytest.mark.parametrize("endpoint", ["minio:9000", "ftp://minio", "https://minio/path", "https://"])
def test_a_wrong_endpoint_is_refused(endpoint: str) -> None:
    with pytest.raises(ValueError, match="give scheme and host"):
        S3PayloadStore("claims", region="eu-central-1", endpoint=endpoint)


def test_credentials_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "id")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "token")
    found = credentials_from_environment()
    assert found == Credentials("id", "secret", "token")
    assert "secret" not in repr(found)
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    with pytest.raises(PayloadStoreError, match="no credentials for S3"):
        credentials_from_environment()
