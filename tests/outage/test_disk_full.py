"""The file system of a real server fills up while runs are under way, and gets room again: nothing accepted is lost.

PostgreSQL itself ends a statement that finds no room for rows, and ends all of itself when there is none for its log.
Either is met here, whichever comes first; an operator then makes room and starts the server again.
"""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import asyncpg
import pytest

from tests.outage.test_server_down import SECONDS_MAX, ride_out
from tests.postgres.databases import execute, long_test
from tests.postgres.server import PostgresServer

DISK_MB = 120


@pytest.fixture
def small_disk() -> Iterator[Path]:
    """A file system of its own, for one server."""
    folder = Path(tempfile.mkdtemp(prefix="clew-disk-"))
    mounting = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={DISK_MB}m,mode=755", "tmpfs", str(folder)],
        capture_output=True,
        check=False,
    )
    if mounting.returncode != 0:
        folder.rmdir()
        pytest.skip("mounting a small file system needs root")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)
        folder.rmdir()


def fill_up(path: Path) -> None:
    """Take all room that is left."""
    with path.open("ab", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(b"\0" * 65536)


@long_test
@pytest.mark.timeout(600)
async def test_a_full_disk_is_ridden_out(small_disk: Path) -> None:
    server = PostgresServer({"max_wal_size": "64MB", "min_wal_size": "32MB"}, folder=small_disk)
    try:
        server.create()
        server.start()
        ballast = small_disk / "ballast"

        async def no_room() -> None:
            # Rows of another program go on growing until the server has met the end of the disk.
            with contextlib.suppress(OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
                await execute(server.dsn, "CREATE TABLE ballast (filler text)")
                fill_up(ballast)
                while True:
                    await execute(
                        server.dsn,
                        "INSERT INTO ballast SELECT repeat(md5(n::text), 30) FROM generate_series(1, 5000) AS n",
                    )
            assert "No space left on device" in server.log()
            await asyncio.sleep(0.5)
            ballast.unlink()
            # It may have ended itself, or have come back already.
            with contextlib.suppress(RuntimeError):
                await asyncio.to_thread(server.start)

            async def until_up() -> None:
                while True:
                    with contextlib.suppress(OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
                        await execute(server.dsn, "TRUNCATE ballast")
                        return
                    await asyncio.sleep(0.1)

            await asyncio.wait_for(until_up(), SECONDS_MAX)

        await ride_out(server.dsn, no_room)
    finally:
        server.remove()
