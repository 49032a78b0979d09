"""Connections to the database file, set up the one way that the store needs.

Owns: connection strings, pragmas, and what is checked when a file is opened. Never: queries.

How it works: WAL with ``synchronous = FULL``, so that a commit is on the disk when it returns. ``isolation_level`` is
None: transactions are begun by hand, always as ``BEGIN IMMEDIATE``, so that a write never fails half-way for a lock.
A lock held by another program is waited for up to the busy timeout.
"""

from __future__ import annotations

import os
import sqlite3
from typing import Final
from urllib.parse import quote, unquote

from clew.ports.store import StoreError, StoreIncompatible
from clew.storage.sqlite import schema
from clew.storage.sqlite.errors import to_store_error

MEMORY: Final = ":memory:"
PAGE_SIZE_BYTES: Final = 4096
WRITER_CACHE_KIB: Final = 4 * 1024
READER_CACHE_KIB: Final = 2 * 1024
"""What is written is recent, and what is not at hand here is in the system's cache, a microsecond away: larger caches
made nothing faster, and filled with the pages of parked runs."""

WAL_CHECKPOINT_PAGES: Final = 1_000
"""The write-ahead log is copied into the file whenever it has grown by this much; SQLite's own default."""

WAL_KEPT_BYTES: Final = 16 * 1024 * 1024
"""What is left of a log that had grown beyond it (a long reader keeps it from being reused), once it can be cut."""


PATH_CHARS_MAX: Final = 4_096
"""As Linux has it; to follow the links of one that is longer takes time in the square of its length."""


def to_path(address: str) -> str:
    """The file that `address` names: a path, ``sqlite:path``, ``sqlite:///absolute/path``, or ``sqlite::memory:``.

    The answer is the real path, links followed, so that one file has one name.
    """
    path = address
    if path.startswith("sqlite:"):
        path = path[len("sqlite:") :]
        if path.startswith("//"):
            path = unquote(path[2:])
            if not path.startswith("/"):
                raise StoreError(
                    f"the address {address!r} names a host. Expected: 'sqlite:file.db', 'sqlite:/absolute/file.db' or "
                    "'sqlite:///absolute/file.db'"
                )
    if path in (MEMORY, "/" + MEMORY):
        return MEMORY
    if not path or "\0" in path:
        raise StoreError(f"the address {address!r} names no file. Expected: 'sqlite:file.db' or 'sqlite::memory:'")
    if len(path) > PATH_CHARS_MAX:
        raise StoreError(
            f"the address {address[:80]!r}… has a path of {len(path)} characters. Expected: at most {PATH_CHARS_MAX}, "
            "which is the longest that systems take"
        )
    path = os.path.realpath(path)
    if os.path.isdir(path):
        raise StoreError(
            f"the store {path} cannot be opened: it is a directory. Expected: the path of a file, new or existing"
        )
    return path


def connect_writer(path: str, *, busy_timeout_ms: int, size_bytes_max: int | None) -> sqlite3.Connection:
    """Open the connection of the owner; the schema is checked, and not yet brought up to date.

    Raises:
        StoreError: With what is wrong about the file.
    """
    connection = _connect(path, busy_timeout_ms=busy_timeout_ms, mode="rwc")
    try:
        schema.check_is_store(connection, path)
        connection.execute(f"PRAGMA cache_size = -{WRITER_CACHE_KIB}")
        connection.execute(f"PRAGMA page_size = {PAGE_SIZE_BYTES}")
        (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
        if mode not in ("wal", "memory"):
            raise StoreError(
                f"the store {path} cannot keep a write-ahead log where it is (journal mode {mode!r}). Expected: a "
                "local disk with shared memory and file locks; network file systems have neither. Move the file"
            )
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute(f"PRAGMA wal_autocheckpoint = {WAL_CHECKPOINT_PAGES}")
        connection.execute(f"PRAGMA journal_size_limit = {WAL_KEPT_BYTES}")
        connection.execute("PRAGMA temp_store = MEMORY")
        if size_bytes_max is not None:
            (page_size,) = connection.execute("PRAGMA page_size").fetchone()
            connection.execute(f"PRAGMA max_page_count = {max(1, size_bytes_max // page_size)}")
    except BaseException as error:
        connection.close()
        if isinstance(error, sqlite3.Error):
            raise to_store_error(error, path) from error
        raise
    return connection


def connect_reader(path: str, *, busy_timeout_ms: int) -> sqlite3.Connection:
    """Open a connection that can only read.

    Raises:
        StoreError: With what is wrong about the file.
    """
    connection = _connect(path, busy_timeout_ms=busy_timeout_ms, mode="ro")
    try:
        if not schema.check_is_store(connection, path):
            raise StoreIncompatible(f"{path} is empty: no store was made there yet. Start a program that owns it first")
        connection.execute(f"PRAGMA cache_size = -{READER_CACHE_KIB}")
        if not schema.is_up_to_date(connection):
            raise StoreIncompatible(
                f"the store {path} has the schema of an older Clew, and reading alone cannot bring it up to date. "
                "Open it once for writing with this version (start the program that owns it)"
            )
    except BaseException as error:
        connection.close()
        if isinstance(error, sqlite3.Error):
            raise to_store_error(error, path) from error
        raise
    return connection


def _make_private(path: str) -> None:
    """Make the file, if there is none, readable by its owner alone; SQLite gives its side files the same mode."""
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0), 0o600))
    except OSError:
        """It is there, or cannot be made: SQLite, which opens it next, says why in its own words."""


def _connect(path: str, *, busy_timeout_ms: int, mode: str) -> sqlite3.Connection:
    if mode == "ro" and not os.path.exists(path):
        raise StoreError(f"the store {path} does not exist. Check the path, or start the program that creates it")
    if mode == "rwc" and path != MEMORY:
        _make_private(path)
    target = path if path == MEMORY else f"file:{quote(path)}?mode={mode}"
    try:
        connection = sqlite3.connect(
            target,
            timeout=busy_timeout_ms / 1000,
            isolation_level=None,
            check_same_thread=False,
            cached_statements=256,
            uri=path != MEMORY,
        )
    except sqlite3.Error as error:
        raise to_store_error(error, path) from error
    return connection
