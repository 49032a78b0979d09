"""Claim checks: what is moved, how it comes back, and what happens when it does not."""

from __future__ import annotations

import asyncio
import hashlib
import os
from pathlib import Path

import msgspec
import pytest

from clew.contrib.payload_store import FileSystemPayloadStore, MissingPayloadError, PayloadStoreCodec
from clew.converter import Payload
from clew.exceptions import DecodeError

SMALL = Payload({"encoding": b"json/plain"}, b'"x"')
LARGE = Payload({"encoding": b"binary/plain", "note": b"kept"}, b"p" * 2000)


def codec(directory: Path) -> PayloadStoreCodec:
    return PayloadStoreCodec(FileSystemPayloadStore(directory / "store"), threshold_bytes=1000, name="photos")


def stored_files(directory: Path) -> list[Path]:
    return [path for path in (directory / "store").rglob("*") if path.is_file()]


async def test_large_payloads_go_to_the_store_and_come_back(tmp_path: Path) -> None:
    small, check = await codec(tmp_path).encode([SMALL, LARGE])
    assert small is SMALL
    assert len(check.data) < 200
    [file] = stored_files(tmp_path)
    assert hashlib.sha256(file.read_bytes()).hexdigest() == file.name == msgspec.json.decode(check.data)["key"]
    assert await codec(tmp_path).decode([small, check]) == [SMALL, LARGE]


async def test_the_threshold_is_the_largest_that_stays(tmp_path: Path) -> None:
    at, above = (Payload({"encoding": b"binary/plain"}, b"x" * size) for size in (1000, 1001))
    kept, moved = await codec(tmp_path).encode([at, above])
    assert kept is at
    assert moved.metadata["encoding"] == b"json/claim-check"


async def test_equal_payloads_are_stored_once_and_count_as_fresh(tmp_path: Path) -> None:
    await codec(tmp_path).encode([LARGE])
    [file] = stored_files(tmp_path)
    os.utime(file, (1, 1))
    await codec(tmp_path).encode([LARGE, LARGE])
    assert stored_files(tmp_path) == [file]
    assert file.stat().st_mtime > 1


async def test_many_writers_of_one_payload_leave_one_whole_file(tmp_path: Path) -> None:
    codecs = [codec(tmp_path) for _ in range(20)]
    checks = await asyncio.gather(*(one.encode([LARGE]) for one in codecs))
    assert len(stored_files(tmp_path)) == 1
    assert await codecs[0].decode([check for [check] in checks]) == [LARGE] * 20


async def test_half_of_a_file_that_a_crash_left_is_written_anew(tmp_path: Path) -> None:
    [check] = await codec(tmp_path).encode([LARGE])
    [file] = stored_files(tmp_path)
    file.write_bytes(file.read_bytes()[:100])
    await codec(tmp_path).encode([LARGE])
    assert await codec(tmp_path).decode([check]) == [LARGE]


async def test_a_write_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    (tmp_path / "store").mkdir()
    with pytest.raises(OSError, match="No space"):
        await codec(tmp_path).encode([LARGE])
    assert stored_files(tmp_path) == []


async def test_a_deleted_payload_is_named(tmp_path: Path) -> None:
    [check] = await codec(tmp_path).encode([LARGE])
    [file] = stored_files(tmp_path)
    file.unlink()
    with pytest.raises(
        MissingPayloadError, match=rf"{file.name} \(\d+ bytes\) is not in store 'photos'.*bring it back"
    ):
        await codec(tmp_path).decode([check])


async def test_a_changed_payload_is_refused(tmp_path: Path) -> None:
    [check] = await codec(tmp_path).encode([LARGE])
    [file] = stored_files(tmp_path)
    file.write_bytes(b"something else")
    with pytest.raises(MissingPayloadError, match="14 bytes that are not what was stored"):
        await codec(tmp_path).decode([check])


@pytest.mark.parametrize(
    "check",
    [
        b'{"key": "../../../../etc/passwd", "size": 1}',
        b'{"key": "' + b"A" * 64 + b'", "size": 1}',
        b'{"key": "' + b"a" * 64 + b'\\n", "size": 1}',
        b'{"key": 5, "size": 1}',
        b'{"size": 1}',
        b"\xff",
        b"",
    ],
)
async def test_a_forged_claim_check_opens_no_file(tmp_path: Path, check: bytes) -> None:
    with pytest.raises(DecodeError, match="claim check"):
        await codec(tmp_path).decode([Payload({"encoding": b"json/claim-check"}, check)])


async def test_the_store_itself_checks_keys(tmp_path: Path) -> None:
    store = FileSystemPayloadStore(tmp_path)
    for key in ("../x", "", "a" * 63, "/" + "a" * 63):
        with pytest.raises(ValueError, match="64 lower-case hexadecimal digits"):
            await store.put(key, b"")
        with pytest.raises(ValueError, match="64 lower-case hexadecimal digits"):
            await store.get(key)


def test_a_negative_threshold_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="must not be negative"):
        PayloadStoreCodec(FileSystemPayloadStore(tmp_path), threshold_bytes=-1)
