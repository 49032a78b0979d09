"""Processes that run workers: several at once, started again when they die or the code changes.

Owns: the processes and their watching. Never: what they run.

How it works: each child is this same command in a process of its own. A child that ends by itself is started again,
after a pause that grows while it keeps failing. With `is_reloading`, the files of Python code below the working
directory are looked at twice a second; when one changed, the children are asked to stop (their activities may finish)
and new ones are started.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, final

LOOK_SECONDS: Final = 0.5
PAUSE_SECONDS_FIRST: Final = 0.5
PAUSE_SECONDS_MAX: Final = 30.0
STEADY_SECONDS: Final = 10.0
"""A child that lived so long did start well: the next pause is the first again."""

STOP_SECONDS_MAX: Final = 30.0

_SKIPPED: Final = frozenset({"__pycache__", "node_modules", "site-packages", "build", "dist"})


@final
class Supervisor:
    """Runs until cancelled or `stop`.

    Args:
        arguments: Of the command that a child runs.
        count: How many children.
        is_reloading: Whether to start them anew when code changes.
        secrets: Variables for their environment.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        *,
        count: int = 1,
        is_reloading: bool = False,
        secrets: Mapping[str, str] | None = None,
    ) -> None:
        self._environment = {**os.environ, **(secrets or {})}
        self._command = (sys.executable, "-m", "clew.cli", *arguments)
        self._count = count
        self._is_reloading = is_reloading
        self._stopping = asyncio.Event()
        self._reloading = asyncio.Event()

    def stop(self) -> None:
        """Stop the children, and with them `run`."""
        self._stopping.set()

    async def run(self) -> None:
        """Keep the children running until `stop`."""
        jobs = [asyncio.ensure_future(self._keep_running()) for _ in range(self._count)]
        if self._is_reloading:
            jobs.append(asyncio.ensure_future(self._watch()))
        try:
            await self._stopping.wait()
        finally:
            self._stopping.set()
            await asyncio.gather(*jobs)

    async def _keep_running(self) -> None:
        loop = asyncio.get_running_loop()
        pause = PAUSE_SECONDS_FIRST
        while not self._stopping.is_set():
            began = loop.time()
            # Of the parent's signals only those that it passes on: Ctrl-C in a terminal would reach both.
            child = await asyncio.create_subprocess_exec(*self._command, start_new_session=True, env=self._environment)
            reloading = self._reloading
            ended = await self._ended(child, reloading)
            if self._stopping.is_set() or not ended:
                await _stop(child)
                continue
            pause = PAUSE_SECONDS_FIRST if loop.time() - began > STEADY_SECONDS else pause
            _say(f"A worker process ended with {child.returncode}; starting another in {pause:g} s.")
            await self._wait_any(pause, reloading)
            pause = min(pause * 2, PAUSE_SECONDS_MAX)

    async def _ended(self, child: asyncio.subprocess.Process, reloading: asyncio.Event) -> bool:
        """Wait; True when the child ended by itself, False when it is to be stopped."""
        waits = [asyncio.ensure_future(wait) for wait in (child.wait(), self._stopping.wait(), reloading.wait())]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            return waits[0].done()
        finally:
            for wait in waits:
                wait.cancel()

    async def _wait_any(self, seconds: float, reloading: asyncio.Event) -> None:
        waits = [asyncio.ensure_future(wait) for wait in (self._stopping.wait(), reloading.wait())]
        await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()

    async def _watch(self) -> None:
        folder = Path(os.getcwd())
        seen = await asyncio.to_thread(code_files, folder)
        while not self._stopping.is_set():
            try:
                await asyncio.wait_for(self._stopping.wait(), LOOK_SECONDS)
            except TimeoutError:
                now = await asyncio.to_thread(code_files, folder)
                changed = sorted(name for name, _ in seen ^ now)
                seen = now
                if changed:
                    _say(f"{Path(changed[0]).relative_to(folder)} changed: starting the worker anew.")
                    reloading, self._reloading = self._reloading, asyncio.Event()
                    reloading.set()


def code_files(folder: Path) -> set[tuple[str, int]]:
    """The files of Python code below `folder`, with when each was changed."""
    found: set[tuple[str, int]] = set()
    for base, folders, names in os.walk(folder):
        folders[:] = [
            name
            for name in folders
            if not name.startswith(".") and name not in _SKIPPED and not os.path.exists(f"{base}/{name}/pyvenv.cfg")
        ]
        for name in names:
            if name.endswith(".py"):
                path = os.path.join(base, name)
                try:
                    found.add((path, os.stat(path).st_mtime_ns))
                except FileNotFoundError:
                    continue  # replaced by an editor this very moment; the next look sees what it became
    return found


async def _stop(child: asyncio.subprocess.Process) -> None:
    """Ask the child to stop, and end it when it does not."""
    if child.returncode is None:
        child.send_signal(signal.SIGTERM)
        try:
            await asyncio.wait_for(child.wait(), STOP_SECONDS_MAX)
        except TimeoutError:
            _say(f"Worker process {child.pid} did not stop within {STOP_SECONDS_MAX:g} s and was killed.")
            child.kill()
            await child.wait()


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
