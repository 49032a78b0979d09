"""The page about moving: its command does what it says, and the names it gives are there."""

from __future__ import annotations

import importlib
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "how-to" / "move-from-temporal.md").read_text(encoding="utf-8")
NAMES = sorted(set(re.findall(r"`(clew\.[A-Za-z0-9_.]+)`", PAGE)))


def find(name: str) -> Any:
    """What a dotted name stands for: the longest module in it, then attributes."""
    parts = name.split(".")
    for count in range(len(parts), 0, -1):
        try:
            found: Any = importlib.import_module(".".join(parts[:count]))
        except ModuleNotFoundError:
            continue
        for part in parts[count:]:
            found = getattr(found, part)
        return found
    raise AssertionError(f"no module in {name}")


@pytest.mark.parametrize("name", NAMES)
def test_a_name_on_the_page_is_there(name: str) -> None:
    assert find(name) is not None


def test_the_command_changes_all_imports_and_nothing_else(tmp_path: Path) -> None:
    (command,) = re.findall(r"```sh\n(.*?)\n```", PAGE, re.DOTALL)
    before = Path(__file__).parent / "programs"
    after = tmp_path / "programs"
    shutil.copytree(before, after, ignore=shutil.ignore_patterns("__pycache__"))
    subprocess.run(command, shell=True, cwd=tmp_path, check=True)
    for path in sorted(before.glob("*.py")):
        old, new = path.read_text(encoding="utf-8"), (after / path.name).read_text(encoding="utf-8")
        changed = [pair for pair in zip(old.splitlines(), new.splitlines(), strict=True) if pair[0] != pair[1]]
        assert changed
        assert all(a.replace("from temporalio", "from clew", 1) == b for a, b in changed)
        assert not re.search(r"^\s*(from|import) temporalio", new, re.MULTILINE)
