"""`clew server health`: what a container's check sees of a node, over plain HTTP, TLS, and TLS with certificates."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from clew.cli import main
from clew.server.health import why_not_alive
from clew.server.security.tls import make_server_context
from clew.server.settings import ServerSettings, load_settings
from tests.server.security.test_tls import Place

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nok\n"
STOPPING = b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 9\r\n\r\nstopping\n"


@asynccontextmanager
async def answering(answer: bytes, settings: ServerSettings) -> AsyncIterator[ServerSettings]:
    """A port that answers so; what it speaks is by the settings, which come back with the port."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(answer)
            await writer.drain()
        except (OSError, ssl.SSLError, asyncio.IncompleteReadError):
            """It has seen enough."""
        writer.close()

    tls = make_server_context(settings.tls) if settings.tls is not None else None
    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls)
    try:
        yield msgspec.structs.replace(settings, port=server.sockets[0].getsockname()[1])
    finally:
        server.close()


async def test_a_node_that_answers_lives() -> None:
    async with answering(OK, ServerSettings(host="0.0.0.0")) as settings:
        assert await asyncio.to_thread(why_not_alive, settings, seconds=60) == ""


async def test_one_that_is_not_ready_says_why() -> None:
    async with answering(STOPPING, ServerSettings()) as settings:
        why_not = await asyncio.to_thread(why_not_alive, settings, path="/readyz", seconds=60)
    assert why_not == f"127.0.0.1:{settings.port} answers 503: stopping"


async def test_nobody_there_is_not_alive() -> None:
    async with answering(OK, ServerSettings()) as settings:
        pass
    assert "does not answer" in await asyncio.to_thread(why_not_alive, settings)


@pytest.mark.parametrize("needs_client_certificate", [False, True])
async def test_a_node_that_speaks_tls_is_asked_over_tls(tmp_path: Path, needs_client_certificate: bool) -> None:
    place = Place(tmp_path)
    authority = {"client_authority": str(place.ours.file)} if needs_client_certificate else {}
    tls = place.settings(needs_client_certificate=needs_client_certificate, **authority)
    settings = ServerSettings(tls=tls)
    async with answering(OK, settings) as asked:
        assert await asyncio.to_thread(why_not_alive, asked, seconds=60) == ""


async def test_the_command_finds_the_node_by_the_servers_settings(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async with answering(OK, ServerSettings()) as settings:
        monkeypatch.setenv("CLEW_SERVER_PORT", str(settings.port))
        assert load_settings(environment={"CLEW_SERVER_PORT": str(settings.port)}).port == settings.port
        assert await asyncio.to_thread(main, ["server", "health"]) == 0
        assert capsys.readouterr().out == "ok\n"
    assert await asyncio.to_thread(main, ["server", "health"]) == 9
    assert "does not answer" in capsys.readouterr().err
