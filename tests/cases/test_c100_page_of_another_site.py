"""C100: a page of another site drives the local server, here against the whole application as `clew dev` runs it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette

from clew.adapters import SystemClock, SystemEntropy
from clew.engine import Engine
from clew.server.app import create_app
from clew.server.front import Front
from clew.server.settings import ServerSettings
from clew.storage.sqlite import open_store

SECONDS_MAX = 20.0
RUNS = "/api/v1/namespaces/default/workflows"
START = {"workflow_id": "w1", "workflow_type": "W", "task_queue": "q"}


@pytest.fixture
async def site() -> AsyncIterator[Starlette]:
    """The application with the settings of a server on loopback without keys."""
    clock = SystemClock(asyncio.get_running_loop())
    engine = Engine(await open_store("sqlite::memory:"), clock=clock, entropy=SystemEntropy())
    await engine.start()
    settings = ServerSettings()
    front = await Front.open(settings, engine, engine)
    yield create_app(front.public, settings=settings, gate=front.gate, middleware=front.middleware)
    await front.close()
    await engine.stop()


async def ask(site: Starlette, method: str, path: str, *, host: str = "localhost:7233", **options: Any) -> int:
    transport = httpx.ASGITransport(app=site)
    async with httpx.AsyncClient(transport=transport, base_url=f"http://{host}") as client:
        answer = await asyncio.wait_for(client.request(method, path, **options), SECONDS_MAX)
    assert not [name for name in answer.headers if name.startswith("access-control")]
    return answer.status_code


async def runs_count(site: Starlette) -> int:
    transport = httpx.ASGITransport(app=site)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost:7233") as client:
        return len((await client.get(RUNS)).json().get("executions", []))


async def test_foreign_pages_start_nothing(site: Starlette) -> None:
    for headers in (
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"origin": "http://localhost:3000"},
        {"sec-fetch-site": "cross-site"},
    ):
        assert await ask(site, "POST", RUNS, json=START, headers=headers) == 403
    text = {"content-type": "text/plain"}
    assert await ask(site, "POST", RUNS, content=httpx.Response(200, json=START).content, headers=text) == 415
    assert await ask(site, "POST", RUNS, data=START) == 415
    for host in ("evil.example", "evil.example:7233", "127.0.0.1.evil.example"):
        assert await ask(site, "POST", RUNS, json=START, host=host) == 421
        assert await ask(site, "GET", RUNS, host=host) == 421
    preflight = {"origin": "https://evil.example", "access-control-request-method": "POST"}
    assert await ask(site, "OPTIONS", RUNS, headers=preflight) == 403
    assert await runs_count(site) == 0


async def test_its_own_page_and_programs_do(site: Starlette) -> None:
    own = {"origin": "http://localhost:7233"}
    assert await ask(site, "POST", RUNS, json=START, headers=own) < 300
    assert await ask(site, "POST", RUNS, json={**START, "workflow_id": "w2"}, host="127.0.0.1:7233") < 300
    assert await runs_count(site) == 2


async def test_looking_changes_nothing(site: Starlette) -> None:
    await ask(site, "POST", RUNS, json=START)
    for path in (f"{RUNS}/w1/terminate", f"{RUNS}/w1/cancel", f"{RUNS}/w1/signals/s", RUNS):
        assert await ask(site, "GET", path) in (200, 404, 405)
    assert await runs_count(site) == 1
