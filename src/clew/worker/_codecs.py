"""Payload codecs around what goes in and out: every payload of a task is decoded, every payload of an answer encoded.

Owns: finding the payloads in events, commands and requests, and where the codec's coroutines run.
Never: a codec (users and ``converter`` have those).

How it works: which fields of a struct can hold payloads is read once a type from its annotations; then only those are
visited. Each list of payloads goes through the codec as a whole. A codec is user code, so it is awaited on the
worker's loop, while the service loop only waits for it.
"""

from __future__ import annotations

import asyncio
import types
import typing
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, Protocol, TypeVar, cast, final

import msgspec

from clew.model.payload import Payload, Payloads, from_stored, to_stored
from clew.service.requests import WorkflowTask

T = TypeVar("T")

PLAIN_FIELDS: Final = frozenset({"search_attributes", "indexed_fields"})
"""The engine itself reads search attributes, so no codec may hide them."""


class PayloadCodec(Protocol):
    """Encrypts, compresses or stores payloads elsewhere; see ``converter.PayloadCodec``."""

    async def encode(self, payloads: Sequence[Payload]) -> list[Payload]: ...
    async def decode(self, payloads: Sequence[Payload]) -> list[Payload]: ...


@final
class CodecWay:
    """The codec, applied to whole messages.

    Args:
        codec: The user's.
        loop: Where its coroutines run: that of `Worker.run`.
    """

    def __init__(self, codec: PayloadCodec, loop: asyncio.AbstractEventLoop) -> None:
        self._codec = codec
        self._loop = loop

    # Called on the service loop.

    def decode_task(self, task: WorkflowTask) -> Awaitable[WorkflowTask]:
        """Decode what a workflow task brings."""
        return asyncio.wrap_future(
            asyncio.run_coroutine_threadsafe(self._through(task, self._codec.decode), self._loop)
        )

    def encode_completion(self, completion: T) -> Awaitable[T]:
        """Encode what the answer to a workflow task holds."""
        return asyncio.wrap_future(
            asyncio.run_coroutine_threadsafe(self._through(completion, self._codec.encode), self._loop)
        )

    def encode_details(self, details: Payloads) -> Awaitable[Payloads]:
        """Encode the details of a heartbeat."""
        return asyncio.wrap_future(
            asyncio.run_coroutine_threadsafe(self._convert(details, self._codec.encode), self._loop)
        )

    # Called on the worker's loop.

    async def decode(self, payloads: Payloads) -> Payloads:
        """Decode the input of an activity."""
        return await self._convert(payloads, self._codec.decode)

    async def encode_report(self, report: T) -> T:
        """Encode the outcome of an activity."""
        return await self._through(report, self._codec.encode)

    async def _convert(
        self, payloads: Payloads, convert: Callable[[Sequence[Payload]], Awaitable[list[Payload]]]
    ) -> Payloads:
        if not payloads:
            return payloads
        return tuple(to_stored(p) for p in await convert([from_stored(p) for p in payloads]))

    async def _through(self, message: T, convert: Callable[[Sequence[Payload]], Awaitable[list[Payload]]]) -> T:
        found: list[Payloads] = []

        def collect(payloads: Payloads) -> Payloads:
            found.append(payloads)
            return payloads

        rewrite(message, collect)
        if not found:
            return message
        # List by list, as a codec may make more or fewer payloads of one list.
        converted = iter([await self._convert(payloads, convert) for payloads in found])
        return typing.cast(T, rewrite(message, lambda _: next(converted)))


def rewrite(value: Any, change: Callable[[Payloads], Payloads]) -> Any:
    """Give `value` with every list of payloads in it changed, in a fixed order.

    A payload that stands alone is changed as a list of one. Parts without payloads stay the same objects.
    """
    if isinstance(value, msgspec.Raw):
        (changed,) = change((value,))
        return changed
    if isinstance(value, msgspec.Struct):
        return _rewrite_struct(value, change)
    if isinstance(value, tuple):
        items = cast("tuple[Any, ...]", value)
        if items and isinstance(items[0], msgspec.Raw):
            return change(items)
        return tuple(rewrite(item, change) for item in items)
    if isinstance(value, dict):
        return {name: rewrite(item, change) for name, item in cast("dict[str, Any]", value).items()}
    return value


def _rewrite_struct(value: msgspec.Struct, change: Callable[[Payloads], Payloads]) -> msgspec.Struct:
    changes: dict[str, Any] = {}
    for name in _fields_with_payloads(type(value)):
        old = getattr(value, name)
        if old is None or old == ():
            continue
        new = rewrite(old, change)
        if new is not old:
            changes[name] = new
    return msgspec.structs.replace(value, **changes) if changes else value


_fields: Final[dict[type[Any], tuple[str, ...]]] = {}


def _fields_with_payloads(struct: type[Any]) -> tuple[str, ...]:
    known = _fields.get(struct)
    if known is None:
        hints = typing.get_type_hints(struct)
        known = _fields[struct] = tuple(
            name
            for name in struct.__struct_fields__
            if name not in PLAIN_FIELDS and _may_hold_payloads(hints[name], frozenset({struct}))
        )
    return known


def _may_hold_payloads(hint: Any, seen: frozenset[type[Any]]) -> bool:
    if hint is msgspec.Raw:
        return True
    origin = typing.get_origin(hint)
    if origin in (tuple, dict, list, typing.Union, types.UnionType):
        return any(_may_hold_payloads(arg, seen) for arg in typing.get_args(hint))
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        if hint in seen:
            # A struct within itself (the cause of a failure): decided by its other fields, and visited if those say so.
            return True
        hints = typing.get_type_hints(hint)
        return any(_may_hold_payloads(hints[name], seen | {hint}) for name in hint.__struct_fields__)
    return False
