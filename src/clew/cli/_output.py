"""What a command prints: tables for people, JSON for programs.

Owns: formats, widths, colour. Never: what is printed.

How it works: results go to stdout, everything else to stderr. Colour is used on a terminal only, and never when
``NO_COLOR`` is set. JSON is strict and UTF-8.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, Final

import click
import msgspec

from clew.common import WorkflowExecutionStatus

_STATUS_COLOURS: Final = {
    WorkflowExecutionStatus.RUNNING.value: "blue",
    WorkflowExecutionStatus.COMPLETED.value: "green",
    WorkflowExecutionStatus.FAILED.value: "red",
    WorkflowExecutionStatus.TIMED_OUT.value: "red",
    WorkflowExecutionStatus.TERMINATED.value: "yellow",
    WorkflowExecutionStatus.CANCELED.value: "yellow",
}


def print_json(value: Any) -> None:
    """Print one JSON document, indented."""
    print(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())


def print_json_line(value: Any) -> None:
    """Print one JSON document on one line."""
    print(msgspec.json.encode(value).decode())


def print_table(headers: Sequence[str], rows: Iterable[Sequence[str]], *, empty: str) -> None:
    """Print rows in columns; a column named STATUS is coloured.

    Args:
        headers: Names of the columns.
        rows: Their texts.
        empty: What to say, on stderr, when there are none.
    """
    shown = [[_one_line(cell) for cell in row] for row in rows]
    if not shown:
        print(empty, file=sys.stderr)
        return
    widths = [max(len(headers[at]), *(len(row[at]) for row in shown)) for at in range(len(headers))]
    print("  ".join(f"{header:<{width}}" for header, width in zip(headers, widths, strict=True)).rstrip())
    for row in shown:
        cells = [
            _coloured(f"{cell:<{width}}", cell if header == "STATUS" else "")
            for header, cell, width in zip(headers, row, widths, strict=True)
        ]
        print("  ".join(cells).rstrip())


def print_fields(fields: Iterable[tuple[str, str]]) -> None:
    """Print names with their values, one a line."""
    shown = list(fields)
    width = max(len(name) for name, _ in shown)
    for name, value in shown:
        print(f"{name + ':':<{width + 1}}  {_coloured(value, value)}")


def time_text(instant: datetime | None) -> str:
    """An instant for people: RFC 3339 in UTC, to the second."""
    return instant.strftime("%Y-%m-%dT%H:%M:%SZ") if instant is not None else "-"


def uses_colour() -> bool:
    """Whether stdout is a terminal whose user did not decline colour."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def _coloured(text: str, status: str) -> str:
    colour = _STATUS_COLOURS.get(status)
    return click.style(text, fg=colour) if colour is not None and uses_colour() else text


def _one_line(text: str) -> str:
    return " ".join(text.split())
