"""C100: no page on another site drives this server (see cases); and where it may listen."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from clew.server.security.exposure import check_exposure, is_loopback
from clew.server.security.origins import HostAndOriginMiddleware, hosts_for

JSON = ("content-type", "application/json")


async def ask(
    method: str = "GET",
    *headers: tuple[str, str],
    host: str | None = "localhost:7233",
    scheme: str = "http",
    kind: str = "http",
    listen: str = "127.0.0.1",
    extensions: dict[str, Any] | None = None,
    **allowed: Any,
) -> tuple[int, Any]:
    """Status and body; 200 when the application behind was reached."""
    sent: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        sent.append({"status": 200})

    async def receive() -> Any:
        return {"type": "websocket.connect"}

    async def send(message: Any) -> None:
        sent.append(message)

    raw = [(name.encode(), value.encode("latin-1")) for name, value in headers]
    if host is not None:
        raw.append((b"host", host.encode("latin-1")))
    scope: dict[str, Any] = {"type": kind, "headers": raw, "scheme": scheme, "path": "/", "extensions": extensions}
    if kind == "http":
        scope["method"] = method
    guard = HostAndOriginMiddleware(app, hosts=hosts_for(listen, **allowed), origins=("https://ops.example",))
    await asyncio.wait_for(guard(scope, receive, send), 5)
    return sent[0].get("status", sent[0].get("code")), sent[-1].get("body")


@pytest.mark.parametrize("host", ["localhost", "localhost:7233", "127.0.0.1:7233", "[::1]:7233", "LOCALHOST:1"])
async def test_the_servers_own_names_are_known(host: str) -> None:
    assert (await ask(host=host))[0] == 200


@pytest.mark.parametrize(
    "host",
    [None, "", "evil.example", "evil.example:7233", "localhost.evil.example", "127.0.0.1.evil.example", "10.0.0.1",
     "localhost@evil.example", "[::2]", "[::1", "localhost:7233:1", "x" * 5000, "é"],
)  # fmt: skip
async def test_a_page_that_renamed_itself_to_this_machine_is_refused(host: str | None) -> None:
    status, body = await ask(host=host)
    assert status == 421
    problem = json.loads(body)
    assert (problem["status"], problem["code"]) == (421, "unknown_host")
    assert len(body) < 1_000


async def test_names_can_be_added() -> None:
    assert (await ask(host="clew.example", listen="0.0.0.0"))[0] == 421
    assert (await ask(host="clew.example", listen="0.0.0.0", extra=["Clew.Example"]))[0] == 200
    assert (await ask(host="clew.example:8443", public_url="https://clew.example:8443/"))[0] == 200
    assert (await ask(host="anything", extra=["*"]))[0] == 200
    assert (await ask(host="10.0.0.5:7233", listen="10.0.0.5"))[0] == 200
    assert (await ask(host="[fd00::5]:7233", listen="fd00::5"))[0] == 200


FOREIGN = ["https://evil.example", "http://localhost:3000", "null", "http://localhost", "http://127.0.0.1:7233",
           "http://localhost:7233.evil.example", "http://localhost:7233@evil.example", "http://x@localhost:7233",
           "chrome-extension://abc", "file://", "http://localhost:7233/x", "http://localhost:99999999", ""]  # fmt: skip


@pytest.mark.parametrize("origin", FOREIGN)
@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"])
async def test_a_page_of_another_origin_is_refused(origin: str, method: str) -> None:
    status, body = await ask(method, ("origin", origin), JSON, ("authorization", "Bearer clew_x"))
    assert status == 403
    assert json.loads(body)["code"] == "foreign_origin"


@pytest.mark.parametrize("origin", FOREIGN)
async def test_so_is_a_websocket_from_there(origin: str) -> None:
    assert await ask("", ("origin", origin), kind="websocket", scheme="ws") == (1008, None)
    status, body = await ask(
        "", ("origin", origin), kind="websocket", scheme="ws", extensions={"websocket.http.response": {}}
    )
    assert status == 403
    assert b"may not call" in body


async def test_its_own_pages_and_allowed_ones_are_served() -> None:
    for method in ("GET", "POST", "DELETE"):
        assert (await ask(method, ("origin", "http://localhost:7233"), JSON))[0] == 200
        assert (await ask(method, ("origin", "https://ops.example"), JSON))[0] == 200
    form = ("content-type", "application/x-www-form-urlencoded")
    assert (await ask("POST", ("origin", "http://localhost:7233"), form))[0] == 200  # a form of the web view
    assert (await ask("", ("origin", "http://localhost:7233"), kind="websocket", scheme="ws"))[0] == 200
    # Behind a proxy that ends TLS, and with TLS of our own.
    assert (await ask("POST", ("origin", "https://localhost"), JSON, host="localhost"))[0] == 200
    assert (await ask("POST", ("origin", "https://localhost"), JSON, host="localhost", scheme="https"))[0] == 200
    assert (await ask("POST", ("origin", "http://localhost"), JSON, host="localhost", scheme="https"))[0] == 403


@pytest.mark.parametrize(
    "kind", ["text/plain", "text/plain; charset=utf-8", "application/x-www-form-urlencoded", "Multipart/Form-Data", ""]
)
async def test_what_any_page_can_send_unasked_changes_nothing(kind: str) -> None:
    headers = [("content-type", kind)] if kind else []
    assert (await ask("POST", *headers))[0] == 415
    assert (await ask("POST", *headers, ("authorization", "Basic Y2xldzp4")))[0] == 415  # a browser adds it by itself
    assert (await ask("POST", *headers, ("authorization", "Bearer clew_x")))[0] == 200
    assert (await ask("POST", JSON))[0] == 200
    assert (await ask("GET", *headers))[0] == 200


async def test_what_a_browser_says_to_come_from_another_site_is_refused_unless_it_is_a_visit() -> None:
    cross = ("sec-fetch-site", "cross-site")
    assert (await ask("POST", cross, JSON))[0] == 403
    assert (await ask("GET", cross, ("sec-fetch-mode", "no-cors")))[0] == 403
    assert (await ask("GET", cross, ("sec-fetch-mode", "navigate")))[0] == 200
    assert (await ask("POST", cross, ("sec-fetch-mode", "navigate"), JSON))[0] == 403
    assert (await ask("GET", ("sec-fetch-site", "same-origin")))[0] == 200


async def test_two_hosts_or_origins_are_refused() -> None:
    assert (await ask("GET", ("host", "evil.example")))[0] == 400
    twice = [("origin", "http://localhost:7233"), ("origin", "https://evil.example")]
    assert (await ask("POST", *twice, JSON))[0] == 400


async def test_there_is_no_permission_to_share_across_origins() -> None:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        raise AssertionError("a preflight of a foreign page got through")

    headers = [(b"host", b"localhost"), (b"origin", b"https://evil.example"),
               (b"access-control-request-method", b"POST")]  # fmt: skip
    scope = {"type": "http", "method": "OPTIONS", "headers": headers, "scheme": "http", "path": "/"}
    await HostAndOriginMiddleware(app, hosts=hosts_for("127.0.0.1"))(scope, None, send)  # type: ignore[arg-type]
    assert not [name for name, _ in sent[0]["headers"] if name.startswith(b"access-control")]


# --- where it may listen -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "[::1]", "localhost", "LOCALHOST."])
def test_loopback(host: str) -> None:
    assert is_loopback(host)
    assert check_exposure(host, has_authentication=False, has_tls=False, is_allowed=False) == []


@pytest.mark.parametrize("host", ["", "0.0.0.0", "::", "10.0.0.1", "192.168.1.5", "fe80::1%eth0", "clew.example",
                                  "127.0.0.1.example", "localhost.example", "1270.0.1"])  # fmt: skip
def test_everything_else_is_public(host: str) -> None:
    assert not is_loopback(host)
    with pytest.raises(ValueError, match="let each of them do everything"):
        check_exposure(host, has_authentication=False, has_tls=True, is_allowed=False)
    assert "no authentication" in check_exposure(host, has_authentication=False, has_tls=True, is_allowed=True)[0]
    assert "no TLS" in check_exposure(host, has_authentication=True, has_tls=False, is_allowed=False)[0]
    assert check_exposure(host, has_authentication=True, has_tls=True, is_allowed=False) == []
