"""Idempotency keys on every changing request of an ``httpx`` client (extra ``httpx``).

::

    client = httpx.AsyncClient(auth=IdempotencyAuth())

Owns: the auth and the two hooks. Never: the key (``_headers`` has it).

How it works: within an activity, a request that may change something and has no key yet gets the current one. Outside
of activities, requests are left alone, so one client may serve both.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Final, final

from clew import activity
from clew.contrib.idempotency._headers import IDEMPOTENCY_KEY_HEADER, current_idempotency_key

try:
    import httpx
except ImportError as missing:
    raise ImportError(
        "clew.contrib.idempotency.httpx needs the package 'httpx'. Install it with: pip install 'clew[httpx]'"
    ) from missing

CHANGING_METHODS: Final = frozenset({"POST", "PUT", "PATCH", "DELETE"})


def add_idempotency_key(request: httpx.Request) -> None:
    """Hook for `httpx.Client`: ``event_hooks={"request": [add_idempotency_key]}``."""
    if request.method in CHANGING_METHODS and IDEMPOTENCY_KEY_HEADER not in request.headers and activity.in_activity():
        request.headers[IDEMPOTENCY_KEY_HEADER] = current_idempotency_key()


async def add_idempotency_key_async(request: httpx.Request) -> None:
    """Hook for `httpx.AsyncClient`: ``event_hooks={"request": [add_idempotency_key_async]}``."""
    add_idempotency_key(request)


@final
class IdempotencyAuth(httpx.Auth):
    """Adds the key; for both kinds of client, alone or around another auth.

    Args:
        inner: The auth by which the request is authenticated; None for none.
    """

    def __init__(self, inner: httpx.Auth | None = None) -> None:
        self._inner = inner
        if inner is not None:
            self.requires_request_body = inner.requires_request_body
            self.requires_response_body = inner.requires_response_body

    def auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response, None]:
        """Add the key, then do as the inner auth does."""
        add_idempotency_key(request)
        if self._inner is None:
            yield request
        else:
            yield from self._inner.auth_flow(request)
