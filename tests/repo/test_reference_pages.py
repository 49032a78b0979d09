"""Pages that are made from the code, or that state facts about it, say what the code does."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from clew.core.idempotency import idempotency_key
from clew.model.rejection import RejectionCode
from clew.service.errors import CODE_TABLE
from scripts.generate_docs import DOCS, PAGES


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_generated_page_is_fresh(path: Path) -> None:
    assert path.read_text(encoding="utf-8") == PAGES[path](), f"{path.name} is stale; run `make docs`"


def test_every_rejection_code_is_in_the_table_once() -> None:
    assert set(CODE_TABLE) == set(RejectionCode)
    anchors = [entry.anchor for entry in CODE_TABLE.values()]
    assert len(set(anchors)) == len(anchors)


def test_every_rejection_code_is_explained() -> None:
    texts = tomllib.loads((DOCS / "_errors.toml").read_text(encoding="utf-8"))
    assert set(texts) == {code.value for code in RejectionCode}
    assert all(text["means"] and text["do"] for text in texts.values())


def _vectors() -> list[list[str]]:
    page = (DOCS / "reference" / "idempotency-keys.md").read_text(encoding="utf-8")
    rows = page[page.index("## Test vectors") :].splitlines()
    cells = [[cell.strip().strip("`") for cell in row.strip("|").split("|")] for row in rows if row.startswith("| `")]
    return [["" if cell == "(empty)" else cell for cell in row] for row in cells]


def test_idempotency_vectors_are_all_read() -> None:
    assert len(_vectors()) == 7


@pytest.mark.parametrize("vector", _vectors(), ids=lambda vector: vector[-1][:8])
def test_idempotency_vector(vector: list[str]) -> None:
    secret, workflow_id, activity_id, generation, key = vector
    assert idempotency_key(bytes.fromhex(secret), workflow_id, activity_id, generation) == key


def test_every_decision_is_in_the_index() -> None:
    index = (DOCS / "adr" / "README.md").read_text(encoding="utf-8")
    missing = [path.name for path in sorted((DOCS / "adr").glob("0*.md")) if f"({path.name})" not in index]
    assert not missing, f"docs/adr/README.md does not list {missing}"


def test_every_page_is_in_the_table_of_contents() -> None:
    contents = (DOCS / "README.md").read_text(encoding="utf-8")
    pages = [path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md") if path.parent.name != "adr"]
    missing = sorted(page for page in pages if page != "README.md" and f"({page})" not in contents)
    assert not missing, f"docs/README.md does not lead to {missing}"
