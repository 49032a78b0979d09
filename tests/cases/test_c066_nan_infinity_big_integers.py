"""C066 (the part of conversion): what is stored is strict JSON, digit for digit; NaN and infinities are refused."""

from __future__ import annotations

import json
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pytest

from clew.converter import PayloadConverter, from_stored_payloads, to_stored_payloads
from clew.exceptions import EncodeError
from clew.model.payload import is_strict_json


@dataclass
class Result:
    n: int
    m: int
    z: float
    d: Decimal


def _no_constants(name: str) -> Any:
    raise AssertionError(f"{name} is no JSON")


def test_numbers_survive_digit_for_digit() -> None:
    converter = PayloadConverter.default
    value = Result(2**63, 2**53 + 1, -0.0, Decimal("1.10"))
    stored = to_stored_payloads(converter, [value])
    text = bytes(stored[0]).decode()
    assert json.loads(text, parse_constant=_no_constants)["m"] == 2**53 + 1
    assert "9007199254740993" in text
    assert "9223372036854775808" in text
    [found] = from_stored_payloads(converter, stored, [Result])
    assert found == value
    assert str(found.z) == "-0.0"
    assert str(found.d) == "1.10"


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize(
    ("wrap", "path"),
    [
        (lambda v: v, "$"),
        (lambda v: {"x": 1.5, "y": [0.5, v]}, "$.y[1]"),
        (lambda v: Result(1, 2, v, Decimal(1)), "$.z"),
        (lambda v: ({"a"}, {"k k": v}), "$[1]['k k']"),
    ],
)
def test_nan_and_infinities_are_refused_with_their_path(number: float, wrap: Any, path: str) -> None:
    with pytest.raises(EncodeError, match=r"has no form in JSON.*None, a Decimal or a text") as caught:
        to_stored_payloads(PayloadConverter.default, [wrap(number)], "the result of activity 'sum'")
    assert caught.value.path == path
    assert "the result of activity 'sum'" in caught.value.message


def test_a_decimal_may_be_nan_because_it_travels_as_text() -> None:
    converter = PayloadConverter.default
    stored = to_stored_payloads(converter, [Decimal("NaN")])
    assert is_strict_json(bytes(stored[0]))
    [found] = from_stored_payloads(converter, stored, [Decimal])
    assert found.is_nan()


def test_an_integer_too_long_to_print_is_refused() -> None:
    with pytest.raises(EncodeError):
        to_stored_payloads(PayloadConverter.default, [10**5000])
