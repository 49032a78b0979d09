"""Values on their way between a caller and the engine.

Owns: the order of conversion, codec and size check for everything a client sends or receives.
Never: how a value becomes a payload (``converter`` knows).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, final

from clew import converter
from clew.common import Payload, SearchAttributes, TypedSearchAttributes
from clew.converter import DataConverter
from clew.exceptions import EncodeError
from clew.model import events
from clew.model.failure import Failure
from clew.model.limits import Limits
from clew.model.payload import Payloads, StoredPayload, payloads_size, to_stored

_KIB: Final = 1024


@final
class Values:
    """Conversion both ways with one data converter, within one engine's limits."""

    def __init__(self, data_converter: DataConverter, limits: Limits) -> None:
        self._converter = data_converter
        self._limits = limits

    async def encode(self, values: Sequence[Any], what: str) -> Payloads:
        """Convert arguments (or a result) for the engine.

        Args:
            values: What to convert.
            what: Whose values they are, for messages: "the arguments of workflow 'Greet'".

        Raises:
            EncodeError: A value cannot be converted, or together they are too large.
        """
        if not values:
            return ()
        payloads = await self._converter.encode_values(values, what)
        self._check_size(payloads, what, self._limits.payload_bytes_max)
        return payloads

    async def encode_memo(self, memo: Mapping[str, Any] | None, what: str) -> events.Memo | None:
        """Convert a memo.

        Raises:
            EncodeError: A value cannot be converted, or the memo is too large.
        """
        if not memo:
            return None
        payloads: dict[str, StoredPayload] = {}
        for key, value in memo.items():
            payloads[key] = (await self.encode([value], f"the memo {key!r} of {what}"))[0]
        self._check_size(tuple(payloads.values()), f"the memo values of {what}", self._limits.memo_bytes_max)
        return payloads

    async def encode_metadata(self, summary: str | None, details: str | None, what: str) -> events.UserMetadata | None:
        """Convert the texts that an author gives for people.

        Raises:
            EncodeError: One is too long.
        """
        if not summary and not details:
            return None
        self._check_text(summary, "static_summary", what, self._limits.summary_bytes_max)
        self._check_text(details, "static_details", what, self._limits.details_bytes_max)
        return events.UserMetadata(
            summary=(await self.encode([summary], what))[0] if summary else None,
            details=(await self.encode([details], what))[0] if details else None,
        )

    def encode_headers(self, headers: Mapping[str, Payload]) -> events.Header | None:
        """Give headers their stored form; interceptors made the payloads."""
        return {key: to_stored(payload) for key, payload in headers.items()} or None

    def encode_search_attributes(
        self, attributes: TypedSearchAttributes | SearchAttributes | None
    ) -> events.SearchAttributes | None:
        """Convert search attributes; they are never given to the codec, since the engine indexes them."""
        if not attributes:
            return None
        return converter.encode_search_attributes(attributes)

    async def decode(self, payloads: Payloads, type_hints: Sequence[Any] | None = None) -> list[Any]:
        """Convert what the engine gave.

        Raises:
            DecodeError: A payload does not fit its hint.
        """
        return await self._converter.decode_values(payloads, type_hints)

    async def decode_result(self, payloads: Payloads, type_hint: Any | None) -> Any:
        """Convert a result: one value, or None for nothing."""
        if not payloads:
            return None
        return (await self.decode(payloads, None if type_hint is None else [type_hint]))[0]

    async def decode_failure(self, failure: Failure) -> BaseException:
        """Give the exception that a failure stands for."""
        return await self._converter.decode_failure(failure)

    async def encode_failure(self, error: BaseException) -> Failure:
        """Give the failure that stands for an exception."""
        return await self._converter.encode_failure(error)

    def _check_size(self, payloads: Payloads, what: str, bytes_max: int) -> None:
        size = payloads_size(payloads)
        if size <= bytes_max:
            return
        sizes = [payloads_size((p,)) for p in payloads]
        largest = max(range(len(sizes)), key=sizes.__getitem__)
        which = f", the largest being number {largest + 1} with {_kib(sizes[largest])}" if len(sizes) > 1 else ""
        raise EncodeError(
            f"{what[:1].upper()}{what[1:]} take {_kib(size)}{which}, but at most {_kib(bytes_max)} are allowed. "
            "Store large data elsewhere and pass a reference, or raise the namespace's limit payload_bytes_max.",
            path=f"$[{largest}]",
        )

    def _check_text(self, text: str | None, name: str, what: str, bytes_max: int) -> None:
        size = len(text.encode()) if text else 0
        if size > bytes_max:
            raise EncodeError(f"{name} of {what} has {size} bytes, but at most {bytes_max} are allowed. Shorten it.")


def _kib(size: int) -> str:
    return f"{size} bytes" if size < 10 * _KIB else f"{size / _KIB:,.0f} KiB"
