"""The data converter: everything between the user's values and what is stored, in one object.

Owns: `DataConverter`, `PayloadCodec`, and the hot functions between lists of values and stored payloads.
Never: runs a codec inside workflow code: conversion is synchronous and deterministic, codecs are neither.

How it works: on the way out a value is converted, then (outside of workflow code) its payload is encoded by the codec;
on the way in, the reverse. Without a codec the stored payloads pass through untouched.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import msgspec

from clew.converter.composite import DefaultPayloadConverter
from clew.converter.failure import DefaultFailureConverter, FailureConverter
from clew.converter.payload_converter import PayloadConverter
from clew.converter.signature import CallableSignature
from clew.exceptions import ArgumentsError, DecodeError, EncodeError
from clew.model.events import UserMetadata
from clew.model.failure import (
    ApplicationInfo,
    CanceledInfo,
    Failure,
    ResetWorkflowInfo,
    TimeoutInfo,
)
from clew.model.payload import Payload, Payloads, StoredPayload, from_stored, to_stored


class PayloadCodec(ABC):
    """Compresses or encrypts payloads, outside of workflow code."""

    @abstractmethod
    async def encode(self, payloads: Sequence[Payload]) -> list[Payload]:
        """Encode payloads; may give back another number of them."""

    @abstractmethod
    async def decode(self, payloads: Sequence[Payload]) -> list[Payload]:
        """Decode payloads. What this codec did not make must be given back as it is."""


CodecCall = Callable[[Sequence[Payload]], Awaitable[list[Payload]]]


@dataclass(frozen=True)
class DataConverter:
    """How values, payloads and failures become one another. The same on every client and worker of a namespace.

    Args:
        payload_converter_class: Values and payloads; made once, without arguments.
        payload_codec: Compression or encryption; None for none.
        failure_converter_class: Exceptions and failures; made once, without arguments.
    """

    payload_converter_class: type[PayloadConverter] = DefaultPayloadConverter
    payload_codec: PayloadCodec | None = None
    failure_converter_class: type[FailureConverter] = DefaultFailureConverter
    payload_converter: PayloadConverter = field(init=False, repr=False, compare=False)
    failure_converter: FailureConverter = field(init=False, repr=False, compare=False)

    default: ClassVar[DataConverter]
    """The built-in converters, without a codec."""

    def __post_init__(self) -> None:
        is_standard = self.payload_converter_class is DefaultPayloadConverter
        made = PayloadConverter.default if is_standard else self.payload_converter_class()
        object.__setattr__(self, "payload_converter", made)
        object.__setattr__(self, "failure_converter", self.failure_converter_class())

    @property
    def has_codec(self) -> bool:
        """Whether payloads need the asynchronous step at all."""
        return self.payload_codec is not None

    async def encode(self, values: Sequence[Any]) -> list[Payload]:
        """Convert and encode values; see `PayloadConverter.to_payloads`."""
        payloads = self.payload_converter.to_payloads(values)
        return payloads if self.payload_codec is None else await self.payload_codec.encode(payloads)

    async def decode(self, payloads: Sequence[Payload], type_hints: Sequence[Any] | None = None) -> list[Any]:
        """Decode and convert payloads; see `PayloadConverter.from_payloads`."""
        if self.payload_codec is not None:
            payloads = await self.payload_codec.decode(payloads)
        return self.payload_converter.from_payloads(payloads, type_hints)

    async def encode_values(self, values: Sequence[Any], what: str = "") -> Payloads:
        """Convert values and encode them, in stored form; `what` names them in messages."""
        return await self.encode_stored(to_stored_payloads(self.payload_converter, values, what))

    async def decode_values(
        self, payloads: Payloads, type_hints: Sequence[Any] | None = None, what: str = ""
    ) -> list[Any]:
        """Decode stored payloads and convert them.

        Args:
            payloads: As they are in history.
            type_hints: The type of each value; what its JSON gives, where there is none.
            what: Names the values in messages.

        Raises:
            DecodeError: A payload does not fit its type; the message says which one, and the path in it.
        """
        return from_stored_payloads(self.payload_converter, await self.decode_stored(payloads), type_hints, what)

    async def encode_stored(self, payloads: Payloads) -> Payloads:
        """Run the codec, if there is one, over payloads that are converted already."""
        return payloads if self.payload_codec is None else await _through(self.payload_codec.encode, payloads)

    async def decode_stored(self, payloads: Payloads) -> Payloads:
        """Run the codec, if there is one, backwards."""
        return payloads if self.payload_codec is None else await _through(self.payload_codec.decode, payloads)

    async def encode_failure(self, exception: BaseException) -> Failure:
        """Turn an exception into a failure and encode the payloads inside."""
        return await self.encode_stored_failure(self.failure_converter.to_failure(exception, self.payload_converter))

    async def decode_failure(self, failure: Failure) -> BaseException:
        """Decode the payloads inside a failure and turn it into an exception."""
        return self.failure_converter.from_failure(await self.decode_stored_failure(failure), self.payload_converter)

    async def encode_stored_failure(self, failure: Failure) -> Failure:
        """Run the codec, if there is one, over the payloads inside a failure."""
        return failure if self.payload_codec is None else await _failure_through(self.payload_codec.encode, failure)

    async def decode_stored_failure(self, failure: Failure) -> Failure:
        """Run the codec, if there is one, backwards over the payloads inside a failure."""
        return failure if self.payload_codec is None else await _failure_through(self.payload_codec.decode, failure)

    async def encode_user_metadata(self, summary: str | None, details: str | None) -> UserMetadata | None:
        """Make the texts for people that go with a run, an activity or a timer; None if there are none."""
        if summary is None and details is None:
            return None
        converted = [None if text is None else (await self.encode_values([text]))[0] for text in (summary, details)]
        return UserMetadata(summary=converted[0], details=converted[1])


DataConverter.default = DataConverter()


def default() -> DataConverter:
    """Give the built-in data converter."""
    return DataConverter.default


def to_stored_payloads(payload_converter: PayloadConverter, values: Sequence[Any], what: str = "") -> Payloads:
    """Convert values to stored payloads.

    Args:
        payload_converter: Converts them.
        values: The arguments or results.
        what: Names the call in messages, as ``activity 'pay'``.

    Raises:
        EncodeError: A value cannot be converted; the message says which one of which call, and the path in it.
    """
    if len(values) == 1 and not what:
        return (payload_converter.to_stored(values[0]),)
    stored: list[StoredPayload] = []
    for value in values:
        try:
            stored.append(payload_converter.to_stored(value))
        except EncodeError as error:
            raise EncodeError(
                f"Value {len(stored) + 1} of {what or 'the call'}: {error.message}", path=error.path
            ) from (error.__cause__ or error)
    return tuple(stored)


def from_stored_payloads(
    payload_converter: PayloadConverter, payloads: Payloads, type_hints: Sequence[Any] | None = None, what: str = ""
) -> list[Any]:
    """Convert stored payloads to values.

    Args:
        payload_converter: Converts them.
        payloads: What `to_stored_payloads` made.
        type_hints: The expected types; None, or fewer than there are payloads, means plain values for the rest.
        what: Names the call in messages, as ``activity 'pay'``.

    Raises:
        DecodeError: A payload does not fit; the message says which one of which call, and the path in it.
    """
    hints = type_hints or ()
    if len(payloads) == 1 and not what:
        return [payload_converter.from_stored(payloads[0], hints[0] if hints else None)]
    values: list[Any] = []
    for index, stored in enumerate(payloads):
        try:
            values.append(payload_converter.from_stored(stored, hints[index] if index < len(hints) else None))
        except DecodeError as error:
            if not what:
                raise
            raise type(error)(f"Value {index + 1} of {what}: {error.message}", path=error.path) from (
                error.__cause__ or error
            )
    return values


def decode_arguments(
    payload_converter: PayloadConverter, payloads: Payloads, signature: CallableSignature, what: str = ""
) -> list[Any]:
    """Convert the arguments for one call of the function behind `signature`.

    Args:
        payload_converter: Converts them.
        payloads: The arguments, in order.
        signature: Of the function.
        what: Names the call in messages, as ``activity 'pay'``.

    Raises:
        ArgumentsError: There are too few or too many; the message names the function and what it takes.
        DecodeError: One does not fit its parameter; the message names both.
    """
    count = len(payloads)
    if count == signature.exact_count:
        hints: Sequence[Any] = signature.arg_types
    else:
        _check_count(signature, count, what)
        hints = signature.types_for(count)
    values: list[Any] = []
    for index, stored in enumerate(payloads):
        try:
            values.append(payload_converter.from_stored(stored, hints[index]))
        except DecodeError as error:
            names = signature.arg_names
            name = names[index] if index < len(names) else f"number {index + 1}"
            place = f"Argument {name!r} of {f'{what}, ' if what else ''}{signature.name}"
            raise type(error)(f"{place}: {error.message}", path=error.path) from (error.__cause__ or error)
    return values


def _check_count(signature: CallableSignature, count: int, what: str) -> None:
    try:
        signature.check_count(count)
    except ArgumentsError as error:
        raise ArgumentsError(f"{what}: {error.message}" if what else error.message) from None


async def _through(call: CodecCall, payloads: Payloads) -> Payloads:
    if not payloads:
        return payloads
    return tuple(to_stored(payload) for payload in await call([from_stored(stored) for stored in payloads]))


async def _failure_through(call: CodecCall, failure: Failure) -> Failure:
    links: list[Failure] = []
    current: Failure | None = failure
    while current is not None:
        links.append(current)
        current = current.cause
    done: Failure | None = None
    for link in reversed(links):
        attributes = link.encoded_attributes
        if attributes is not None:
            attributes = (await _through(call, (attributes,)))[0]
        done = msgspec.structs.replace(
            link, cause=done, info=await _info_through(call, link), encoded_attributes=attributes
        )
    assert done is not None, "a failure has at least itself"
    return done


async def _info_through(call: CodecCall, failure: Failure) -> Any:
    match failure.info:
        case ApplicationInfo(details=details) | CanceledInfo(details=details) if details:
            return msgspec.structs.replace(failure.info, details=await _through(call, details))
        case TimeoutInfo(last_heartbeat_details=details) | ResetWorkflowInfo(last_heartbeat_details=details) if details:
            return msgspec.structs.replace(failure.info, last_heartbeat_details=await _through(call, details))
        case _:
            return failure.info
