"""The built-in payload converters: null, bytes, JSON, and the chain that asks one after the other.

Owns: the encodings ``binary/null``, ``binary/plain`` and ``json/plain``, and which converter takes which value.
Never: the rules of JSON (``encoding``, ``decoding``).

How it works: each encoding has a converter; the first that accepts a value makes its payload, and a payload goes to the
converter of its encoding. A chain of exactly the three built-in ones goes straight between values and the stored form.
"""

from __future__ import annotations

import collections.abc
import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar, Final, TypeGuard

import msgspec

from clew.common import RawValue
from clew.converter.annotations import is_union, union_branches, unwrap
from clew.converter.decoding import Decode, ValueDecoder
from clew.converter.encoding import DEFAULT_ENCODER, ValueEncoder
from clew.converter.misfit import type_name
from clew.converter.payload_converter import PayloadConverter
from clew.exceptions import DecodeError, EncodeError, UnknownEncodingError
from clew.model.payload import ENCODING_KEY, Payload, StoredPayload, from_stored, to_stored

_MARK: Final = b'"$payload"'
_MARK_WITHIN: Final = 32
_NULL: Final = Payload({ENCODING_KEY: b"binary/null"})
_SCALARS: Final = frozenset({str, int, bool})
"""Types whose values msgspec encodes as the rules do."""

_INTEGER_MAX: Final = 2**53
_SCALAR_BYTES_MAX: Final = 32
_ESCAPED_BYTES_MAX: Final = 8
"""A character of ASCII takes six bytes as an escape, and four thirds of those if the text has to be wrapped."""
_QUOTED_BYTES_MAX: Final = 128

_SCALAR_DECODERS: Final[dict[Any, Any]] = {kind: msgspec.json.Decoder(kind).decode for kind in (str, int, bool, float)}
_encode: Final = msgspec.json.Encoder().encode
_STORED_NULL: Final = msgspec.Raw(b"null")
"""The standard chain stores None as JSON's own null, which people and SQL can read."""


class EncodingPayloadConverter(ABC):
    """Converts the values of one encoding."""

    @property
    @abstractmethod
    def encoding(self) -> str:
        """The name that payloads carry in their metadata as ``encoding``."""

    @abstractmethod
    def to_payload(self, value: Any) -> Payload | None:
        """Turn a value into a payload, or give None to leave it to the next converter.

        Raises:
            EncodeError: The value is this converter's, but cannot be encoded.
        """

    @abstractmethod
    def from_payload(self, payload: Payload, type_hint: Any | None = None) -> Any:
        """Turn a payload of this encoding back into a value of `type_hint`; None means a plain value.

        Raises:
            DecodeError: It does not fit.
        """


class BinaryNullPayloadConverter(EncodingPayloadConverter):
    """None."""

    @property
    def encoding(self) -> str:
        """``binary/null``."""
        return "binary/null"

    def to_payload(self, value: Any) -> Payload | None:
        """Take None."""
        return _NULL if value is None else None

    def from_payload(self, payload: Payload, type_hint: Any | None = None) -> Any:
        """Give None, if the hint allows it."""
        return None if type_hint is None else _DEFAULT_DECODER.decode(b"null", type_hint)


class BinaryPlainPayloadConverter(EncodingPayloadConverter):
    """Bytes as they are."""

    @property
    def encoding(self) -> str:
        """``binary/plain``."""
        return "binary/plain"

    def to_payload(self, value: Any) -> Payload | None:
        """Take bytes and byte arrays."""
        if type(value) not in (bytes, bytearray):
            return None
        return Payload({ENCODING_KEY: b"binary/plain"}, bytes(value))

    def from_payload(self, payload: Payload, type_hint: Any | None = None) -> Any:
        """Give bytes, or the byte array that the hint asks for."""
        hint = unwrap(Any if type_hint is None else type_hint)
        branches = union_branches(hint) if is_union(hint) else [hint]
        if Any in branches or object in branches or bytes in branches or collections.abc.Sequence in branches:
            return payload.data
        if bytearray in branches:
            return bytearray(payload.data)
        raise DecodeError(
            f"Cannot convert a payload of bytes to {type_name(type_hint)}. Annotate the parameter as bytes, "
            "or send a value of its type."
        )


class JSONTypeConverter(ABC):
    """A user's own rule for what some type hints make of JSON; see `JSONPlainPayloadConverter`."""

    Unhandled: ClassVar[object] = object()
    """What `to_typed_value` gives for hints that are not its own."""

    @abstractmethod
    def to_typed_value(self, hint: Any, value: Any) -> Any:
        """Make a value of type `hint` of a plain JSON value, or give `Unhandled`.

        Raises:
            ValueError, TypeError: The value does not fit the hint.
        """


