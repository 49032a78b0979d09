"""Where the code of a run stands.

Owns: walking suspended coroutines, for people. Never: runs or changes anything.

How it works: a suspended task is a chain of coroutines, each awaiting the next. The innermost frame that is not ours
or asyncio's is the line a person wants; the name of what it called says what it waits for.
"""

from __future__ import annotations

import asyncio
import itertools
import linecache
from collections.abc import Iterable, Iterator
from types import CodeType, FrameType
from typing import Any, Final

from clew.replay.commands import is_internal, known_files
from clew.workflow._activities import execute_activity

LINES_MAX: Final = 20
"""Waiting coroutines listed for one run."""

TASKS_MAX: Final = 10 * LINES_MAX
"""Waiting tasks that are looked at for that list; a wide fan-out has thousands in one line."""

_HIDDEN: Final = frozenset(("__aenter__", "__aexit__", "_wait", "_bare_wait", "wait_for"))


_lines: Final[dict[tuple[str, CodeType, int], str]] = {}
"""What is said of each place where code waits; a program has few, and is asked at each answer. Any thread may write."""

_LINES_KEPT_MAX: Final = 4_096

_LEAF: Final = execute_activity.__code__
"""It awaits no code of the user, and most runs wait in it."""


def frames_of(task: asyncio.Task[Any]) -> Iterator[FrameType]:
    """Give the frames of a suspended task, outermost first."""
    coroutine: Any = task.get_coro()
    while coroutine is not None:
        frame = getattr(coroutine, "cr_frame", None) or getattr(coroutine, "gi_frame", None)
        if frame is None:
            frame = getattr(coroutine, "ag_frame", None)
        if frame is not None:
            yield frame
        coroutine = getattr(coroutine, "cr_await", None) or getattr(coroutine, "gi_yieldfrom", None)


def where(task: asyncio.Task[Any]) -> tuple[str, FrameType, CodeType] | None:
    """Give what a task waits for, and the frame of the user's code in which, with its code; None if it is in no such
    code."""
    what = "await"
    found: Any = None
    own: Any = None
    coroutine: Any = task.get_coro()
    try:
        while True:
            # Not its frame: the interpreter makes one when it is asked for, which costs more than all the rest.
            code = coroutine.cr_code
            internal = known_files.get(code.co_filename)
            if internal is None:
                internal = is_internal(code)
            if not internal:
                found, own, what = coroutine, code, "await"
            elif found is not None and what == "await":
                what = code.co_name
                if code is _LEAF:
                    break
            coroutine = coroutine.cr_await
    except AttributeError:
        pass  # Not a coroutine: what the innermost one awaits.
    frame: FrameType | None = None if found is None else found.cr_frame
    return None if frame is None else (what, frame, own)


def waiting_on(tasks: Iterable[asyncio.Task[Any]]) -> tuple[str, ...]:
    """Give one line, ``what @ file:line``, for each waiting task."""
    lines: dict[str, None] = {}
    for task in itertools.islice(tasks, TASKS_MAX):
        place = where(task)
        if place is not None:
            # A frame is asked for as little as possible: that is an audit event.
            what, frame, code = place
            line = _lines.get((what, code, frame.f_lasti))
            lines[_line_of(what, frame) if line is None else line] = None
            if len(lines) >= LINES_MAX:
                break
    return tuple(lines)


def _line_of(what: str, frame: FrameType) -> str:
    code = frame.f_code
    if len(_lines) >= _LINES_KEPT_MAX:
        _lines.clear()
    line = _lines[what, code, frame.f_lasti] = f"{what} @ {code.co_filename}:{frame.f_lineno} in {code.co_qualname}"
    return line


def stack_text(tasks: Iterable[asyncio.Task[Any]]) -> str:
    """Give the stacks of all waiting tasks, with source lines, as tracebacks look."""
    parts: list[str] = []
    for task in tasks:
        lines = [f"Stack of {task.get_name()} (most recent call last):"]
        for frame in frames_of(task):
            code = frame.f_code
            lines.append(f'  File "{code.co_filename}", line {frame.f_lineno}, in {code.co_qualname}')
            source = linecache.getline(code.co_filename, frame.f_lineno, frame.f_globals).strip()
            if source:
                lines.append(f"    {source}")
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def enhanced_stack(tasks: Iterable[asyncio.Task[Any]]) -> dict[str, Any]:
    """Give the same as data, with the source files, in the shape of the published query."""
    sources: dict[str, list[dict[str, Any]]] = {}
    stacks: list[dict[str, Any]] = []
    for task in tasks:
        locations: list[dict[str, Any]] = []
        for frame in frames_of(task):
            code = frame.f_code
            locations.append(
                {
                    "file_path": code.co_filename,
                    "line": frame.f_lineno,
                    "function_name": code.co_qualname,
                    "internal_code": is_internal(code),
                }
            )
            if not is_internal(code) and code.co_filename not in sources:
                text = "".join(linecache.getlines(code.co_filename, frame.f_globals))
                sources[code.co_filename] = [{"line_offset": 0, "content": text}]
        stacks.append({"locations": locations})
    return {"sdk": {"name": "clew", "version": ""}, "sources": sources, "stacks": stacks}
