"""Conversion: the fast way of decoding gives what the slow way gives, and typed values come back."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clew.converter import PayloadConverter, from_stored_payloads, to_stored_payloads
from clew.converter.decoding import ValueDecoder
from clew.converter.encoding import DEFAULT_ENCODER
from clew.converter.fastpath import is_exact
from clew.exceptions import DecodeError
from clew.model.payload import is_strict_json


class Kind(enum.Enum):
    A = "a"
    B = "b"


@dataclass
class Leaf:
    x: int
    kind: Kind | None = None


@dataclass(frozen=True)
class Tree:
    name: str
    at: datetime | None = None
    leaves: list[Leaf] = field(default_factory=list)
    counts: dict[str, float] = field(default_factory=dict)
    pair: tuple[int, str] = (0, "")


EXACT_HINTS: list[Any] = [
    Any,
    int,
    str,
    bool,
    float,
    int | str,
    int | float | None,
    list[int | None],
    dict[str, list[bool]],
    set[int],
    tuple[int, str],
    tuple[float, ...],
    Kind,
    Leaf,
    Tree,
    list[Tree | None],
    date,
    UUID,
]

json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from([1.0, 0.5, "a", "b", "", "1", "2020-01-01"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["x", "kind", "name", "leaves", "counts", "pair", "at", "k"]), inner, max_size=4
        )
    ),
    max_leaves=8,
)


def no_custom(hint: Any) -> None:
    """Built-in rules only, but told in a way that shuts the fast way off."""


FAST = ValueDecoder(DEFAULT_ENCODER)
SLOW = ValueDecoder(DEFAULT_ENCODER, no_custom)


def outcome(decoder: ValueDecoder, data: bytes, hint: Any) -> tuple[str, Any]:
    try:
        found = decoder.decode(data, hint)
    except DecodeError:
        return ("refused", None)
    return ("found", (type(found), repr(found)))


@pytest.mark.parametrize("hint", EXACT_HINTS, ids=str)
def test_these_hints_do_go_the_fast_way(hint: Any) -> None:
    assert is_exact(hint)


@given(value=json_values, hint=st.sampled_from(EXACT_HINTS))
def test_the_fast_way_and_the_slow_way_agree(value: Any, hint: Any) -> None:
    data = msgspec.json.encode(value)
    assert outcome(FAST, data, hint) == outcome(SLOW, data, hint)


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=10)
offsets = st.integers(-24 * 3600 + 1, 24 * 3600 - 1).map(lambda s: timezone(timedelta(seconds=s)))
instants = st.datetimes(datetime(2, 1, 1), datetime(9998, 1, 1), timezones=st.none() | st.just(UTC) | offsets)
floats = st.floats(allow_nan=False, allow_infinity=False)
typed_values: st.SearchStrategy[tuple[Any, Any]] = st.one_of(
    st.tuples(st.integers(), st.just(int | str)),
    st.tuples(texts, st.just(int | str)),
    st.tuples(floats, st.just(float)),
    st.tuples(floats | st.integers(), st.just(int | float)),
    st.tuples(st.binary(), st.just(bytes | None)),
    st.tuples(instants, st.just(datetime)),
    st.tuples(st.timedeltas(), st.just(timedelta)),
    st.tuples(st.decimals(allow_nan=False), st.just(Decimal)),
    st.tuples(st.frozensets(st.uuids(), max_size=4), st.just(frozenset[UUID])),
    st.tuples(st.dictionaries(st.integers(), st.binary(), max_size=4), st.just(dict[int, bytes])),
    st.tuples(st.dictionaries(st.dates(), texts, max_size=4), st.just(dict[date, str])),
    st.tuples(
        st.builds(
            Tree,
            texts,
            st.none() | instants,
            st.lists(st.builds(Leaf, st.integers(), st.none() | st.sampled_from(Kind)), max_size=3),
            st.dictionaries(texts, floats, max_size=3),
            st.tuples(st.integers(), texts),
        ),
        st.just(Tree),
    ),
)


@given(typed_values)
def test_typed_values_come_back_equal_and_of_the_same_type(typed: tuple[Any, Any]) -> None:
    value, hint = typed
    converter = PayloadConverter.default
    stored = to_stored_payloads(converter, [value])
    assert is_strict_json(bytes(stored[0]))
    [found] = from_stored_payloads(converter, stored, [hint])
    assert type(found) is type(value)
    assert found == value


@given(json_values)
def test_plain_values_come_back_without_a_hint(value: Any) -> None:
    converter = PayloadConverter.default
    assert from_stored_payloads(converter, to_stored_payloads(converter, [value])) == [value]
