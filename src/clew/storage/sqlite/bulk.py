"""Statements over many rows at once.

Owns: `BulkStatement`. Never: transactions.

How it works: the rows of one statement are bound as one flat list, and the number of rows is rounded up to one of a
few sizes with rows of padding, which the statement ignores, so that SQLite's compiled statements are found again. Many
rows in one call matter beside busy Python threads: see ``commit_views.sql``.
"""

from __future__ import annotations

import sqlite3
from typing import Any, Final

_SIZES: Final = (1, 2, 4, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256)
ROWS_MAX: Final = _SIZES[-1]
"""With 32 columns a row this stays far below SQLite's default of 32,766 variables a statement."""


class BulkStatement:
    """``head (?, …), (?, …), … tail`` for any number of rows of `width` columns; those added have `padding` in each."""

    def __init__(self, head: str, width: int, tail: str = "", *, padding: int | None = None) -> None:
        self.width = width
        self._padding = padding
        row = "(" + ", ".join("?" * width) + ")"
        self._sql = {size: f"{head} {', '.join([row] * size)}{tail}" for size in _SIZES}
        self._size_for = {n: next(size for size in _SIZES if size >= n) for n in range(1, ROWS_MAX + 1)}

    def sql_of(self, count: int) -> str:
        """The statement for exactly `count` rows, one of those sizes that need no padding."""
        return self._sql[count]

    def step_count(self, values: list[Any]) -> int:
        """How many calls `execute` makes."""
        return -(-len(values) // (self.width * ROWS_MAX))

    def execute(self, connection: sqlite3.Connection, values: list[Any]) -> None:
        """Run it over the rows that lie one behind the other in `values`."""
        width = self.width
        span = width * ROWS_MAX
        for start in range(0, len(values), span):
            part = values if len(values) <= span else values[start : start + span]
            count = len(part) // width
            size = self._size_for[count]
            if size != count:
                part = part + [self._padding] * ((size - count) * width)
            connection.execute(self._sql[size], part)


def insert_rows(table: str, columns: str, width: int, *, select: str | None = None) -> BulkStatement:
    """Insert rows, replacing those with the same key; `select` when columns need more than being copied."""
    chosen = select or ", ".join(f"column{n}" for n in range(1, width + 1))
    return BulkStatement(
        f"INSERT OR REPLACE INTO {table} ({columns}) SELECT {chosen} FROM (VALUES", width, ") WHERE column1 IS NOT NULL"
    )


def delete_rows(table: str, key: str, width: int) -> BulkStatement:
    """Delete the rows with these keys; one that is not there is no error."""
    return BulkStatement(f"DELETE FROM {table} WHERE ({key}) IN (VALUES", width, ")")
