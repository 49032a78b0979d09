"""The audit log as a file of JSON lines.

Owns: `JsonLinesAudit`: one line a record, in a file that is set aside when it is full. Never: what is written down.

How it works: records go into a queue of bounded length, and a thread of the log's own writes what has gathered, so that
no call waits for a disk. A record that finds the queue full is counted; the count is written as a line of its own as
soon as there is room. When the file would pass `size_bytes_max` it becomes ``name.1``, the former ``name.1`` becomes
``name.2``, and so on up to `kept_count`; the oldest goes. Its mode is 0600. After a fault of the disk the log
is not healthy until a later attempt succeeds; what could not be written is kept for that as long as the queue has room.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import deque
from pathlib import Path
from typing import Final, final

import msgspec

from clew.ports.audit import AuditRecord

QUEUE_MAX: Final = 50_000
"""Some seconds of the busiest node; at most about 20 MB."""

SIZE_BYTES_MAX: Final = 100 * 1024 * 1024
KEPT_COUNT: Final = 10

_RETRY_SECONDS: Final = 1.0
_BATCH_MAX: Final = 1_000

_log: Final = logging.getLogger("clew.server")


@final
class JsonLinesAudit:
    """See the module docstring. Implements ``ports.audit.AuditLog``.

    Args:
        path: The file; its directory must exist.
        size_bytes_max: How large it may grow.
        kept_count: How many older files are kept.
        queue_max: How many records may wait to be written.

    Raises:
        OSError: The file cannot be opened.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        size_bytes_max: int = SIZE_BYTES_MAX,
        kept_count: int = KEPT_COUNT,
        queue_max: int = QUEUE_MAX,
    ) -> None:
        self._path = Path(path)
        self._size_bytes_max = size_bytes_max
        self._kept_count = kept_count
        self._queue_max = queue_max
        self._records: deque[AuditRecord] = deque()
        self._dropped_count = 0
        self._is_healthy = True
        self._is_closing = False
        self._wake = threading.Condition()
        self._encoder = msgspec.json.Encoder()
        self._fd = self._open()
        self._thread = threading.Thread(target=self._run, name="clew-audit", daemon=True)
        self._thread.start()

    def write(self, record: AuditRecord) -> None:
        """Take one record; from any thread."""
        with self._wake:
            if len(self._records) >= self._queue_max:
                self._dropped_count += 1
                return
            self._records.append(record)
            if len(self._records) == 1:
                self._wake.notify()

    def is_healthy(self) -> bool:
        """Whether the file can be written and the queue has room."""
        return self._is_healthy and len(self._records) < self._queue_max

    def close(self) -> None:
        """Write what waits, then close the file; waits for a few seconds at most."""
        with self._wake:
            self._is_closing = True
            self._wake.notify()
        self._thread.join(5.0)

    # --- the thread -------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            with self._wake:
                while not self._records and not self._is_closing:
                    self._wake.wait()
                batch = [self._records[index] for index in range(min(len(self._records), _BATCH_MAX))]
                dropped_count, is_closing = self._dropped_count, self._is_closing
            if not batch:
                break
            if not self._write_batch(batch, dropped_count):
                if is_closing:
                    break
                with self._wake:
                    self._wake.wait(_RETRY_SECONDS)
                continue
            with self._wake:
                for _ in batch:
                    self._records.popleft()
                self._dropped_count -= dropped_count
        os.close(self._fd)

    def _write_batch(self, batch: list[AuditRecord], dropped_count: int) -> bool:
        lines = [self._encoder.encode(record) for record in batch]
        if dropped_count:
            left_out = AuditRecord(at=batch[-1].at, event="suppressed", principal="", count=dropped_count)
            lines.append(self._encoder.encode(left_out))
        data = b"\n".join(lines) + b"\n"
        try:
            size = os.fstat(self._fd).st_size
            if size and size + len(data) > self._size_bytes_max:
                self._set_aside()
            _write_whole(self._fd, data)
        except OSError as error:
            if self._is_healthy:
                _log.error("audit.write_failed path=%s error=%s", self._path, error)
            self._is_healthy = False
            return False
        self._is_healthy = True
        return True

    def _set_aside(self) -> None:
        for number in range(self._kept_count - 1, 0, -1):
            older = self._numbered(number)
            if older.exists():
                os.replace(older, self._numbered(number + 1))
        if self._kept_count:
            os.replace(self._path, self._numbered(1))
        else:
            os.unlink(self._path)
        opened = self._open()
        os.close(self._fd)
        self._fd = opened

    def _numbered(self, number: int) -> Path:
        return self._path.with_name(f"{self._path.name}.{number}")

    def _open(self) -> int:
        return os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | getattr(os, "O_CLOEXEC", 0), 0o600)


def _write_whole(fd: int, data: bytes) -> None:
    """All of `data`, or an error after which the file ends where it ended before."""
    start = os.fstat(fd).st_size
    left = memoryview(data)
    try:
        while left:
            left = left[os.write(fd, left) :]
    except OSError:
        os.ftruncate(fd, start)
        raise
