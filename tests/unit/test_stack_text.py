"""Stacks as text: what Python prints, without the marks for which it parses lines."""

from __future__ import annotations

import ast
import traceback

import pytest

from clew.stack_text import error_text, stack_text


def fail(value: object) -> None:
    raise ValueError("inner") if value else KeyError("group")


def failed() -> BaseException:
    try:
        try:
            fail(1)
        except ValueError as inner:
            raise ExceptionGroup("outer", [RuntimeError("one"), inner]) from inner
    except ExceptionGroup as group:
        return group


def test_an_error_is_told_with_its_causes_and_parts_and_nothing_is_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    error = failed()
    expected = "".join(traceback.format_exception(error))

    def parse(*args: object, **kwargs: object) -> None:
        raise SystemError("AST constructor recursion depth mismatch")

    monkeypatch.setattr(ast, "parse", parse)
    text = error_text(error)
    marks = ("^", "~")
    assert [line for line in text.splitlines() if not set(line.strip(" |")) <= set("".join(marks))] == [
        line for line in expected.splitlines() if not set(line.strip(" |")) <= set("".join(marks))
    ]
    assert "^^^" not in text
    assert "The above exception was the direct cause" in text
    assert stack_text(traceback.extract_tb(error.__traceback__)).startswith(f'  File "{__file__}", line ')
