"""Stored forms that the adapters share: instants, statuses, payloads by name, and search attributes as rows.

Owns: those conversions. Never: SQL, or a connection.

How it works: an instant is whole microseconds since 1970. The metadata of a search attribute may name its type
(``type: Keyword``, as the field's SDKs write it); else the JSON value tells: a boolean, a whole number, another number,
text, a list of texts. A value that cannot be searched by is kept with the run and just has no rows.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, Final, cast

import msgspec

from clew.model.events import Memo, SearchAttributes
from clew.model.payload import from_stored
from clew.model.policies import WorkflowExecutionStatus

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

STATUS_NAMES: Final[dict[WorkflowExecutionStatus, str]] = {s: s.value for s in WorkflowExecutionStatus}
STATUS_OF_NAME: Final = {s.value: s for s in WorkflowExecutionStatus}
OPEN_STATUSES: Final = frozenset(s for s in WorkflowExecutionStatus if s.is_open)

KINDS: Final = ("Keyword", "KeywordList", "Text", "Int", "Double", "Bool", "Datetime")

_INT_MAX: Final = 2**63 - 1
_WORD: Final = re.compile(r"\w+")
_LAST_CHARACTER: Final = "\U0010ffff"
_encode_json = msgspec.json.Encoder().encode
_decode_payloads = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode_datetime = msgspec.json.Decoder(datetime).decode


def to_micros(instant: datetime) -> int:
    """Whole microseconds since 1970; `instant` must be aware."""
    since = instant - EPOCH
    return since.days * 86_400_000_000 + since.seconds * 1_000_000 + since.microseconds


def from_micros(micros: int) -> datetime:
    """The inverse of `to_micros`."""
    return EPOCH + timedelta(microseconds=micros)


def to_json_text(payloads: Memo | SearchAttributes | None) -> str | None:
    """Payloads by name as JSON text; None stays None."""
    return None if payloads is None else _encode_json(payloads).decode()


def from_json_text(text: str | None) -> dict[str, msgspec.Raw] | None:
    """The inverse of `to_json_text`."""
    if text is None:
        return None
    return {name: msgspec.Raw(bytes(raw)) for name, raw in _decode_payloads(text).items()}


def words(text: str) -> list[str]:
    """The words of `text`, in lower case, each once: what a Text attribute is matched by."""
    return list(dict.fromkeys(_WORD.findall(text.lower())))


def to_index_rows(attributes: SearchAttributes) -> Iterator[tuple[str, int, str, str | int | float]]:
    """``(name, ordinal, kind, value)`` for every value that can be searched by."""
    for name, stored in attributes.items():
        payload = from_stored(stored)
        try:
            value = msgspec.json.decode(payload.data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            # Such a value cannot be searched by; the commit has other runs in it, which it must not stop.
            continue
        kind = payload.metadata.get("type", b"").decode("ascii", "replace")
        for ordinal, (found, indexed) in enumerate(_values(kind, value)):
            yield name, ordinal, found, indexed


def _values(kind: str, value: Any) -> Iterator[tuple[str, str | int | float]]:
    match value:
        case bool():
            yield "Bool", int(value)
        case int() if abs(value) > _INT_MAX:
            return
        case int() if kind == "Double":
            yield kind, float(value)
        case int():
            yield "Int", value
        case float():
            yield "Double", value
        case str() if kind == "Datetime":
            instants = as_instants([value])
            if instants is not None:
                yield kind, instants[0]
        case str() if kind == "Text":
            for word in words(value):
                yield kind, word
        case str():
            yield "Keyword", value
        case list():
            for text in cast("list[object]", value):
                if isinstance(text, str):
                    yield "KeywordList", text
        case _:
            return


def as_instants(texts: list[str]) -> list[int] | None:
    """The instants that `texts` say (RFC 3339), in microseconds; None when one of them says none."""
    try:
        return [to_micros(_decode_datetime(msgspec.json.encode(text))) for text in texts]
    except (msgspec.ValidationError, TypeError):
        return None


def after_prefix(prefix: str) -> str | None:
    """The least text that is greater, by code point, than all texts with `prefix`; None when there is none."""
    prefix = prefix.rstrip(_LAST_CHARACTER)
    if not prefix:
        return None
    following = ord(prefix[-1]) + 1
    if following == 0xD800:  # surrogates are no characters
        following = 0xE000
    return prefix[:-1] + chr(following)
