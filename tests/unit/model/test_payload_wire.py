"""Payloads in the protobuf encoding of the published API."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clew.api.common.v1 import Payload


@given(st.dictionaries(st.text(), st.binary(max_size=300)), st.binary(max_size=300))
def test_what_is_written_is_read_back(metadata: dict[str, bytes], data: bytes) -> None:
    payload = Payload(metadata=metadata, data=data)
    assert Payload.FromString(payload.SerializeToString()) == payload


def test_the_bytes_are_those_of_the_published_message() -> None:
    payload = Payload(metadata={"encoding": b"json/plain"}, data=b'"hi"')
    assert payload.SerializeToString() == bytes.fromhex(
        "0a16 0a08 656e636f64696e67 120a 6a736f6e2f706c61696e 1204 22686922".replace(" ", "")
    )
    assert Payload(metadata={}, data=b"x" * 200).SerializeToString()[:3] == b"\x12\xc8\x01"


def test_unknown_fields_are_skipped() -> None:
    unknown = b"\x1a\x02ab" + b"\x20\x96\x01" + b"\x29" + bytes(8) + b"\x35" + bytes(4)
    assert Payload.FromString(unknown + b"\x12\x01z") == Payload(metadata={}, data=b"z")


@pytest.mark.parametrize("encoded", [b"\x12\x05ab", b"\x0b", b"\x12", b"\xff" * 11, b"\x12\xff\xff\xff\xff\x0fa"])
def test_other_bytes_are_refused(encoded: bytes) -> None:
    with pytest.raises(ValueError, match="byte"):
        Payload.FromString(encoded)
