"""Rules about the files of the repository that no linter checks."""

from __future__ import annotations

import ast
import importlib
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest

import clew

ROOT = Path(__file__).resolve().parents[2]
PUBLIC_MODULES = [
    "clew.activity",
    "clew.client",
    "clew.common",
    "clew.converter",
    "clew.exceptions",
    "clew.service",
    "clew.testing",
    "clew.worker",
    "clew.workflow",
]
TEXT_SUFFIXES = {".css", ".html", ".js", ".json", ".md", ".py", ".sh", ".sql", ".toml", ".txt", ".yaml", ".yml"}


def repository_files() -> list[Path]:
    """What git tracks, or everything but caches where there is no git (a source distribution)."""
    try:
        listing = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True, text=True).stdout
    except (FileNotFoundError, subprocess.CalledProcessError):
        return [path for path in ROOT.rglob("*") if path.is_file() and not _is_hidden(path.relative_to(ROOT))]
    return [path for name in listing.split("\0") if name and (path := ROOT / name).is_file()]


def _is_hidden(path: Path) -> bool:
    return any(part.startswith(".") or part == "__pycache__" for part in path.parts)


def text_files() -> list[Path]:
    return [path for path in repository_files() if path.suffix in TEXT_SUFFIXES or path.name in {"Makefile", "run"}]


def source_files() -> list[Path]:
    return [path for path in repository_files() if path.suffix == ".py" and path.is_relative_to(ROOT / "src")]


def test_there_is_something_to_check() -> None:
    assert len(source_files()) > 20
    assert len(text_files()) > len(source_files())


@pytest.mark.parametrize("name", PUBLIC_MODULES)
def test_public_module_says_what_is_public(name: str) -> None:
    module = importlib.import_module(name)
    exported = module.__all__
    assert len(set(exported)) == len(exported), f"{name}.__all__ has duplicates"
    missing = [item for item in exported if not hasattr(module, item)]
    assert not missing, f"{name}.__all__ names what is not there: {missing}"


@pytest.mark.parametrize("name", PUBLIC_MODULES)
def test_public_functions_and_classes_have_docstrings(name: str) -> None:
    module = importlib.import_module(name)
    ours = [
        (item, value)
        for item in module.__all__
        if (callable(value := getattr(module, item)) and getattr(value, "__module__", "").startswith("clew"))
    ]
    bare = [item for item, value in ours if not (value.__doc__ or "").strip()]
    assert not bare, f"public names of {name} without a docstring: {bare}"


def test_every_module_imports() -> None:
    found = pkgutil.walk_packages(clew.__path__, "clew.")
    names = [info.name for info in found if not info.name.endswith(".__main__")]
    code = "import importlib, sys\nfor name in sys.argv[1:]: importlib.import_module(name)"
    # In a process of its own: importing must not depend on what other tests have imported before.
    subprocess.run([sys.executable, "-W", "error", "-c", code, *names], check=True, timeout=60, cwd=ROOT / "src")


def test_every_module_says_what_it_is_for() -> None:
    bare = [
        str(path.relative_to(ROOT))
        for path in source_files()
        if (text := path.read_text(encoding="utf-8")).strip() and ast.get_docstring(ast.parse(text)) is None
    ]
    assert not bare, f"modules without a docstring: {bare}"


def test_no_paths_of_one_machine() -> None:
    pattern = re.compile(r"(?<![\w.])/(?:work|home/\w+|Users/\w+|root)/")
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()[:80]}"
        for path in text_files()
        if path != Path(__file__)
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if pattern.search(line)
    ]
    assert not found, "\n".join(found)


def test_relative_links_in_documentation_lead_somewhere() -> None:
    links = [
        (page, target)
        for page in repository_files()
        if page.suffix == ".md"
        for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))
        if "://" not in target
    ]
    assert links
    broken = [f"{page.relative_to(ROOT)}: {target}" for page, target in links if not (page.parent / target).exists()]
    assert not broken, "\n".join(broken)
