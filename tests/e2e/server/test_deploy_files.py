"""What `deploy/` says is what runs: its container and compose files are read, and their very commands started.

There is no container runtime here. A container is a process with the environment that both files give it and the
command of the container file; a name of the compose file's network becomes a port of this machine.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from clew.client import Client
from clew.worker import Worker
from tests.e2e.server.doubling import Doubling, double
from tests.e2e.server.processes import SOURCES, Process, free_port, start_doubling, until
from tests.postgres.databases import execute, server_dsn

pytestmark = pytest.mark.e2e

ROOT = Path(__file__).parents[3]
COMPOSE: dict[str, Any] = importlib.import_module("yaml").safe_load((ROOT / "deploy/compose.yml").read_text("utf-8"))
NODES = {name: service for name, service in COMPOSE["services"].items() if name != "postgres"}
RUNS = 12
DEADLINE_SECONDS = 90.0


def instructions() -> dict[str, list[str]]:
    """The instructions of the container file's last stage, by name."""
    text = (ROOT / "deploy/Containerfile").read_text("utf-8").replace("\\\n", "")
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        if line and not line.startswith("#"):
            name, _, rest = line.partition(" ")
            found = {} if name == "FROM" else found
            found.setdefault(name, []).append(rest)
    return found


def image_environment() -> dict[str, str]:
    """What the image sets, but for the path to its programs."""
    pairs = [pair.split("=", 1) for rest in instructions()["ENV"] for pair in shlex.split(rest)]
    return {name: value for name, value in pairs if name != "PATH"}


def clew_command(words: list[str]) -> list[str]:
    """A command of a file, without the program, which is that of this environment."""
    assert words[0] == "clew", "both files start nothing else"
    return words[1:]


class Container:
    """One node of the compose file."""

    def __init__(self, folder: Path, service: dict[str, Any], port: int, database: str) -> None:
        self.folder = folder
        self.service = service
        self.port = port
        own: dict[str, str] = service["environment"]
        network = {
            # A container has its own port 7233; processes of one machine need one each.
            "CLEW_SERVER_PORT": str(port),
            "CLEW_SERVER_STORE": own["CLEW_SERVER_STORE"].replace("@postgres:5432/clew", database),
        }
        self.environment = {**image_environment(), **own, **network}
        self.process = self._start()

    def _start(self) -> Process:
        (entry,), (command,) = instructions()["ENTRYPOINT"], instructions()["CMD"]
        return Process(self.folder, *clew_command([*json.loads(entry), *json.loads(command)]), **self.environment)

    def kill(self) -> None:
        self.process.kill()

    def restart(self) -> None:
        assert self.service["restart"] == "unless-stopped"
        self.process = self._start()

    def check_health(self, words: list[str]) -> int:
        command = [sys.executable, "-m", "clew.cli", *clew_command(words)]
        environment = {**os.environ, "PYTHONPATH": SOURCES, **self.environment}
        return subprocess.run(command, env=environment, capture_output=True, check=False, timeout=60).returncode

    async def wait_healthy(self) -> None:
        kind, *words = self.service["healthcheck"]["test"]
        assert kind == "CMD"
        await asyncio.to_thread(self.process.wait_said, "Clew answers at")
        await asyncio.to_thread(until, lambda: self.check_health(words) == 0, f"port {self.port} is healthy")

    def stop(self) -> int:
        self.process.child.send_signal(signal.Signals[instructions()["STOPSIGNAL"][0]])
        seconds = int(self.service["stop_grace_period"].removesuffix("s"))
        return self.process.child.wait(max(seconds, DEADLINE_SECONDS))


async def make_database() -> str:
    """What the service `postgres` makes by its environment; gives the end of its connection string."""
    settings: dict[str, str] = COMPOSE["services"]["postgres"]["environment"]
    user, database, server = settings["POSTGRES_USER"], f"compose_{os.getpid()}", server_dsn()
    if await execute(server, f"SELECT 1 FROM pg_roles WHERE rolname = '{user}'") == [None]:
        await execute(server, f"CREATE ROLE {user} LOGIN PASSWORD '{settings['POSTGRES_PASSWORD']}'")
    await execute(server, f"DROP DATABASE IF EXISTS {database}", f"CREATE DATABASE {database} OWNER {user}")
    at = urlsplit(server)
    return f"@{at.hostname}:{at.port}/{database}"


