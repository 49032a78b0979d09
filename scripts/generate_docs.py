"""Write the pages of the documentation that are made from the code and from tables.

A test compares what lies in ``docs/`` with what this gives, so a page can be neither forgotten nor edited by hand.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from clew.lint import RULES, LintRule
from clew.model.rejection import RejectionCode
from clew.service.errors import CODE_TABLE, CodeEntry
from scripts.cases_page import render as cases_page
from scripts.cli_page import cli_lines
from scripts.http_page import http_lines, openapi_text
from scripts.metrics_page import metrics_lines
from scripts.permissions_page import permissions_lines
from scripts.proof_page import proof_lines
from scripts.server_page import server_lines

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"


def glossary_page() -> str:
    """The words, in alphabetical order."""
    words = _read_table("_words.toml")
    lines = ["# Glossary", "", "One word, one meaning; code, messages and documentation keep to them.", ""]
    lines += [f"- **{word}**: {words[word]['means']}" for word in sorted(words, key=str.casefold)]
    return _page("docs/_words.toml", lines)


def errors_page() -> str:
    """Every rejection code on every surface, and what to do about it."""
    texts = _read_table("_errors.toml")
    lines = [
        "# Errors",
        "",
        "A call that is refused says so with a stable code. The SDK raises `RPCError`, whose `code` is that code and",
        "whose `status` is the nearest on the scale of gRPC; the HTTP API answers with the HTTP status; the command",
        "`clew` ends with the exit code. Calls that may succeed later are marked *retryable*: the SDK repeats them.",
        "",
        "| code | gRPC status | HTTP | exit code | retryable |",
        "|---|---|---|---|---|",
    ]
    lines += [_code_row(code, entry) for code, entry in CODE_TABLE.items()]
    lines += ["", "## Exit codes of `clew`", "", "| exit code | codes |", "|---|---|", "| 0 | success |"]
    for exit_code in sorted({entry.exit_code for entry in CODE_TABLE.values()}):
        codes = [f"`{code.value}`" for code, entry in CODE_TABLE.items() if entry.exit_code == exit_code]
        lines.append(f"| {exit_code} | {', '.join(codes)} |")
    for code, entry in CODE_TABLE.items():
        text = texts[code.value]
        lines += ["", f'<a id="{entry.anchor}"></a>', "", f"## `{code.value}`", ""]
        lines += [text["means"], "", f"**What to do:** {text['do']}"]
    return _page("docs/_errors.toml and clew.service.errors", lines)


def cli_page() -> str:
    """Every command, with its options and exit codes."""
    return _page("clew.cli", cli_lines())


def permissions_page() -> str:
    """Which role may make which call."""
    return _page("clew.model.access and clew.server.security.calls", permissions_lines())


def http_api_page() -> str:
    """Every operation of the HTTP API."""
    return _page("clew.server.api.table", http_lines())


def metrics_page() -> str:
    """Every metric of the server."""
    return _page("clew.server.metrics", metrics_lines())


def server_page() -> str:
    """The server and its settings."""
    return _page("clew.server.settings", server_lines())


LINT_INTRODUCTION = """\
`clew lint PATH…` reads workflow code and reports what no replay could repeat, before anything runs. It starts from the
classes decorated with `workflow.defn`, follows the functions they call through the modules of your project, and imports
nothing. Rules of the first group have the texts of the determinism guard, which refuses the same calls at run time;
what the text of a program does not tell is left to the guard.

A finding is `file:line:column: CODE what and why. What to do`, with the calls that lead there. `--output json` gives
the same to programs. The exit code is 0 without findings, 1 with some, 2 for wrong usage.

A comment keeps a line quiet: `# clew: ignore[CLW101]`, or `# noqa: CLW101`; without codes, for all findings. On the
first line of a statement it is for all of its lines; `# clew: ignore-file[CLW101]` is for the file. Blocks under `with
workflow.unsafe.sandbox_unrestricted():` and the other side of `if workflow.in_workflow():` are left out.

The repository has a hook `clew-lint` for pre-commit. With the command installed, this does the same:

```yaml
repos:
  - repo: local
    hooks:
      - id: clew-lint
        name: clew lint
        entry: clew lint
        language: system
        types: [python]
        require_serial: true
```
"""

LINT_GROUPS = {
    "0": "The file itself",
    "1": "Calls that no replay can repeat",
    "2": "Code whose outcome depends on more than history",
    "3": "Definitions and uses that cannot work as meant",
}


def lint_page() -> str:
    """Every rule of `clew lint`."""
    lines = ["# clew lint", "", *LINT_INTRODUCTION.splitlines()]
    for digit, title in LINT_GROUPS.items():
        lines += ["", f"## {title}"]
        for rule in RULES.values():
            if rule.code[3] == digit:
                lines += _lint_rule_lines(rule)
    return _page("clew.lint", lines)


def _lint_rule_lines(rule: LintRule) -> list[str]:
    return [
        "", f"### {rule.code}: {rule.name}", "", f"Finds {rule.finds}: {rule.reason}.", "", "```python",
        *rule.example.splitlines(), "```", "", rule.remedy,
    ]  # fmt: skip


def proof_page() -> str:
    """The numbers that the long tests have left behind."""
    return "\n".join([*proof_lines(), ""])


PAGES: dict[Path, Callable[[], str]] = {
    DOCS / "glossary.md": glossary_page,
    DOCS / "reference" / "cases.md": cases_page,
    DOCS / "reference" / "cli.md": cli_page,
    DOCS / "reference" / "errors.md": errors_page,
    DOCS / "reference" / "http-api.md": http_api_page,
    DOCS / "reference" / "lint.md": lint_page,
    DOCS / "reference" / "permissions.md": permissions_page,
    DOCS / "reference" / "metrics.md": metrics_page,
    DOCS / "reference" / "proof.md": proof_page,
    DOCS / "reference" / "openapi.json": openapi_text,
    DOCS / "reference" / "server.md": server_page,
}
"""Every generated page."""


def _code_row(code: RejectionCode, entry: CodeEntry) -> str:
    retryable = "yes" if entry.is_retryable else ""
    link = f"[`{code.value}`](#{entry.anchor})"
    return f"| {link} | {entry.status.name} | {entry.http_status} | {entry.exit_code} | {retryable} |"


def _read_table(name: str) -> dict[str, dict[str, Any]]:
    return tomllib.loads((DOCS / name).read_text(encoding="utf-8"))


def _page(source: str, lines: list[str]) -> str:
    return "\n".join([f"<!-- Generated from {source} by `make docs`; do not edit. -->", "", *lines, ""])


def main() -> None:
    """Write every page."""
    for path, make in PAGES.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(make(), encoding="utf-8")
        print(path.relative_to(ROOT))


if __name__ == "__main__":
    main()
