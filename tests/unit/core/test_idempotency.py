"""The idempotency key: published vectors, made here a second time by hand."""

from __future__ import annotations

import hashlib
import hmac

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clew.core.idempotency import idempotency_key

VECTORS = [
    (b"\x00" * 32, "claim-1", "pay-1", "0195-run"),
    (b"secret", "", "", ""),
    ("schlüssel".encode(), "Schaden-ä", "zahlen-1", "läuft"),
]


@pytest.mark.parametrize(("secret", "workflow_id", "activity_id", "generation"), VECTORS)
def test_the_formula(secret: bytes, workflow_id: str, activity_id: str, generation: str) -> None:
    message = b""
    for text in (workflow_id, activity_id, generation):
        data = text.encode()
        message += bytes([0, 0, 0, 0, 0, 0, len(data) >> 8, len(data) & 255]) + data
    expected = hmac.new(secret, message, hashlib.sha256).hexdigest()
    assert idempotency_key(secret, workflow_id, activity_id, generation) == expected


def test_a_known_key() -> None:
    assert idempotency_key(b"\x00" * 32, "claim-1", "pay-1", "0195-run") == KNOWN


KNOWN = "616f91068e180d1e2b767af077ebe12fa30e50ca9d114258844e914930f2b55e"


@given(first=st.tuples(*[st.text()] * 3), second=st.tuples(*[st.text()] * 3))
def test_no_two_triples_share_a_key(first: tuple[str, str, str], second: tuple[str, str, str]) -> None:
    first = tuple(text.encode("utf-8", "replace").decode() for text in first)  # type: ignore[assignment]
    second = tuple(text.encode("utf-8", "replace").decode() for text in second)  # type: ignore[assignment]
    assert (idempotency_key(b"k", *first) == idempotency_key(b"k", *second)) is (first == second)


def test_moving_a_character_across_a_border_changes_the_key() -> None:
    assert idempotency_key(b"k", "ab", "c", "d") != idempotency_key(b"k", "a", "bc", "d")
