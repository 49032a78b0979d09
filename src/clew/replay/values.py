"""Values of workflow code on their way into and out of commands and events.

Owns: conversion with the limits of the namespace, and the messages that name what was too large or cannot be
converted. Never: how a value becomes a payload (``converter`` knows); codecs (the worker applies them outside of
workflow code).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, final

from clew.converter import from_stored_payloads, to_stored_payloads
from clew.converter.payload_converter import PayloadConverter
from clew.exceptions import EncodeError
from clew.model.events import Header, UserMetadata
from clew.model.failure import Failure
from clew.model.limits import Limits
from clew.model.payload import Payload, Payloads, StoredPayload, from_stored, payloads_size, to_stored


class FailureConverter(Protocol):
    """Turns exceptions into failures and back."""

    def to_failure(self, exception: BaseException, payload_converter: PayloadConverter) -> Failure:
        """Give the failure that stands for an exception."""
        ...

    def from_failure(self, failure: Failure, payload_converter: PayloadConverter) -> BaseException:
        """Give the exception that a failure stands for."""
        ...


@final
class Values:
    """Conversion for one run.

    Args:
        payload_converter: Of the worker.
        failure_converter: Of the worker.
        limits: Of the namespace.
    """

    __slots__ = ("failure_converter", "limits", "payload_converter")

    def __init__(
        self, payload_converter: PayloadConverter, failure_converter: FailureConverter, limits: Limits
    ) -> None:
        self.payload_converter = payload_converter
        self.failure_converter = failure_converter
        self.limits = limits

    def encode(self, values: Sequence[Any], kind: str, name: str) -> Payloads:
        """Convert arguments or a result.

        Args:
            values: What to convert.
            kind: What the values are, for messages, as ``argument of activity``.
            name: Whose they are.

        Raises:
            EncodeError: A value cannot be converted, or together they are too large.
        """
        if not values:
            return ()
        try:
            if len(values) == 1:
                payloads: Payloads = (self.payload_converter.to_stored(values[0]),)
            else:
                payloads = to_stored_payloads(self.payload_converter, values)
        except EncodeError as error:
            raise EncodeError(f"Cannot convert {_with_article(kind)} {name!r}: {error}", path=error.path) from error
        size = len(payloads[0]) if len(payloads) == 1 else payloads_size(payloads)
        if size > self.limits.payload_bytes_max:
            raise EncodeError(self._too_large(payloads, size, kind, name))
        return payloads

    def decode(self, payloads: Payloads, hints: Sequence[Any] | None) -> list[Any]:
        """Convert what an event carries.

        Raises:
            DecodeError: A payload does not fit its hint.
        """
        return from_stored_payloads(self.payload_converter, payloads, hints)

    def decode_result(self, payloads: Payloads, hint: Any | None) -> Any:
        """Convert a result: one value, or None for nothing."""
        if not payloads:
            return None
        return self.payload_converter.from_stored(payloads[0], hint)

    def to_failure(self, error: BaseException) -> Failure:
        """Give the failure that stands for an exception."""
        return self.failure_converter.to_failure(error, self.payload_converter)

    def from_failure(self, failure: Failure) -> BaseException:
        """Give the exception that a failure stands for."""
        return self.failure_converter.from_failure(failure, self.payload_converter)

    def encode_mapping(self, values: Mapping[str, Any] | None, kind: str, name: str) -> dict[str, StoredPayload] | None:
        """Convert a memo.

        Raises:
            EncodeError: A value cannot be converted, or is too large.
        """
        if not values:
            return None
        return {key: self.encode((value,), f"{kind} {key!r} of", name)[0] for key, value in values.items()}

    def metadata(self, summary: str | None, details: str | None = None) -> UserMetadata | None:
        """Convert the texts that an author gives for people.

        Raises:
            EncodeError: One is too long.
        """
        if not summary and not details:
            return None
        return UserMetadata(
            summary=self._text(summary, "summary", self.limits.summary_bytes_max),
            details=self._text(details, "details", self.limits.details_bytes_max),
        )

    def _text(self, text: str | None, name: str, bytes_max: int) -> StoredPayload | None:
        if not text:
            return None
        size = len(text.encode())
        if size > bytes_max:
            raise EncodeError(
                f"The {name} {text[:40]!r}… has {size} bytes, but at most {bytes_max} are allowed. Shorten it."
            )
        return to_stored_payloads(self.payload_converter, (text,))[0]

    def _too_large(self, payloads: Payloads, size: int, kind: str, name: str) -> str:
        sizes = [payloads_size((p,)) for p in payloads]
        largest = max(range(len(sizes)), key=sizes.__getitem__)
        which = f" (the largest is number {largest + 1}, with {sizes[largest]} bytes)" if len(sizes) > 1 else ""
        return (
            f"The {kind} {name!r} takes {size} bytes{which}, but at most {self.limits.payload_bytes_max} are allowed. "
            "Store large data elsewhere and pass a reference, or raise the namespace's limit payload_bytes_max."
        )


def to_header(headers: Mapping[str, Payload]) -> Header | None:
    """Give headers their stored form."""
    return {name: to_stored(payload) for name, payload in headers.items()} if headers else None


def from_header(header: Header | None) -> Mapping[str, Payload]:
    """Give headers as interceptors read them."""
    return {name: from_stored(stored) for name, stored in header.items()} if header else {}


def _with_article(kind: str) -> str:
    return f"{'an' if kind[0] in 'aeiou' else 'a'} {kind}"
