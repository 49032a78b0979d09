"""Goes through workflow code, and through everything of the project that it calls.

Owns: what is still to be gone through, each function once, and how findings are made. Never: what a line means
(``_function`` does), which functions are workflow code from the start (``_entries``).
"""

from __future__ import annotations

import ast
import os
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, final

from clew.lint._entries import Entry, check_definitions, entries_of
from clew.lint._findings import Finding, Suppressions
from clew.lint._function import FunctionCheck
from clew.lint._project import Module, Project, ProjectClass, ProjectFunction
from clew.lint._rules import UNREADABLE, LintRule

_TELLING: Final = ("clew", "defn", "Interceptor")
"""A file with none of these defines neither a workflow nor an activity; most files of a project do not."""

_VIA_MAX: Final = 12
"""A chain of calls longer than that helps nobody; and it ends what calls itself through ever other classes."""


@final
@dataclass(frozen=True, slots=True)
class _Visit:
    function: ProjectFunction
    this: ProjectClass | None
    is_read_only: bool
    workflow: str
    via: tuple[str, ...]


@final
class Checker:
    """Checks files of one project.

    Args:
        files: Those whose workflows are checked.
        directories: Where else modules may be found.
    """

    def __init__(self, files: Iterable[Path], directories: Iterable[Path]) -> None:
        self.project = Project(files, directories)
        self._queue: deque[_Visit] = deque()
        self._seen: set[tuple[Path, int, int, bool]] = set()
        self._findings: dict[tuple[str, int, int, str], Finding] = {}
        self._suppressions: dict[Path, Suppressions] = {}
        self._at: _Visit | None = None

    def run(self) -> list[Finding]:
        """Give all findings, by file and line."""
        for module in self.project.checked_modules():
            if module.error is not None:
                self._report_unreadable(module, module.error)
            if not any(word in module.text for word in _TELLING):
                continue
            check_definitions(self.project, module, self.report_at)
            for entry in entries_of(self.project, module):
                self._add_entry(entry)
        while self._queue:
            visit = self._at = self._queue.popleft()
            FunctionCheck(
                self.project,
                visit.function,
                this=visit.this,
                is_read_only=visit.is_read_only,
                report=self._report_here,
                follow=self._follow,
            ).run()
        return sorted(self._findings.values())

    def report_at(self, module: Module, node: ast.AST, lines: Sequence[int], rule: LintRule, what: str) -> None:
        """Report something that stands for itself."""
        self._report(module, node, lines, rule, f"{what}: {rule.reason}.", ())

    def _add_entry(self, entry: Entry) -> None:
        self._add(_Visit(entry.function, entry.this, entry.is_read_only, entry.workflow, ()))

    def _add(self, visit: _Visit) -> None:
        node = visit.function.node
        # A method that is inherited is gone through once for each class: what `self` is differs.
        this = visit.this.node.lineno if visit.this is not None else 0
        key = (visit.function.module.path, node.lineno, this, visit.is_read_only)
        if key not in self._seen and len(visit.via) <= _VIA_MAX:
            self._seen.add(key)
            self._queue.append(visit)

    def _follow(self, function: ProjectFunction, this: ProjectClass | None, call: ast.AST) -> None:
        at = self._at
        assert at is not None, "calls are followed from within a function"
        line = getattr(call, "lineno", 0)
        step = f"{_qualified(at.function, at.this)} ({_shown(at.function.module.path)}:{line})"
        self._add(_Visit(function, this, at.is_read_only, at.workflow, (*at.via, step)))

    def _report_here(self, node: ast.AST, lines: Sequence[int], rule: LintRule, what: str) -> None:
        at = self._at
        assert at is not None, "findings are made within a function"
        message = f"{what} in workflow {at.workflow}: {rule.reason}."
        self._report(at.function.module, node, lines, rule, message, at.via)

    def _report(
        self, module: Module, node: ast.AST, lines: Sequence[int], rule: LintRule, message: str, via: tuple[str, ...]
    ) -> None:
        line, column = getattr(node, "lineno", 1), getattr(node, "col_offset", 0) + 1
        if self._suppressions_of(module).silences(rule.code, {line, *lines}):
            return
        path = _shown(module.path)
        finding = Finding(path, line, column, rule.code, message, rule.remedy, via)
        self._findings.setdefault((path, line, column, rule.code), finding)

    def _report_unreadable(self, module: Module, error: SyntaxError) -> None:
        message = f"This is no Python that can be read: {error.msg}."
        path, line, column = _shown(module.path), error.lineno or 1, error.offset or 1
        finding = Finding(path, line, column, UNREADABLE.code, message, UNREADABLE.remedy)
        self._findings[(path, line, column, UNREADABLE.code)] = finding

    def _suppressions_of(self, module: Module) -> Suppressions:
        found = self._suppressions.get(module.path)
        if found is None:
            found = self._suppressions[module.path] = Suppressions(module.text)
        return found


def _qualified(function: ProjectFunction, this: ProjectClass | None) -> str:
    owner = this.node.name if this is not None else function.owner.name if function.owner is not None else ""
    return f"{owner}.{function.node.name}" if owner else function.node.name


def _shown(path: Path) -> str:
    relative = os.path.relpath(path)
    return str(path) if relative.startswith("..") else relative