@pytest.mark.timeout(300)
async def test_the_nodes_of_the_compose_file_share_a_database_and_one_is_killed(tmp_path: Path) -> None:
    database = await make_database()
    folders = [tmp_path / name for name in NODES]
    for folder in folders:
        folder.mkdir()
    nodes = [
        Container(folder, service, free_port(), database)
        for folder, service in zip(folders, NODES.values(), strict=True)
    ]
    addresses = ",".join(f"127.0.0.1:{node.port}" for node in nodes)
    try:
        await asyncio.gather(*(node.wait_healthy() for node in nodes))
        image_check = instructions()["HEALTHCHECK"][0].partition("CMD ")[2]
        assert nodes[0].check_health(json.loads(image_check)) == 0
        async with await Client.connect(addresses) as client:
            async with Worker(client, task_queue="default", workflows=[Doubling], activities=[double]):
                handles = [await start_doubling(client, number) for number in range(RUNS)]
                nodes[0].kill()
                assert nodes[0].check_health(json.loads(image_check)) != 0
                nodes[0].restart()
                async with asyncio.timeout(DEADLINE_SECONDS):
                    results = await asyncio.gather(*(handle.result() for handle in handles))
            assert results == [8 * number for number in range(RUNS)]
        await nodes[0].wait_healthy()
        assert [node.stop() for node in nodes] == [0, 0]
    finally:
        for node in nodes:
            node.kill()


def test_the_files_agree_with_each_other_and_with_the_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    text = (ROOT / "deploy/Containerfile").read_text("utf-8")
    (extras,) = re.findall(r'install .*"\.\[([a-z,]+)\]"', text)
    assert set(extras.split(",")) <= set(project["optional-dependencies"])
    (exposed,) = instructions()["EXPOSE"]
    assert len(NODES) == 2
    published = [service["ports"][0].split(":") for service in NODES.values()]
    assert [host for host, _, _ in published] == ["127.0.0.1", "127.0.0.1"], "anybody may do everything there"
    assert {inside for _, _, inside in published} == {exposed}
    assert len({port for _, port, _ in published}) == 2
    postgres = COMPOSE["services"]["postgres"]
    told = postgres["environment"]
    for service in NODES.values():
        store = urlsplit(service["environment"]["CLEW_SERVER_STORE"])
        assert (store.username, store.password, store.path) == (
            told["POSTGRES_USER"], told["POSTGRES_PASSWORD"], f"/{told['POSTGRES_DB']}",
        )  # fmt: skip
        assert store.hostname in COMPOSE["services"]
        assert service["depends_on"] == {"postgres": {"condition": "service_healthy"}}
        assert (ROOT / "deploy" / service["build"]["context"] / service["build"]["dockerfile"]).is_file()
    assert postgres["healthcheck"]["test"][1].startswith("pg_isready")


def test_a_container_refuses_to_serve_everybody_unless_it_is_told_to(tmp_path: Path) -> None:
    (entry,), (command,) = instructions()["ENTRYPOINT"], instructions()["CMD"]
    settings = {**image_environment(), "CLEW_SERVER_PORT": str(free_port()), "CLEW_SERVER_STORE": "sqlite::memory:"}
    with Process(tmp_path, *clew_command([*json.loads(entry), *json.loads(command)]), **settings) as node:
        assert node.child.wait(DEADLINE_SECONDS) == 2
        assert "allow-public-without-auth" in node.said


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_systemd_has_nothing_to_say_against_the_unit(tmp_path: Path) -> None:
    """With the program in the place of the one that is not installed here."""
    text = (ROOT / "deploy/clew.service").read_text("utf-8")
    (command,) = re.findall(r"^ExecStart=(\S+)", text, re.MULTILINE)
    unit = tmp_path / "clew.service"
    unit.write_text(text.replace(command, sys.executable), "utf-8")
    checked = subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, check=False)
    assert (checked.returncode, checked.stderr) == (0, "")


@pytest.mark.skipif(shutil.which("promtool") is None, reason="Prometheus is not installed")
def test_prometheus_takes_the_rules_and_the_settings() -> None:
    for kind, name in (("rules", "alerts.yml"), ("config", "prometheus.yml")):
        checked = subprocess.run(
            ["promtool", "check", kind, str(ROOT / "deploy/prometheus" / name)],
            capture_output=True,
            text=True,
            check=False,
        )
        assert checked.returncode == 0, checked.stdout + checked.stderr
