"""Randomness that replay repeats.

Owns: the seeds and generators of a run. Never: entropy of the process.

How it works: everything is derived from the run id, which a reset replaces from the reset point on. Streams are
apart: what user code draws, what interceptors draw, and what the machine itself needs (ids of children) never shift
one another, so switching tracing on changes no id. `interceptor_depth` says, per context, whose code is running.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from contextvars import ContextVar
from random import Random
from typing import Final, final
from uuid import UUID

is_in_interceptor: Final[ContextVar[bool]] = ContextVar("clew_is_in_interceptor", default=False)
"""Whether the running code belongs to an interceptor rather than to the workflow."""


@final
class Chance:
    """The random streams of one run."""

    def __init__(self, run_id: str) -> None:
        self._callbacks: list[Callable[[int], None]] = []
        self._named: dict[str, Random] = {}
        self.seed = 0
        self._user: Random | None = None
        self._interceptors: Random | None = None
        self._machine: Random | None = None
        self.reseed(run_id, tell=False)

    def reseed(self, run_id: str, *, tell: bool = True) -> None:
        """Derive everything anew, as a reset does."""
        self._run_id = run_id
        self.seed = self._derive("")
        self._user = self._interceptors = self._machine = None
        for name, generator in self._named.items():
            generator.seed(self._derive(name))
        if tell:
            for callback in self._callbacks:
                callback(self.seed)

    def _derive(self, stream: str) -> int:
        return int.from_bytes(hashlib.sha256(f"{self._run_id}\x00{stream}".encode()).digest()[:8], "big")

    def generator(self) -> Random:
        """The generator of whoever is running."""
        if is_in_interceptor.get():
            if self._interceptors is None:
                self._interceptors = Random(self._derive("\x00interceptors"))
            return self._interceptors
        if self._user is None:
            self._user = Random(self.seed)
        return self._user

    def named(self, name: str) -> Random:
        """A generator of its own for `name`; each call begins a new one, which a reset seeds anew."""
        generator = Random(self._derive(f"\x01{name}"))
        self._named.setdefault(f"\x01{name}", generator)
        return generator

    def on_reseed(self, callback: Callable[[int], None]) -> None:
        """Tell `callback` each new seed."""
        self._callbacks.append(callback)

    def machine_uuid(self) -> UUID:
        """An id that the machine needs, apart from all that code draws."""
        if self._machine is None:
            self._machine = Random(self._derive("\x00machine"))
        return uuid4_of(self._machine)


def uuid4_of(generator: Random) -> UUID:
    """Draw a random UUID (RFC 9562 §5.4)."""
    return UUID(int=generator.getrandbits(128), version=4)


def uuid7_of(generator: Random, time_ms: int) -> UUID:
    """Make a UUID that begins with `time_ms` since the epoch (RFC 9562 §5.7)."""
    number = (time_ms & ((1 << 48) - 1)) << 80 | generator.getrandbits(80)
    return UUID(int=(number & ~(0xF << 76) | (0x7 << 76)) & ~(0x3 << 62) | (0x2 << 62))
