"""The interface between Python values and payloads.

Owns: the abstract `PayloadConverter`. Never: a format (``converter.composite`` puts the formats together).

How it works: users implement `to_payloads` and `from_payloads`, which see bytes with metadata. The engine carries the
*stored* form (``model.payload``); `to_stored` and `from_stored` go there and back, and converters that know a shorter
way override them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

from clew.model.payload import Payload, StoredPayload, from_stored, to_stored


class PayloadConverter(ABC):
    """Turns values into payloads and back. Synchronous and deterministic: it runs inside workflow code."""

    default: ClassVar[PayloadConverter]
    """The converter that is used when none is given."""

    @abstractmethod
    def to_payloads(self, values: Sequence[Any]) -> list[Payload]:
        """Turn values into as many payloads.

        Raises:
            EncodeError: A value cannot become a payload that gives it back; the message names the place in it.
        """

    @abstractmethod
    def from_payloads(self, payloads: Sequence[Payload], type_hints: Sequence[Any] | None = None) -> list[Any]:
        """Turn payloads back into values.

        Args:
            payloads: What `to_payloads` made.
            type_hints: The expected types; None, or fewer than there are payloads, means plain values for the rest.

        Raises:
            DecodeError: A payload cannot become the expected type; the message names the place in it.
        """

    def to_payload(self, value: Any) -> Payload:
        """Turn one value into its payload; see `to_payloads`."""
        payloads = self.to_payloads([value])
        if len(payloads) != 1:
            raise RuntimeError(f"{type(self).__name__}.to_payloads made {len(payloads)} payloads of 1 value.")
        return payloads[0]

    def from_payload(self, payload: Payload, type_hint: Any | None = None) -> Any:
        """Turn one payload back into its value; see `from_payloads`."""
        values = self.from_payloads([payload], None if type_hint is None else [type_hint])
        if len(values) != 1:
            raise RuntimeError(f"{type(self).__name__}.from_payloads made {len(values)} values of 1 payload.")
        return values[0]

    def to_stored(self, value: Any) -> StoredPayload:
        """Turn one value into the stored form of its payload."""
        return to_stored(self.to_payload(value))

    def surely_takes(self, value: Any, bytes_max: int) -> bool:
        """Whether the value never changes and `to_stored` will give at most so many bytes for it, always the same.

        Where it is true, a value need not be converted to know that it can be.
        """
        return False

    def from_stored(self, stored: StoredPayload, type_hint: Any | None = None) -> Any:
        """Turn the stored form of a payload back into its value."""
        return self.from_payload(from_stored(stored), type_hint)
