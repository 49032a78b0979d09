"""A server in the test's own loop: the engine on a store in memory, the application, and an HTTP client of it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette

from clew.server.app import create_app
from tests.conformance.service.scripted import Shop

API = "/api/v1/namespaces/default"


class Served(Shop):
    """An engine with the application before it."""

    app: Starlette
    http: httpx.AsyncClient

    async def serve(self, **options: Any) -> None:
        """Make the application, and a client of it."""
        self.app = create_app(self.service, **options)
        transport = httpx.ASGITransport(app=self.app, raise_app_exceptions=False)
        self.http = httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:7233")


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    """An engine in memory with the application before it."""
    shop = Served(":memory:")
    await shop.open()
    await shop.serve()
    yield shop
    await shop.http.aclose()
    await shop.close()
