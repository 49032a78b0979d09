"""Finds in the text of workflow code what no replay could repeat, before anything runs.

Owns: `check_paths`, the rules and their findings. Never: imports or runs the code it reads.

How it works: starting from classes decorated with ``workflow.defn``, functions are followed through the modules of the
project to whatever they call. A call of something outside the project is looked up in the tables of the determinism
guard, which refuses the same at run time. Nothing is guessed: what the text does not tell is left to the guard.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from pathlib import Path

from clew.lint._checker import Checker
from clew.lint._findings import Finding
from clew.lint._rules import RULES, LintRule

__all__ = ["RULES", "Finding", "LintRule", "check_paths", "find_files"]

_SKIPPED = frozenset({"__pycache__", "node_modules", "site-packages", "build", "dist", "venv"})


def check_paths(
    paths: Iterable[Path], *, select: Collection[str] = (), ignore: Collection[str] = (), exclude: Collection[str] = ()
) -> list[Finding]:
    """Check files, and directories with all that is in them.

    Args:
        paths: Files and directories. Modules of the same project are followed, also those that are not among them.
        select: Codes to report, or beginnings of codes; all when empty.
        ignore: Codes, or beginnings of codes, not to report.
        exclude: Patterns of paths to leave out, as ``tests/*``.

    Raises:
        FileNotFoundError: There is no such file or directory.
    """
    given = list(paths)
    checker = Checker(find_files(given, exclude), [path for path in given if path.is_dir()])
    findings = checker.run()
    chosen = tuple(select) or ("CLW",)
    return [
        finding
        for finding in findings
        if finding.code.startswith(chosen) and not (ignore and finding.code.startswith(tuple(ignore)))
    ]


def find_files(paths: Iterable[Path], exclude: Collection[str] = ()) -> list[Path]:
    """Give the Python files that are meant by some paths, in order.

    Raises:
        FileNotFoundError: There is no such file or directory.
    """
    files: dict[Path, None] = {}
    for path in paths:
        if path.is_dir():
            found = sorted(path.rglob("*.py"))
            files.update(dict.fromkeys(one for one in found if not _is_skipped(one.relative_to(path))))
        elif path.is_file():
            files[path] = None
        else:
            raise FileNotFoundError(f"There is no file or directory {str(path)!r} to check.")
    return [path for path in files if not any(path.match(pattern) for pattern in exclude)]


def _is_skipped(relative: Path) -> bool:
    return any(part.startswith(".") or part in _SKIPPED for part in relative.parts[:-1])