class AdvancedJSONEncoder(json.JSONEncoder):
    """Encodes everything the built-in rules know; subclasses add types in `default`."""

    def default(self, o: Any) -> Any:
        """Bring a value to plain JSON values, or raise TypeError."""
        try:
            return json.loads(DEFAULT_ENCODER.encode(o))
        except EncodeError as error:
            raise TypeError(error.message) from error


class JSONPlainPayloadConverter(EncodingPayloadConverter):
    """Everything else, as JSON by docs/reference/data-conversion.md.

    Args:
        encoder: Its `default` is asked for values of types that the built-in rules do not know.
        encoding: The name of the encoding.
        custom_type_converters: Asked before the built-in rules for every hint, inner ones included.
    """

    def __init__(
        self,
        *,
        encoder: type[json.JSONEncoder] | None = None,
        encoding: str = "json/plain",
        custom_type_converters: Sequence[JSONTypeConverter] = (),
    ) -> None:
        self._encoding = encoding
        self._metadata = {ENCODING_KEY: encoding.encode()}
        self._custom = tuple(custom_type_converters)
        self._encoder = DEFAULT_ENCODER if encoder is None else ValueEncoder(encoder().default)
        self._decoder = ValueDecoder(self._encoder, self._compile_custom if self._custom else None)

    @property
    def is_by_the_rules(self) -> bool:
        """Whether nobody has a say in decoding but the built-in rules."""
        return not self._custom

    @property
    def encoding(self) -> str:
        """``json/plain``, if no other was given."""
        return self._encoding

    def to_payload(self, value: Any) -> Payload | None:
        """Take any value."""
        return Payload(self._metadata, self.encode(value))

    def from_payload(self, payload: Payload, type_hint: Any | None = None) -> Any:
        """Give a value of the hint."""
        return self.decode(payload.data, type_hint)

    def encode(self, value: Any) -> bytes:
        """Encode a value as strict JSON; see `to_payload`."""
        return self._encoder.encode(value)

    def decode(self, data: bytes, type_hint: Any | None = None) -> Any:
        """Decode JSON; see `from_payload`."""
        if type_hint is bytes or type_hint is bytearray:
            raise DecodeError(
                f"Cannot convert a payload of JSON to {type_hint.__name__}: bytes travel as they are, not as JSON. "
                "Send bytes, or change the annotation to what is sent."
            )
        return self._decoder.decode(data, Any if type_hint is None else type_hint)

    def _compile_custom(self, hint: Any) -> Decode | None:
        """Custom converters only learn the value when there is one, so each hint they may handle asks them then."""
        builtin: Decode | None = None

        def decode(value: Any) -> Any:
            nonlocal builtin
            for converter in self._custom:
                made = converter.to_typed_value(hint, value)
                if made is not JSONTypeConverter.Unhandled:
                    return made
            if builtin is None:
                builtin = self._decoder.compile_builtin(hint)
            return builtin(value)

        return decode


