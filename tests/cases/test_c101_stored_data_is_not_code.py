"""C101 (the part of conversion): nothing named in data is imported or called; decoding is bounded, its errors typed."""

from __future__ import annotations

import contextlib
import pickle
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest

from clew.converter import (
    DataConverter,
    DefaultFailureConverter,
    PayloadConverter,
    from_stored_payloads,
)
from clew.exceptions import ApplicationError, DecodeError, UnknownEncodingError
from clew.model.failure import ApplicationInfo, Failure
from clew.model.payload import Payload, to_stored


@dataclass
class Claim:
    number: str
    extra: dict[str, Any]


class _Bomb:
    def __init__(self, target: str) -> None:
        self.target = target

    def __reduce__(self) -> tuple[Any, ...]:
        return (exec, (f"open({self.target!r}, 'w').close()",))


ENCODINGS = [
    "binary/null",
    "binary/plain",
    "json/plain",
    "json/protobuf",
    "binary/protobuf",
    "binary/pickle",
    "application/x-yaml",
    "",
    "\udcff",
]


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("hint", [None, Claim, dict[str, Any], bytes])
def test_a_pickle_under_any_label_stays_bytes(tmp_path: Path, encoding: str, hint: Any) -> None:
    target = tmp_path / "ran"
    bomb = pickle.dumps(_Bomb(str(target)))
    payload = Payload({"encoding": encoding.encode("utf-8", "surrogateescape")}, bomb)
    with contextlib.suppress(DecodeError):
        [found] = from_stored_payloads(PayloadConverter.default, (to_stored(payload),), [hint])
        assert found in (None, bomb)
    assert not target.exists()


CLASS_PATHS: list[dict[str, Any]] = [
    {"__class__": "os.system", "args": ["true"]},
    {"py/object": "clew_bomb.Bomb"},
    {"py/reduce": [{"py/type": "os.system"}, {"py/tuple": ["true"]}]},
    {"__type__": "clew_bomb.Bomb", "__reduce__": ["os.system", ["true"]]},
    {"!!python/object/apply:os.system": ["true"]},
]


@pytest.mark.parametrize("data", CLASS_PATHS, ids=lambda d: next(iter(d)))
def test_class_paths_are_only_texts(data: dict[str, Any]) -> None:
    before = set(sys.modules)
    converter = PayloadConverter.default
    stored = msgspec.Raw(msgspec.json.encode(data))
    assert from_stored_payloads(converter, (stored,)) == [data]
    assert from_stored_payloads(converter, (stored,), [dict[str, Any]]) == [data]
    wrapped = msgspec.Raw(msgspec.json.encode({"number": "1", "extra": data, **data}))
    assert from_stored_payloads(converter, (wrapped,), [Claim]) == [Claim("1", data)]
    assert "clew_bomb" not in set(sys.modules) - before


@pytest.mark.parametrize("hint", [None, Claim, dict[str, Any], list[Any]])
@pytest.mark.parametrize("text", [b"[" * 100_000, b"[" * 100_000 + b"]" * 100_000, b'{"extra":' * 100_000])
def test_json_of_100_000_levels_is_a_typed_error(text: bytes, hint: Any) -> None:
    with pytest.raises(DecodeError):
        from_stored_payloads(PayloadConverter.default, (msgspec.Raw(text),), [hint])


def test_an_unknown_encoding_is_named_with_those_that_are_known() -> None:
    stored = to_stored(Payload({"encoding": b"binary/encrypted"}, b"x"))
    with pytest.raises(UnknownEncodingError, match=r"'binary/encrypted'.*binary/null, binary/plain, json/plain.*codec"):
        from_stored_payloads(PayloadConverter.default, (stored,), [str])


def test_failure_types_and_details_name_nothing_that_is_made() -> None:
    bomb = to_stored(Payload({"encoding": b"binary/pickle"}, pickle.dumps(1)))
    failure = Failure(message="m", info=ApplicationInfo(type="builtins.SystemExit", details=(bomb,)))
    error = DefaultFailureConverter().from_failure(failure, PayloadConverter.default)
    assert type(error) is ApplicationError
    assert error.type == "builtins.SystemExit"
    assert error.details[0].payload.data == pickle.dumps(1)


def test_the_failure_of_a_hostile_chain_is_read_without_recursion() -> None:
    failure = Failure(message="0")
    for number in range(5_000):
        failure = Failure(message=str(number), cause=failure)
    error = DataConverter.default.failure_converter.from_failure(failure, PayloadConverter.default)
    assert str(error) == "4999"
