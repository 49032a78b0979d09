"""Write the pages of the documentation that are made from the code and from tables.

A test compares what lies in ``docs/`` with what this gives, so a page can be neither forgotten nor edited by hand.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from clew.model.rejection import RejectionCode
from clew.service.errors import CODE_TABLE, CodeEntry
from scripts.cli_page import cli_lines

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


PAGES: dict[Path, Callable[[], str]] = {
    DOCS / "glossary.md": glossary_page,
    DOCS / "reference" / "cli.md": cli_page,
    DOCS / "reference" / "errors.md": errors_page,
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
