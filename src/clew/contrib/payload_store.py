"""A payload codec that keeps large payloads elsewhere and puts a claim check in their place.

Owns: the claim check, the `PayloadStore` protocol, and the store on a file system (``contrib.s3`` has another).
Never: believes a claim check: it comes out of history, so its key is checked before it names a file, and what a store
gives back is checked against the key.

How it works: a payload above the threshold is written under the SHA-256 of its bytes, then its claim check goes where
it would have gone. What is stored never changes, so writing it again, after a lost answer or by a second attempt, does
no harm, and equal payloads take room once. A payload is durable in the store before the engine hears of it. Nothing is
deleted here: let the store drop what is older than the retention of your histories.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Protocol, final

import msgspec

from clew.contrib._inner_payload import decode_payload, encode_payload
from clew.converter import Payload, PayloadCodec
from clew.exceptions import DecodeError
from clew.model.payload import ENCODING_KEY

ENCODING: Final = b"json/claim-check"

THRESHOLD_BYTES_DEFAULT: Final = 128 * 1024
"""A quarter of the size at which the engine warns: the histories of most programs stay small and readable."""

_KEY: Final = re.compile(r"[0-9a-f]{64}")


class PayloadStore(Protocol):
    """Where large payloads are kept: bytes by key. Keys are 64 lower-case hexadecimal digits."""

    async def put(self, key: str, data: bytes) -> None:
        """Keep `data` durably; called again for what is there already. It counts as fresh again for clean-up."""
        ...

    async def get(self, key: str) -> bytes:
        """Give what was kept.

        Raises:
            KeyError: There is nothing of that key.
        """
        ...


class MissingPayloadError(DecodeError):
    """What a claim check stands for is not in the store, or is not what was stored."""


class _ClaimCheck(msgspec.Struct, frozen=True):
    key: str
    size: int
    store: str = ""


_encode_check = msgspec.json.Encoder().encode
_decode_check = msgspec.json.Decoder(_ClaimCheck).decode


@final
class PayloadStoreCodec(PayloadCodec):
    """Moves large payloads to a store.

    Every client and worker that reads such a run needs a codec with the same store.

    Args:
        store: Where to.
        threshold_bytes: Payloads with more bytes than this are moved.
        name: Names the store in claim checks, for the messages of a process that does not have it.
    """

    def __init__(
        self, store: PayloadStore, *, threshold_bytes: int = THRESHOLD_BYTES_DEFAULT, name: str = "payloads"
    ) -> None:
        if threshold_bytes < 0:
            raise ValueError(f"threshold_bytes is {threshold_bytes}; it must not be negative.")
        self._store = store
        self._threshold_bytes = threshold_bytes
        self._name = name

    async def encode(self, payloads: Sequence[Payload]) -> list[Payload]:
        """Store what is large; gives back once that is durable."""
        return list(await asyncio.gather(*(self._encode(payload) for payload in payloads)))

    async def decode(self, payloads: Sequence[Payload]) -> list[Payload]:
        """Fetch what claim checks stand for.

        Raises:
            MissingPayloadError: It is not there, or is something else.
            DecodeError: A claim check is none of ours.
        """
        return list(await asyncio.gather(*(self._decode(payload) for payload in payloads)))

    async def _encode(self, payload: Payload) -> Payload:
        if len(payload.data) <= self._threshold_bytes:
            return payload
        data = encode_payload(payload)
        check = _ClaimCheck(key=hashlib.sha256(data).hexdigest(), size=len(data), store=self._name)
        await self._store.put(check.key, data)
        return Payload({ENCODING_KEY: ENCODING}, _encode_check(check))

    async def _decode(self, payload: Payload) -> Payload:
        if payload.metadata.get(ENCODING_KEY) != ENCODING:
            return payload
        check = _read_check(payload.data)
        try:
            data = await self._store.get(check.key)
        except KeyError as error:
            raise MissingPayloadError(
                f"Payload {check.key} ({check.size} bytes) is not in store {check.store!r}. It was deleted while a "
                "history still needs it, or this process looks into another store; bring it back, or configure the "
                "store that the writer had."
            ) from error
        if hashlib.sha256(data).hexdigest() != check.key:
            raise MissingPayloadError(
                f"Payload {check.key} in store {check.store!r} has {len(data)} bytes that are not what was stored "
                f"({check.size} bytes with that hash). Restore it from a backup of the store."
            )
        return decode_payload(data, f"stored payload {check.key}")


def _read_check(data: bytes) -> _ClaimCheck:
    try:
        check = _decode_check(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise DecodeError(
            f"A claim check cannot be read ({error}). Look at its event, and at what wrote it."
        ) from error
    if not _KEY.fullmatch(check.key):
        raise DecodeError(
            f"A claim check names {check.key[:80]!r}, which is not a SHA-256 in hexadecimal digits. Look at its event, "
            "and at what wrote it."
        )
    return check


@final
class FileSystemPayloadStore:
    """Keeps payloads as files in a directory that every process can reach.

    Args:
        directory: Made when missing. Files lie in subdirectories by the first two digits of their key.
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self._directory = Path(directory)

    async def put(self, key: str, data: bytes) -> None:
        """Write a file, durable when this returns; readers see all of it or nothing."""
        await asyncio.to_thread(self._write, self._path(key), data)

    async def get(self, key: str) -> bytes:
        """Read a file.

        Raises:
            KeyError: There is none.
        """
        try:
            return await asyncio.to_thread(self._path(key).read_bytes)
        except FileNotFoundError as error:
            raise KeyError(key) from error

    def _path(self, key: str) -> Path:
        if not _KEY.fullmatch(key):
            raise ValueError(f"The key of a payload must be 64 lower-case hexadecimal digits, but is {key[:80]!r}.")
        return self._directory / key[:2] / key

    def _write(self, path: Path, data: bytes) -> None:
        if _is_there(path, len(data)):
            os.utime(path)
            return
        _make_directory(path.parent)
        descriptor, temporary = tempfile.mkstemp(prefix=".new-", dir=path.parent)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary)
            raise
        _sync_directory(path.parent)


def _is_there(path: Path, size: int) -> bool:
    try:
        return path.stat().st_size == size
    except FileNotFoundError:
        return False


def _make_directory(directory: Path) -> None:
    """Make it and its parents, each durable in the one above."""
    if directory.is_dir():
        return
    _make_directory(directory.parent)
    directory.mkdir(exist_ok=True)
    _sync_directory(directory.parent)


def _sync_directory(directory: Path) -> None:
    if os.name == "nt":
        return  # A directory cannot be opened there; NTFS journals names by itself.
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
