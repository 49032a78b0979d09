"""C064 (the part of conversion): every error arrives, cut at a documented depth and size, with a mark."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from clew.converter import DefaultFailureConverter, DefaultPayloadConverter, PayloadConverter
from clew.converter.failure import CHAIN_MAX, CUT_TYPE, DETAILS_BYTES_MAX
from clew.exceptions import ApplicationError, CancelledError, ClewError
from clew.model.failure import MESSAGE_CHARS_MAX, ApplicationInfo, Failure

CONVERTER = PayloadConverter.default
FAILURES = DefaultFailureConverter()


def to_failure(error: BaseException) -> Failure:
    return FAILURES.to_failure(error, CONVERTER)


def chain_of(failure: Failure) -> list[Failure]:
    links = [failure]
    while links[-1].cause is not None:
        links.append(links[-1].cause)
    return links


def type_of(failure: Failure) -> str:
    assert isinstance(failure.info, ApplicationInfo)
    return failure.info.type


def test_an_error_that_is_its_own_cause() -> None:
    error = ValueError("round")
    error.__cause__ = error
    first, mark = chain_of(to_failure(error))
    assert first.message == "round"
    assert type_of(mark) == CUT_TYPE
    assert "comes back" in mark.message


def test_a_cycle_of_two() -> None:
    one, two = ApplicationError("one"), ValueError("two")
    one.__cause__, two.__cause__ = two, one
    links = chain_of(to_failure(one))
    assert [link.message for link in links[:2]] == ["one", "two"]
    assert type_of(links[2]) == CUT_TYPE
    assert len(links) == 3


def test_a_chain_of_500_causes() -> None:
    error = ValueError("0")
    for number in range(1, 500):
        outer = ValueError(str(number))
        outer.__cause__ = error
        error = outer
    links = chain_of(to_failure(error))
    assert [link.message for link in links[:-1]] == [str(n) for n in range(499, 499 - CHAIN_MAX - 1, -1)]
    assert type_of(links[-1]) == CUT_TYPE
    assert str(CHAIN_MAX) in links[-1].message


def test_200_attempts_that_each_chain_the_last_failure() -> None:
    failure = to_failure(ApplicationError("attempt 0"))
    sizes: list[int] = []
    for attempt in range(1, 200):
        error = ApplicationError(f"attempt {attempt:03}")
        error.__cause__ = FAILURES.from_failure(failure, CONVERTER)
        failure = to_failure(error)
        assert failure.message == f"attempt {attempt:03}"
        sizes.append(len(msgspec.json.encode(failure)))
    assert len(chain_of(failure)) <= CHAIN_MAX + 2
    assert max(sizes[100:]) == min(sizes[100:])


@pytest.mark.parametrize("error_type", [ValueError, ApplicationError])
def test_a_message_of_3_mb(error_type: Any) -> None:
    message = to_failure(error_type("start" + "x" * 3_000_000 + "end")).message
    assert len(message) <= MESSAGE_CHARS_MAX
    assert message.startswith("start")
    assert message.endswith("end")
    assert "[cut]" in message


def test_details_nested_too_deeply_and_details_too_large() -> None:
    deep: dict[str, Any] = {}
    for _ in range(2_000):
        deep = {"inner": deep}
    failure = to_failure(ApplicationError("paid twice", deep, type="Twice"))
    assert failure.message.startswith("paid twice [its details could not be converted: ")
    assert "nested deeper" in failure.message
    assert type_of(failure) == "Twice"

    failure = to_failure(ApplicationError("too much", "x" * (DETAILS_BYTES_MAX + 1)))
    assert "were left out" in failure.message
    assert isinstance(failure.info, ApplicationInfo)
    assert failure.info.details == ()


def test_the_details_of_a_whole_chain_share_one_budget() -> None:
    inner = ApplicationError("inner", "x" * (DETAILS_BYTES_MAX // 2))
    outer = ApplicationError("outer", "x" * (DETAILS_BYTES_MAX // 2))
    outer.__cause__ = inner
    assert len(msgspec.json.encode(to_failure(outer))) < DETAILS_BYTES_MAX


def test_a_traceback_of_a_deep_recursion_is_bounded() -> None:
    def recurse(depth: int) -> None:
        if depth:
            recurse(depth - 1)
        raise ValueError("deep")

    with pytest.raises(ValueError, match="deep") as caught:
        recurse(400)
    assert 0 < len(to_failure(caught.value).stack_trace) <= 8_000


class _Hostile(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


def test_errors_that_cannot_even_be_printed_arrive() -> None:
    failure = to_failure(_Hostile())
    assert type_of(failure) == "_Hostile"
    assert "RuntimeError" in failure.message
    assert msgspec.json.encode(to_failure(ValueError("lone \ud800 surrogate")))


def test_details_that_cannot_be_read_do_not_hide_the_error() -> None:
    class Blind(DefaultPayloadConverter):
        def from_payload(self, payload: Any, type_hint: Any = None) -> Any:
            raise ValueError("not a ClewError")

    failure = to_failure(ApplicationError("kept", {"a": 1}, type="T"))
    error = FAILURES.from_failure(failure, Blind())
    assert isinstance(error, ApplicationError)
    assert (error.message, error.type) == ("kept", "T")


def test_the_shown_leaves_of_a_group_of_groups_with_itself_below() -> None:
    inner = ExceptionGroup("inner", [ValueError("b"), CancelledError()])
    outer = BaseExceptionGroup("outer", [CancelledError("c"), inner, ApplicationError("a", type="Pay")])
    failure = to_failure(outer)
    assert "- ValueError: b\n- Pay: a" in failure.message
    assert failure.cause is not None
    assert failure.cause.message == "b"
    error = FAILURES.from_failure(failure, CONVERTER)
    assert isinstance(error, ApplicationError)
    assert error.details[0][0] == {"type": "ValueError", "message": "b"}
    assert isinstance(error, ClewError)
