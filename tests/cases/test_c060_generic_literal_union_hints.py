"""C060: generic, literal, union and nested hints give the exact type back, or refuse."""

from __future__ import annotations

import collections
import dataclasses
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Annotated, Any, Generic, Literal, NamedTuple, NewType, NotRequired, TypedDict, TypeVar

import msgspec
import pytest

from clew.converter import PayloadConverter, from_stored_payloads, to_stored_payloads
from clew.exceptions import DecodeError, EncodeError

T = TypeVar("T")
UserId = NewType("UserId", str)


@dataclass
class Box(Generic[T]):
    item: T


@dataclass
class Labelled(Box[str], Generic[T]):
    """Uses the same type variable as its base, for something else."""

    extra: T


@dataclass
class IntBox(Box[int]):
    pass


@dataclass
class A:
    x: int


@dataclass
class B:
    x: int
    y: int = 2


@dataclass
class Cat:
    kind: Literal["cat"]
    name: str


@dataclass
class Dog:
    kind: Literal["dog"]
    name: str


@dataclass
class Node:
    value: int
    children: list[Node] = field(default_factory=list)
    later: Later | None = None


@dataclass
class Later:
    data: bytes


class Movie(TypedDict):
    title: str
    year: NotRequired[int]


class Point(NamedTuple):
    x: int
    y: Decimal = Decimal("1.5")


class Tag(str):
    pass


class Tags(list[Tag]):
    pass


class Struct(msgspec.Struct, frozen=True):
    when: datetime
    items: tuple[int, ...]


@dataclass
class Private:
    _hidden: int
    public: int = 1
    derived: int = field(init=False, default=0)


def round_trip(value: Any, hint: Any) -> Any:
    converter = PayloadConverter.default
    return from_stored_payloads(converter, to_stored_payloads(converter, [value]), [hint])[0]


def same(left: Any, right: Any) -> bool:
    """Equal, and of the same types all the way down."""
    if type(left) is not type(right):
        return False
    if isinstance(left, Mapping):
        return len(left) == len(right) and all(
            same(a, b) and same(left[a], right[b]) for a, b in zip(left, right, strict=True)
        )
    if isinstance(left, (list, tuple, collections.deque)):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, (set, frozenset)):
        return left == right and {type(i) for i in left} == {type(i) for i in right}
    if dataclasses.is_dataclass(left):
        return all(same(getattr(left, f.name), getattr(right, f.name)) for f in dataclasses.fields(left))
    return bool(left == right)


ID = uuid.UUID("01234567-89ab-cdef-0123-456789abcdef")

ROUND_TRIPS: list[tuple[Any, Any]] = [
    (Box(1), Box[int]),
    (Box(Box("a")), Box[Box[str]]),
    (IntBox(3), IntBox),
    (Labelled("a", 5), Labelled[int]),
    (A(1), A | B),
    (B(1, 5), A | B),
    (B(1, 2), A | B),
    (B(1, 5), B | A),
    ([A(1), B(1)], list[A | B]),
    (Cat("cat", "x"), Cat | Dog),
    (Dog("dog", "x"), Cat | Dog),
    ([{"a": A(1)}], list[dict[str, A]] | None),
    (None, list[dict[str, A]] | None),
    (1, int | str),
    ("1", int | str),
    (1, int | float),
    (1.0, int | float),
    (True, bool | int),
    (1, bool | int),
    (1, Literal[1, None, "a"]),
    (None, Literal[1, None, "a"]),
    (True, Literal[True, 1]),
    (1, Literal[True, 1]),
    ({"title": "t"}, Movie),
    ({"title": "t", "year": 1999}, Movie),
    (Point(1, Decimal("2.50")), Point),
    ((1, 2, 3), tuple[int, ...]),
    ((1, "a", 2.5), tuple[int, str, float]),
    ((), tuple[()]),
    ({ID}, set[uuid.UUID]),
    (frozenset({1, 2}), frozenset[int]),
    (collections.deque([1]), collections.deque[int]),
    (collections.OrderedDict(b=1, a=2), collections.OrderedDict[str, int]),
    (Decimal("1.10"), Decimal),
    (Later(b"\x00\xff"), Later),
    ({"d": b"\x00"}, dict[str, bytes]),
    (b"\x00\xff", bytes),
    (b"\x00\xff", bytes | None),
    (Node(1, [Node(2)], Later(b"x")), Node),
    (UserId("u"), UserId),
    (Tag("u"), Tag),
    (Tags([Tag("a")]), Tags),
    ({1: "a"}, dict[int, str]),
    ({ID: 1}, dict[uuid.UUID, int]),
    ({date(2020, 1, 2): 1}, dict[date, int]),
    ({Decimal("1.50"): 1}, dict[Decimal, int]),
    ({1.5: 1}, dict[float, int]),
    ([1, "a", None, 2.5, {"k": [True]}], Any),
    ([1], Sequence[int]),
    ({"a": 1}, Mapping[str, int]),
    (3, Annotated[int, {"unhashable": True}]),
    ([3], list[Annotated[int, ["unhashable"]]]),
    (Struct(datetime(2020, 1, 1), (1, 2)), Struct),
    ([Struct(datetime(2020, 1, 1), (1,))], list[Struct]),
    (Private(5, 6), Private),
    (timedelta(days=-1, microseconds=1), timedelta),
    (date(2020, 1, 1), date | datetime),
    (datetime(2020, 1, 1), date | datetime),
    ([], list[int] | list[str]),
    ([1], list[int] | list[str]),
    (["1"], list[int] | list[str]),
    (2**70, int),
    ('{"$payload": 1}', str),
    ({"$payload": {"data": ""}}, dict[str, Any]),
]


