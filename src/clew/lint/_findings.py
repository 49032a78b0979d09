"""What is reported, and the comments that keep it quiet.

Owns: `Finding`, and reading suppressions. Never: decides what is wrong.
"""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final, final

from clew.lint._rules import RULES

_IGNORE: Final = re.compile(r"#\s*clew:\s*ignore(?P<file>-file)?\b(?:\[(?P<codes>[^\]]*)\])?")
_NOQA: Final = re.compile(r"#\s*noqa\b(?P<has_codes>:\s*(?P<codes>[A-Z]+\d+(?:[,\s]+[A-Z]+\d+)*))?", re.IGNORECASE)

ALL: Final = frozenset(RULES)


@final
@dataclass(frozen=True, slots=True, order=True)
class Finding:
    """Something `clew lint` reports.

    Args:
        path: The file, as it was given or as seen from the current directory.
        line: From 1.
        column: From 1.
        code: Of the rule.
        message: What was found, and why that is wrong.
        remedy: What to do.
        via: How workflow code gets there, outermost first; empty where it stands in the workflow itself.
    """

    path: str
    line: int
    column: int
    code: str
    message: str
    remedy: str
    via: tuple[str, ...] = ()

    @property
    def rule_name(self) -> str:
        """The name of the rule, in words."""
        return RULES[self.code].name


@final
class Suppressions:
    """The comments of one file that ask for silence.

    ``# clew: ignore[CLW101]`` and ``# noqa: CLW101`` are for their line, or, at the first line of a statement, for all
    its lines; without codes for every finding there. ``# clew: ignore-file[CLW101]`` anywhere is for the whole file.
    """

    def __init__(self, text: str) -> None:
        self._of_file: set[str] = set()
        self._of_lines: dict[int, Collection[str]] = {}
        if "clew:" not in text and "noqa" not in text.lower():
            return
        try:
            for token in tokenize.generate_tokens(io.StringIO(text).readline):
                if token.type == tokenize.COMMENT:
                    self._take(token.string, token.start[0])
        except (tokenize.TokenError, SyntaxError):
            return  # The file is reported as unreadable.

    def silences(self, code: str, lines: Collection[int]) -> bool:
        """Whether a finding that concerns these lines is not wanted."""
        return code in self._of_file or any(code in self._of_lines.get(line, ()) for line in lines)

    def _take(self, comment: str, line: int) -> None:
        ours = _IGNORE.search(comment)
        if ours is not None:
            codes = _codes(ours["codes"]) if ours["codes"] is not None else ALL
            if ours["file"]:
                self._of_file.update(codes)
            else:
                self._of_lines[line] = codes
            return
        theirs = _NOQA.search(comment)
        if theirs is not None:
            self._of_lines[line] = _codes(theirs["codes"]) if theirs["has_codes"] else ALL


def _codes(text: str) -> frozenset[str]:
    return frozenset(code.upper() for code in re.split(r"[,\s]+", text) if code)
