"""Who owns a store file: one process at a time, by a lock of the operating system.

Owns: the side file ``<database>-owner`` and the lock on it. Never: touches the database.

How it works: the owner holds an exclusive lock on one byte far behind the contents of the side file, for as long as
the store is open; the contents name the owner for others to read. The system drops the lock when the process ends,
however it ends, so a dead owner never has to be detected. On POSIX this is a record lock, which a forked child does
not inherit (a worker process that outlives a killed owner must not keep the store); record locks do not exclude
within one process, so a registry in memory does. The side file is never removed: removing it would let two processes
lock two files of one name.

Links and relative paths lead to the same lock, as the real path is what counts. Network file systems often do not keep
locks: a store belongs on a local disk.
"""

from __future__ import annotations

import errno
import json
import os
import socket
import sys
import threading
from typing import Final

import msgspec

from clew.ports.store import StoreError, StoreFull, StoreInUse, StoreReadOnly

_LOCK_OFFSET: Final = 1 << 30
"""Behind anything that is ever written there: Windows forbids others to read a locked byte."""

_registry: dict[str, int] = {}
_registry_lock = threading.Lock()


class Owner(msgspec.Struct, frozen=True):
    """Who has a store, as its side file tells."""

    pid: int
    host: str
    program: str = ""


class Ownership:
    """A held lock; `release` gives it back."""

    def __init__(self, path: str, descriptor: int) -> None:
        self._path = path
        self._descriptor = descriptor

    def release(self) -> None:
        """Let another process own the store."""
        with _registry_lock:
            if _registry.get(self._path) == os.getpid():
                del _registry[self._path]
                os.ftruncate(self._descriptor, 0)
                os.close(self._descriptor)


def _forget_after_fork() -> None:
    global _registry_lock
    _registry_lock = threading.Lock()
    _registry.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_after_fork)


def owner_path(path: str) -> str:
    """The side file of the database at the real path `path`."""
    return path + "-owner"


def read_owner(path: str) -> Owner | None:
    """Who is written down as the owner of the database at `path`; None when nobody is, or it cannot be read."""
    try:
        with open(owner_path(path), "rb") as file:
            return msgspec.json.decode(file.read(4096), type=Owner)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def acquire(path: str) -> Ownership:
    """Own the database at the real path `path`.

    Raises:
        StoreInUse: Another process, or another store of this process, has it.
        StoreReadOnly: The side file cannot be written.
    """
    with _registry_lock:
        if _registry.get(path) == os.getpid():
            raise StoreInUse(
                f"the store {path} is open already in this process (pid {os.getpid()}). Expected: one store object a "
                "file; share that one, or close it first"
            )
        descriptor = _open_side_file(path)
        if not _try_lock(descriptor):
            os.close(descriptor)
            raise _in_use(path)
        text = json.dumps({"pid": os.getpid(), "host": socket.gethostname(), "program": os.path.basename(sys.argv[0])})
        try:
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, text.encode(), 0) if hasattr(os, "pwrite") else os.write(descriptor, text.encode())
        except OSError as error:
            os.close(descriptor)
            raise _not_writable(path, error) from error
        _registry[path] = os.getpid()
        return Ownership(path, descriptor)


def _open_side_file(path: str) -> int:
    try:
        return os.open(owner_path(path), os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), 0o600)
    except FileNotFoundError as error:
        raise StoreError(
            f"the store {path} cannot be opened: its directory {os.path.dirname(path)} does not exist. Create the "
            "directory, or give another path"
        ) from error
    except NotADirectoryError as error:
        raise StoreError(
            f"the store {path} cannot be opened: {os.path.dirname(path)} is not a directory. Give another path"
        ) from error
    except OSError as error:
        raise _not_writable(path, error) from error


def _not_writable(path: str, error: OSError) -> StoreError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return StoreFull(
            f"no room for the side file {owner_path(path)} ({error.strerror}), so the store {path} cannot be opened. "
            "Make room on its disk, then try again"
        )
    return StoreReadOnly(
        f"the store {path} cannot be written: {error.strerror} at {owner_path(path)}. Expected: a directory that this "
        "user may write; change its permissions or give another path"
    )


def _in_use(path: str) -> StoreInUse:
    owner = read_owner(path)
    who = f"process {owner.pid} ({owner.program}) on host {owner.host}" if owner else "another process"
    return StoreInUse(
        f"the store {path} is in use by {who}. Expected: one owning process a file; stop that one, or use another "
        "file. Commands that only read work beside it"
    )


if sys.platform == "win32":
    import msvcrt

    def _try_lock(descriptor: int) -> bool:
        os.lseek(descriptor, _LOCK_OFFSET, os.SEEK_SET)
        try:
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        finally:
            os.lseek(descriptor, 0, os.SEEK_SET)
        return True

else:
    import fcntl

    def _try_lock(descriptor: int) -> bool:
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, _LOCK_OFFSET, os.SEEK_SET)
        except (BlockingIOError, PermissionError):
            return False
        return True
