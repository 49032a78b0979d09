"""The data converter: chains of converters, custom types, codecs, the stored form."""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import pytest

from clew.common import RawValue
from clew.converter import (
    AdvancedJSONEncoder,
    CompositePayloadConverter,
    DataConverter,
    DefaultFailureConverterWithEncodedAttributes,
    DefaultPayloadConverter,
    EncodingPayloadConverter,
    JSONPlainPayloadConverter,
    JSONTypeConverter,
    Payload,
    PayloadCodec,
    PayloadConverter,
    from_stored_payloads,
    to_stored_payloads,
)
from clew.exceptions import ApplicationError, CancelledError, DecodeError, TimeoutError, TimeoutType
from clew.model.failure import ApplicationInfo
from clew.model.payload import from_stored

DEFAULT = PayloadConverter.default


@dataclass
class Part:
    share: Fraction


class FractionEncoder(AdvancedJSONEncoder):
    def default(self, o: Any) -> Any:
        return [o.numerator, o.denominator] if isinstance(o, Fraction) else super().default(o)


class FractionConverter(JSONTypeConverter):
    def to_typed_value(self, hint: Any, value: Any) -> Any:
        return Fraction(*value) if hint is Fraction else JSONTypeConverter.Unhandled


class WithFractions(CompositePayloadConverter):
    def __init__(self) -> None:
        super().__init__(
            *DefaultPayloadConverter.default_encoding_payload_converters[:-1],
            JSONPlainPayloadConverter(encoder=FractionEncoder, custom_type_converters=[FractionConverter()]),
        )


class Upper(EncodingPayloadConverter):
    """Takes texts before the built-in converters do."""

    @property
    def encoding(self) -> str:
        return "text/upper"

    def to_payload(self, value: Any) -> Payload | None:
        return Payload({"encoding": b"text/upper"}, value.upper().encode()) if isinstance(value, str) else None

    def from_payload(self, payload: Payload, type_hint: Any | None = None) -> Any:
        return payload.data.decode()


class WithUpper(CompositePayloadConverter):
    def __init__(self) -> None:
        super().__init__(Upper(), *DefaultPayloadConverter.default_encoding_payload_converters)


class Zip(PayloadCodec):
    async def encode(self, payloads: Sequence[Payload]) -> list[Payload]:
        return [
            Payload({"encoding": b"binary/zip"}, zlib.compress(json.dumps([p.metadata["encoding"].decode()]).encode()))
            if not p.data
            else Payload({"encoding": b"binary/zip", "inner": p.metadata["encoding"]}, zlib.compress(p.data))
            for p in payloads
        ]

    async def decode(self, payloads: Sequence[Payload]) -> list[Payload]:
        return [
            Payload({"encoding": p.metadata["inner"]}, zlib.decompress(p.data))
            if p.metadata["encoding"] == b"binary/zip"
            else p
            for p in payloads
        ]


def test_the_three_encodings_and_their_stored_form() -> None:
    assert [bytes(s) for s in to_stored_payloads(DEFAULT, [None, {"a": 1}])] == [b"null", b'{"a":1}']
    assert DEFAULT.to_payload(None) == Payload({"encoding": b"binary/null"})
    assert DEFAULT.to_payload(b"x") == Payload({"encoding": b"binary/plain"}, b"x")
    assert DEFAULT.to_payload(bytearray(b"x")) == Payload({"encoding": b"binary/plain"}, b"x")
    assert DEFAULT.to_payload("x") == Payload({"encoding": b"json/plain"}, b'"x"')
    assert from_stored(DEFAULT.to_stored(b"x")) == DEFAULT.to_payload(b"x")
    assert DEFAULT.from_payloads([DEFAULT.to_payload(None), DEFAULT.to_payload(1)], [type(None)]) == [None, 1]
    assert DEFAULT.from_payload(DEFAULT.to_payload(b"x"), bytearray) == bytearray(b"x")


def test_null_of_either_encoding_is_refused_where_the_hint_has_no_none() -> None:
    for stored in (DEFAULT.to_stored(None), DEFAULT.to_stored(RawValue(DEFAULT.to_payload(None)))):
        assert DEFAULT.from_stored(stored) is None
        assert DEFAULT.from_stored(stored, int | None) is None
        with pytest.raises(DecodeError, match="expected int"):
            DEFAULT.from_stored(stored, int)


