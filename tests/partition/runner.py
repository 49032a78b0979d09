"""A run under partitions: everything is started, cut for a while, healed, brought to its end, and checked.

Owns: `Settings`, `run_under_trouble` and what it tells (`Told`). Never: which troubles (``trouble``), or what is right
(``checker``).

How it works: PostgreSQL, some nodes, workers and clients are processes, each on a host of its own. One trouble follows
on the other until the time is up; then the network is healed, clients end, registers are closed, and every run must
come to its end. After some troubles it is measured how long it takes until every client has had an answer again.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, NamedTuple

from clew.client import Client
from clew.service.errors import RPCError
from tests.crash.rounds import insist
from tests.partition.checker import check, read_calls
from tests.partition.programs import Register
from tests.partition.rules import Network
from tests.partition.trouble import DATABASE, Episode, Hosts, make_episodes

SERVER_PORT = 7233
READY_SECONDS_MAX = 120.0
DRAIN_SECONDS_MAX = 240.0
"""For what is left when all is well again: workers that were cut off come back, timeouts run out."""


class Settings(NamedTuple):
    """How a run goes.

    Args:
        seed: Of the troubles and of what clients do.
        seconds: How long there is trouble.
        trouble_seconds_max: The longest one.
        hosts: Who is there.
    """

    seed: int
    seconds: float
    trouble_seconds_max: float
    hosts: Hosts


class Told(NamedTuple):
    """What a run was like.

    Args:
        episodes: How many troubles of each kind there were.
        cut_seconds: How long some link was in trouble, in all.
        answered_again_seconds: After troubles, how long it took until every client had had an answer; the longest.
        outcome: What was checked, see `checker.Outcome`.
    """

    episodes: dict[str, int]
    cut_seconds: float
    answered_again_seconds: float
    outcome: dict[str, Any]


class Processes:
    """Everything that runs on the network's hosts."""

    def __init__(self, network: Network, folder: Path) -> None:
        self._network = network
        self._folder = folder
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    async def start(self, host: str, ready: str, module: str, *arguments: str) -> None:
        """Start a module, and wait until it says `ready`.

        Raises:
            AssertionError: It ends, or does not say so.
        """
        command = [sys.executable, "-m", module, *arguments]
        self._running[host] = self._network.popen(host, command, self._log(host), self._folder)
        give_up_at = time.monotonic() + READY_SECONDS_MAX
        while ready not in self.said(host):
            self.check()
            assert time.monotonic() < give_up_at, f"{host} is not ready: {self.said(host)[-3000:]}"
            await asyncio.sleep(0.02)

    def check(self) -> None:
        """Nothing has ended by itself.

        Raises:
            AssertionError: Something has.
        """
        for host, process in self._running.items():
            assert process.poll() is None, f"{host} ended with {process.returncode}: {self.said(host)[-3000:]}"

    def said(self, host: str) -> str:
        """All that it has said."""
        return self._log(host).read_text(errors="replace")

    async def stop(self, hosts: tuple[str, ...]) -> None:
        """Have them end in good order.

        Raises:
            AssertionError: One does not.
        """
        self.check()
        for host in hosts:
            self._running[host].send_signal(signal.SIGTERM)
        for host in hosts:
            process = self._running.pop(host)
            code = await asyncio.to_thread(process.wait, READY_SECONDS_MAX)
            assert code == 0, f"{host} ended with {code}: {self.said(host)[-3000:]}"

    async def end(self) -> None:
        """Kill all."""
        for process in self._running.values():
            process.kill()
        for process in self._running.values():
            await asyncio.to_thread(process.wait)

    def _log(self, host: str) -> Path:
        return self._folder / f"{host}.log"


async def run_under_trouble(
    network: Network, database_port: int, database_path: str, settings: Settings, folder: Path
) -> Told:
    """One run.

    Args:
        network: With the database listening on host ``db`` already.
        database_port: By which it is known there.
        database_path: Path and options of the connection string.
        settings: How it goes.
        folder: For logs and records.

    Raises:
        AssertionError: Something was lost, done twice, done out of order, or hangs.
    """
    hosts = settings.hosts
    ledger = folder / "ledger"
    processes = Processes(network, folder)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(processes.end)
        await asyncio.gather(
            *(start_node(network, processes, node, database_port, database_path) for node in hosts.nodes)
        )
        nodes = {host: _addresses(network, host, hosts) for host in (*hosts.workers, *hosts.clients, "control")}
        await asyncio.gather(
            *(
                processes.start(worker, "ready", "tests.partition.programs", nodes[worker], str(ledger))
                for worker in hosts.workers
            )
        )
        began = time.monotonic()
        paths = [folder / f"{client}.calls" for client in hosts.clients]
        for client, path in zip(hosts.clients, paths, strict=True):
            arguments = (nodes[client], client, str(settings.seed), str(began), str(path))
            await processes.start(client, "ready", "tests.partition.client_program", *arguments)
        episodes, cut_seconds, again_seconds = await _make_trouble(network, processes, paths, settings)
        await processes.stop(hosts.clients)
        control = await Client.connect(nodes["control"])
        stack.push_async_callback(control.close)
        await _close_all(control, processes)
        host, port = network.address("control", DATABASE, database_port)
        dsn = f"postgresql://postgres@{host}:{port}/{database_path}"
        outcome = await check(dsn, read_calls(paths), ledger)
        await processes.stop(hosts.workers)
        await processes.stop(hosts.nodes)
    return Told(dict(sorted(episodes.items())), round(cut_seconds, 1), round(again_seconds, 1), outcome._asdict())


