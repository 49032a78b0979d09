"""A payload store on S3, or on a service with the same interface (MinIO, Ceph, R2, Garage, …).

Owns: `S3PayloadStore`: PUT and GET of objects, and which answers are tried again.
Never: buckets, lifecycle rules or access rights; make those with your own tools.

How it works: requests of the standard library's HTTP client, signed by ``_sigv4``, in threads. A connection serves one
request: payloads go there when they are large, so a new connection is a small part of the cost. Both requests may be
repeated without harm, and are, when the service does not answer or answers that it is busy.
"""

from __future__ import annotations

import asyncio
import http.client
import os
import ssl
from collections.abc import Callable
from datetime import timedelta
from typing import Final, NamedTuple, final
from urllib.parse import quote, urlsplit

from clew.adapters import wall_now
from clew.contrib._sigv4 import Credentials, sign
from clew.exceptions import ClewError

__all__ = ["Credentials", "PayloadStoreError", "S3PayloadStore", "credentials_from_environment"]

TRIES_MAX: Final = 4
_FIRST_WAIT_SECONDS: Final = 0.1
_PASSING_STATUSES: Final = frozenset({408, 429, 500, 502, 503, 504})
_ERROR_TEXT_CHARS: Final = 300


class PayloadStoreError(ClewError):
    """The store refused, or did not answer after several tries.

    Attributes:
        status: HTTP status of the last answer; None if there was none.
    """

    def __init__(self, message: str, *, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


def credentials_from_environment() -> Credentials:
    """Read ``AWS_ACCESS_KEY_ID``, ``AWS_SECRET_ACCESS_KEY`` and, if set, ``AWS_SESSION_TOKEN``.

    Raises:
        PayloadStoreError: One of the first two is not set.
    """
    access_key_id, secret = os.environ.get("AWS_ACCESS_KEY_ID"), os.environ.get("AWS_SECRET_ACCESS_KEY")
    if not access_key_id or not secret:
        raise PayloadStoreError(
            "There are no credentials for S3: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY are not both set. Set them, "
            "or pass S3PayloadStore(credentials=…)."
        )
    return Credentials(access_key_id, secret, os.environ.get("AWS_SESSION_TOKEN"))


class _Answer(NamedTuple):
    status: int
    body: bytes


@final
class S3PayloadStore:
    """Keeps payloads as objects of a bucket that exists.

    Args:
        bucket: Its name; addressed in the path, which every such service understands.
        region: As ``eu-central-1``.
        endpoint: URL of the service; that of AWS in `region` when not given.
        prefix: Put before each key, as ``clew/``.
        credentials: Asked for every request, so that temporary ones may change; by default the environment's.
        timeout: Longest silence of the service before a try is given up.

    Raises:
        ValueError: `endpoint` is no URL of a server.
    """

    def __init__(
        self,
        bucket: str,
        *,
        region: str,
        endpoint: str | None = None,
        prefix: str = "",
        credentials: Callable[[], Credentials] = credentials_from_environment,
        timeout: timedelta = timedelta(seconds=20),
    ) -> None:
        url = urlsplit(endpoint or f"https://s3.{region}.amazonaws.com")
        if url.scheme not in ("http", "https") or not url.hostname or url.path.strip("/") or url.query:
            raise ValueError(f"endpoint is {endpoint!r}; give scheme and host, as 'https://minio.example:9000'.")
        self._bucket = bucket
        self._region = region
        self._prefix = prefix
        self._credentials = credentials
        self._timeout_seconds = timeout.total_seconds()
        self._host = url.netloc.rpartition("@")[2]
        self._tls = ssl.create_default_context() if url.scheme == "https" else None

    async def put(self, key: str, data: bytes) -> None:
        """Store an object.

        Raises:
            PayloadStoreError: The service refused, or did not answer.
        """
        answer = await self._request("PUT", key, data)
        if answer.status not in (200, 201, 204):
            raise self._refused("PUT", key, answer)

    async def get(self, key: str) -> bytes:
        """Fetch an object.

        Raises:
            KeyError: There is none.
            PayloadStoreError: The service refused, or did not answer.
        """
        answer = await self._request("GET", key, b"")
        if answer.status == 404 and b"NoSuchBucket" not in answer.body:
            raise KeyError(key)
        if answer.status != 200:
            raise self._refused("GET", key, answer)
        return answer.body

    async def _request(self, method: str, key: str, body: bytes) -> _Answer:
        wait_seconds = _FIRST_WAIT_SECONDS
        for tries_left in reversed(range(TRIES_MAX)):
            try:
                answer = await asyncio.to_thread(self._exchange, method, key, body)
            except (OSError, http.client.HTTPException) as error:
                if not tries_left:
                    raise PayloadStoreError(
                        f"{method} of payload {key} at {self._host}, bucket {self._bucket!r}, got no answer in "
                        f"{TRIES_MAX} tries: {type(error).__name__}: {error}. Check that the service can be reached."
                    ) from error
            else:
                if answer.status not in _PASSING_STATUSES or not tries_left:
                    return answer
            await asyncio.sleep(wait_seconds)
            wait_seconds *= 3
        raise AssertionError("the last try answers or raises")

    def _exchange(self, method: str, key: str, body: bytes) -> _Answer:
        path = f"/{self._bucket}/{self._prefix}{key}"
        headers = sign(
            method,
            path,
            {"host": self._host},
            body,
            credentials=self._credentials(),
            region=self._region,
            now=wall_now(),
        )
        connection = self._connect()
        try:
            connection.request(method, quote(path, safe="/-_.~"), body=body or None, headers=headers)
            response = connection.getresponse()
            return _Answer(response.status, response.read())
        finally:
            connection.close()

    def _connect(self) -> http.client.HTTPConnection:
        if self._tls is None:
            return http.client.HTTPConnection(self._host, timeout=self._timeout_seconds)
        return http.client.HTTPSConnection(self._host, timeout=self._timeout_seconds, context=self._tls)

    def _refused(self, method: str, key: str, answer: _Answer) -> PayloadStoreError:
        text = answer.body[:_ERROR_TEXT_CHARS].decode(errors="replace")
        return PayloadStoreError(
            f"{method} of payload {key} at {self._host}, bucket {self._bucket!r}, was answered with status "
            f"{answer.status}: {text}. Check bucket, region, credentials and access rights.",
            status=answer.status,
        )
