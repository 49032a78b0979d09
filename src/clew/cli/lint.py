"""``clew lint``: what no replay could repeat, found in the text of workflow code.

Owns: the command. Never: finds anything (``clew.lint`` does).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import click

from clew.cli._errors import LINT_FINDINGS, CommandError
from clew.cli._output import print_json, uses_colour
from clew.lint import RULES, Finding, check_paths, find_files

_EVERYTHING: Final = "."


@click.command("lint")
@click.argument("paths", nargs=-1, metavar="PATH...")
@click.option("--select", metavar="CODES", help="Report only these, such as CLW1 or CLW201,CLW202.")
@click.option("--ignore", metavar="CODES", help="Report all but these.")
@click.option("--exclude", multiple=True, metavar="PATTERN", help="Leave out files, such as 'tests/*'. Repeatable.")
@click.option("--explain", metavar="CODE", help="Print what a rule means, and check nothing.")
@click.option("--output", "-o", type=click.Choice(["table", "json"]), envvar="CLEW_OUTPUT", default="table")
def lint(
    paths: Sequence[str],
    select: str | None,
    ignore: str | None,
    exclude: Sequence[str],
    explain: str | None,
    output: str,
) -> int:
    """Find in workflow code what no replay could repeat. Nothing of the code is run.

    A PATH is a file or a directory; the current directory when there is none. Helpers are followed through the modules
    of the project. A comment `# clew: ignore[CLW101]` or `# noqa: CLW101` keeps a line quiet.
    """
    if explain is not None:
        _explain(explain)
        return 0
    given = [Path(path) for path in paths or [_EVERYTHING]]
    try:
        findings = check_paths(given, select=_codes(select), ignore=_codes(ignore), exclude=exclude)
        count = len(find_files(given, exclude))
    except FileNotFoundError as error:
        raise CommandError(str(error)) from error
    if output == "json":
        print_json({"files": count, "findings": [_facts(finding) for finding in findings]})
    else:
        for finding in findings:
            _print(finding)
        checked = f"{count} file{'' if count == 1 else 's'} checked"
        print(f"{checked}: {len(findings)} finding{'' if len(findings) == 1 else 's'}." if findings else f"{checked}.")
    return LINT_FINDINGS if findings else 0


def _codes(text: str | None) -> list[str]:
    codes = [code.strip().upper() for code in (text or "").split(",") if code.strip()]
    for code in codes:
        if not any(known.startswith(code) for known in RULES):
            raise CommandError(f"There is no rule {code!r}. There are: {', '.join(RULES)}.")
    return codes


def _explain(code: str) -> None:
    rule = RULES.get(code.upper())
    if rule is None:
        raise CommandError(f"There is no rule {code!r}. There are: {', '.join(RULES)}.")
    print(f"{rule.code} {rule.name}: {rule.finds}.\n\nWhy: {rule.reason}.\nWhat to do: {rule.remedy}")
    print("\nFor example:\n" + "\n".join(f"    {line}" for line in rule.example.splitlines()))


def _print(finding: Finding) -> None:
    code = click.style(finding.code, fg="red") if uses_colour() else finding.code
    print(f"{finding.path}:{finding.line}:{finding.column}: {code} {finding.message} {finding.remedy}")
    for step in finding.via:
        print(f"    called from {step}")


def _facts(finding: Finding) -> dict[str, Any]:
    return {
        "path": finding.path,
        "line": finding.line,
        "column": finding.column,
        "code": finding.code,
        "name": finding.rule_name,
        "message": finding.message,
        "remedy": finding.remedy,
        "via": list(finding.via),
    }
