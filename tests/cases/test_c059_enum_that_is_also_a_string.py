"""C059: an enum that is also a string comes back as the same member, in every place it may stand."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any

import pytest

from clew.converter import PayloadConverter, from_stored_payloads, to_stored_payloads
from clew.exceptions import DecodeError, EncodeError


class Color(str, enum.Enum):  # noqa: UP042 (the point: not StrEnum)
    RED = "one"
    BLUE = "two"


class Level(enum.StrEnum):
    LOW = "low"
    HIGH = "high"


class Number(enum.IntEnum):
    ONE = 1
    TWO = 2


class Mixed(int, enum.Enum):
    ONE = 1


class Plain(enum.Enum):
    TEXT = "text"
    NUMBER = 7
    PAIR = (1, "x")


class Rights(enum.Flag):
    READ = enum.auto()
    WRITE = enum.auto()


class Forgiving(enum.Enum):
    KNOWN = "known"
    OTHER = "other"

    @classmethod
    def _missing_(cls, value: object) -> Forgiving:
        return cls.OTHER


class Alike(enum.Enum):
    TUPLE = (1,)
    LIST = [1]  # noqa: RUF012 (the point: both are [1] in JSON)


@dataclass
class Holder:
    color: Color
    level: Level | None
    number: Number
    plain: Plain
    rights: Rights


MEMBERS: list[enum.Enum] = [*Color, *Level, *Number, *Mixed, *Plain, *Rights, Rights.READ | Rights.WRITE]


def round_trip(value: Any, hint: Any) -> Any:
    converter = PayloadConverter.default
    return from_stored_payloads(converter, to_stored_payloads(converter, [value]), [hint])[0]


@pytest.mark.parametrize("member", MEMBERS, ids=str)
def test_as_argument_element_and_optional(member: enum.Enum) -> None:
    kind = type(member)
    assert round_trip(member, kind) is member or (kind is Rights and round_trip(member, kind) == member)
    assert type(round_trip(member, kind)) is kind
    assert round_trip([member], list[kind]) == [member]
    assert type(round_trip([member], list[kind])[0]) is kind
    assert type(round_trip(member, kind | None)) is kind
    assert type(round_trip({"k": (member, 1)}, dict[str, tuple[kind, int]])["k"][0]) is kind


@pytest.mark.parametrize("member", [*Color, *Level, *Number, *Mixed], ids=str)
def test_as_key(member: enum.Enum) -> None:
    found = round_trip({member: 1}, dict[type(member), int])  # type: ignore[misc]
    assert found == {member: 1}
    assert type(next(iter(found))) is type(member)


def test_as_field() -> None:
    value = Holder(Color.RED, Level.HIGH, Number.TWO, Plain.PAIR, Rights.READ | Rights.WRITE)
    found = round_trip(value, Holder)
    assert found == value
    assert [type(v) for v in vars(found).values()] == [Color, Level, Number, Plain, Rights]


@pytest.mark.parametrize("hint", [Color, Level, Plain, Color | None, list[Color]])
def test_an_unknown_value_is_an_error_that_names_the_enum(hint: Any) -> None:
    sent = ["purple"] if hint == list[Color] else "purple"
    with pytest.raises(DecodeError, match=r"'purple'.*(Color|Level|Plain)"):
        round_trip(sent, hint)


def test_a_number_is_no_member_by_accident() -> None:
    for sent in (True, 1.0, "1"):
        with pytest.raises(DecodeError, match="Number"):
            round_trip(sent, Number)


def test_the_class_may_say_what_unknown_values_mean() -> None:
    assert round_trip("later", Forgiving) is Forgiving.OTHER


def test_members_that_look_alike_in_json_are_refused_when_sent() -> None:
    with pytest.raises(EncodeError, match=r"at \$\.a, .*TUPLE.*LIST.*same value"):
        round_trip({"a": Alike.LIST}, dict[str, Alike])
