"""JSON over HTTP with the standard library, and which errors are worth another attempt."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any

from clew.exceptions import ApplicationError


def post_json(url: str, body: Any, *, headers: Mapping[str, str] | None = None, timeout: float) -> Any:
    """POST `body` and give the decoded answer.

    Args:
        timeout: Seconds of silence after which the attempt is given up.

    Raises:
        ApplicationError: The server says that the request itself is wrong (4xx): trying again is of no use.
        Exception: Anything else that can go wrong on the way, mostly an OSError: worth another attempt.
    """
    request = urllib.request.Request(
        url, json.dumps(body).encode(), {"Content-Type": "application/json", **(headers or {})}, method="POST"
    )
    try:
        with urllib.request.urlopen(request, timeout=timeout) as response:
            return json.load(response)
    except urllib.error.HTTPError as error:
        with error:
            text = error.read(500).decode(errors="replace")
        if 400 <= error.code < 500:
            message = f"{url}: {error.code} {text}"
            raise ApplicationError(message, type=f"Http{error.code}", non_retryable=True) from None
        raise OSError(f"{url}: {error.code} {text}") from None
