"""The tour names files and symbols that exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TOUR = (ROOT / "docs" / "tour.md").read_text(encoding="utf-8")
STOPS = re.findall(r"`(src/[\w/]+\.py)(?: → ([\w.]+))?`", TOUR)


def defined_names(tree: ast.Module | ast.ClassDef) -> dict[str, ast.AST]:
    return {
        node.name: node for node in tree.body if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
    }


def test_the_tour_has_ten_stops() -> None:
    assert len(re.findall(r"^## \d+\.", TOUR, re.MULTILINE)) == 10
    assert len(STOPS) > 20


@pytest.mark.parametrize(("file", "symbol"), STOPS)
def test_stop_exists(file: str, symbol: str) -> None:
    scope: ast.AST = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    for name in symbol.split(".") if symbol else []:
        assert isinstance(scope, ast.Module | ast.ClassDef)
        names = defined_names(scope)
        assert name in names, f"{file} has no {symbol}"
        scope = names[name]
