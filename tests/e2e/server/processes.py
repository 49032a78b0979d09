"""Processes of the command, for tests: servers and workers that are started, killed, and started again."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Self

import clew.cli
from clew.client import Client, WorkflowHandle

DEADLINE_SECONDS = 90.0
"""Generous: the machine may be busy; nothing here waits longer than what it waits for takes."""

SOURCES = str(Path(clew.cli.__file__).parents[2])
"""Where the package is, also for a process that runs elsewhere."""

PROGRAM = """
from __future__ import annotations

from datetime import timedelta

from clew import activity, workflow


@activity.defn
async def greet(name: str) -> str:
    return f"Hello {name}"


@workflow.defn
class Greeting:
    def __init__(self) -> None:
        self.is_approved = False

    @workflow.run
    async def run(self, name: str) -> str:
        text = await workflow.execute_activity(greet, name, start_to_close_timeout=timedelta(seconds=30))
        await workflow.wait_condition(lambda: self.is_approved)
        return text

    @workflow.signal
    def approve(self) -> None:
        self.is_approved = True

    @workflow.query
    def state(self) -> str:
        return "approved" if self.is_approved else "waiting"

    @workflow.update
    async def count(self, text: str) -> int:
        return len(text)
"""


class Process:
    """One `clew` command that stays; what it says goes to a file."""

    def __init__(self, folder: Path, *arguments: str, **environment: str) -> None:
        self._folder = folder
        self._log = folder / f"{arguments[0]}-{time.monotonic_ns()}.log"
        with self._log.open("wb") as log:
            self.child = subprocess.Popen(
                [sys.executable, "-m", "clew.cli", *arguments],
                cwd=folder,
                env={**os.environ, "PYTHONUNBUFFERED": "1", "PYTHONPATH": SOURCES, **environment},
                stderr=log,
                stdout=log,
                start_new_session=True,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    @property
    def said(self) -> str:
        """All it has said so far."""
        return self._log.read_text("utf-8")

    def wait_said(self, pattern: str) -> re.Match[str]:
        """Wait until it has said something."""

        def look() -> re.Match[str] | None:
            found = re.search(pattern, self.said)
            if found is None and self.child.poll() is not None:
                raise AssertionError(f"it ended with {self.child.returncode}: {self.said}")
            return found

        return until(look, f"it says {pattern!r}; so far: {self.said}")

    def kill(self) -> None:
        """End it at once, and those that it started."""
        if self.child.poll() is None:
            os.killpg(self.child.pid, signal.SIGKILL)
        self.child.wait(DEADLINE_SECONDS)

    def stop(self) -> int:
        """Ask it to stop, and give its exit code."""
        self.child.send_signal(signal.SIGTERM)
        return self.child.wait(DEADLINE_SECONDS)


def until(look: Any, what: str) -> Any:
    """Look again and again until there is something."""
    give_up_at = time.monotonic() + DEADLINE_SECONDS
    while time.monotonic() < give_up_at:
        found = look()
        if found:
            return found
        time.sleep(0.05)
    raise AssertionError(f"waited {DEADLINE_SECONDS:g} s in vain until {what}")


def run(address: str, *arguments: str) -> Any:
    """What one command prints as JSON."""
    done = subprocess.run(
        [sys.executable, "-m", "clew.cli", *arguments, "--address", address, "--output", "json"],
        capture_output=True,
        text=True,
        timeout=DEADLINE_SECONDS,
        check=False,
        env={**os.environ, "PYTHONPATH": SOURCES},
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def free_port() -> int:
    """A port that nobody has now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


async def start_doubling(client: Client, number: int) -> WorkflowHandle[Any, int]:
    """Start a run of `Doubling`; a repeat, when a node dies with the answer, is the same start."""
    return await client.start_workflow(
        "Doubling", number, id=f"d{number}", task_queue="default", request_id=f"r{number}", result_type=int
    )
