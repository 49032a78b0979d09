"""Processes of the crash tests: nodes that are started again whenever they die, and workers.

Owns: `Program`, one process; `Node`, the lives of one node, which the process of a `Breeder` forks; `free_port`. Never:
why one dies.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import signal
import socket
import sys
from pathlib import Path

from tests.cases.harness import ROOT
from tests.crash.rounds import SECONDS_MAX

READY = "Clew answers"
_PORTS_FIRST = 21_000
_PORTS_COUNT = 11_000
_ports = itertools.count()


class Program:
    """One process of a module; what it says goes to a file.

    Args:
        log: That file; it is added to.
    """

    def __init__(self, log: Path, module: str, *arguments: str) -> None:
        self.log = log
        self._command = [sys.executable, "-m", module, *arguments]
        self._ready = ""
        self._process: asyncio.subprocess.Process | None = None
        self._said_from = 0

    async def start(self, ready: str) -> None:
        """Start it, and wait until it says `ready`.

        Raises:
            AssertionError: It ended by itself, or was not ready in time.
        """
        self._ready = ready
        self._said_from = self.log.stat().st_size if self.log.exists() else 0
        with self.log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *self._command, env=environment(), stdout=log, stderr=log, cwd=self.log.parent
            )
        async with asyncio.timeout(SECONDS_MAX):
            while ready not in self.said():
                assert self._process.returncode is None, f"it ended: {self.said()[-3000:]}"
                await asyncio.sleep(0.01)

    async def start_again(self) -> None:
        """After it was killed: wait for its end, and start it as before."""
        await self.end()
        await self.start(self._ready)

    def said(self) -> str:
        """What it has said since its last start."""
        return _read(self.log, self._said_from)

    def check_up(self) -> None:
        """Notice one that is gone.

        Raises:
            AssertionError: It ended by itself; the message has what it said.
        """
        assert self._process is not None, "it was started"
        assert self._process.returncode is None, f"it ended: {self.said()[-3000:]}"

    def kill(self) -> None:
        """SIGKILL, if it runs."""
        if self._process is not None and self._process.returncode is None:
            self._process.kill()

    async def stop(self) -> None:
        """Have it end in good order.

        Raises:
            AssertionError: It does not.
        """
        self.check_up()
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(SECONDS_MAX):
            code = await self._process.wait()
        assert code == 0, f"it ended with {code}: {self.said()[-3000:]}"

    async def end(self) -> None:
        """Kill it if it is still there, and wait."""
        if self._process is not None:
            self.kill()
            await self._process.wait()


class Breeder:
    """The process that forks nodes (``tests.crash.killed_server``)."""

    def __init__(self) -> None:
        self._process: asyncio.subprocess.Process | None = None
        self._reading: asyncio.Task[None] | None = None
        self.pids: dict[str, asyncio.Future[int]] = {}
        self.ends: dict[str, asyncio.Future[int]] = {}

    async def __aenter__(self) -> Breeder:
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tests.crash.killed_server",
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, env=environment(), start_new_session=True,
        )  # fmt: skip
        self._reading = asyncio.create_task(self._read())
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._process is not None
        assert self._reading is not None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        await self._process.wait()
        await self._reading

    async def fork(self, name: str, *request: object) -> tuple[int, asyncio.Future[int]]:
        """Begin a life of this name; gives its pid, and its exit code to come."""
        assert self._process is not None
        assert self._process.stdin is not None
        loop = asyncio.get_running_loop()
        self.pids[name], self.ends[name] = loop.create_future(), loop.create_future()
        self._process.stdin.write(json.dumps([name, *request]).encode() + b"\n")
        return await self.pids[name], self.ends[name]

    async def _read(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            word, name, number = line.decode().split()
            (self.pids if word == "pid" else self.ends)[name].set_result(int(number))
        for future in (*self.pids.values(), *self.ends.values()):
            if not future.done():
                future.cancel()


class Node:
    """One node through all its lives.

    Args:
        breeder: Forks them.
        log: What its lives say is added to this file.
        arguments: Of ``clew``.
    """

    def __init__(self, breeder: Breeder, log: Path, *arguments: str) -> None:
        self.log = log
        self.arguments = arguments
        self._breeder = breeder
        self._pid = 0
        self._is_doomed = False
        self._ended: asyncio.Future[int] | None = None
        self._said_from = 0

    async def live(self, at: int = 0, how: str = "") -> bool:
        """Begin a life that ends at the `at`-th commit; False when it was killed before it was ready.

        Raises:
            AssertionError: It ended in another way.
        """
        self._said_from = self.log.stat().st_size if self.log.exists() else 0
        self._is_doomed = False
        self._ended = None
        self._pid, self._ended = await self._breeder.fork(self.log.stem, at, how, str(self.log), *self.arguments)
        if self._is_doomed:
            self.kill()
        async with asyncio.timeout(SECONDS_MAX):
            while READY not in self.said():
                if self._ended.done():
                    await self.wait_killed()
                    return False
                await asyncio.sleep(0.005)
        return True

    def said(self) -> str:
        """What it has said in this life."""
        return _read(self.log, self._said_from)

    async def wait_killed(self) -> None:
        """Wait until this life is over.

        Raises:
            AssertionError: It ended in another way than by SIGKILL.
        """
        assert self._ended is not None, "it lives"
        code = await asyncio.shield(self._ended)
        assert code == -signal.SIGKILL, f"it ended with {code}: {self.said()[-3000:]}"

    def kill(self) -> None:
        """SIGKILL, now or as soon as the life that is being begun can be killed."""
        self._is_doomed = True
        if self._ended is not None and not self._ended.done():
            os.kill(self._pid, signal.SIGKILL)

    async def stop(self) -> None:
        """Have this life end in good order.

        Raises:
            AssertionError: It does not.
        """
        assert self._ended is not None, "it lives"
        assert not self._ended.done(), f"it ended: {self.said()[-3000:]}"
        os.kill(self._pid, signal.SIGTERM)
        async with asyncio.timeout(SECONDS_MAX):
            code = await self._ended
        assert code == 0, f"it ended with {code}: {self.said()[-3000:]}"


def environment() -> dict[str, str]:
    """Of the processes that tests start."""
    return {**os.environ, "PYTHONUNBUFFERED": "1", "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}


def _read(path: Path, start: int) -> str:
    if not path.exists():
        return ""
    with path.open("rb") as file:
        file.seek(start)
        return file.read().decode(errors="replace")


def free_port() -> int:
    """A port that nobody listens on, below those that systems give to callers.

    A node that is dead for a moment so finds its port free again, and nobody who calls it then reaches itself.
    """
    while True:
        port = _PORTS_FIRST + (os.getpid() * 37 + next(_ports)) % _PORTS_COUNT
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
