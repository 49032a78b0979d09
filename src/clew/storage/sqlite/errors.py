"""What went wrong in SQLite, said as an error of the store port.

Owns: the table from SQLite's result codes to `StoreError` and the texts. Never: retries, or decides what a caller does.

How it works: SQLite's primary result code (the low byte of the extended one) names the trouble. A full disk shows up as
several codes, so an I/O error on a file system without room counts as full too.
"""

from __future__ import annotations

import os
import sqlite3
from typing import Final

from clew.ports.store import (
    StoreCorrupt,
    StoreError,
    StoreFull,
    StoreIncompatible,
    StoreReadOnly,
    StoreUnavailable,
)

_ROOM_NEEDED_BYTES: Final = 256 * 1024
"""With less free space than this an I/O error is put down to a full disk (a WAL index grows by 32 KiB at a time)."""

_CALL_ERRORS: Final = frozenset(
    {
        sqlite3.SQLITE_ERROR,
        sqlite3.SQLITE_TOOBIG,
        sqlite3.SQLITE_CONSTRAINT,
        sqlite3.SQLITE_MISMATCH,
        sqlite3.SQLITE_RANGE,
    }
)


def primary_code(error: sqlite3.Error) -> int:
    """SQLite's primary result code of `error`; ``SQLITE_MISUSE`` where Python itself refused the call."""
    code: int = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_MISUSE)
    return code & 0xFF


def is_fault_of_call(error: BaseException) -> bool:
    """Whether `error` is about the data of one call, so that other calls of the same transaction may go on."""
    if not isinstance(error, sqlite3.Error):
        return True
    return not hasattr(error, "sqlite_errorcode") or primary_code(error) in _CALL_ERRORS


def is_busy(error: BaseException | None) -> bool:
    """Whether `error` says that somebody else has the file locked, so that nothing was done."""
    return isinstance(error, sqlite3.Error) and primary_code(error) in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def free_bytes(path: str) -> int | None:
    """The free space of the file system under `path`; None when that cannot be told."""
    try:
        usage = os.statvfs(os.path.dirname(path) or ".")
    except (OSError, AttributeError):
        return None
    return usage.f_bavail * usage.f_frsize


def to_store_error(error: BaseException, path: str) -> StoreError:
    """Say `error`, met on the database at `path`, as an error of the port."""
    if isinstance(error, StoreError):
        return error
    if not isinstance(error, sqlite3.Error):
        return StoreError(
            f"the store {path} could not take or give this data: {type(error).__name__}: {error}. Nothing of the call "
            "was done; this is a bug in the caller or in Clew, please report it with this message"
        )
    text = f"{getattr(error, 'sqlite_errorname', type(error).__name__)}: {error}"
    match primary_code(error):
        case sqlite3.SQLITE_FULL:
            return _full(path, text)
        case sqlite3.SQLITE_IOERR | sqlite3.SQLITE_CANTOPEN | sqlite3.SQLITE_NOMEM | sqlite3.SQLITE_NOLFS:
            room = free_bytes(path)
            if room is not None and room < _ROOM_NEEDED_BYTES:
                return _full(path, text)
            return StoreUnavailable(
                f"the store {path} could not be read or written ({text}). Expected: a healthy local disk and an "
                "existing directory; check both (and the system log), then try again"
            )
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED | sqlite3.SQLITE_PROTOCOL | sqlite3.SQLITE_INTERRUPT:
            return StoreUnavailable(
                f"the store {path} stayed locked by another program for longer than the busy timeout ({text}). "
                "Expected: only the owner writes; end the other transaction (a shell or backup with BEGIN "
                "IMMEDIATE?), then try again"
            )
        case sqlite3.SQLITE_READONLY | sqlite3.SQLITE_PERM | sqlite3.SQLITE_AUTH:
            return StoreReadOnly(
                f"the store {path} cannot be written ({text}). Expected: a file and a directory that this user may "
                "write; change their permissions, or the mount, or choose another file"
            )
        case sqlite3.SQLITE_CORRUPT:
            return StoreCorrupt(
                f"the store {path} is damaged ({text}); nothing was written. Stop every process that uses it, copy "
                f"the file with its -wal file, see what 'sqlite3 {path} \"PRAGMA integrity_check\"' says, and restore "
                "a backup or use 'sqlite3 … .recover'"
            )
        case sqlite3.SQLITE_NOTADB | sqlite3.SQLITE_FORMAT:
            return StoreIncompatible(
                f"{path} is not an SQLite database ({text}). Expected: a store that Clew made, or a new or empty file; "
                "give another path"
            )
        case _:
            return StoreError(
                f"the store {path} refused the call ({text}); nothing of it was done. This is a bug in Clew: please "
                "report it"
            )


def _full(path: str, text: str) -> StoreFull:
    return StoreFull(
        f"no room for the store {path} ({text}); nothing of the call was done and nothing was lost. Make room on its "
        "disk (or raise the size limit it was opened with); it works again at once, without a restart"
    )