async def start_node(network: Network, processes: Processes, node: str, database_port: int, path: str) -> None:
    """Start a node of the server on a host."""
    host, port = network.address(node, DATABASE, database_port)
    own_port = network.serve(node, SERVER_PORT)
    await processes.start(
        node, "Clew answers", "clew.cli", "server", "start",
        "--store", f"postgresql://postgres@{host}:{port}/{path}",
        "--host", network.listen_host(node), "--port", str(own_port), "--allow-public-without-auth",
    )  # fmt: skip


def _addresses(network: Network, caller: str, hosts: Hosts) -> str:
    return ",".join("{}:{}".format(*network.address(caller, node, SERVER_PORT)) for node in hosts.nodes)


async def _make_trouble(
    network: Network, processes: Processes, paths: list[Path], settings: Settings
) -> tuple[Counter[str], float, float]:
    chance = random.Random(settings.seed)
    kinds: Counter[str] = Counter()
    cut_seconds = again_seconds = 0.0
    await _wait_answered(paths, processes)
    until = time.monotonic() + settings.seconds
    for number, episode in enumerate(make_episodes(settings.hosts, chance, seconds_max=settings.trouble_seconds_max)):
        if time.monotonic() >= until:
            return kinds, cut_seconds, again_seconds
        kinds[episode.kind] += 1
        cut_seconds += episode.seconds
        await _suffer(network, processes, episode)
        if number % 4 == 3:
            began = time.monotonic()
            await _wait_answered(paths, processes)
            again_seconds = max(again_seconds, time.monotonic() - began)
        else:
            await asyncio.sleep(episode.pause)
    raise AssertionError("there is no end of trouble")


async def _suffer(network: Network, processes: Processes, episode: Episode) -> None:
    for source, target in episode.ways:
        network.set_rule(source, target, episode.rule)
    try:
        await asyncio.sleep(episode.seconds)
        processes.check()
    finally:
        network.heal()


async def _wait_answered(paths: list[Path], processes: Processes) -> None:
    """Until every client has written down an answer to a call that it begins from now on."""
    began = time.monotonic()
    left = {path: path.stat().st_size if path.exists() else 0 for path in paths}
    while left:
        processes.check()
        assert time.monotonic() < began + READY_SECONDS_MAX, f"no answer to {[path.stem for path in left]}"
        for path, read in list(left.items()):
            size = path.stat().st_size if path.exists() else 0
            if size == read:
                continue
            with path.open("rb") as file:
                file.seek(read)
                lines = file.read().splitlines(keepends=True)
            whole = [line for line in lines if line.endswith(b"\n")]
            left[path] = read + sum(map(len, whole))
            if any(call["told"] == "ok" and call["from"] >= began for call in map(json.loads, whole)):
                del left[path]
        await asyncio.sleep(0.05)


async def _close_all(client: Client, processes: Processes) -> None:
    """Bring every run to its end.

    Raises:
        AssertionError: Some do not come to it.
    """
    give_up_at = time.monotonic() + DRAIN_SECONDS_MAX
    told: set[str] = set()
    for _ in itertools.count():
        processes.check()
        running: list[str] = []
        try:
            running = [run.id async for run in client.list_workflows("ExecutionStatus = 'Running'")]
            if not running:
                return
            for workflow_id in set(running) - told:
                handle = client.get_workflow_handle(workflow_id)
                if workflow_id.startswith("register-"):
                    await insist(lambda handle=handle: handle.signal(Register.close))  # type: ignore[misc]
                elif workflow_id.startswith("held-"):
                    await insist(handle.cancel)
                told.add(workflow_id)
        except RPCError as error:
            if not error.is_retryable:
                raise
        waiting = [workflow_id for workflow_id in running if workflow_id in told]
        assert time.monotonic() < give_up_at, f"after {DRAIN_SECONDS_MAX:g} s these are still open: {waiting}"
        await asyncio.sleep(0.2)
