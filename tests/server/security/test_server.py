"""The whole server with authentication: real processes, keys from the command line, HTTP and link through one port."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import click
import httpx
import msgspec
import pytest

from clew import activity, workflow
from clew.cli._durations import Duration
from clew.client import Client
from clew.ports.audit import AuditRecord
from clew.server.front import check_security
from clew.server.settings import ServerSettings, SettingsError, load_settings
from clew.service.errors import RPCError
from clew.service.tls import TLSConfig
from clew.worker import Worker
from tests.server.security.test_tls import Place

SECONDS_MAX = 60.0
QUEUE = "secure"
ENVIRONMENT = {**os.environ, "PYTHONPATH": "src"}


def clew(*args: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "clew.cli", *args],
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        env={**ENVIRONMENT, **environment},
        check=False,
    )


@contextmanager
def server(*args: str) -> Iterator[str]:
    """A server in a process of its own; gives its URL."""
    process = subprocess.Popen(
        [sys.executable, "-m", "clew.cli", "server", "start", "--port", "0", *args],
        stderr=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT,
    )
    assert process.stderr is not None
    try:
        lines: list[str] = []
        for line in process.stderr:
            lines.append(line)
            if "Clew answers at " in line:
                break
        else:
            pytest.fail("".join(lines))
        yield lines[-1].rpartition(" ")[2].strip()
    finally:
        process.terminate()
        try:
            process.wait(SECONDS_MAX)
        finally:
            process.kill()
            process.stderr.close()


def key_for(store: str, *grants: str) -> str:
    made = clew("key", "create", "test", "--store", store, *[part for grant in grants for part in ("-g", grant)])
    assert made.returncode == 0, made.stderr
    assert "not shown again" in made.stderr
    return made.stdout.strip()


@activity.defn
async def greet(name: str) -> str:
    return f"Hello, {name}"


@workflow.defn
class Greets:
    @workflow.run
    async def run(self, name: str) -> str:
        return await workflow.execute_activity(greet, name, start_to_close_timeout=timedelta(seconds=10))


@pytest.mark.e2e
async def test_a_server_with_keys_from_the_first_one_to_the_audit_log(tmp_path: Path) -> None:
    store, audit, config = f"sqlite:{tmp_path / 'store.db'}", tmp_path / "audit.jsonl", tmp_path / "clew.toml"
    config.write_text(f'api_keys = true\n\n[audit]\npath = "{audit}"\n')
    admin = await asyncio.to_thread(key_for, store, "*:admin")
    with server("--store", store, "--config", str(config)) as url:
        address = url.removeprefix("http://")
        reader = await asyncio.to_thread(key_for, store, "default:reader")  # beside the running server, by its socket
        made = await asyncio.to_thread(
            clew, "key", "create", "app", "-g", "default:client", "-g", "default:worker", "--address", address,
            "--no-tls", "--output", "json", CLEW_API_KEY=admin,
        )  # fmt: skip
        assert made.returncode == 0, made.stderr
        app = json.loads(made.stdout)
        async with (
            await Client.connect(address, api_key=app["key"], tls=False) as client,
            Worker(client, task_queue=QUEUE, workflows=[Greets], activities=[greet]),
        ):
            running = client.execute_workflow(Greets.run, "Ada", id="w1", task_queue=QUEUE)
            assert await asyncio.wait_for(running, SECONDS_MAX) == "Hello, Ada"
        async with httpx.AsyncClient(base_url=url, timeout=SECONDS_MAX) as http:
            path = "/api/v1/namespaces/default/workflows/w1"

            async def status(method: str, path: str, key: str = "", **options: Any) -> httpx.Response:
                headers = {**({"authorization": f"Bearer {key}"} if key else {}), **options.pop("headers", {})}
                return await http.request(method, path, headers=headers, **options)

            anonymous = await status("GET", path)
            assert anonymous.status_code == 401
            assert anonymous.headers["www-authenticate"].startswith("Bearer")
            assert anonymous.json()["code"] == "unauthenticated"
            seen = await status("GET", path, reader)
            assert seen.status_code == 200
            assert "Ada" not in seen.text
            history = await status("GET", f"{path}/history", reader)
            assert (history.status_code, "Ada" in history.text) == (200, False)
            full = await status("GET", f"{path}/history", app["key"])
            assert (full.status_code, "Ada" in full.text) == (200, True)
            started = await status("POST", "/api/v1/namespaces/default/workflows", reader, json={
                "workflow_id": "w2", "workflow_type": "Greets", "task_queue": QUEUE,
            })  # fmt: skip
            assert (started.status_code, started.json()["code"]) == (403, "permission_denied")
            foreign = await status("GET", path, app["key"], headers={"origin": "https://evil.example"})
            assert (foreign.status_code, foreign.json()["code"]) == (403, "foreign_origin")
            page = await status("GET", "/ui/default/workflows")
            assert page.status_code in (401, 404)
            assert (await status("GET", "/healthz")).status_code == 200
        with pytest.raises(RPCError):
            await Client.connect(address, tls=False)
        revoked = await asyncio.to_thread(
            clew, "key", "revoke", app["key_id"], "--address", address, "--no-tls", CLEW_API_KEY=admin
        )
        assert revoked.returncode == 0, revoked.stderr
        listed = await asyncio.to_thread(
            clew, "key", "list", "--all", "--address", address, "--no-tls", CLEW_API_KEY=admin
        )
        assert f"{app['key_id']}" in listed.stdout
        assert "revoked" in listed.stdout
        refused = await asyncio.to_thread(clew, "key", "list", "--address", address, "--no-tls", CLEW_API_KEY=reader)
        assert refused.returncode == 3
        assert "permission admin" in refused.stderr
    records = [msgspec.json.decode(line, type=AuditRecord) for line in audit.read_bytes().splitlines()]
    calls = {(record.call, record.outcome) for record in records}
    assert {("start_workflow", "ok"), ("revoke_api_key", "ok"), ("start_workflow", "permission_denied")} <= calls
    text = audit.read_text() + listed.stdout + listed.stderr
    for secret in (admin, reader, app["key"]):
        assert secret.split("_", 2)[2] not in text


@pytest.mark.e2e
async def test_a_server_with_tls_and_client_certificates(tmp_path: Path) -> None:
    place = Place(tmp_path)
    worker = place.ours.issue("worker-1")
    config = tmp_path / "clew.toml"
    config.write_text(
        f'[tls]\ncertificate = "{place.certificate}"\nkey = "{place.key}"\nclient_authority = "{place.ours.file}"\n'
        '[certificates]\n"CN:worker-1" = ["default:client"]\n"DNS:worker-1" = ["default:client"]\n'
    )
    with server("--store", f"sqlite:{tmp_path / 'store.db'}", "--config", str(config)) as url:
        assert url.startswith("https://")
        tls = TLSConfig(
            server_root_ca_cert=place.ours.file.read_bytes(),
            domain="localhost",
            client_cert=worker[0].read_bytes(),
            client_private_key=worker[1].read_bytes(),
        )
        async with await Client.connect(url.removeprefix("https://"), tls=tls) as client:
            assert [run async for run in client.list_workflows()] == []
        port = url.rpartition(":")[2]
        context = tls.to_context()
        async with httpx.AsyncClient(verify=context, timeout=SECONDS_MAX) as http:
            answer = await http.get(f"https://localhost:{port}/api/v1/namespaces/default/workflows")
            assert answer.status_code == 200
        anonymous = TLSConfig(server_root_ca_cert=place.ours.file.read_bytes()).to_context()
        async with httpx.AsyncClient(verify=anonymous, timeout=SECONDS_MAX) as http:
            answer = await http.get(f"https://localhost:{port}/api/v1/namespaces/default/workflows")
            assert answer.status_code == 401


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1"])
def test_a_public_address_needs_authentication(host: str) -> None:
    with pytest.raises(SettingsError, match="let each of them do everything"):
        check_security(ServerSettings(host=host))
    assert len(check_security(ServerSettings(host=host, allow_public_without_auth=True))) == 1
    assert len(check_security(ServerSettings(host=host, api_keys=True))) == 1
    assert check_security(ServerSettings()) == []


def test_settings_of_security_come_from_file_and_environment(tmp_path: Path) -> None:
    file = tmp_path / "clew.toml"
    file.write_text(
        'api_keys = true\nallowed_hosts = ["clew.example"]\n[[tokens]]\nissuer = "https://id.example"\n'
        'audience = ["clew"]\n[tokens.grants]\noncall = ["*:operator"]\n[rate_limit]\ncalls_per_second = 100\n'
    )
    found = load_settings(file=file, environment={"CLEW_SERVER_AUDIT": '{"path": "/var/log/clew.jsonl"}'})
    assert found.security.has_authentication
    assert found.tokens[0].grants == {"oncall": ("*:operator",)}
    assert found.audit is not None
    assert found.rate_limit is not None
    assert (found.audit.path, found.rate_limit.calls_per_second) == ("/var/log/clew.jsonl", 100)
    with pytest.raises(SettingsError, match="audit"):
        load_settings(environment={"CLEW_SERVER_AUDIT": "/var/log/clew.jsonl"})
    file.write_text("[tls]\ncertificat = 'x'\n")
    with pytest.raises(SettingsError, match="tls"):
        load_settings(file=file)
    with pytest.raises(SettingsError, match="client_authority"):
        check_security(ServerSettings(certificates={"CN:a": ("*:reader",)}))


@pytest.mark.parametrize("text", ["", "90", "d", "1w", "-1d", "1d1d", "1h1d", "9999999999d"])
def test_a_duration_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter):
        Duration().convert(text, None, None)


def test_a_duration_is_read() -> None:
    assert Duration().convert("1d12h", None, None) == timedelta(days=1, hours=12)
    assert Duration().convert("90s", None, None) == timedelta(seconds=90)
