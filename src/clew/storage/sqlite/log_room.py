"""Room for the write-ahead log, laid out piece by piece before commits need it (docs/adr/0037).

Owns: how the log's file is made as large as it gets anyway. Never: touches what is in it.

How it works: a commit that makes the file longer has the file system write down the new length and the new blocks as
well, which takes nearly as long as the commit itself. Once the log has been brought into the database it is written
from its beginning again, over blocks that are there; a new one is given as many of zeros at once. SQLite reads a log as
far as its frames belong together, and what lies behind them is to it like what is left of an earlier round.

Nobody may write to the log meanwhile, so each piece is done inside a transaction of its own. It is done in pieces since
a commit that comes meanwhile waits: 15 ms for all of it at once, 2 ms for one.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sqlite3
from typing import Final

from clew.storage.sqlite.connection import PAGE_SIZE_BYTES, WAL_CHECKPOINT_PAGES
from clew.storage.sqlite.errors import free_bytes

_FRAME_BYTES: Final = PAGE_SIZE_BYTES + 24

LOG_ROOM_BYTES: Final = (WAL_CHECKPOINT_PAGES + 400) * _FRAME_BYTES
"""How large a log is when it is brought into the file, and some more for the commits until the writer comes to it."""

PIECE_BYTES: Final = 1024 * 1024
"""How much is laid out at a time; more than the commits until the next time take, unless they are large."""

_FREE_BYTES_MIN: Final = 64 * LOG_ROOM_BYTES
"""Where less is free, room is not taken before it is needed."""

_log: Final = logging.getLogger(__name__)


def lay_out_log(connection: sqlite3.Connection, path: str) -> bool:
    """Make the log at `path` a piece larger; gives whether there is more to do.

    What goes wrong costs nothing but the speed.
    """
    try:
        connection.execute("BEGIN IMMEDIATE")
        try:
            return _extend(path)
        finally:
            connection.execute("ROLLBACK")
    except (OSError, sqlite3.Error) as error:
        _log.info("store.log_not_laid_out path=%s: %s", path, error)
        return False


def _extend(path: str) -> bool:
    free = free_bytes(path)
    if free is None or free < _FREE_BYTES_MIN:
        return False
    size = os.stat(path).st_size
    wanted = min(size + PIECE_BYTES, LOG_ROOM_BYTES)
    if size < wanted:
        lay_out_from(path, size, wanted)
    return wanted < LOG_ROOM_BYTES


def lay_out_from(path: str, size: int, wanted: int) -> None:
    """Make the file `wanted` bytes long in place of `size`, with zeros that are on the disk."""
    descriptor = os.open(path, os.O_RDWR | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0))
    try:
        os.lseek(descriptor, size, os.SEEK_SET)
        left = wanted - size
        while left > 0:
            left -= os.write(descriptor, bytes(left))
        os.fsync(descriptor)
    except OSError:
        with contextlib.suppress(OSError):
            os.ftruncate(descriptor, size)
        raise
    finally:
        os.close(descriptor)
