"""Search attributes as rows that can be searched.

Owns: the type of a value, the rows of the table ``search_attributes``, and which names are known.
Never: refuses a value (the engine does); a value that cannot be read is kept with the run and just not indexed.

How it works: the payload's metadata may name the type (``type: Keyword``, as the field's SDKs write it); else the
JSON value tells: a boolean, a whole number, another number, text, a list of texts.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from datetime import datetime
from typing import Any, Final, cast

import msgspec

from clew.model.events import SearchAttributes
from clew.model.payload import from_stored
from clew.storage.sqlite.rows import fetch_all, to_micros

KINDS: Final = ("Keyword", "KeywordList", "Text", "Int", "Double", "Bool", "Datetime")

_INT_MAX: Final = 2**63 - 1
_WORD: Final = re.compile(r"\w+")
_decode_datetime = msgspec.json.Decoder(datetime).decode


def words(text: str) -> list[str]:
    """The words of `text`, in lower case, each once: what a Text attribute is matched by."""
    return list(dict.fromkeys(_WORD.findall(text.lower())))


def to_index_rows(attributes: SearchAttributes) -> Iterator[tuple[str, int, str, str | int | float]]:
    """``(name, ordinal, kind, value)`` for every value that can be searched by."""
    for name, stored in attributes.items():
        payload = from_stored(stored)
        try:
            value = msgspec.json.decode(payload.data)
        except (msgspec.DecodeError, UnicodeDecodeError):
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
            try:
                yield kind, to_micros(_decode_datetime(msgspec.json.encode(value)))
            except (msgspec.ValidationError, TypeError):
                return
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


class AttributeNames:
    """The names that are known to be in the table, so that they are not written again."""

    def __init__(self) -> None:
        self._known: set[tuple[str, str]] = set()

    def __contains__(self, name: tuple[str, str]) -> bool:
        return name in self._known

    def add(self, rows: list[Any]) -> None:
        """Note the names in `rows`, a flat list of namespace, name and kind."""
        self._known.update(zip(rows[0::3], rows[1::3], strict=True))


def list_search_attributes(connection: sqlite3.Connection, namespace: str) -> dict[str, str]:
    """The names in use in a namespace, with the type each was first given."""
    sql = "SELECT name, kind FROM search_attribute_names WHERE namespace = ? ORDER BY name"
    return dict(fetch_all(connection, sql, (namespace,)))
