"""What takes a key out of a run's search attributes or memo."""

from __future__ import annotations

import pytest

from clew.common import SearchAttributeKey
from clew.converter.search_attributes import encode_search_attributes
from clew.core.evolve import is_null_payload
from clew.model.payload import Payload, to_stored

WORD, WORDS, NUMBER = (
    SearchAttributeKey.for_keyword("Word"),
    SearchAttributeKey.for_keyword_list("Words"),
    SearchAttributeKey.for_int("Number"),
)


@pytest.mark.parametrize("update", [WORD.value_unset(), WORDS.value_unset(), NUMBER.value_unset(), WORDS.value_set([])])
def test_an_attribute_that_is_taken_back_is_null(update: object) -> None:
    [stored] = encode_search_attributes([update]).values()  # type: ignore[list-item]
    assert is_null_payload(stored)


@pytest.mark.parametrize(
    "update", [WORD.value_set("null"), WORD.value_set(""), WORDS.value_set(["a"]), NUMBER.value_set(0)]
)
def test_an_attribute_with_a_value_is_not(update: object) -> None:
    [stored] = encode_search_attributes([update]).values()  # type: ignore[list-item]
    assert not is_null_payload(stored)


@pytest.mark.parametrize(
    ("encoding", "data", "is_null"),
    [
        (b"json/plain", b"null", True),
        (b"json/plain", b"[]", True),
        (b"json/plain", b"{}", False),
        (b"binary/null", b"", True),
        (b"binary/plain", b"null", False),
    ],
)
def test_what_says_nothing_is_null_whatever_stands_beside_it(encoding: bytes, data: bytes, is_null: bool) -> None:
    payload = Payload({"encoding": encoding, "type": b"Keyword"}, data)
    assert is_null_payload(to_stored(payload)) is is_null