def test_a_raw_value_passes_untouched() -> None:
    payload = Payload({"encoding": b"custom", "more": b"\x00"}, b"\xff")
    stored = to_stored_payloads(DEFAULT, [RawValue(payload), 5])
    assert from_stored_payloads(DEFAULT, stored, [RawValue, RawValue]) == [
        RawValue(payload),
        RawValue(Payload({"encoding": b"json/plain"}, b"5")),
    ]


def test_custom_types_at_any_depth() -> None:
    converter = WithFractions()
    value = {"parts": [Part(Fraction(1, 3))]}
    stored = to_stored_payloads(converter, [value, Fraction(2, 3)])
    assert bytes(stored[0]) == b'{"parts":[{"share":[1,3]}]}'
    found = from_stored_payloads(converter, stored, [dict[str, list[Part]], Fraction | None])
    assert found == [value, Fraction(2, 3)]


def test_a_converter_of_ones_own_comes_first() -> None:
    converter = WithUpper()
    stored = to_stored_payloads(converter, ["a", 1, None])
    assert from_stored_payloads(converter, stored) == ["A", 1, None]


def test_a_subclass_that_changes_single_payloads_is_not_bypassed() -> None:
    class Marking(DefaultPayloadConverter):
        def to_payload(self, value: Any) -> Payload:
            payload = super().to_payload(value)
            return Payload({**payload.metadata, "mark": b"1"}, payload.data)

    assert from_stored(Marking().to_stored(1)).metadata["mark"] == b"1"


def test_the_json_encoder_for_users_knows_what_the_converter_knows() -> None:
    assert json.loads(json.dumps({"s": {2, 1}, "b": b"x"}, cls=AdvancedJSONEncoder)) == {"s": [1, 2], "b": "eA=="}
    with pytest.raises(TypeError, match="no form in JSON"):
        json.dumps(object(), cls=AdvancedJSONEncoder)


async def test_a_codec_sees_every_payload_and_gives_it_back() -> None:
    converter = DataConverter(payload_codec=Zip())
    assert converter.has_codec
    stored = await converter.encode_values([{"a": "secret"}, "x"])
    assert all(b"secret" not in bytes(s) for s in stored)
    assert await converter.decode_values(stored, [dict[str, str], str]) == [{"a": "secret"}, "x"]
    assert await converter.decode(await converter.encode([1, "b"]), [int, str]) == [1, "b"]


async def test_a_codec_reaches_into_failures() -> None:
    converter = DataConverter(payload_codec=Zip(), failure_converter_class=DefaultFailureConverterWithEncodedAttributes)
    error = ApplicationError("secret text", {"a": "secret"}, type="T")
    error.__cause__ = TimeoutError("secret", type=TimeoutType.HEARTBEAT, last_heartbeat_details=["secret"])
    failure = await converter.encode_failure(error)
    assert "secret" not in repr([failure.message, failure.stack_trace])
    assert isinstance(failure.info, ApplicationInfo)
    assert b"secret" not in bytes(failure.info.details[0])
    found = await converter.decode_failure(failure)
    assert isinstance(found, ApplicationError)
    assert (found.message, found.details) == ("secret text", ({"a": "secret"},))
    assert isinstance(found.cause, TimeoutError)
    assert (found.cause.message, found.cause.last_heartbeat_details) == ("secret", ["secret"])


async def test_without_a_codec_stored_payloads_pass_as_the_same_object() -> None:
    stored = to_stored_payloads(DEFAULT, [1])
    assert await DataConverter.default.encode_stored(stored) is stored
    failure = await DataConverter.default.encode_failure(CancelledError())
    assert await DataConverter.default.decode_stored_failure(failure) is failure


async def test_texts_for_people() -> None:
    assert await DataConverter.default.encode_user_metadata(None, None) is None
    metadata = await DataConverter.default.encode_user_metadata("short", None)
    assert metadata is not None
    assert metadata.summary is not None
    assert bytes(metadata.summary) == b'"short"'
    assert metadata.details is None