@pytest.mark.parametrize(("value", "hint"), ROUND_TRIPS, ids=[f"{h}-{i}" for i, (_, h) in enumerate(ROUND_TRIPS)])
def test_equality_and_exact_type_after_the_round_trip(value: Any, hint: Any) -> None:
    found = round_trip(value, hint)
    assert same(found, value), f"{value!r} came back as {found!r}"


def test_attributes_that_init_does_not_take_come_back() -> None:
    value = Private(5)
    value.derived = 9
    assert round_trip(value, Private).derived == 9


@pytest.mark.parametrize(
    ("hint", "sent"),
    [
        (str | date, "x"),
        (bytes | str, "x"),
        (str | uuid.UUID, "x"),
        (dict[int | str, int], {"a": 1}),
        (type[int], "int"),
    ],
)
def test_hints_that_json_cannot_tell_apart_are_refused_whatever_the_value(hint: Any, sent: Any) -> None:
    with pytest.raises(DecodeError):
        round_trip(sent, hint)


@dataclass
class Twin:
    x: int


def test_a_value_that_fits_two_branches_alike_is_refused() -> None:
    with pytest.raises(DecodeError, match=r"fits .*A and .*Twin alike.*Literal"):
        round_trip(A(1), A | Twin)


@pytest.mark.parametrize(
    ("sent", "hint", "path", "words"),
    [
        ("1", int, "$", "expected int, got str"),
        (1.0, int, "$", "expected int, got float"),
        (True, int, "$", "expected int, got bool"),
        (1, str, "$", "expected str, got int"),
        ({"item": {"item": 5}}, Box[Box[str]], "$.item.item", "expected str, got int"),
        ([{"a b": {"x": "no"}}], list[dict[str, A]], "$[0]['a b'].x", "expected int"),
        ({"value": 1, "children": [{}]}, Node, "$.children[0]", "'value'.*missing"),
        ({"title": "t", "year": "x"}, Movie, "$.year", "expected int"),
        ([1, 2], tuple[int, int, int], "$", "list of 3"),
        (b"x", str, "$", "bytes"),
        ("x", bytes, "$", "bytes"),
        (None, int, "$", "expected int, got NoneType"),
        ("nope", datetime, "$", "ISO 8601"),
        ("2020-01-01", datetime, "$", "time of day"),
        ({"x": 1}, Literal["a"], "$", "none of 'a'"),
    ],
)
def test_what_does_not_fit_is_an_error_with_path_and_reason(sent: Any, hint: Any, path: str, words: str) -> None:
    with pytest.raises(DecodeError, match=words) as caught:
        round_trip(sent, hint)
    assert caught.value.path == path


def test_old_data_meets_new_classes_and_new_data_old_classes() -> None:
    assert round_trip({"x": 1}, B) == B(1, 2)
    assert round_trip({"x": 1, "gone": True}, A) == A(1)
    assert round_trip({"x": 1, "y": 2, "gone": True}, list[A] | B) == B(1, 2)


def test_without_a_hint_there_are_plain_json_values() -> None:
    converter = PayloadConverter.default
    stored = to_stored_payloads(converter, [A(1), (1, 2)])
    assert from_stored_payloads(converter, stored) == [{"x": 1}, [1, 2]]


@pytest.mark.parametrize(
    "value", [object(), lambda: 1, {True: 1}, {(1, 2): 1}, {None: 1}, {1: 1, "1": 2}, 1j, "\ud800"]
)
def test_what_has_no_form_is_refused_when_sent(value: Any) -> None:
    with pytest.raises(EncodeError):
        to_stored_payloads(PayloadConverter.default, [value])


def test_sets_are_sent_in_one_order() -> None:
    words = [f"w{i}" for i in range(50)]
    [stored] = to_stored_payloads(PayloadConverter.default, [set(words)])
    assert msgspec.json.decode(stored) == sorted(words)
