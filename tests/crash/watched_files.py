"""SQLite's file operations, watched from inside: a layer over its VFS, through ctypes.

Owns: `watch`, which tells of every write, truncation, sync and removal, and `Journal`, which keeps them so that
the files can be put together as a power failure would have left them. Never: changes what the operations do.

How it works: the default VFS is copied, and the copy's ``xOpen`` lends each file the methods of the real one, but for
``xWrite``, ``xTruncate`` and ``xSync``, which tell: of a change before it is made, of a sync when it is done. Python's
``sqlite3`` uses the same library, so that every connection opened afterwards is watched. What is written into a file
after its last sync may be there after a power failure, or not, or in part, sector by sector; what came before that sync
is there.
"""

from __future__ import annotations

import _sqlite3
import ctypes
import os
import random
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

SECTOR_BYTES: Final = 512

_Pointer = ctypes.c_void_p
_OPEN = ctypes.CFUNCTYPE(ctypes.c_int, _Pointer, _Pointer, _Pointer, ctypes.c_int, _Pointer)
_WRITE = ctypes.CFUNCTYPE(ctypes.c_int, _Pointer, _Pointer, ctypes.c_int, ctypes.c_int64)
_TRUNCATE = ctypes.CFUNCTYPE(ctypes.c_int, _Pointer, ctypes.c_int64)
_SYNC = ctypes.CFUNCTYPE(ctypes.c_int, _Pointer, ctypes.c_int)
_DELETE = ctypes.CFUNCTYPE(ctypes.c_int, _Pointer, ctypes.c_char_p, ctypes.c_int)


class _Vfs(ctypes.Structure):
    _fields_ = [
        ("version", ctypes.c_int), ("file_size", ctypes.c_int), ("path_max", ctypes.c_int), ("next", _Pointer),
        ("name", ctypes.c_char_p), ("data", _Pointer), ("open", _OPEN), ("delete", _DELETE),
        ("rest", _Pointer * 16),
    ]  # fmt: skip


class _Methods(ctypes.Structure):
    _fields_ = [
        ("version", ctypes.c_int), ("close", _Pointer), ("read", _Pointer), ("write", _WRITE),
        ("truncate", _TRUNCATE), ("sync", _SYNC), ("rest", _Pointer * 13),
    ]  # fmt: skip


class Step(NamedTuple):
    """One thing that happens to a file, or a note in between.

    Args:
        kind: ``write``, ``truncate``, ``sync``, ``delete`` or ``note``.
        path: Of the file.
        offset: Of a write; the new size of a truncation.
        data: Of a write; what is noted.
    """

    kind: str
    path: str
    offset: int = 0
    data: Any = b""


_kept: list[Any] = []
"""What C holds pointers to."""


def watch(tell: Callable[[Step], None], *, before_sync: Callable[[str], None] = lambda _: None) -> None:
    """From now on, for the rest of the process: `tell` is called with every operation on a file, on any thread.

    Args:
        tell: Called before a change, and after a sync.
        before_sync: Called with the path before a sync.
    """
    library = ctypes.CDLL(_library_path())
    library.sqlite3_vfs_find.restype = ctypes.POINTER(_Vfs)
    library.sqlite3_vfs_find.argtypes = [ctypes.c_char_p]
    library.sqlite3_vfs_register.argtypes = [_Pointer, ctypes.c_int]
    real = library.sqlite3_vfs_find(None)
    copy = _Vfs.from_buffer_copy(real.contents)
    copy.name, copy.next = b"watched", None
    copy.open = _OPEN(_opener(real, tell, before_sync))
    copy.delete = _DELETE(_deleter(real, tell))
    _kept.extend([real, copy])
    assert library.sqlite3_vfs_register(ctypes.byref(copy), 1) == 0, "SQLite took the watching VFS"


def _library_path() -> str:
    """The library that Python's module is linked to."""
    listed = subprocess.run(["ldd", _sqlite3.__file__], capture_output=True, text=True, check=True).stdout
    found = [line.split("=>")[1].split()[0] for line in listed.splitlines() if "libsqlite3" in line]
    assert found, f"Python's sqlite3 has its own copy of SQLite, which cannot be watched: {listed}"
    return found[0]


