"""Hosts as mere names, and the network between them: a TCP proxy for each caller and server. Needs no rights.

Owns: `ProxyNetwork`. Never: knows what is carried.

How it works: what one side sends is read and written on to the other, unless the direction is cut: then nothing more is
read, so that it waits as it would for packets that are sent again, and neither side is told. A connection made while
either direction is cut is taken and never answered. `silence` is for the connections that there are: they stay half
open for good, as behind a firewall that has forgotten them, and new ones are as usual.
"""

from __future__ import annotations

import asyncio
import random
import socket
import subprocess
from pathlib import Path
from typing import Final, final

from tests.crash.nodes import environment, free_port
from tests.partition.rules import Rule

_CHUNK: Final = 1 << 14
_FREE: Final = Rule()
_LOOPBACK: Final = "127.0.0.1"


@final
class ProxyNetwork:
    """See the module docstring.

    Args:
        callers: Who may ask for the address of a server.
        seed: For delays.
    """

    def __init__(self, callers: list[str], seed: int) -> None:
        self._callers = callers
        self._chance = random.Random(seed)
        self._rules: dict[tuple[str, str], Rule] = {}
        self._changed = asyncio.Event()
        self._opened_count = 0
        self._silenced: dict[tuple[str, str], int] = {}
        """Of connections up to this number, nothing arrives any more."""
        self._ports: dict[tuple[str, str, int], int] = {}
        self._listening: dict[tuple[str, int], int] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._starting: list[asyncio.Task[asyncio.Server]] = []

    async def __aenter__(self) -> ProxyNetwork:
        return self

    async def __aexit__(self, *_: object) -> None:
        for server in await asyncio.gather(*self._starting):
            server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # --- Network ----------------------------------------------------------------------------------------------------

    def listen_host(self, host: str) -> str:
        """The loopback address."""
        return _LOOPBACK

    def serve(self, host: str, port: int) -> int:
        """Another port for each host, as they share an address, and a proxy for each caller."""
        listens_on = free_port()
        self.lead(host, port, listens_on)
        return listens_on

    def lead(self, host: str, port: int, listens_on: int) -> None:
        """The server that is known by `port` of `host` listens on this port already."""
        self._listening[host, port] = listens_on
        for caller in self._callers:
            if caller == host:
                continue
            listener = socket.create_server((_LOOPBACK, 0))
            self._ports[caller, host, port] = listener.getsockname()[1]

            async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, caller: str = caller) -> None:
                await self._accept(caller, host, listens_on, reader, writer)

            self._starting.append(asyncio.ensure_future(asyncio.start_server(accept, sock=listener)))

    def address(self, caller: str, host: str, port: int) -> tuple[str, int]:
        """The caller's own proxy; the server itself for whoever has none."""
        return _LOOPBACK, self._ports.get((caller, host, port), self._listening[host, port])

    def popen(self, host: str, arguments: list[str], log: Path, cwd: Path) -> subprocess.Popen[bytes]:
        """Start a process."""
        with log.open("ab") as said:
            return subprocess.Popen(
                arguments, env=environment(), stdin=subprocess.DEVNULL, stdout=said, stderr=said, cwd=cwd
            )

    def set_rule(self, source: str, target: str, rule: Rule) -> None:
        """From now on."""
        self._rules[source, target] = rule
        self._tell()

    def heal(self) -> None:
        """No rules any more."""
        self._rules = {}
        self._tell()

    def silence(self, source: str, target: str) -> None:
        """Nothing more arrives on the connections that there are."""
        self._silenced[source, target] = self._opened_count

    # --- connections ------------------------------------------------------------------------------------------------

    def _tell(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def _free(self, source: str, target: str) -> Rule:
        """The rule for this direction, once it is not cut."""
        while (rule := self._rules.get((source, target), _FREE)).is_cut:
            await self._changed.wait()
        return rule

    async def _accept(
        self, caller: str, host: str, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        to_server: asyncio.StreamWriter | None = None
        try:
            await self._free(caller, host)
            await self._free(host, caller)
            from_server, to_server = await asyncio.open_connection(_LOOPBACK, port)
            self._opened_count += 1
            number = self._opened_count
            sides = [
                asyncio.ensure_future(self._pump(caller, host, number, reader, to_server)),
                asyncio.ensure_future(self._pump(host, caller, number, from_server, writer)),
            ]
            try:
                await asyncio.wait(sides, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for side in sides:
                    side.cancel()
                await asyncio.gather(*sides, return_exceptions=True)
        except (OSError, asyncio.CancelledError):
            return  # nobody listens, or the network ends; whoever started this task does not look at how it ended
        finally:
            self._tasks.discard(task)
            writer.transport.abort()
            if to_server is not None:
                to_server.transport.abort()

    async def _pump(
        self, source: str, target: str, number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        while data := await reader.read(_CHUNK):
            if number <= self._silenced.get((source, target), 0):
                continue
            rule = await self._free(source, target)
            if rule.delay:
                await asyncio.sleep(rule.delay * (1 + self._chance.random() / 2))
                await self._free(source, target)
            writer.write(data)
            await writer.drain()
