"""Programs written for the Temporal Python SDK, run here with nothing changed but the name of the package they import.

Each file in ``programs/`` is such a program: `main` takes the address of a server and gives what it saw, `EXPECTED`.
"""

from __future__ import annotations

import ast
import asyncio
import sys
import types
from collections.abc import Iterator
from pathlib import Path

import pytest

PROGRAMS = sorted((Path(__file__).parent / "programs").glob("*.py"))
OTHER = "temporalio"
OURS = "clew"
SECONDS_MAX = 60.0


class _Imports(ast.NodeTransformer):
    """Renames the package in import statements, and nowhere else."""

    def __init__(self) -> None:
        self.renamed_count = 0

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.ImportFrom:
        if node.module is not None and node.module.split(".")[0] == OTHER:
            node.module = OURS + node.module.removeprefix(OTHER)
            self.renamed_count += 1
        return node

    def visit_Import(self, node: ast.Import) -> ast.Import:
        assert not any(alias.name.split(".")[0] == OTHER for alias in node.names), "the programs import with `from`"
        return node


def load(path: Path) -> types.ModuleType:
    """The program as a module, importing from here."""
    imports = _Imports()
    tree = imports.visit(ast.parse(path.read_text(encoding="utf-8"), str(path)))
    assert imports.renamed_count, f"{path.name} imports nothing from {OTHER}"
    module = types.ModuleType(f"compat_{path.stem}")
    module.__file__ = str(path)
    sys.modules[module.__name__] = module
    exec(compile(tree, str(path), "exec"), module.__dict__)
    return module


@pytest.fixture(autouse=True)
def _forget_programs() -> Iterator[None]:
    yield
    for name in [name for name in sys.modules if name.startswith("compat_")]:
        del sys.modules[name]


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.stem)
async def test_a_program_runs_with_only_its_imports_changed(path: Path, tmp_path: Path) -> None:
    program = load(path)
    async with asyncio.timeout(SECONDS_MAX):
        seen = await program.main(f"sqlite:{tmp_path / 'store.db'}")
    assert seen == program.EXPECTED


def test_there_are_programs() -> None:
    assert len(PROGRAMS) >= 15
