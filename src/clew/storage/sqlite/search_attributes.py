"""The names of search attributes that a namespace uses.

Owns: which names are known, and their table. Never: refuses a value (the engine does), or makes rows of one
(``storage.values``).
"""

from __future__ import annotations

import sqlite3
from typing import Any

from clew.storage.sqlite.rows import fetch_all


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
