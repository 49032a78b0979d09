"""The audit log as a file: whole lines, bounded size, bounded memory, faults of the disk."""

from __future__ import annotations

import os
import stat
import threading
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest

from clew.ports.audit import AuditRecord
from clew.server.security import audit as module
from clew.server.security.audit import JsonLinesAudit

AT = datetime(2026, 1, 1, tzinfo=UTC)


def record(number: int = 0, **fields: object) -> AuditRecord:
    values = {"at": AT, "event": "call", "principal": "key:1", "call": "start_workflow", "duration_ms": float(number)}
    return AuditRecord(**{**values, **fields})  # type: ignore[arg-type]


def lines(path: Path) -> list[AuditRecord]:
    return [msgspec.json.decode(line, type=AuditRecord) for line in path.read_bytes().splitlines()]


def test_every_record_is_a_line_in_order(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    log = JsonLinesAudit(path)
    written = [record(number, subject={"workflow_id": "a\nb\u2028"}) for number in range(2_500)]
    for one in written:
        log.write(one)
    assert log.is_healthy()
    log.close()
    assert lines(path) == written
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_it_goes_on_where_it_ended(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    for number in range(3):
        log = JsonLinesAudit(path)
        log.write(record(number))
        log.close()
    assert [one.duration_ms for one in lines(path)] == [0, 1, 2]


def test_files_are_set_aside_and_the_oldest_goes(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    for number in range(8):
        log = JsonLinesAudit(path, size_bytes_max=150, kept_count=3)
        log.write(record(number))
        log.close()
    names = sorted(file.name for file in tmp_path.iterdir())
    assert names == ["audit.jsonl", "audit.jsonl.1", "audit.jsonl.2", "audit.jsonl.3"]
    kept = [one.duration_ms for name in reversed(names) for one in lines(tmp_path / name)]
    assert kept == sorted(kept)
    assert kept[-1] == 7
    assert all((tmp_path / name).stat().st_size <= 150 for name in names)


def test_what_finds_the_queue_full_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "audit.jsonl"
    gate, reached, write = threading.Event(), threading.Event(), os.write

    def slow(fd: int, data: bytes) -> int:
        reached.set()
        assert gate.wait(10)
        return write(fd, data)

    monkeypatch.setattr(module.os, "write", slow)
    log = JsonLinesAudit(path, queue_max=5)
    log.write(record(0))
    assert reached.wait(10)
    for number in range(1, 12):
        log.write(record(number))
    assert not log.is_healthy()
    gate.set()
    log.close()
    kept = lines(path)
    assert [one.duration_ms for one in kept if one.event == "call"] == [0, 1, 2, 3, 4]
    assert sum(one.count for one in kept if one.event == "suppressed") == 7


def test_a_full_disk_makes_it_unhealthy_until_there_is_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "audit.jsonl"
    has_room, failed, write = threading.Event(), threading.Event(), os.write

    def half(fd: int, data: bytes) -> int:
        if has_room.is_set():
            return write(fd, data)
        if len(data) > 10:
            return write(fd, data[:10])  # a part, then nothing more
        failed.set()
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, "_RETRY_SECONDS", 0.01)
    monkeypatch.setattr(module.os, "write", lambda fd, data: half(fd, bytes(data)))
    log = JsonLinesAudit(path)
    log.write(record(1))
    assert failed.wait(10)
    log.write(record(2))
    deadline = threading.Event()
    for _ in range(1_000):
        if not log.is_healthy():
            break
        deadline.wait(0.01)
    assert not log.is_healthy()
    has_room.set()
    log.close()
    assert [one.duration_ms for one in lines(path)] == [1, 2]
    assert log.is_healthy()