class CompositePayloadConverter(PayloadConverter):
    """Asks converters in turn.

    Args:
        *converters: In the order in which they may take a value; each with an encoding of its own.
    """

    def __init__(self, *converters: EncodingPayloadConverter) -> None:
        self._converters: Mapping[bytes, EncodingPayloadConverter] = MappingProxyType(
            {c.encoding.encode(): c for c in converters}
        )
        self._json = _json_of_standard_chain(converters) if self._is_unchanged() else None
        self._is_standard = self._json is not None and type(self).to_stored is CompositePayloadConverter.to_stored
        self._scalar_decoders = _SCALAR_DECODERS if self._json is not None and self._json.is_by_the_rules else {}

    @property
    def converters(self) -> Mapping[bytes, EncodingPayloadConverter]:
        """The converters by encoding, in their order; to change them, give others to ``__init__``."""
        return self._converters

    def to_payloads(self, values: Sequence[Any]) -> list[Payload]:
        """See base class."""
        return [self.to_payload(value) for value in values]

    def from_payloads(self, payloads: Sequence[Payload], type_hints: Sequence[Any] | None = None) -> list[Any]:
        """See base class."""
        hints = type_hints or ()
        return [
            self.from_payload(payload, hints[index] if index < len(hints) else None)
            for index, payload in enumerate(payloads)
        ]

    def to_payload(self, value: Any) -> Payload:
        """See base class."""
        if isinstance(value, RawValue):
            return value.payload
        for converter in self._converters.values():
            payload = converter.to_payload(value)
            if payload is not None:
                return payload
        raise EncodeError(
            f"No payload converter takes a value of type {type_name(type(value))}; there are {self._names()}. "
            "Add a converter that does."
        )

    def from_payload(self, payload: Payload, type_hint: Any | None = None) -> Any:
        """See base class."""
        if type_hint is RawValue:
            return RawValue(payload)
        encoding = payload.metadata.get(ENCODING_KEY, b"")
        converter = self._converters.get(encoding)
        if converter is None:
            name = encoding.decode("utf-8", "replace")
            raise UnknownEncodingError(
                f"No payload converter knows the encoding {name!r}; there are {self._names()}. If the data is "
                "compressed or encrypted, give this data converter the codec that made it."
            )
        return converter.from_payload(payload, type_hint)

    def to_stored(self, value: Any) -> StoredPayload:
        """See base class."""
        if type(value) in _SCALARS and self._json is not None:
            # The short way of `ValueEncoder.encode`; the long one says better what is wrong.
            try:
                data = _encode(value)
            except (ValueError, TypeError, OverflowError):
                data = _MARK
            if _MARK not in data:
                return msgspec.Raw(data)
        if self._json is None or value is None or isinstance(value, (bytes, bytearray, RawValue)):
            return _STORED_NULL if value is None and self._json is not None else to_stored(self.to_payload(value))
        data = self._json.encode(value)
        if _MARK in data:
            return to_stored(Payload({ENCODING_KEY: b"json/plain"}, data), trusted=True)
        return msgspec.Raw(data)

    def surely_takes(self, value: Any, bytes_max: int) -> bool:
        """See base class."""
        if not self._is_standard:
            return False
        if type(value) is int:
            return -_INTEGER_MAX <= value <= _INTEGER_MAX and bytes_max >= _SCALAR_BYTES_MAX
        if type(value) is str:
            return bool(value.isascii()) and _ESCAPED_BYTES_MAX * len(value) + _QUOTED_BYTES_MAX <= bytes_max
        return (value is None or type(value) is bool) and bytes_max >= _SCALAR_BYTES_MAX

    def from_stored(self, stored: StoredPayload, type_hint: Any | None = None) -> Any:
        """See base class."""
        if type(type_hint) is type and (decode := self._scalar_decoders.get(type_hint)) is not None:
            # A wrapped payload is an object, so it is refused here like anything else that is no such scalar.
            try:
                return decode(stored)
            except (msgspec.MsgspecError, ValueError):
                pass  # The long way says better what is wrong.
        data = bytes(stored)
        if self._json is None or type_hint is RawValue or _MARK in data[:_MARK_WITHIN]:
            return self.from_payload(from_stored(stored), type_hint)
        return self._json.decode(data, type_hint)

    def _is_unchanged(self) -> bool:
        """Whether no subclass gave the conversion of single payloads a meaning of its own."""
        cls = type(self)
        return all(
            getattr(cls, name) is getattr(CompositePayloadConverter, name)
            for name in ("to_payload", "from_payload", "to_payloads", "from_payloads")
        )

    def _names(self) -> str:
        return ", ".join(converter.encoding for converter in self._converters.values()) or "none"


_STANDARD_CHAIN: Final = (BinaryNullPayloadConverter, BinaryPlainPayloadConverter, JSONPlainPayloadConverter)


def _json_of_standard_chain(converters: Sequence[EncodingPayloadConverter]) -> JSONPlainPayloadConverter | None:
    if tuple(type(c) for c in converters) != _STANDARD_CHAIN:
        return None
    last = converters[-1]
    return last if _is_plain_json(last) else None


def _is_plain_json(converter: EncodingPayloadConverter) -> TypeGuard[JSONPlainPayloadConverter]:
    return isinstance(converter, JSONPlainPayloadConverter) and converter.encoding == "json/plain"


class DefaultPayloadConverter(CompositePayloadConverter):
    """Null, bytes, JSON. Subclass it, or `CompositePayloadConverter`, to add converters."""

    default_encoding_payload_converters: tuple[EncodingPayloadConverter, ...]
    """The converters it is made of."""

    def __init__(self) -> None:
        super().__init__(*DefaultPayloadConverter.default_encoding_payload_converters)


_DEFAULT_DECODER: Final = ValueDecoder(DEFAULT_ENCODER)

DefaultPayloadConverter.default_encoding_payload_converters = (
    BinaryNullPayloadConverter(),
    BinaryPlainPayloadConverter(),
    JSONPlainPayloadConverter(),
)
PayloadConverter.default = DefaultPayloadConverter()
