"""Hosts as network namespaces, and the network between them: a thread that passes on their packets, or does not.

Owns: `NamespaceNetwork`. Never: knows what the packets carry.

How it works: each namespace has one TUN device, whose other end this process holds. A packet that a host sends is read
there, and written to the device of the host it is for, unless the rule for these two says otherwise. So each host has a
whole TCP of the kernel's own: what is cut off is sent again and again, connections are left half open, and timeouts run
as they would over any broken network. The process itself is a host too, ``control``, which no rule should concern.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import functools
import heapq
import os
import random
import select
import struct
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar, final

from tests.crash.nodes import environment
from tests.partition.rules import Rule

T = TypeVar("T")

CONTROL: Final = "control"
_CLONE_NEWNET: Final = 0x40000000
_TUNSETIFF: Final = 0x400454CA
_IFF_TUN_NO_PI: Final = 0x1001
_MTU: Final = 16000
_FREE: Final = Rule()
_PREFIX: Final = "10.77"


@functools.cache
def why_not() -> str:
    """Why this machine can have no such network; empty when it can."""
    if os.name != "posix" or os.geteuid() != 0:
        return "network namespaces need root"
    if not os.path.exists("/dev/net/tun"):
        return "there is no /dev/net/tun"
    name = f"clew-try-{os.getpid()}"
    try:
        _ip("netns", "add", name)
        _ip("netns", "del", name)
        os.close(_open_tun(f"clewt{os.getpid() % 100000}"))
    except OSError as error:
        return f"namespaces and TUN devices cannot be made here: {error}"
    return ""


@final
class NamespaceNetwork:
    """See the module docstring.

    Args:
        hosts: Their names.
        seed: For delays and losses.
    """

    def __init__(self, hosts: list[str], seed: int) -> None:
        self._names = {host: f"clew-{os.getpid()}-{host}" for host in hosts}
        third = 1 + os.getpid() % 250
        self._addresses = {host: f"{_PREFIX}.{third}.{n}" for n, host in enumerate([CONTROL, *hosts], start=1)}
        self._chance = random.Random(seed)
        self._rules: dict[tuple[bytes, bytes], Rule] = {}
        self._files: dict[bytes, int] = {}
        """The TUN device of each host, by address."""
        self._stop_read, self._stop_write = os.pipe()
        self._thread = threading.Thread(target=self._pass_packets, name="network")
        self.dropped = 0
        self.passed = 0

    async def __aenter__(self) -> NamespaceNetwork:
        try:
            for host, address in self._addresses.items():
                namespace = self._names.get(host)
                if namespace is not None:
                    _ip("netns", "add", namespace)
                device = f"clew{os.getpid() % 100000}"
                self._files[_packed(address)] = self.on_host(host, lambda device=device: _open_tun(device))  # type: ignore[misc]
                within = ("-n", namespace) if namespace is not None else ()
                _ip(*within, "address", "add", f"{address}/24", "dev", device)
                _ip(*within, "link", "set", device, "up", "mtu", str(_MTU))
                if namespace is not None:
                    _ip(*within, "link", "set", "lo", "up")
        except BaseException:
            self._remove()
            raise
        self._thread.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        os.write(self._stop_write, b"x")
        self._thread.join()
        self._remove()

    def on_host(self, host: str, function: Callable[[], T]) -> T:
        """Call a function on a host: sockets that it opens and processes that it starts are there."""
        results: list[T] = []
        errors: list[BaseException] = []

        def run() -> None:
            try:
                if host != CONTROL:
                    _enter(self._names[host])
                results.append(function())
            except BaseException as error:  # noqa: BLE001 - raised again by the caller's thread
                errors.append(error)

        thread = threading.Thread(target=run, name=f"on-{host}")
        thread.start()
        thread.join()
        if errors:
            raise errors[0]
        return results[0]

    # --- Network ----------------------------------------------------------------------------------------------------

    def listen_host(self, host: str) -> str:
        """Its own address."""
        return self._addresses[host]

    def serve(self, host: str, port: int) -> int:
        """The very port: each host has its own."""
        return port

    def address(self, caller: str, host: str, port: int) -> tuple[str, int]:
        """The same for every caller."""
        return self._addresses[host], port

    def popen(self, host: str, arguments: list[str], log: Path, cwd: Path) -> subprocess.Popen[bytes]:
        """Start a process in its namespace."""

        def start() -> subprocess.Popen[bytes]:
            with log.open("ab") as said:
                return subprocess.Popen(
                    arguments, env=environment(), stdin=subprocess.DEVNULL, stdout=said, stderr=said, cwd=cwd
                )

        return self.on_host(host, start)

    def set_rule(self, source: str, target: str, rule: Rule) -> None:
        """From now on; packets that are delayed already arrive."""
        self._rules[_packed(self._addresses[source]), _packed(self._addresses[target])] = rule

    def heal(self) -> None:
        """No rules any more."""
        self._rules = {}

    # --- packets ----------------------------------------------------------------------------------------------------

    def _pass_packets(self) -> None:
        poll = select.epoll()
        for file in (*self._files.values(), self._stop_read):
            poll.register(file, select.EPOLLIN)
        later: list[tuple[float, int, int, bytes]] = []
        number = 0
        while True:
            timeout = max(0.0, later[0][0] - time.monotonic()) if later else 1.0
            for file, _ in poll.poll(timeout):
                if file == self._stop_read:
                    poll.close()
                    return
                for _ in range(64):
                    try:
                        packet = os.read(file, 65535)
                    except BlockingIOError:
                        break
                    if packet[0] >> 4 != 4:
                        continue
                    source, target = packet[12:16], packet[16:20]
                    out = self._files.get(target)
                    rule = self._rules.get((source, target), _FREE)
                    if out is None or rule.is_cut or (rule.loss and self._chance.random() < rule.loss):
                        self.dropped += 1
                    elif rule.delay:
                        number += 1
                        at = time.monotonic() + rule.delay * (1 + self._chance.random() / 2)
                        heapq.heappush(later, (at, number, out, packet))
                    else:
                        self._write(out, packet)
            while later and later[0][0] <= time.monotonic():
                _, _, out, packet = heapq.heappop(later)
                self._write(out, packet)

    def _write(self, file: int, packet: bytes) -> None:
        self.passed += 1
        with contextlib.suppress(BlockingIOError):  # a full queue loses packets, as networks do
            os.write(file, packet)

    def _remove(self) -> None:
        for file in self._files.values():
            os.close(file)
        self._files = {}
        for name in self._names.values():
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)
        os.close(self._stop_read)
        os.close(self._stop_write)


def _enter(namespace: str) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    file = os.open(f"/var/run/netns/{namespace}", os.O_RDONLY)
    try:
        if libc.setns(file, _CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), f"cannot enter the namespace {namespace}")
    finally:
        os.close(file)


def _open_tun(device: str) -> int:
    file = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(file, _TUNSETIFF, struct.pack("16sH22x", device.encode(), _IFF_TUN_NO_PI))
    return file


def _packed(address: str) -> bytes:
    return bytes(int(part) for part in address.split("."))


def _ip(*arguments: str) -> None:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise OSError(f"ip {' '.join(arguments)}: {done.stderr.strip()}")
