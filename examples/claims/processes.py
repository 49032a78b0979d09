"""The processes of the demo: starting them, waiting until they are ready, and making sure that none outlives it."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
READY_SECONDS_MAX = 30.0
"""How long a process may take to come up, on a machine that is busy."""


class DemoError(Exception):
    """The demo could not go on; the message says why."""


@dataclass(frozen=True)
class Running:
    """A process that has said that it is ready.

    Args:
        first_line: What it said.
        log: Where its standard error goes.
    """

    process: subprocess.Popen[str]
    first_line: str
    log: Path

    @property
    def pid(self) -> int:
        """The process id."""
        return self.process.pid

    def wait_exit(self, seconds: float) -> bool:
        """Whether the process ended, without an error, within this time.

        Raises:
            DemoError: It ended with an error.
        """
        try:
            status = self.process.wait(max(seconds, 0))
        except subprocess.TimeoutExpired:
            return False
        if status != 0:
            raise DemoError(f"a process ended by itself with status {status}:\n{tail(self.log)}")
        return True

    def kill(self) -> None:
        """SIGKILL: the process gets no chance to do anything."""
        self.process.kill()
        self.process.wait()


@contextlib.contextmanager
def running(module: str, arguments: Sequence[str], log: Path) -> Iterator[Running]:
    """Run a module of this example and wait for its first line; whatever happens, it does not outlive the block.

    Raises:
        DemoError: It did not come up.
    """
    with _started(module, arguments, log) as process:
        first_line = _read_first_line(process)
        if not first_line:
            raise DemoError(f"{module} did not come up:\n{tail(log)}")
        yield Running(process, first_line, log)


def kill_while_starting(module: str, arguments: Sequence[str], log: Path, seconds: float) -> int:
    """Start a module of this example and kill it after this time, ready or not; gives the process id."""
    with _started(module, arguments, log) as process:
        Running(process, "", log).wait_exit(seconds)
        process.kill()
        return process.pid


@contextlib.contextmanager
def _started(module: str, arguments: Sequence[str], log: Path) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", f"examples.claims.{module}", *arguments]
    with log.open("a", encoding="utf-8") as log_file:
        process = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log_file, text=True
        )
    with process:  # closes the pipes and waits
        try:
            yield process
        finally:
            process.kill()


def _read_first_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None, "every process of the demo is started with a pipe"
    alarm = threading.Timer(READY_SECONDS_MAX, process.kill)
    alarm.start()
    try:
        return process.stdout.readline().strip()
    finally:
        alarm.cancel()


def tail(path: Path, line_count: int = 20) -> str:
    """The last lines of a log."""
    return "\n".join(path.read_text(encoding="utf-8", errors="replace").splitlines()[-line_count:])
