"""Stacks as text, without the marks below a line that say which part of it was meant.

Owns: `stack_text` and `error_text`. Never: which frames are shown.

How it works: for those marks Python 3.11 parses each line, and two threads that parse at once may meet a fault of that
version: "AST constructor recursion depth mismatch". With an engine, workflow threads and the program's own in one
process that does happen, and an error that is being told must not turn into another. Frames without columns have none.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterable


def stack_text(frames: Iterable[traceback.FrameSummary]) -> str:
    """The frames, as in a traceback."""
    return "".join(_without_columns(frames).format())


def error_text(error: BaseException) -> str:
    """An error with its traceback, and those it came from, as Python prints it."""
    told = traceback.TracebackException.from_exception(error)
    _strip(told)
    return "".join(told.format())


def _without_columns(frames: Iterable[traceback.FrameSummary]) -> traceback.StackSummary:
    bare: list[traceback.FrameSummary | tuple[str, int, str, str | None]] = [
        (frame.filename, frame.lineno or 0, frame.name, frame.line) for frame in frames
    ]
    return traceback.StackSummary.from_list(bare)


def _strip(told: traceback.TracebackException) -> None:
    left = [told]
    while left:
        one = left.pop()
        one.stack = _without_columns(one.stack)
        left += [part for part in (one.__cause__, one.__context__, *(one.exceptions or ())) if part is not None]
