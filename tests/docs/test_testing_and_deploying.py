"""What the pages on testing and deploying show is done: files are written, commands run, outputs compared.

A block of Python names its file in its first line. In a block of ``console`` each line after ``$`` is run, and what
follows is its output; ``…`` stands for anything, on a line of its own for any lines.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = ["test-workflows.md", "deploy-safely.md"]
EXIT_CODES = {"clew lint": 1, "clew deploy check --store sqlite:claims.db --module claims_mended": 17, "careless": 1}


@pytest.mark.parametrize("name", PAGES)
def test_page(name: str, tmp_path: Path) -> None:
    text = (ROOT / "docs" / "how-to" / name).read_text(encoding="utf-8")
    commands_count = 0
    for kind, block in re.findall(r"^```(python|console)\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
        if kind == "python":
            file_name = re.match(r"# (\w+\.py)\n", block)
            assert file_name, f"the block does not name its file: {block[:60]!r}"
            (tmp_path / file_name[1]).write_text(block, encoding="utf-8")
            continue
        for command, expected in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", block, re.MULTILINE):
            done = run(command, tmp_path)
            wanted = next((code for part, code in EXIT_CODES.items() if part in command), 0)
            assert done.returncode == wanted, f"{command}\n{done.stdout}\n{done.stderr}"
            assert re.fullmatch(pattern_of(expected), done.stdout), f"{command}\n{done.stdout}"
            commands_count += 1
    assert commands_count


def run(command: str, directory: Path) -> subprocess.CompletedProcess[str]:
    command, _, target = command.partition(" > ")
    program, *arguments = shlex.split(command)
    modules = {"clew": ["-m", "clew.cli"], "pytest": ["-m", "pytest", "-p", "clew.pytest_plugin"], "python": []}
    done = subprocess.run(
        [sys.executable, *modules[program], *arguments],
        cwd=directory,
        env={key: value for key, value in os.environ.items() if not key.startswith(("PYTEST", "CLEW"))}
        | {"PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    if target:
        (directory / target).write_text(done.stdout, encoding="utf-8")
        done.stdout = ""
    return done


def pattern_of(expected: str) -> str:
    lines = [".*" if line == "…" else re.escape(line).replace("…", "[^\n]*") for line in expected.splitlines()]
    return "(?s)" + "\n".join(lines).replace(".*\n", ".*") + "\n*"