def _opener(real: Any, tell: Callable[[Step], None], before_sync: Callable[[str], None]) -> Callable[..., int]:
    def open_file(vfs: int, name: int | None, file: int, flags: int, out: int) -> int:
        # The very pointer is passed on: SQLite keeps it as long as the file is open.
        code: int = real.contents.open(ctypes.cast(real, _Pointer), name, file, flags, out)
        at = ctypes.cast(file, ctypes.POINTER(_Pointer))
        if code == 0 and at[0] and name:
            of_file = ctypes.cast(at[0], ctypes.POINTER(_Methods)).contents
            methods = _watched(of_file, ctypes.string_at(name).decode(), tell, before_sync)
            _kept.append(methods)
            at[0] = ctypes.addressof(methods)
        return code

    return open_file


def _deleter(real: Any, tell: Callable[[Step], None]) -> Callable[..., int]:
    def delete(vfs: int, name: bytes, syncs_folder: int) -> int:
        code = int(real.contents.delete(ctypes.cast(real, _Pointer), name, syncs_folder))
        tell(Step("delete", name.decode()))
        return code

    return delete


def _watched(real: _Methods, path: str, tell: Callable[[Step], None], before_sync: Callable[[str], None]) -> _Methods:
    def write(file: int, data: int, size: int, offset: int) -> int:
        tell(Step("write", path, offset, ctypes.string_at(data, size)))
        return int(real.write(file, data, size, offset))

    def truncate(file: int, size: int) -> int:
        tell(Step("truncate", path, size))
        return int(real.truncate(file, size))

    def sync(file: int, flags: int) -> int:
        before_sync(path)
        code = int(real.sync(file, flags))
        tell(Step("sync", path))
        return code

    copy = _Methods.from_buffer_copy(real)
    copy.write, copy.truncate, copy.sync = _WRITE(write), _TRUNCATE(truncate), _SYNC(sync)
    return copy


class Journal:
    """Everything that happened to the files, in order."""

    def __init__(self) -> None:
        self.steps: list[Step] = []

    def note(self, what: Any) -> None:
        """Something that the outside was told."""
        self.steps.append(Step("note", "", data=what))

    def notes(self, count: int) -> list[Any]:
        """What had been noted by then."""
        return [step.data for step in self.steps[:count] if step.kind == "note"]

    def rebuild(self, count: int, folder: Path, chance: random.Random | None) -> None:
        """Put into `folder` what the disk holds after the first `count` steps and a power failure.

        Args:
            count: Of steps.
            folder: Empty.
            chance: Decides which sectors written after the last sync of their file are there; None drops them all.
        """
        steps = self.steps[:count]
        for path in {step.path for step in steps if step.path}:
            of_file = [step for step in steps if step.path == path and step.kind != "note"]
            deleted = max((index + 1 for index, step in enumerate(of_file) if step.kind == "delete"), default=0)
            of_file = of_file[deleted:]
            if not of_file and deleted:
                continue
            synced = max((index + 1 for index, step in enumerate(of_file) if step.kind == "sync"), default=0)
            image = bytearray()
            for index, step in enumerate(of_file):
                _apply(image, step, None if index < synced else chance, is_synced=index < synced)
            (folder / os.path.basename(path)).write_bytes(bytes(image))


def _apply(image: bytearray, step: Step, chance: random.Random | None, *, is_synced: bool) -> None:
    if step.kind == "truncate" and (is_synced or (chance is not None and chance.random() < 0.5)):
        del image[step.offset :]
    elif step.kind == "write":
        for start in range(0, len(step.data), SECTOR_BYTES):
            if is_synced or (chance is not None and chance.random() < 0.5):
                piece = step.data[start : start + SECTOR_BYTES]
                at = step.offset + start
                image.extend(bytes(max(0, at + len(piece) - len(image))))
                image[at : at + len(piece)] = piece
