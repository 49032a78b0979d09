"""Search attributes and their payloads."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from clew.common import SearchAttributeKey, SearchAttributePair, TypedSearchAttributes
from clew.converter import (
    decode_typed_search_attributes,
    encode_search_attribute,
    encode_search_attributes,
)
from clew.exceptions import EncodeError
from clew.model.payload import from_stored

TEXT = SearchAttributeKey.for_text("text")
KEYWORD = SearchAttributeKey.for_keyword("keyword")
INT = SearchAttributeKey.for_int("int")
FLOAT = SearchAttributeKey.for_float("float")
BOOL = SearchAttributeKey.for_bool("bool")
INSTANT = SearchAttributeKey.for_datetime("instant")
LIST = SearchAttributeKey.for_keyword_list("list")


def test_every_type_comes_back() -> None:
    attributes = TypedSearchAttributes(
        [
            SearchAttributePair(TEXT, "a b"),
            SearchAttributePair(KEYWORD, "a"),
            SearchAttributePair(INT, 5),
            SearchAttributePair(FLOAT, 2.5),
            SearchAttributePair(BOOL, False),
            SearchAttributePair(INSTANT, datetime(2024, 1, 2, tzinfo=timezone(timedelta(hours=1)))),
            SearchAttributePair(LIST, ["a", "b"]),
        ]
    )
    stored = encode_search_attributes(attributes)
    assert stored is not None
    assert from_stored(stored["list"]).metadata == {"encoding": b"json/plain", "type": b"KeywordList"}
    found = decode_typed_search_attributes(stored)
    assert found == attributes
    assert found[INT] == 5
    assert found[INSTANT].tzinfo is UTC or found[INSTANT].utcoffset() == timedelta(0)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (INT, "5"),
        (INT, True),
        (BOOL, 1),
        (FLOAT, float("nan")),
        (FLOAT, float("inf")),
        (KEYWORD, ["a"]),
        (LIST, "abc"),
        (LIST, [1]),
        (INSTANT, datetime(2024, 1, 1)),
    ],
)
def test_values_of_another_type_are_refused(key: SearchAttributeKey[Any], value: Any) -> None:
    with pytest.raises(EncodeError, match=f"{key.name!r} is a"):
        encode_search_attribute(key, value)


def test_the_untyped_form() -> None:
    stored = encode_search_attributes({"a": ["x"], "b": ["x", "y"], "c": [1], "d": [True], "e": []})
    assert stored is not None
    kinds = {name: from_stored(payload).metadata.get("type") for name, payload in stored.items()}
    assert kinds == {"a": b"Keyword", "b": b"KeywordList", "c": b"Int", "d": b"Bool", "e": None}
    for bad in ("x", [object()], [1, 2]):
        with pytest.raises(EncodeError):
            encode_search_attributes({"a": bad})  # type: ignore[dict-item]


def test_updates_set_and_unset() -> None:
    stored = encode_search_attributes([INT.value_set(3), KEYWORD.value_unset()])
    assert stored is not None
    assert list(decode_typed_search_attributes(stored)) == [SearchAttributePair(INT, 3)]
    assert from_stored(stored["keyword"]).data == b"null"


def test_the_collection() -> None:
    one = TypedSearchAttributes([SearchAttributePair(INT, 1)])
    two = one.updated(SearchAttributePair(INT, 2), SearchAttributePair(BOOL, True))
    assert (one[INT], two[INT], len(two)) == (1, 2, 2)
    assert INT in two
    assert KEYWORD not in two
    assert two.get(KEYWORD) is None
    assert two.get(KEYWORD, "d") == "d"
    assert len(TypedSearchAttributes.empty) == 0
    with pytest.raises(ValueError, match="twice"):
        TypedSearchAttributes([SearchAttributePair(INT, 1), SearchAttributePair(INT, 2)])
