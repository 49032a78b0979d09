"""Compression, encryption and their chain: round trips, rotation, bombs, and errors that say what to do."""

from __future__ import annotations

import tracemalloc
import zlib
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clew.contrib.codec_chain import CodecChain
from clew.contrib.compression import CompressionCodec
from clew.contrib.encryption import EncryptionCodec, MissingKeyError, generate_key
from clew.converter import DataConverter, DefaultFailureConverterWithEncodedAttributes, Payload
from clew.exceptions import ApplicationError, DecodeError
from clew.model.payload import from_stored

PLAIN = Payload({"encoding": b"json/plain"}, b'{"claim":"4711"}')
LONG = Payload({"encoding": b"json/plain", "note": b"kept"}, b'"' + b"photo " * 1000 + b'"')
KEYS = {"2025": b"o" * 32, "2026": b"n" * 32}


def encryption(current: str = "2026", **keys: bytes) -> EncryptionCodec:
    return EncryptionCodec(keys or KEYS, current_key_id=current)


async def test_compression_takes_what_is_large_and_leaves_the_rest() -> None:
    codec = CompressionCodec()
    small, large = await codec.encode([PLAIN, LONG])
    assert small is PLAIN
    assert len(large.data) < len(LONG.data) / 10
    assert large.metadata == {"encoding": b"binary/zlib"}
    assert await codec.decode([small, large]) == [PLAIN, LONG]


async def test_what_does_not_become_smaller_is_left() -> None:
    noise = Payload({"encoding": b"binary/plain"}, generate_key() * 1 + b"".join(generate_key() for _ in range(100)))
    assert await CompressionCodec().encode([noise]) == [noise]


async def test_a_bomb_costs_the_bound_and_not_what_it_would_become() -> None:
    compressor = zlib.compressobj(9)
    bomb = b"".join([*(compressor.compress(bytes(1 << 20)) for _ in range(256)), compressor.flush()])
    codec = CompressionCodec(decoded_bytes_max=1 << 20)
    tracemalloc.start()
    try:
        with pytest.raises(DecodeError, match=r"more than 1048576 bytes.*raise decoded_bytes_max"):
            await codec.decode([Payload({"encoding": b"binary/zlib"}, bomb)])
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"no zlib", "is damaged"),
        (zlib.compress(b"x" * 100)[:-4], "does not end where its data ends"),
        (zlib.compress(b"x") + b"more", "does not end where its data ends"),
        (zlib.compress(b"no payload"), "is not a payload"),
        (b"", "does not end where its data ends"),
    ],
)
async def test_damage_is_told(data: bytes, message: str) -> None:
    with pytest.raises(DecodeError, match=message):
        await CompressionCodec().decode([Payload({"encoding": b"binary/zlib"}, data)])


@pytest.mark.parametrize("options", [{"level": 0}, {"level": 10}, {"bytes_min": -1}, {"decoded_bytes_max": 0}])
def test_compression_refuses_senseless_options(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"level|bytes"):
        CompressionCodec(**options)


async def test_nothing_of_a_payload_is_seen_when_encrypted() -> None:
    [sealed] = await encryption().encode([LONG])
    everything = sealed.data + b"".join(sealed.metadata.values())
    assert b"photo" not in everything
    assert b"json/plain" not in everything
    assert b"kept" not in everything
    assert sealed.metadata["encryption-key-id"] == b"2026"
    assert await encryption().decode([sealed]) == [LONG]


async def test_equal_payloads_are_not_seen_to_be_equal() -> None:
    one, other = await encryption().encode([PLAIN, PLAIN])
    assert one.data != other.data


async def test_old_keys_open_what_they_closed_after_rotation() -> None:
    [old] = await encryption("2025").encode([PLAIN])
    rotated = encryption("2026")
    [new] = await rotated.encode([PLAIN])
    assert (old.metadata["encryption-key-id"], new.metadata["encryption-key-id"]) == (b"2025", b"2026")
    assert await rotated.decode([old, new]) == [PLAIN, PLAIN]


