"""A PostgreSQL of its own for the tests of SQL steps: made in a temporary directory, gone afterwards."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


def _program(name: str) -> str:
    """The program of the newest installed version, or on the path."""
    versions = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"), key=lambda path: int(path.parts[-3]))
    found = str(versions[-1]) if versions else shutil.which(name)
    assert found is not None, f"PostgreSQL is needed for these tests, but {name} is not installed"
    return found


@pytest.fixture(scope="session")
def postgres_directory() -> Iterator[str]:
    """The directory with the socket of a server that listens nowhere else; user and database are ``postgres``."""
    user = "nobody" if os.getuid() == 0 else None
    directory = tempfile.mkdtemp(prefix="clew-pg-")
    if user is not None:
        # The server refuses to run as root.
        os.chown(directory, pwd.getpwnam(user).pw_uid, -1)
    data = f"{directory}/data"

    def run(name: str, *arguments: str) -> None:
        subprocess.run(
            [_program(name), *arguments], user=user, cwd=directory, check=True, timeout=60, stdout=subprocess.DEVNULL
        )

    try:
        run("initdb", "-D", data, "-U", "postgres", "-A", "trust", "--no-sync")
        run("pg_ctl", "-D", data, "-w", "-l", f"{directory}/log", "-o", f"-k {directory} -h ''", "start")
        try:
            yield directory
        finally:
            run("pg_ctl", "-D", data, "-w", "-m", "immediate", "stop")
    finally:
        shutil.rmtree(directory)
