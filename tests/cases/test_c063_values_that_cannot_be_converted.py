"""C063 (the part of conversion): a value that cannot be converted raises where it is given, typed and with its path."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from typing import Any

import pytest

from clew.converter import (
    CallableSignature,
    DefaultFailureConverter,
    PayloadConverter,
    decode_arguments,
    from_stored_payloads,
    to_stored_payloads,
)
from clew.exceptions import ApplicationError, ArgumentsError, ClewError, DecodeError, EncodeError


@dataclass
class Claim:
    number: str
    amount: int


@dataclass
class Batch:
    claims: list[Claim]


async def pay(claim: Claim, note: str = "") -> None: ...


async def pay_all(*claims: Claim) -> None: ...


def test_a_socket_or_a_lambda_raises_at_the_call() -> None:
    converter = PayloadConverter.default
    with socket.socket() as sock, pytest.raises(EncodeError) as caught:
        to_stored_payloads(converter, ["fine", {"connection": [sock]}], "activity 'pay'")
    assert isinstance(caught.value, (ClewError, ValueError))
    assert caught.value.path == "$.connection[0]"
    for part in ("Value 2 of activity 'pay'", "socket.socket", "$.connection[0]", "docs/reference/data-conversion.md"):
        assert part in caught.value.message
    with pytest.raises(EncodeError, match="function"):
        to_stored_payloads(converter, [lambda: 1], "activity 'pay'")


def test_a_result_that_does_not_fit_names_the_field() -> None:
    converter = PayloadConverter.default
    stored = to_stored_payloads(converter, [{"claims": [{"number": "1", "amount": "ten"}]}])
    with pytest.raises(DecodeError, match=r"Batch.*at \$\.claims\[0\]\.amount, expected int, got str \('ten'\)"):
        from_stored_payloads(converter, stored, [Batch])


def test_an_argument_that_does_not_fit_names_function_parameter_and_field() -> None:
    converter = PayloadConverter.default
    stored = to_stored_payloads(converter, [{"number": 5, "amount": 1}])
    with pytest.raises(DecodeError, match=r"Argument 'claim' of activity 'pay', pay\(\) at .*: .*\$\.number"):
        decode_arguments(converter, stored, CallableSignature(pay), "activity 'pay'")


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ([], r"takes 1 to 2 arguments \(claim, note\), but was given 0 arguments"),
        ([Claim("1", 2), "n", 3], r"takes 1 to 2 arguments \(claim, note\), but was given 3 arguments"),
    ],
)
def test_too_few_and_too_many_arguments(values: list[Any], words: str) -> None:
    converter = PayloadConverter.default
    with pytest.raises(ArgumentsError, match=words) as caught:
        decode_arguments(converter, to_stored_payloads(converter, values), CallableSignature(pay), "activity 'pay'")
    assert "activity 'pay'" in caught.value.message


def test_arguments_that_fit() -> None:
    converter = PayloadConverter.default
    claims = [Claim("1", 2), Claim("2", 3)]
    assert decode_arguments(converter, to_stored_payloads(converter, claims[:1]), CallableSignature(pay)) == claims[:1]
    assert decode_arguments(converter, to_stored_payloads(converter, claims), CallableSignature(pay_all)) == claims


def test_a_conversion_error_is_a_failure_that_is_not_tried_again() -> None:
    converter = PayloadConverter.default
    failures = DefaultFailureConverter()
    with pytest.raises(EncodeError) as caught:
        to_stored_payloads(converter, [object()])
    error = failures.from_failure(failures.to_failure(caught.value, converter), converter)
    assert isinstance(error, ApplicationError)
    assert error.non_retryable
    assert error.type == "EncodeError"
    assert "at $" in error.message
