"""What happens to what one host sends to another.

Owns: `Rule`, and the Protocol `Network` that both networks fit. Never: moves a byte.
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import NamedTuple, Protocol


class Rule(NamedTuple):
    """For one direction between two hosts.

    Args:
        is_cut: Nothing arrives, and nobody is told.
        delay: Seconds that everything takes longer, up to half as much again by chance.
        loss: Share of packets that never arrive (where there are packets).
    """

    is_cut: bool = False
    delay: float = 0.0
    loss: float = 0.0


CUT = Rule(is_cut=True)


class Network(Protocol):
    """Hosts by name, and what happens between them."""

    async def __aenter__(self) -> Network: ...

    async def __aexit__(self, *_: object) -> None: ...

    def listen_host(self, host: str) -> str:
        """The address that a server on `host` listens on."""
        ...

    def serve(self, host: str, port: int) -> int:
        """A server on `host` shall be known by this port; gives the one that it listens on."""
        ...

    def address(self, caller: str, host: str, port: int) -> tuple[str, int]:
        """Where `caller` reaches that server."""
        ...

    def popen(self, host: str, arguments: list[str], log: Path, cwd: Path) -> subprocess.Popen[bytes]:
        """Start a process on `host`; what it says is added to `log`."""
        ...

    def set_rule(self, source: str, target: str, rule: Rule) -> None:
        """From now on, for what `source` sends to `target`."""
        ...

    def heal(self) -> None:
        """No rules any more."""
        ...
