"""Name the files that have grown past what one can read at a sitting; a hint, not a check."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("src", "tests", "examples", "benchmarks", "scripts")
LINES_WARNED = 500
"""From here on a file is probably two (CONTRIBUTING)."""


def long_files() -> list[tuple[int, str]]:
    """Lines and name of each such file, longest first."""
    paths = (path for folder in FOLDERS for path in (ROOT / folder).rglob("*") if path.suffix in {".py", ".sql"})
    sizes = ((len(path.read_text(encoding="utf-8").splitlines()), str(path.relative_to(ROOT))) for path in paths)
    return sorted((size for size in sizes if size[0] > LINES_WARNED), reverse=True)


if __name__ == "__main__":
    for line_count, name in long_files():
        print(f"long file: {name}, {line_count} lines")
