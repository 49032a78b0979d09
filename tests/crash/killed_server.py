"""Lives of ``clew server start``, which on a SQLite file kill themselves at their n-th commit.

Each line of its input is JSON: ``[NAME, N, HOW, LOG, ARGUMENT…]``. The command runs in a child that is forked after all
is imported, so that a life begins within a moment; its output is added to the file LOG. For each life, two lines are
answered: ``pid NAME PID``, and ``ended NAME CODE`` once it is over. N is 0 to live on. HOW:

- ``before``: the commit was asked for, and nothing of it is written;
- ``torn``: half of the frame that makes it a commit is written;
- ``unsynced``: all of it is written, and not synced;
- ``synced``: it is durable, and nobody was told;
- ``soon``: up to three milliseconds later, while callers are being answered.
"""

from __future__ import annotations

import importlib
import json
import os
import select
import signal
import struct
import sys
import threading
import time
import traceback
from typing import NoReturn

from clew.cli import main
from tests.crash.watched_files import Step, watch

WAYS = ("before", "torn", "unsynced", "synced", "soon")
_IMPORTED_FIRST = ("clew.server.node", "clew.storage.sqlite", "clew.storage.postgres", "asyncpg", "uvicorn.main")
_FRAME_HEADER_BYTES = 24
_SOON_SECONDS_MAX = 0.003


class Killer:
    """Counts commits: a frame of the write-ahead log whose header has a size of the database ends one."""

    def __init__(self, at: int, how: str) -> None:
        self.at = at
        self.how = how
        self.count = 0
        self.is_ending = False
        """The header of the frame that ends a commit is written, and its page is not."""

    def die(self) -> NoReturn:
        """Nothing is done after this."""
        os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(60)
        raise AssertionError("killed, and still alive")

    def look(self, step: Step) -> None:
        """Die if this is the operation to die at."""
        if not step.path.endswith("-wal"):
            return
        if step.kind == "write":
            if self.how == "before" and self.count == self.at - 1:
                self.die()
            self._look_at_write(step)
        elif step.kind == "sync" and self.count == self.at and self.how == "synced":
            self.die()
        elif step.kind == "sync" and self.count == self.at and self.how == "soon":
            # Knuth's multiplicative hash spreads the moments, the same for the same number.
            share = self.at * 2654435761 % 4096 / 4096
            threading.Timer(share * _SOON_SECONDS_MAX, self.die).start()

    def before_sync(self, path: str) -> None:
        """A sync is about to be made."""
        if path.endswith("-wal") and self.count == self.at and self.how == "unsynced":
            self.die()

    def _look_at_write(self, step: Step) -> None:
        if len(step.data) == _FRAME_HEADER_BYTES:
            (pages,) = struct.unpack(">I", step.data[4:8])
            self.is_ending = pages > 0
        elif self.is_ending:
            self.is_ending = False
            self.count += 1
            if self.count == self.at and self.how == "torn":
                descriptor = os.open(step.path, os.O_WRONLY)
                os.pwrite(descriptor, step.data[: len(step.data) // 2], step.offset)
                self.die()


def live(at: int, how: str, log: str, arguments: list[str]) -> NoReturn:
    """One life, in the child."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    descriptor = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    if at:
        killer = Killer(at, how)
        watch(killer.look, before_sync=killer.before_sync)
    sys.argv = ["clew", *arguments]
    code = 1
    try:
        code = main() or 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException:  # noqa: BLE001 - whatever it is, it ends this life and goes to its log
        traceback.print_exc()
    finally:
        os._exit(code)


def breed() -> None:
    """Begin lives as they are asked for, and tell of their ends, until the input ends."""
    for name in _IMPORTED_FIRST:
        importlib.import_module(name)
    assert threading.active_count() == 1, "a process with threads must not fork"
    ends, end_of_child = os.pipe2(os.O_NONBLOCK)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(end_of_child, warn_on_full_buffer=False)
    names: dict[int, str] = {}
    asked = b""
    while True:
        ready, _, _ = select.select([0, ends], [], [])
        if ends in ready:
            os.read(ends, 4096)
            _tell_ends(names)
        if 0 not in ready:
            continue
        data = os.read(0, 65536)
        if not data:
            for pid in names:
                os.kill(pid, signal.SIGKILL)
            return
        *lines, asked = (asked + data).split(b"\n")
        for line in lines:
            name, at, how, log, *arguments = json.loads(line)
            pid = os.fork()
            if pid == 0:
                live(at, how, log, arguments)
            names[pid] = name
            print(f"pid {name} {pid}", flush=True)


def _tell_ends(names: dict[int, str]) -> None:
    while names:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        print(f"ended {names.pop(pid)} {os.waitstatus_to_exitcode(status)}", flush=True)


if __name__ == "__main__":
    breed()