async def test_a_missing_key_is_named_with_the_remedy() -> None:
    [old] = await encryption("2025").encode([PLAIN])
    with pytest.raises(MissingKeyError, match=r"key '2025', which this process does not have; it has '2026'") as caught:
        await EncryptionCodec({"2026": KEYS["2026"]}, current_key_id="2026").decode([old])
    assert caught.value.key_id == "2025"
    assert "EncryptionCodec(keys=" in str(caught.value)


@given(position=st.integers(min_value=0), bit=st.integers(0, 7))
async def test_any_changed_bit_is_noticed(position: int, bit: int) -> None:
    [sealed] = await encryption().encode([PLAIN])
    data = bytearray(sealed.data)
    data[position % len(data)] ^= 1 << bit
    with pytest.raises(DecodeError, match="cannot be opened"):
        await encryption().decode([Payload(sealed.metadata, bytes(data))])


@pytest.mark.parametrize("size", [0, 10, 27, 28, 40])
async def test_what_is_cut_is_noticed(size: int) -> None:
    [sealed] = await encryption().encode([PLAIN])
    with pytest.raises(DecodeError, match="cannot be opened"):
        await encryption().decode([Payload(sealed.metadata, sealed.data[:size])])


async def test_another_key_under_the_same_id_and_a_changed_id_are_noticed() -> None:
    [sealed] = await encryption().encode([PLAIN])
    with pytest.raises(DecodeError, match="another key has that id"):
        await encryption("2026", **{"2026": b"z" * 32}).decode([sealed])
    renamed = Payload({**sealed.metadata, "encryption-key-id": b"copy"}, sealed.data)
    with pytest.raises(DecodeError, match="cannot be opened"):
        await encryption("copy", copy=KEYS["2026"]).decode([renamed])


async def test_another_cipher_is_not_guessed_at() -> None:
    [sealed] = await encryption().encode([PLAIN])
    other = Payload({**sealed.metadata, "encryption-cipher": b"ROT13"}, sealed.data)
    with pytest.raises(DecodeError, match=r"encrypted as b'ROT13'.*Use the codec that made it"):
        await encryption().decode([other])


async def test_what_was_never_encrypted_passes() -> None:
    assert await encryption().decode([PLAIN, LONG]) == [PLAIN, LONG]


def test_keys_are_checked_at_once() -> None:
    with pytest.raises(ValueError, match=r"'c' is not among the keys \('2025', '2026'\)"):
        encryption("c")
    with pytest.raises(ValueError, match=r"Key 'short' has 16 bytes, but must have 32"):
        encryption("2026", short=b"s" * 16, **KEYS)


async def test_a_chain_compresses_before_it_encrypts() -> None:
    chain = CodecChain(CompressionCodec(), encryption())
    [sealed] = await chain.encode([LONG])
    assert len(sealed.data) < len(LONG.data) / 10
    assert sealed.metadata["encoding"] == b"binary/encrypted"
    assert await chain.decode([sealed]) == [LONG]


async def test_texts_of_errors_are_hidden_too() -> None:
    converter = DataConverter(
        payload_codec=encryption(), failure_converter_class=DefaultFailureConverterWithEncodedAttributes
    )
    error = ApplicationError("the claimant's name", {"iban": "DE02"}, type="Refused")
    error.__cause__ = ValueError("the deeper secret")
    failure = await converter.encode_failure(error)
    text = msgspec.json.encode(failure)
    for secret in (b"claimant", b"DE02", b"deeper", b"Traceback", b"test_codecs"):
        assert secret not in text
    back = await converter.decode_failure(failure)
    assert isinstance(back, ApplicationError)
    assert (back.message, back.details, back.type) == ("the claimant's name", ({"iban": "DE02"},), "Refused")
    assert "the deeper secret" in str(back.__cause__)


async def test_values_survive_the_way_through_the_stored_form() -> None:
    converter = DataConverter(payload_codec=CodecChain(CompressionCodec(), encryption()))
    value = {"photos": ["x" * 5000], "none": None}
    stored = await converter.encode_values([value])
    assert from_stored(stored[0]).metadata["encoding"] == b"binary/encrypted"
    assert await converter.decode_values(stored) == [value]
