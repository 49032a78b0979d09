"""AWS Signature Version 4 for one request with its whole body at hand.

Owns: the canonical request and its signature, as AWS documents them under "Signature Version 4 for API requests".
Never: sends anything, reads a clock or the environment.

How it works: small and pure, so that a store of a few requests does not need the AWS SDK (some 80 MB, synchronous); the
examples that AWS publishes for S3 are its test vectors.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from urllib.parse import quote


@dataclass(frozen=True)
class Credentials:
    """Who asks.

    Args:
        access_key_id: Public part.
        secret_access_key: Secret part.
        session_token: For temporary credentials; None for others.
    """

    access_key_id: str
    secret_access_key: str = field(repr=False)
    session_token: str | None = field(default=None, repr=False)


def sign(
    method: str,
    path: str,
    headers: Mapping[str, str],
    body: bytes,
    *,
    credentials: Credentials,
    region: str,
    now: datetime,
    service: str = "s3",
) -> dict[str, str]:
    """Give the headers of a request, signed.

    Args:
        method: ``GET`` or another.
        path: Not yet quoted, with a leading slash, without a query.
        headers: What else is to be sent and signed; ``host`` has to be among them.
        body: All of it.
        credentials: Who asks.
        region: As ``eu-central-1``.
        now: The present, aware UTC.
        service: Short name of the service.
    """
    digest = hashlib.sha256(body).hexdigest()
    stamp = now.strftime("%Y%m%dT%H%M%SZ")
    sent = {name.lower(): value.strip() for name, value in headers.items()}
    sent |= {"x-amz-content-sha256": digest, "x-amz-date": stamp}
    if credentials.session_token is not None:
        sent["x-amz-security-token"] = credentials.session_token
    names = sorted(sent)
    signed = ";".join(names)
    lines = [method, quote(path, safe="/-_.~"), "", *(f"{name}:{sent[name]}" for name in names), "", signed, digest]
    scope = f"{stamp[:8]}/{region}/{service}/aws4_request"
    request_digest = hashlib.sha256("\n".join(lines).encode()).hexdigest()
    text = f"AWS4-HMAC-SHA256\n{stamp}\n{scope}\n{request_digest}"
    key = f"AWS4{credentials.secret_access_key}".encode()
    for part in (stamp[:8], region, service, "aws4_request"):
        key = hmac.digest(key, part.encode(), "sha256")
    signature = hmac.digest(key, text.encode(), "sha256").hex()
    sent["authorization"] = (
        f"AWS4-HMAC-SHA256 Credential={credentials.access_key_id}/{scope},SignedHeaders={signed},Signature={signature}"
    )
    return sent
